"""Reading one table: what is a number, what is missing, and an answer for every bad file."""

import gzip
import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fedkin.data import tables
from fedkin.data.tables import Table, TableFormat, read_table
from fedkin.errors import InputError


def read(tmp_path, content, name="a.csv", **options) -> Table:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_table(path, "node 'a'", TableFormat(**options))


def parquet_bytes(**columns) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def test_numbers_texts_and_missing_cells(tmp_path):
    table = read(
        tmp_path,
        "age,sex,note,code\n 63 ,f,?,1e3\n?,m,NA,.5\nNaN,,n/a,-2\n,f,null,+7.\n",
    )
    np.testing.assert_array_equal(table.columns["age"], [63, np.nan, np.nan, np.nan])
    assert list(table.columns["sex"]) == ["f", "m", None, "f"]
    assert np.isnan(table.columns["note"]).all()
    np.testing.assert_array_equal(table.columns["code"], [1000, 0.5, -2, 7])
    assert table.where(3) == "line 5"


def test_a_cell_that_says_none_is_an_answer(tmp_path):
    assert list(read(tmp_path, "treatment,y\nnone,1\ndrug,0\n").columns["treatment"]) == [
        "none",
        "drug",
    ]


def test_quotes_byte_order_mark_windows_line_ends_and_blank_lines(tmp_path):
    table = read(tmp_path, '\ufeffa,b\r\n"x, ""y""\nz",1\r\n\r\nq,2\r\n')
    assert list(table.columns) == ["a", "b"]
    assert list(table.columns["a"]) == ['x, "y"\nz', "q"]
    assert table.where(1) == "line 5"


def test_files_without_a_header_line(tmp_path):
    named = read(tmp_path, "1,2\n3,4\n", names=("a", "b"))
    np.testing.assert_array_equal(named.columns["b"], [2, 4])
    numbered = read(tmp_path, "1,2\n3,4\n", header=False)
    np.testing.assert_array_equal(numbered.columns["column1"], [1, 3])


def test_separator_drop_only_and_missing_codes(tmp_path):
    content = "id;chol;age\nx1;0;0\nx2;230;44\n"
    table = read(tmp_path, content, separator=";", drop=("id",))
    assert list(table.columns) == ["chol", "age"]
    assert table.dropped == {"id"}
    assert list(read(tmp_path, content, separator=";", only=("age",)).columns) == ["age"]
    table = table.with_missing_codes({"chol": 0.0})
    np.testing.assert_array_equal(table.columns["chol"], [np.nan, 230])
    np.testing.assert_array_equal(table.columns["age"], [0, 44])


@pytest.mark.parametrize("separator", [";", "\t", "|"])
@pytest.mark.parametrize("mark", ["", "\ufeff", "\n \n"])
def test_the_header_line_tells_the_separator(tmp_path, separator, mark):
    content = "chol,age\n230,44\n0,51\n".replace(",", separator)
    table = read(tmp_path, mark + content)
    np.testing.assert_array_equal(table.columns["chol"], [230, 0])
    np.testing.assert_array_equal(table.columns["age"], [44, 51])
    # One table of several may be written in another way than was said of all.
    with_commas = read(tmp_path, mark + content.replace(separator, ","), separator=separator)
    np.testing.assert_array_equal(with_commas.columns["age"], [44, 51])


def test_only_a_header_line_tells_the_separator(tmp_path):
    """In a row of numbers, commas may be those of decimals."""
    columns = read(tmp_path, "1,5\n2,5\n", separator=";", header=False).columns
    assert list(columns) == ["column1"]
    assert list(read(tmp_path, "1;5\n2;5\n", names=("a",)).columns["a"]) == ["1;5", "2;5"]


def test_missing_codes_in_a_column_of_texts(tmp_path):
    table = read(tmp_path, "sex,y\nf,1\n9.0,2\n").with_missing_codes({"sex": 9.0, "y": -9.0})
    assert list(table.columns["sex"]) == ["f", None]
    np.testing.assert_array_equal(table.columns["y"], [1, 2])


def test_parquet_gives_the_same_table_as_csv(tmp_path):
    csv = read(tmp_path, "n,t,m,b,s\n1,x,,True,1.5\n?,y,,False,2\n")
    parquet = read(
        tmp_path,
        parquet_bytes(
            n=pa.array([1, None], pa.int32()),
            t=pa.array(["x", "y"]).dictionary_encode(),
            m=pa.nulls(2),
            b=[True, False],
            s=["1.5", " 2 "],
        ),
        name="a.parquet",
    )
    assert list(csv.columns) == list(parquet.columns)
    for name, values in csv.columns.items():
        np.testing.assert_array_equal(values, parquet.columns[name])
    assert parquet.where(1) == "row 2"


def test_the_index_that_pandas_writes_to_parquet_is_no_column(tmp_path):
    content = parquet_bytes(a=[1.0], __index_level_0__=[7])
    assert list(read(tmp_path, content, name="a.pq").columns) == ["a"]


def test_an_unusable_parquet_column_can_be_dropped(tmp_path):
    content = parquet_bytes(a=[1.0], when=pa.array([0], pa.timestamp("s")))
    with pytest.raises(InputError, match=r"'when' has the type timestamp.*--drop when"):
        read(tmp_path, content, name="a.parquet")
    assert list(read(tmp_path, content, name="a.parquet", drop=("when",)).columns) == ["a"]


GOOD_PARQUET = parquet_bytes(a=[1.0, 2.0, 3.0] * 50, b=["x", "y", "z"] * 50)

BAD_FILES = {
    "empty": ("a.csv", b"", "is empty"),
    "only blank lines": ("a.csv", b"\n \n", "is empty"),
    "no rows": ("a.csv", b"a,b\n", "column names but no rows"),
    "no rows in parquet": ("a.parquet", parquet_bytes(a=pa.array([], pa.int8())), "no rows"),
    "short row": ("a.csv", b"a,b\n1,2\n3\n", "line 3 has 1 cells, but there are 2 columns"),
    "long row": ("a.csv", b"a,b\n1,2\n3,4,5\n", "line 3 has 3 cells.*quotation marks"),
    "two separators": ("a.csv", b"a;b|c\n1;2|3\n", r"separated by ';'.*--separator"),
    "no header": ("a.csv", b"63.0,1.0,?\n1,2,3\n", "first line has numbers.*--columns"),
    "unnamed column": ("a.csv", b",a\n0,1\n", "column 1 has no name.*index=False"),
    "same name twice": ("a.csv", b"a,b,a\n0,1,2\n", "two columns called 'a'"),
    "open quote": ("a.csv", b'a,b\n1,"2\n3,4\n', "not valid CSV.*quotation marks"),
    "infinite": ("a.csv", b"a,b\n1,2\n3,inf\n", "'b' has inf in line 3"),
    "overflowing": ("a.csv", b"a,b\n1,2\n3,-1e999\n", "'b' has -inf in line 3"),
    "latin-1": ("a.csv", "a,b\n1,2\nä,3\n".encode("latin-1"), r"not UTF-8 text \(line 3\)"),
    "utf-16": ("a.csv", "a,b\n1,2\n".encode("utf-16"), "UTF-16"),
    "workbook": ("a.csv", b"PK\x03\x04rest", "Excel workbook"),
    "compressed": ("a.csv", gzip.compress(b"a,b\n1,2\n"), "compressed"),
    "binary": ("a.csv", b"a,b\n\x00\x01,2\n", "binary"),
    "text called parquet": ("a.parquet", b"a,b\n1,2\n", "not a Parquet file"),
    "truncated parquet": ("a.parquet", GOOD_PARQUET[:-40], "damaged"),
    "parquet without a head": ("a.parquet", GOOD_PARQUET[:4], "damaged"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_every_bad_file_is_named_and_explained(tmp_path, case):
    name, content, message = BAD_FILES[case]
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path, content, name=name)
    assert "node 'a'" in str(caught.value)
    assert name in str(caught.value)


def test_rows_are_packed_in_blocks_without_a_trace(tmp_path, monkeypatch):
    content = "x,c,late\n" + "".join(f"{row},é{row % 3},{row}\n" for row in range(6)) + ",?,06a\n"
    whole = read(tmp_path, content)
    monkeypatch.setattr(tables._PackedRecords, "BLOCK", 3)
    blocks = read(tmp_path, content)
    for name, values in whole.columns.items():
        np.testing.assert_array_equal(blocks.columns[name], values)
    assert blocks.columns["late"].tolist() == ["0", "1", "2", "3", "4", "5", "06a"]
    assert blocks.positions.tolist() == [2, 3, 4, 5, 6, 7, 8]


def test_missing_file_suggests_a_near_name(tmp_path):
    (tmp_path / "zurich.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"no file .*zurih\.csv; did you mean .*zurich\.csv"):
        read_table(tmp_path / "zurih.csv", "node 'a'")
    with pytest.raises(InputError, match="is a directory"):
        read_table(tmp_path, "node 'a'")


def test_column_names_given_for_a_file_that_has_them(tmp_path):
    with pytest.raises(InputError, match="already has a header line"):
        read(tmp_path, "a,b\n1,2\n", names=("a", "b"))
    with pytest.raises(InputError, match="2 columns, but 3 column names"):
        read(tmp_path, "1,2\n", names=("a", "b", "c"))
    with pytest.raises(InputError, match="two columns called 'a'"):
        TableFormat(names=("a", "a"))


def test_wrong_column_suggests_near_names(tmp_path):
    table = read(tmp_path, "age,Outcome\n1,2\n")
    with pytest.raises(InputError, match=r"no column 'outcme'; did you mean 'Outcome'\?"):
        table.column("outcme")
    with pytest.raises(InputError, match="no column 'zzz'; it has: 'age', 'Outcome'"):
        table.column("zzz")


def table_or_message(path, table_format) -> Table | str:
    try:
        return read_table(path, "node 'a'", table_format)
    except InputError as error:
        return str(error)


CSV_ALPHABET = st.sampled_from(
    [
        "a",
        "b",
        "1",
        "2.5",
        ",",
        ",",
        ",",
        ";",
        "\n",
        "\n",
        "\r",
        "\t",
        '"',
        "?",
        "nan",
        "inf",
        "1e999",
        "-",
        "_",
        "|",
        "ä",
        "\x00",
        "\ufeff",
    ]
).map(str.encode)
CSV_BYTES = st.one_of(
    st.binary(max_size=80),
    st.lists(CSV_ALPHABET | st.sampled_from([b" ", b"\xff"]), max_size=60).map(b"".join),
)


@settings(
    max_examples=400,
    deadline=2000,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    content=CSV_BYTES,
    table_format=st.sampled_from(
        [
            TableFormat(),
            TableFormat(header=False),
            TableFormat(names=("a", "b")),
            TableFormat(separator=";"),
        ]
    ),
)
@example(content=b'"' + b"x" * 200_000, table_format=TableFormat())
@example(content=b"x" * 200_000 + b"\n1\n", table_format=TableFormat())
def test_arbitrary_bytes_give_a_table_or_an_answer(tmp_path, content, table_format):
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    answer = table_or_message(path, table_format)
    if isinstance(answer, str):
        assert 0 < len(answer) < 300 + len(str(path))
        return
    assert answer.rows > 0
    for name, values in answer.columns.items():
        assert name
        assert len(values) == answer.rows
        if values.dtype == np.float64:
            assert not np.isinf(values).any()
        else:
            assert all(cell is None or (cell and cell == cell.strip()) for cell in values)


@settings(
    max_examples=300,
    deadline=2000,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    position=st.integers(0, len(GOOD_PARQUET) - 1),
    value=st.integers(0, 255),
    cut=st.integers(0, len(GOOD_PARQUET)),
)
def test_damaged_parquet_gives_a_table_or_an_answer(tmp_path, position, value, cut):
    damaged = bytearray(GOOD_PARQUET)
    damaged[position] = value
    for content in (bytes(damaged), GOOD_PARQUET[:cut]):
        path = tmp_path / "a.parquet"
        path.write_bytes(content)
        answer = table_or_message(path, TableFormat())
        assert isinstance(answer, Table) or "node 'a'" in answer
