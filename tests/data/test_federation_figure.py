"""The picture of a federation: the numbers behind it, and files that can be opened."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image

from fedkin.data.federated import class_shares
from fedkin.data.scenarios import paper_scenario, sample_federation
from fedkin.data.sources import load_images
from fedkin.errors import InputError
from fedkin.report.federation_figure import draw_federation, save_figure
from fedkin.report.style import GROUP_COLORS


@pytest.fixture
def digits():
    return sample_federation(load_images("digits"), paper_scenario("digits", 4), "majority", 0)


def texts(figure) -> set[str]:
    return {text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))}


def test_shares_count_the_labels_that_nodes_hold(digits) -> None:
    shares = class_shares(digits)
    assert shares.shape == (17, 10)
    assert np.allclose(shares.sum(axis=1), 1)
    assert shares[3, 8] == np.mean(digits.nodes[3][1] == 8)
    assert shares[15, 1] == np.mean(digits.validation[1] == 1)
    assert shares[16, 5] == np.mean(digits.test[1] == 5)


def test_heat_map_shows_the_shares_in_the_order_of_merged_classes(digits) -> None:
    merged = paper_scenario("digits", 4).merged_classes
    figure = draw_federation(digits, merged)
    heat = figure.subfigs[0].axes[0].images[0].get_array()
    order = [2, 4, 6, 0, 3, 1, 8, 5, 7, 9]
    assert np.allclose(heat[:15], 100 * class_shares(digits)[:15, order])
    assert np.allclose(heat[16:], 100 * class_shares(digits)[15:, order])


def test_samples_are_images_of_the_node_under_that_label(digits) -> None:
    figure = draw_federation(digits, paper_scenario("digits", 4).merged_classes)
    axes = [each for each in figure.subfigs[1].axes if each.images]
    assert len(axes) == 10 * 2 * 2
    # First column: label 2. Rows 1 and 2 are of a minority node, 3 and 4 of a majority node.
    for row, node in ((0, 0), (2, 5)):
        images, labels = digits.nodes[node]
        expected = images[np.flatnonzero(labels == 2)[0], :, :, 0]
        assert np.array_equal(axes[row * 10].images[0].get_array(), expected)


def test_groups_have_the_colors_of_the_report(digits) -> None:
    """The target is the majority here: its nodes are those like the owner."""
    figure = draw_federation(digits, paper_scenario("digits", 4).merged_classes)
    colors = {
        tick.get_text(): tick.get_color() for tick in figure.subfigs[0].axes[0].get_yticklabels()
    }
    assert colors["majority-1"] == colors["test"] == GROUP_COLORS["similar"]
    assert colors["minority-1"] == GROUP_COLORS["dissimilar"]
    edges = [each.spines["left"] for each in figure.subfigs[1].axes if each.images]
    assert to_hex(edges[0].get_edgecolor()).upper() == GROUP_COLORS["dissimilar"]
    assert to_hex(edges[-1].get_edgecolor()).upper() == GROUP_COLORS["similar"]


def test_words_say_what_is_seen(digits) -> None:
    shown = texts(draw_federation(digits, paper_scenario("digits", 4).merged_classes))
    assert {"minority-5", "majority-10", "validation", "test", "C1", "C4"} <= shown
    assert any("target majority" in text for text in shown)
    assert any(f"turned {digits.description.rotation}" in text for text in shown)
    assert {"2 *", "4"} <= shown, "permuted labels have a star, others none"


def test_files_can_be_opened_and_are_the_same_every_time(digits, tmp_path: Path) -> None:
    merged = paper_scenario("digits", 4).merged_classes
    png, svg = save_figure(draw_federation(digits, merged), tmp_path / "one")
    with Image.open(png) as image:
        assert min(image.size) > 1000
        assert len(image.convert("RGB").getcolors(10**6) or []) > 50
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    again = save_figure(draw_federation(digits, merged), tmp_path / "two")
    assert [path.read_bytes() for path in again] == [png.read_bytes(), svg.read_bytes()]


def test_one_group_and_many_classes(coded_source, tmp_path: Path) -> None:
    setting = paper_scenario("tiny-imagenet32", 2)
    source = coded_source("tiny-imagenet32", 40)
    data = sample_federation(source, setting, "majority", 0, 0, 1, 60)
    figure = draw_federation(data, setting.merged_classes)
    save_figure(figure, tmp_path / "many")
    assert any("class 39" in text for text in texts(figure))


def test_directory_that_is_not_there(digits, tmp_path: Path) -> None:
    figure = draw_federation(digits, paper_scenario("digits", 4).merged_classes)
    with pytest.raises(InputError, match="cannot write"):
        save_figure(figure, tmp_path / "no" / "such" / "place")
