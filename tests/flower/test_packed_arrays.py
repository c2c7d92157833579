"""Many arrays travel as one, and nothing else passes for that."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedkin.flower import wire
from fedkin.flower.wire import FORMAT, PACKED, Parcel, Refusal, RefusedError

DRAW = np.random.default_rng(0)
MANY = {
    f"{owner}.{place}": DRAW.normal(size=shape).astype(np.float32)
    for owner in range(1, 6)
    for place, shape in enumerate([(7,), (3, 7), (0, 7)])
}


def test_many_arrays_are_one_and_come_back_as_they_were():
    packed = wire.pack("request", Parcel({"kind": "exchange"}, MANY))
    assert list(packed["vectors"]) == [PACKED]
    found = wire.unpack("request", packed, 21)
    assert found.values == {"kind": "exchange"}
    assert list(found.vectors) == list(MANY)
    for name, array in MANY.items():
        np.testing.assert_array_equal(found.vectors[name], array)
        assert found.vectors[name].shape == array.shape


def test_few_arrays_and_arrays_of_several_types_travel_by_themselves():
    few = dict(list(MANY.items())[: wire.MOST_SEPARATE])
    mixed = MANY | {"1.0": np.arange(7)}
    for vectors in (few, mixed):
        packed = wire.pack("request", Parcel({}, vectors))
        assert list(packed["vectors"]) == list(vectors)
        np.testing.assert_array_equal(
            wire.unpack("request", packed, 21).vectors["1.0"], vectors["1.0"]
        )


@pytest.mark.parametrize(
    "written",
    [
        "",
        7,
        "a=7",
        "a=7,b=8",
        "a=7,a=7",
        "a=7,b",
        "a=7,b=-7",
        "a=7,b=1x1x7",
        "a=7,b=7x",
        "a=7,b=99999999999999",
        "a=1,b=13",
        "a=14",
    ],
)
@pytest.mark.parametrize("names", [(PACKED,), (PACKED, "more"), ("other",), ()])
def test_what_pack_would_not_write_is_refused(written, names):
    arrays = {name: Array(np.ones(14, np.float32)) for name in names}
    content = RecordDict(
        {
            "request": ConfigRecord({"format": FORMAT, PACKED: written}),
            "vectors": ArrayRecord(arrays),
        }
    )
    with pytest.raises(RefusedError) as caught:
        wire.unpack("request", content, 7)
    assert caught.value.refusal == Refusal.INVALID


def test_a_packed_array_is_not_believed_before_its_size_is():
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (14,), }".ljust(117) + "\n"
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
    content = RecordDict(
        {
            "request": ConfigRecord({"format": FORMAT, PACKED: "a=7,b=7"}),
            "vectors": ArrayRecord({PACKED: Array("float32", (14,), "numpy.ndarray", data)}),
        }
    )
    with pytest.raises(RefusedError, match="cut off"):
        wire.unpack("request", content, 7)
