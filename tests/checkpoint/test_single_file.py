"""`ab.save` and `ab.load`: the same tree again, to the bit, in a file that others read too."""

import collections
import dataclasses
import enum
import json
import os
import struct
import threading

import numpy as np
import pytest

import autobatch as ab
from autobatch.checkpoint import tensor_files
from autobatch.errors import CheckpointError, DTypeError, ShapeError, StructureError, UnsupportedError
from tests.law import assert_same, normal

Point = collections.namedtuple("Point", "x y")


class Colour(enum.Enum):
    RED = 1


class Names(dict):
    pass


class Layer:
    __slots__ = ("act", "w")

    def __init__(self, size):
        self.w, self.act = normal(size, size), np.tanh


class Model:
    def __init__(self, sizes):
        self.layers = [Layer(size) for size in sizes]
        self.emb = ab.EmbeddingTable(normal(4, 2))
        self.rate, self.name, self.norm = 0.1, "m", lambda x: x


@dataclasses.dataclass
class Cell:
    w: object
    activation: object = np.tanh
    inner: "Cell | None" = None


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def round_trip(path, tree):
    ab.save(path, tree)
    return ab.load(path)


NUMBERS = "?bhilqBHILQefdgFDG"
ARRAYS = {
    **{f"dtype {np.dtype(c)} {c}": np.array([[0, 1], [2, 3]], c) for c in NUMBERS},
    "big endian": np.arange(5, dtype=">i4"),
    "0-d": np.array(2.5),
    "0-d integer": np.array(7),
    "empty": np.empty((0, 3), np.float32),
    "empty inside": np.empty((3, 0, 2)),
    "fortran": np.asfortranarray(normal(4, 3)),
    "fortran 3-d": np.asfortranarray(normal(4, 3, 2)),
    "strided": np.arange(20.0)[::3],
    "reversed": np.arange(6)[::-1],
    "columns": normal(5, 6)[:, 1:4],
    "broadcast": np.broadcast_to(np.arange(3.0), (4, 3)),
    "moved axes": np.moveaxis(normal(2, 3, 4), 0, 1),
    "text": np.array([["ab", "cde"], ["", "ü"]]),
    "bytes": np.array([b"ab", b"c"]),
    "empty text": np.array([""], "U0"),
    "dates": np.array(["2020-01-01", "NaT"], "M8[D]"),
    "durations": np.array([3, 4], "m8[ns]"),
    "records": np.array([(1, [2.0, 3.0])], [("a", "i4"), ("b", "f8", (2,))]),
    "records in records": np.zeros(2, [("a", [("x", "u1"), ("y", ">f4")])]),
    "NaNs with payloads": np.array([0x7FF8000000000001, 0xFFF0000000000000], np.uint64).view(np.float64),
    "negative zero": np.array([-0.0, 0.0]),
    "several blocks": np.arange(tensor_files.BLOCK // 8 * 9 + 3.0),
    "strided, several blocks": np.arange(tensor_files.BLOCK // 2).reshape(2, -1)[:, ::2],
    "read-only": np.frombuffer(b"12345678", np.int64),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_an_array_comes_back_to_the_bit(path, array):
    found = round_trip(path, array)
    assert type(found) is np.ndarray
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()
    if array.ndim > 1 and array.flags.f_contiguous and array.size > 1:
        assert found.flags.f_contiguous, "a product of it would round in another order"
    if found.size:
        assert found.flags.writeable


def test_bfloat16_comes_back(path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = normal(3, 4).astype(ml_dtypes.bfloat16)
    found = round_trip(path, {"w": array, "s": array[0, 0]})
    assert found["w"].dtype == array.dtype
    assert found["w"].tobytes() == array.tobytes()
    assert type(found["s"]) is ml_dtypes.bfloat16


TREES = {
    "nothing": None,
    "empty": {"a": [], "b": (), "c": {}},
    "numbers": [1, 2.5, True, 3j, -0.0, float("inf"), 10**40, -(2**63)],
    "text": ["", "ü", "\ud800", b"\x00\xff", 'a"b\\'],
    "scalars": [np.float32(1.5), np.int8(-3), np.bool_(True), np.str_("ab"), np.datetime64("2020-01-01")],
    "keys": {1: "a", "1": "b", (2, "x"): "c", None: "d", 2.5: "e", b"k": "f", np.int64(9): "g", "a/b": "h"},
    "paths that look alike": {"a": {"b": np.zeros(1)}, "a/b": np.ones(1), "a#b": np.full(1, 2.0)},
    "containers": [Point(1, np.ones(2)), collections.OrderedDict(b=1, a=2), Names(x=[1])],
    "counter": collections.Counter("abca"),
    "defaultdict": collections.defaultdict(list, {"a": [1]}),
    "dataclass": Cell(normal(2, 2), np.tanh, Cell(np.arange(3), len)),
    "named": [np.tanh, len, Colour.RED, int, np.float32, np.dtype("f4"), slice(1, None, 2), ..., range(3)],
    "tables": [ab.EmbeddingTable(normal(3, 4), static=True), ab.SplitTable.from_array(normal(5, 2), 2)],
    "codes": ab.QuantizedTable.from_weights(normal(4, 5)),
    "sparse": ab.SparseRows(np.array([1, 1, 0]), normal(3, 2), 4),
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_a_tree_comes_back(path, tree):
    found = round_trip(path, tree)
    assert type(found) is type(tree)
    same(found, tree)


def same(found, tree):
    assert type(found) is type(tree)
    if isinstance(tree, ab.Table):
        assert_same(np.asarray(found), np.asarray(tree))
        assert getattr(found, "static", None) == getattr(tree, "static", None)
    elif isinstance(tree, ab.SparseRows):
        assert_same(found.to_dense(), tree.to_dense())
        assert found.num_rows == tree.num_rows
    elif isinstance(tree, dict):
        assert [*map(repr, found)] == [*map(repr, tree)]
        for a, b in zip(found.values(), tree.values(), strict=True):
            same(a, b)
    elif isinstance(tree, list | tuple):
        assert len(found) == len(tree)
        for a, b in zip(found, tree, strict=True):
            same(a, b)
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        same(vars(found), vars(tree))
    elif isinstance(tree, np.ndarray | np.generic):
        assert (found.dtype, found.shape, found.tobytes()) == (tree.dtype, tree.shape, tree.tobytes())
    else:
        assert repr(found) == repr(tree)


def test_the_default_of_a_defaultdict_comes_back(path):
    assert round_trip(path, collections.defaultdict(list))["new"] == []


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64])
def test_a_generator_goes_on_where_it_was(path, kind):
    rng = np.random.Generator(kind(3))
    rng.normal(size=5)
    rng.integers(0, 10, dtype=np.int32)
    found = round_trip(path, rng)
    assert_same(found.normal(size=4), rng.normal(size=4))


def test_what_is_one_array_stays_one(path):
    w = normal(4, 3)
    found = round_trip(
        path, {"a": w, "b": [w], "table": ab.EmbeddingTable(w), "t": w.T, "rows": w[1:3], "c": normal(2)}
    )
    found["a"][:] = 5.0
    for name in ("t", "rows"):
        assert (found[name] == 5).all()
    assert (found["b"][0] == 5).all()
    assert (found["table"].weights == 5).all()
    assert found["t"].shape == (3, 4)
    assert len(tensor_files.TensorReader(tensor_files.Files(), str(path)).tensors) == 2


def test_interleaved_arrays_are_not_taken_for_one(path):
    w = normal(4, 6)
    found = round_trip(path, [w[:, ::2], w[:, 1::2]])
    assert not np.shares_memory(*found)


def test_arrays_that_overlap_without_a_common_one_are_refused(path):
    memory = bytearray(80)
    arrays = {"a": np.frombuffer(memory, np.float64, 8), "b": np.frombuffer(memory, np.float64, 8, 16)}
    with pytest.raises(UnsupportedError, match="a and b share memory"):
        ab.save(path, arrays)
    assert not path.exists()


@pytest.mark.parametrize(
    ("leaf", "error", "message"),
    [
        (object(), UnsupportedError, r"tree\['x'\]\[0\] is a builtins.object, .* make its class a dataclass"),
        (np.array([None]), DTypeError, r"tree\['x'\]\[0\] is an array of Python objects"),
        (np.ma.masked_array([1.0], [True]), UnsupportedError, r"MaskedArray; .* np.asarray"),
        (ab.MaskedBatch.from_examples([np.ones(2)]), UnsupportedError, r"MaskedBatch"),
        ({frozenset(): 1}, UnsupportedError, r"key frozenset\(\)"),
        ({1, 2}, UnsupportedError, "builtins.set"),
        (threading.Lock(), UnsupportedError, "lock, which cannot be stored"),
        (iter([]), UnsupportedError, "list_iterator"),
    ],
)
def test_what_cannot_be_stored_is_named_and_nothing_is_written(path, leaf, error, message):
    ab.save(path, "before")
    with pytest.raises(error, match=message):
        ab.save(path, {"x": [leaf]})
    assert ab.load(path) == "before"
    assert os.listdir(path.parent) == [path.name]


def test_safetensors_reads_the_file(path):
    numpy_reader = pytest.importorskip("safetensors.numpy")
    tree = {"w": normal(3, 4), "emb": ab.EmbeddingTable(normal(5, 2)), "n": [np.arange(3), 5], "h": np.float16(2)}
    ab.save(path, tree)
    found = numpy_reader.load_file(path)
    assert set(found) == {"w", "emb", "n/0", "h"}
    assert_same(found["w"], tree["w"])
    assert_same(found["emb"], tree["emb"].weights)
    assert_same(found["n/0"], tree["n"][0])


def test_a_file_of_safetensors_is_read(path):
    numpy_reader = pytest.importorskip("safetensors.numpy")
    arrays = {"b": normal(3), "a": np.arange(4, dtype=np.int8)}
    numpy_reader.save_file(arrays, path, {"format": "np"})
    found = ab.load(path)
    assert set(found) == {"a", "b"}
    for name, array in arrays.items():
        assert_same(found[name], array)


def test_nothing_that_a_file_names_is_imported(path, monkeypatch):
    ab.save(path, Cell(np.ones(2), json.dumps))
    monkeypatch.delitem(__import__("sys").modules, __name__)
    with pytest.raises(CheckpointError, match=r"Cell is not imported; import .* first, or give a tree"):
        ab.load(path)
    found = ab.load(path, like=Cell(np.zeros(2), json.loads))
    assert found.activation is json.loads
    assert_same(found.w, np.ones(2))


def test_objects_of_plain_classes(path):
    model = Model([2, 3])
    ab.save(path, {"model": model, "state": ab.optim.Adam(0.1).init(model)})
    found = ab.load(path, like={"model": Model([2, 3]), "state": ab.optim.Adam(0.1).init(model)})["model"]
    assert type(found) is Model
    assert [type(layer) for layer in found.layers] == [Layer, Layer]
    assert found.layers[0].act is np.tanh
    assert found.rate == 0.1
    assert found.norm(3) == 3, "a function without a name is that of the tree that is restored into"
    assert_same(found.layers[1].w, model.layers[1].w)
    assert_same(found.emb.weights, model.emb.weights)
    with pytest.raises(CheckpointError, match=r"has no Model.__init__.<locals>.<lambda>; give a tree"):
        ab.load(path)
    model.norm = None
    ab.save(path, model)
    assert_same(ab.load(path).layers[0].w, model.layers[0].w)


def test_an_object_within_itself(path):
    model = Model([])
    model.layers.append(model)
    with pytest.raises(StructureError, match=r"tree\.layers\[0\] is a Model that contains itself"):
        ab.save(path, model)


def test_part_of_a_tree(path):
    ab.save(path, {"a": {"w": normal(2), "v": normal(3)}, "b": [1, normal(2, 2)]})
    like = {"a": {"v": np.zeros(3, np.float32)}}
    found = ab.load(path, like=like)
    assert found.keys() == {"a"}
    assert_same(found["a"]["v"], normal(3))
    assert (like["a"]["v"] == 0).all(), "what is given is not written to"


def test_a_table_for_an_array_and_an_array_for_a_table(path):
    ab.save(path, {"a": ab.EmbeddingTable(normal(3, 2)), "b": normal(4, 2)})
    found = ab.load(
        path, like={"a": np.zeros((3, 2), np.float32), "b": ab.EmbeddingTable(np.zeros((4, 2), np.float32))}
    )
    assert type(found["a"]) is np.ndarray
    assert_same(found["b"].weights, normal(4, 2))


@pytest.mark.parametrize(
    ("like", "error", "message"),
    [
        ({"w": np.zeros((2, 4))}, ShapeError, r"tree\['w'\] was saved with shape \(2, 3\); given is \(2, 4\)"),
        ({"w": np.zeros((2, 3))}, DTypeError, r"tree\['w'\] was saved with dtype float32; given is float64"),
        ({"new": 1}, StructureError, r"tree\['new'\] is not in the checkpoint"),
        ({"w": [1]}, StructureError, r"tree\['w'\] was saved as a <f4 array of shape \(2, 3\); given is a list of 1"),
        ({"n": [1, 2, 3]}, StructureError, r"tree\['n'\] was saved as a list of 2; given is a list of 3"),
        ({"n": np.ones(2)}, StructureError, r"tree\['n'\] was saved as a list of 2; given is a ndarray"),
        ([1], StructureError, r"tree was saved as a dict with \['w', 'n'\]; given is a list"),
    ],
)
def test_a_tree_of_another_structure_is_refused(path, like, error, message):
    ab.save(path, {"w": normal(2, 3), "n": [1, 2]})
    with pytest.raises(error, match=message):
        ab.load(path, like=like)


def test_mapped_arrays_lie_in_the_file_and_are_read_only(path):
    ab.save(path, {"w": normal(300, 4), "emb": ab.EmbeddingTable(normal(5, 2)), "f": np.asfortranarray(normal(3, 2))})
    found = ab.load(path, mapped=True)
    assert_same(found["w"], normal(300, 4))
    assert_same(found["f"], normal(3, 2))
    assert_same(found["emb"][[1, 2]], normal(5, 2)[[1, 2]])
    with pytest.raises(ValueError, match="read-only"):
        found["w"][0] = 1
    with pytest.raises(UnsupportedError, match="read-only"):
        found["emb"].write([0], 1)


def test_a_file_is_replaced_whole(path):
    ab.save(path, {"w": normal(1000)})
    before = path.read_bytes()
    with pytest.raises(UnsupportedError, match="object"):
        ab.save(path, {"w": normal(10), "x": object()})
    assert path.read_bytes() == before
    ab.save(path, "new")
    assert ab.load(path) == "new"


def damaged(data):
    """The bytes of a file, changed in each region and cut at each place."""
    for place in range(0, len(data), max(1, len(data) // 400)):
        yield f"flipped at {place}", data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :]
    for place in range(0, len(data), max(1, len(data) // 100)):
        yield f"cut at {place}", data[:place]
        yield f"zeros from {place}", data[:place] + bytes(min(64, len(data) - place)) + data[place + 64 :]
    yield "longer", data + b"\x00"


def test_each_region_is_checked(path):
    tree = {"w": normal(200), "emb": ab.EmbeddingTable(1 + normal(20, 4) ** 2), "n": 3}
    ab.save(path, tree)
    data = path.read_bytes()
    for how, other in damaged(data):
        if other == data:
            continue
        path.write_bytes(other)
        with pytest.raises(CheckpointError, match=r"model.safetensors"):
            pytest.fail(f"{how}: {ab.load(path)}")


def test_no_file(path):
    with pytest.raises(CheckpointError, match=r"model.safetensors does not exist"):
        ab.load(path)


def test_a_header_that_asks_for_too_much(path):
    path.write_bytes(struct.pack("<Q", 1 << 60) + b"{}")
    with pytest.raises(CheckpointError, match=r"damaged, .*: a header of"):
        ab.load(path)


def test_what_a_killed_save_left_is_in_nobodys_way(path):
    (path.parent / f"{path.name}.{os.getpid()}.part").write_bytes(b"half")
    ab.save(path, 1)
    assert os.listdir(path.parent) == [path.name]
