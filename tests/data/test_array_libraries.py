"""Arrays that NumPy reads at once, of whichever library: read once, in bulk, with the real libraries where they are."""

import dataclasses

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import ShapeError, StructureError
from tests.law import assert_same

ROWS = np.arange(8.0).reshape(2, 4)


class Stored:
    """An array on a disk: each read is counted."""

    def __init__(self, values):
        self.values, self.reads = values, 0
        self.shape = values.shape

    def __array__(self, dtype=None, copy=None):
        self.reads += 1
        return self.values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        raise AssertionError(f"row {index} is read by itself")

    def __iter__(self):
        raise AssertionError("the rows are read one by one")


class Typed(Stored):
    """One that also speaks Arrow, by which it would be flat."""

    @property
    def dtype(self):
        return self.values.dtype

    def __arrow_c_stream__(self, schema=None):
        raise AssertionError("Arrow has no arrays of more dimensions")


@dataclasses.dataclass
class Record(Stored):
    """One that is a dataclass, too."""

    values: np.ndarray
    reads: int = 0

    @property
    def shape(self):
        return self.values.shape


DOORS = {
    "collate": ab.collate,
    "from_examples": ab.MaskedBatch.from_examples,
    "Examples": lambda data: ab.Examples(data).batch,
    "a column": lambda data: ab.collate({"x": data})["x"],
    "minibatches": lambda data: ab.concat(list(ab.minibatches(data, 1))),
}


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
@pytest.mark.parametrize("kind", [Stored, Typed, Record])
def test_what_is_an_array_is_read_once(kind, door):
    stored = kind(ROWS)
    batch = door(stored)
    assert (stored.reads, batch.batch_size, batch.shape) == (1, 2, (4,))
    assert_same(batch.examples(), list(ROWS))


@pytest.mark.parametrize("kind", [Stored, Typed, Record])
def test_examples_that_are_such_arrays(kind):
    assert_same(ab.collate([kind(ROWS), kind(ROWS + 1)]).examples(), [ROWS, ROWS + 1])
    assert_same(ab.collate([{"x": kind(ROWS)}])["x"].examples(), [ROWS])
    assert_same(ab.collate([kind(ROWS), kind(ROWS[:1])]).examples(), [ROWS, ROWS[:1]])


def test_strings_and_rows_of_any_length_of_such_arrays():
    assert ab.collate(Stored(np.array(["a", "bc"]))).examples() == ["a", "bc"]
    ragged = np.empty(2, object)
    ragged[:] = [np.array([1, 2]), np.array([3])]
    assert_same(ab.collate(Stored(ragged)).examples(), list(ragged))
    with pytest.raises(ShapeError, match="without dimensions"):
        ab.collate(Stored(np.array(3.0)))


def test_xarray():
    xr = pytest.importorskip("xarray")
    array = xr.DataArray(ROWS, dims=("sample", "time"), coords={"sample": [10, 20]})
    for door in DOORS.values():
        assert_same(door(array).examples(), list(ROWS))
    assert_same(ab.collate(list(array)).examples(), list(ROWS))
    data = xr.Dataset({"x": array, "y": ("sample", np.array([1, 2]))})
    batch = ab.collate(data)
    assert list(batch) == ["x", "y"]
    rows = [{"x": x, "y": np.int64(y)} for x, y in zip(ROWS, (1, 2), strict=True)]
    assert_same(ab.examples(batch), rows)
    assert_same(ab.examples(ab.collate([data.isel(sample=0), data.isel(sample=1)])), rows)
    with pytest.raises(StructureError, match=r"variable 'w' lies along \('time',\).*ds\.transpose"):
        ab.collate(data.assign(w=("time", np.arange(4))))
    with pytest.raises(StructureError, match="without a field"):
        ab.collate(xr.Dataset())


def test_zarr():
    zarr = pytest.importorskip("zarr")
    array = zarr.array(ROWS)
    for door in DOORS.values():
        assert_same(door(array).examples(), list(ROWS))
    assert_same(ab.collate([array, array]).examples(), [ROWS, ROWS])
    group = zarr.group()
    group["x"], group["y"] = ROWS, np.array([1, 2])
    assert_same(ab.collate(group)["x"].examples(), list(ROWS))
    assert_same(ab.collate(group)["y"].examples(), [np.int64(1), np.int64(2)])


class Without:
    """An empty data set of h5py's."""

    shape = None
    dtype = np.dtype(np.float32)

    def __array__(self, dtype=None, copy=None):
        return np.zeros(self.shape, dtype)

    def __iter__(self):
        raise TypeError("Can't iterate over a scalar dataset")

    def __len__(self):
        return len(self.shape)


@pytest.mark.parametrize(
    "door",
    [
        ab.collate,
        lambda data: ab.collate([data, data]),
        lambda data: ab.collate([np.ones(2), data]),
        lambda data: ab.collate([2.0, data]),
        lambda data: ab.collate({"a": data}),
        lambda data: ab.collate([{"a": data}, {"a": data}]),
        ab.MaskedBatch,
        lambda data: ab.MaskedBatch.from_examples([data]),
        lambda data: ab.PackedBatch(data, [0]),
        lambda data: ab.PackedBatch.from_examples([data]),
        lambda data: list(ab.minibatches(data, 2)),
        ab.Examples,
        ab.EmbeddingTable,
        lambda data: ab.lookup(np.ones((3, 2)), data),
        lambda data: ab.segment_sum(data, [0]),
        lambda data: ab.nn.softmax(data),
    ],
)
def test_an_array_without_a_shape_says_so(door):
    with pytest.raises(ab.errors.UnsupportedError, match=r"a tests\.data\.\w+\.Without without a shape and data"):
        door(Without())


def test_h5py(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "data.h5", "w") as file:
        rows = file.create_dataset("rows", data=ROWS)
        bags = file.create_dataset("bags", (2,), dtype=h5py.vlen_dtype(np.int32))
        bags[0], bags[1] = [1, 2], []
        for door in DOORS.values():
            assert_same(door(rows).examples(), list(ROWS))
        assert_same(ab.collate(bags).examples(), [np.int32([1, 2]), np.int32([])])
        assert_same(ab.examples(ab.collate(file))[0], {"bags": np.int32([1, 2]), "rows": ROWS[0]})
