"""Parquet files and folders of images: what is read, and what is said of damaged ones."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from encoded_images import encode, parquet_table

from fedkin.data.sources import load_images
from fedkin.errors import InputError


def rewrite(directory: Path, part: str, table: pa.Table) -> None:
    pq.write_table(table, directory / f"{part}.parquet")


def test_parquet_comes_back_exactly(parquet_set: Path, pictures: np.ndarray) -> None:
    source = load_images(str(parquet_set))
    assert np.array_equal(source.train_images, pictures[:8, :, :, None])
    assert np.array_equal(source.test_images, pictures[8:, :, :, None])
    assert source.train_labels.tolist() == [0, 1] * 4
    assert source.classes == ("cat", "dog")


def test_shards_and_the_hubs_other_names_are_read(tmp_path: Path, pictures: np.ndarray) -> None:
    directory = tmp_path / "sharded" / "data"
    directory.mkdir(parents=True)
    for i, chosen in enumerate((pictures[:3], pictures[3:8])):
        table = parquet_table([encode(each) for each in chosen], [i] * len(chosen))
        table = table.rename_columns(["img", "fine_label"])
        pq.write_table(table, directory / f"train-0000{i}-of-00002.parquet")
    table = parquet_table([encode(each) for each in pictures[8:]], [0] * 4)
    pq.write_table(table.rename_columns(["img", "fine_label"]), directory / "validation-0.parquet")
    source = load_images(str(directory.parent))
    assert np.array_equal(source.train_images[..., 0], pictures[:8])
    assert source.train_labels.tolist() == [0] * 3 + [1] * 5
    assert source.classes == ("0", "1")


def test_text_labels_are_numbered_in_order(parquet_set: Path, pictures: np.ndarray) -> None:
    blobs = [encode(each) for each in pictures[:3]]
    rewrite(parquet_set, "train", parquet_table(blobs, ["pear", "apple", "pear"]))
    rewrite(parquet_set, "test", parquet_table(blobs[:1], ["pear"]))
    source = load_images(str(parquet_set))
    assert source.classes == ("apple", "pear")
    assert source.train_labels.tolist() == [1, 0, 1]
    rewrite(parquet_set, "test", parquet_table(blobs[:1], ["plum"]))
    with pytest.raises(
        InputError, match=r"label 'plum' .*not one of the training classes apple, pear"
    ):
        load_images(str(parquet_set))


def test_one_colored_image_makes_all_colored(parquet_set: Path, pictures: np.ndarray) -> None:
    red = np.zeros((5, 5, 3), np.uint8)
    red[..., 0] = 200
    blobs = [encode(pictures[0]), encode(red)]
    rewrite(parquet_set, "test", parquet_table(blobs, [0, 1], ["cat", "dog"]))
    source = load_images(str(parquet_set))
    assert source.train_images.shape == (8, 5, 5, 3)
    assert np.array_equal(source.train_images[0], np.repeat(pictures[0][..., None], 3, axis=2))
    assert np.array_equal(source.test_images[1], red)


def test_folders_of_images_are_read(tmp_path: Path, pictures: np.ndarray) -> None:
    for part, chosen in (("train", pictures[:8]), ("test", pictures[8:])):
        for i, each in enumerate(chosen):
            folder = tmp_path / "album" / part / ("b" if i % 2 else "a")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{i}.png").write_bytes(encode(each))
            (folder / "notes.txt").write_text("not an image")
    source = load_images(str(tmp_path / "album"))
    assert source.classes == ("a", "b")
    assert np.array_equal(source.train_images[..., 0], pictures[[0, 2, 4, 6, 1, 3, 5, 7]])
    assert source.test_labels.tolist() == [0, 0, 1, 1]
    broken = tmp_path / "album" / "test" / "b" / "9.png"
    broken.write_bytes(b"no image")
    with pytest.raises(InputError, match=r"test/b/9.png cannot be decoded"):
        load_images(str(tmp_path / "album"))
    broken.unlink()
    (tmp_path / "album" / "test" / "c").mkdir()
    (tmp_path / "album" / "test" / "c" / "1.png").write_bytes(encode(pictures[0]))
    with pytest.raises(InputError, match=r"test/c is a class that .*train does not have"):
        load_images(str(tmp_path / "album"))


def test_folder_without_images_or_parts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a data set: expected train"):
        load_images(str(tmp_path))
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    with pytest.raises(InputError, match="train has no images"):
        load_images(str(tmp_path))


def test_missing_part_is_named(parquet_set: Path) -> None:
    (parquet_set / "test.parquet").unlink()
    with pytest.raises(InputError, match=r"has no test.parquet"):
        load_images(str(parquet_set))


def test_empty_file(parquet_set: Path) -> None:
    (parquet_set / "test.parquet").write_bytes(b"")
    with pytest.raises(InputError, match=r"test.parquet is empty \(0 bytes\)"):
        load_images(str(parquet_set))


def test_file_that_is_no_parquet(parquet_set: Path) -> None:
    (parquet_set / "train.parquet").write_bytes(b"image,label\n1,2\n" * 10)
    with pytest.raises(InputError, match=r"train.parquet is not a readable Parquet file"):
        load_images(str(parquet_set))


def test_truncated_parquet(parquet_set: Path) -> None:
    path = parquet_set / "train.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"train.parquet is not a readable Parquet file"):
        load_images(str(parquet_set))


@pytest.mark.parametrize("start", range(4, 400, 9))
def test_damage_inside_a_parquet_file_never_gives_another_kind_of_error(
    parquet_set: Path, pictures: np.ndarray, start: int
) -> None:
    path = parquet_set / "train.parquet"
    content = bytearray(path.read_bytes())
    content[start : start + 8] = b"\xff" * 8
    path.write_bytes(bytes(content))
    try:
        shape = load_images(str(parquet_set)).train_images.shape
    except InputError as error:
        shape, said = None, str(error)
    else:
        said = ""
    assert shape == (8, 5, 5, 1) or str(parquet_set) in said


def test_no_rows(parquet_set: Path) -> None:
    table = pq.read_table(parquet_set / "test.parquet").slice(0, 0)
    rewrite(parquet_set, "test", table)
    with pytest.raises(InputError, match=r"test.parquet has no rows"):
        load_images(str(parquet_set))


@pytest.mark.parametrize(("column", "part"), [("image", "train"), ("label", "train")])
def test_missing_column_lists_those_there_are(parquet_set: Path, column: str, part: str) -> None:
    table = pq.read_table(parquet_set / f"{part}.parquet")
    renamed = ["other" if name == column else name for name in table.column_names]
    rewrite(parquet_set, part, table.rename_columns(renamed).replace_schema_metadata(None))
    with pytest.raises(InputError, match=rf"no column '{column}'; its columns are .*other"):
        load_images(str(parquet_set))


def test_column_missing_in_test_alone(parquet_set: Path) -> None:
    table = pq.read_table(parquet_set / "test.parquet").rename_columns(["image", "answer"])
    rewrite(parquet_set, "test", table)
    with pytest.raises(InputError, match=r"test.parquet has no column 'label'"):
        load_images(str(parquet_set))


def test_column_that_holds_no_images(parquet_set: Path) -> None:
    for part in ("train", "test"):
        rewrite(parquet_set, part, pa.table({"image": [1, 2], "label": [0, 1]}))
    with pytest.raises(InputError, match=r"column 'image' .* is of type int64, not encoded images"):
        load_images(str(parquet_set))


def test_corrupt_image_says_which(parquet_set: Path, pictures: np.ndarray) -> None:
    blobs = [encode(pictures[0]), encode(pictures[1])[:40]]
    rewrite(parquet_set, "test", parquet_table(blobs, [0, 1], ["cat", "dog"]))
    with pytest.raises(InputError, match=r"image 1 of .*test.parquet cannot be decoded"):
        load_images(str(parquet_set))


def test_missing_bytes(parquet_set: Path) -> None:
    rewrite(parquet_set, "test", parquet_table([None], [0], ["cat", "dog"]))
    with pytest.raises(InputError, match="row without the bytes of an image"):
        load_images(str(parquet_set))


def test_images_of_two_sizes(parquet_set: Path, pictures: np.ndarray) -> None:
    blobs = [encode(pictures[0]), encode(pictures[1][:4])]
    rewrite(parquet_set, "test", parquet_table(blobs, [0, 1], ["cat", "dog"]))
    with pytest.raises(InputError, match=r"image 1 of .* is 5x4 pixels but the first is 5x5"):
        load_images(str(parquet_set))


def test_parts_of_two_sizes(parquet_set: Path, pictures: np.ndarray) -> None:
    blobs = [encode(each[:4]) for each in pictures[:2]]
    rewrite(parquet_set, "test", parquet_table(blobs, [0, 1], ["cat", "dog"]))
    with pytest.raises(InputError, match=r"training images .* \(5, 5, 1\) but test images \(4, 5"):
        load_images(str(parquet_set))


def test_sixteen_bit_images_are_refused_not_clipped(parquet_set: Path) -> None:
    deep = np.full((5, 5), 40_000, np.uint16)
    rewrite(parquet_set, "train", parquet_table([encode(deep)] * 2, [0, 1], ["cat", "dog"]))
    with pytest.raises(InputError, match="more than 8 bits per channel"):
        load_images(str(parquet_set))


@pytest.mark.parametrize("label", [-1, 2, 2**40])
def test_label_without_a_class(parquet_set: Path, pictures: np.ndarray, label: int) -> None:
    blobs = [encode(each) for each in pictures[:2]]
    rewrite(parquet_set, "test", parquet_table(blobs, [0, label], ["cat", "dog"]))
    with pytest.raises(
        InputError, match=rf"row 1 of .* has label {label}, but there are 2 classes"
    ):
        load_images(str(parquet_set))


@pytest.mark.parametrize(
    ("labels", "message"),
    [([0, None], "without a label"), ([0.5, 1.0], "type double; they must be integers or text")],
)
def test_unusable_labels(
    parquet_set: Path, pictures: np.ndarray, labels: list[object], message: str
) -> None:
    blobs = [encode(each) for each in pictures[:2]]
    rewrite(parquet_set, "train", parquet_table(blobs, labels))
    with pytest.raises(InputError, match=message):
        load_images(str(parquet_set))


def test_broken_class_names(parquet_set: Path, pictures: np.ndarray) -> None:
    for part in ("train", "test"):
        rewrite(parquet_set, part, parquet_table([encode(pictures[0])] * 2, [0, 1]))
    (parquet_set / "classes.json").write_text('{"names": ["cat", "dog"]}')
    assert load_images(str(parquet_set)).classes == ("cat", "dog")
    (parquet_set / "classes.json").write_text('{"nam')
    with pytest.raises(InputError, match=r"classes.json cannot be read"):
        load_images(str(parquet_set))
