"""All arrays of a message travel as one value, and nothing else passes for that."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedkin.flower import wire
from fedkin.flower.wire import ARRAYS, CONTENT, FORMAT, Parcel, Refusal, RefusedError

DRAW = np.random.default_rng(0)
MANY = {
    f"{owner}.{place}": DRAW.normal(size=shape).astype(np.float32)
    for owner in range(1, 6)
    for place, shape in enumerate([(7,), (3, 7), (0, 7)])
}
TYPES = ["f2", "f4", "f8", ">f4", ">f8", "i1", "i8", ">i4", "u1", "u4", "?"]


def content(**values):
    return RecordDict({"request": ConfigRecord({"format": FORMAT, **values})})


def invalid(records, largest=7, match=None):
    with pytest.raises(RefusedError, match=match) as caught:
        wire.unpack("request", records, largest)
    assert caught.value.refusal == Refusal.INVALID


def test_many_arrays_come_back_as_they_were():
    found = wire.unpack("request", wire.pack("request", Parcel({"kind": "exchange"}, MANY)), 21)
    assert found.values == {"kind": "exchange"}
    assert list(found.vectors) == list(MANY)
    for name, array in MANY.items():
        np.testing.assert_array_equal(found.vectors[name], array)
        assert found.vectors[name].shape == array.shape


def test_a_message_is_one_record_however_many_arrays_it_has():
    """Flower moves every record and every array as an object of its own."""
    for vectors in ({}, MANY):
        packed = wire.pack("request", Parcel({"kind": "exchange"}, vectors))
        assert len(get_all_nested_objects(packed)) == 2  # the records, and the one that is in them


@hypothesis_settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.dictionaries(
        st.text("abcXYZ019./-_", min_size=1, max_size=9),
        st.sampled_from(TYPES).flatmap(
            lambda written: arrays.arrays(written, arrays.array_shapes(min_dims=0, max_dims=2))
        ),
        max_size=4,
    )
)
def test_arrays_of_every_type_and_shape_come_back(vectors):
    found = wire.unpack("request", wire.pack("request", Parcel({}, vectors)), 10_000).vectors
    assert list(found) == list(vectors)
    for name, array in vectors.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype.newbyteorder("=")
        found[name].fill(0)  # it is the reader's own


@pytest.mark.parametrize(
    "vectors",
    [
        {"a": np.array(["text"])},
        {"a": np.array([1j])},
        {"a": np.zeros((1, 1, 1))},
        {"a,b": np.ones(1)},
        {"a=b": np.ones(1)},
        {"": np.ones(1)},
        {"a": np.array([object()])},
    ],
)
def test_what_could_not_be_read_is_not_sent(vectors):
    with pytest.raises(ValueError, match="cannot be sent"):
        wire.pack("request", Parcel({}, vectors))


@pytest.mark.parametrize(
    "written",
    [
        "",
        7,
        [7.0],
        b"a=f4:14",
        "a=f4:7",
        "a=f4:7,b=f4:8",
        "a=f4:7,a=f4:7",
        "a=f4:7,b",
        "a=f4:7,b=f4:-7",
        "a=f4:7,b=f4:1x1x7",
        "a=f4:7,b=f4:7x",
        "a=f4:7,b=f4:99999999999999",
        "a=f4:7,b=f4:999999999x999999999",
        "a=f4:1,b=f4:13",
        "a=f4:14",
        "a=f4:7,b=f1:28",
        "a=f4:7,b=O:7",
        "a=f4:7,b=U7:1",
        "a=f4:7,b=>f4:7",
        "a=f4:7,=f4:7",
        "a=f4:7,b=f4:7,",
        "a=f4:7,b=f4:\u0667",
        "a=f4:7\n,b=f4:7",
    ],
)
def test_what_pack_would_not_write_is_refused(written):
    invalid(content(**{ARRAYS: written, CONTENT: bytes(56)}))


@pytest.mark.parametrize("size", [0, 1, 27, 29, 56])
def test_an_array_has_as_many_numbers_as_it_says(size):
    wire.unpack("request", content(**{ARRAYS: "a=f4:7", CONTENT: bytes(28)}), 7)
    invalid(content(**{ARRAYS: "a=f4:7", CONTENT: bytes(size)}), match="cut off or too long")


@pytest.mark.parametrize("numbers", ["text", 1.0, [1.0]])
def test_the_numbers_are_bytes(numbers):
    invalid(content(**{ARRAYS: "", CONTENT: numbers}), match="not the content")


def test_no_other_value_is_bytes():
    invalid(content(more=b"1234"), match="neither a number nor a text")


def test_numbers_without_a_description_are_refused():
    invalid(content(**{CONTENT: bytes(4)}), match="cut off or too long")


def test_there_is_one_record_of_values():
    array = ArrayRecord({"a": Array(np.ones(7, np.float32))})
    request = ConfigRecord({"format": FORMAT})
    invalid(RecordDict({"request": request, "vectors": array}), match="and no other")
    invalid(RecordDict({"request": array}), match="not a record of numbers and texts")
    invalid(RecordDict({"request": MetricRecord({"a": 1.0})}), match="not a record of numbers")
    invalid(RecordDict({}), match="and no other")
