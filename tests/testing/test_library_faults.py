"""Faults planted in the library itself: `assert_equivalent` reports each, naming the way."""

import functools

import numpy as np
import pytest

from autobatch import EmbeddingTable, MaskedBatch, PackedBatch, SparseRows, batch
from autobatch.api.extend import Batched
from autobatch.kernels.rows import ONE_BUFFER
from autobatch.lazy import example_map, launching
from autobatch.ops.numpy import reductions
from autobatch.ops.rules import op_kinds
from autobatch.ops.rules.dispatch import UFUNCS
from autobatch.testing import assert_equivalent
from autobatch.testing.compared_ways import LockStep, OnTheFly, default_ways
from autobatch.testing.equivalence import check_equivalence

RNG = np.random.default_rng(0)
XS = [RNG.standard_normal((n, 3)).astype(np.float32) for n in (2, 5, 0, 3)]
W = RNG.standard_normal((3, 4)).astype(np.float32)
IDS = [np.array(ids, np.int64) for ids in ([1, 2], [], [0, 3, 3], [4])]
TABLE = EmbeddingTable(RNG.standard_normal((5, 3)).astype(np.float32))

MASKED, PACKED, MAP = "lock-step on MaskedBatch", "lock-step on PackedBatch", "ab.map"


def pooled(x, w):
    return np.tanh(x @ w).sum(0)


def added_later(x, w):
    """Products that two groups of examples make, whose results are brought together."""
    y = x @ w if x[0, 0] > 0 else np.tanh(x @ w)
    return np.exp(y).sum(0)


def length(x, w):
    return x.shape[0], x * 2


def scaled(x, w):
    return np.exp(x * w[:, 0])


def fails_where_long(x, w):
    if x.shape[0] == 3:
        raise ValueError("three")
    return x @ w


def bag(ids, table):
    return table[ids].sum(0)


def op_of(ufunc):
    return UFUNCS[ufunc]


def dropped_mask(patch):
    patch.setattr(reductions, "fill", lambda x, value, axes=None: x.data)


def wrong_axis(patch):
    right = reductions.shifted
    patch.setattr(reductions, "shifted", lambda axes: tuple(axis - 1 for axis in right(axes)))


def wrong_dtype(patch):
    op, right = op_of(np.tanh), op_of(np.tanh).rule

    def rule(*args):
        out = right(*args)
        return Batched(out.data.astype(np.float64), out.sizes)

    patch.setattr(op, "rule", rule)


def wrong_batched_gradient(patch):
    op, right = op_of(np.tanh), op_of(np.tanh).vjp
    patch.setattr(op, "vjp", lambda position, ct, *rest: right(position, ct * (1 + (ct.ndim > 2)), *rest))


def gradient_from_padding(patch):
    """A shared operand's gradient sums the cotangents of the padding too."""
    right = op_of(np.multiply).rule
    patch.setattr(op_of(np.multiply), "rule", lambda op, operands, params: careless(op, operands, params, right))


def careless(op, operands, params, right):
    out = right(op, operands, params)
    plain = op(operands[0].data, operands[1].data if isinstance(operands[1], Batched) else operands[1], **params)
    if plain.ndim != out.data.ndim:
        return out
    return Batched(plain[tuple(map(slice, out.data.shape))], out.sizes)  # a result is as wide as its longest example


def lost_order(patch):
    right = MaskedBatch.examples
    patch.setattr(MaskedBatch, "examples", lambda self: right(self)[::-1])


def padding_in_the_result(patch):
    patch.setattr(MaskedBatch, "examples", lambda self: list(self.data))


def wrong_offsets(patch):
    right = PackedBatch.__init__
    patch.setattr(PackedBatch, "__init__", lambda self, values, offsets: right(self, np.roll(values, 1, 0), offsets))


def wrong_rows(patch):
    right = launching.gather_rows

    def rolled(buffers, which, rows, how, shape):
        return right(buffers, which, np.roll(rows, 1), max(how, ONE_BUFFER), shape)

    patch.setattr(launching, "gather_rows", rolled)


def wrong_example(patch):
    right = example_map.note_example
    patch.setattr(example_map, "note_example", lambda error, index: right(error, index + 1))


def wrong_bag_gradient(patch):
    patch.setattr(SparseRows, "_ab_unexpanded", lambda self, taken: without_last(self))


def without_last(sparse):
    rows = np.array(sparse.rows)
    if len(rows) > 3:
        rows[-1] = 0
    return SparseRows(sparse.ids, rows, sparse.num_rows)


FAULTS = [
    (dropped_mask, pooled, XS, {"w": W}, MASKED),
    (wrong_dtype, pooled, XS, {"w": W}, MASKED),
    (wrong_batched_gradient, pooled, XS, {"w": W}, MASKED),
    (lost_order, pooled, XS, {"w": W}, MASKED),
    (padding_in_the_result, length, XS, {"w": W}, MASKED),
    (wrong_offsets, pooled, XS, {"w": W}, PACKED),
    (wrong_rows, added_later, [x[:1] for x in XS if len(x)] * 2, {"w": W}, MAP),
    (wrong_example, fails_where_long, XS, {"w": W}, MAP),
    (wrong_bag_gradient, bag, IDS, {"table": TABLE}, MASKED),
]


def ways_of(name):
    return [way for way in default_ways() if way.name.startswith(name)]


@pytest.mark.parametrize(
    ("plant", "f", "examples", "shared", "way"), FAULTS, ids=[fault[0].__name__ for fault in FAULTS]
)
def test_a_fault_in_the_library_is_reported(monkeypatch, plant, f, examples, shared, way):
    check_equivalence(f, [examples], shared, ways=ways_of(way))
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises(AssertionError, match=rf"{f.__name__}: {way}.*\n? *.*example") as caught:
            check_equivalence(f, [examples], shared, ways=ways_of(way))
    assert "differs from the loop" in str(caught.value) or "raises" in str(caught.value)
    check_equivalence(f, [examples], shared, ways=ways_of(way))


def test_a_dropped_mask_shows_with_poisoned_padding(monkeypatch):
    dropped_mask(monkeypatch)
    check_equivalence(lambda x: x.sum(0), [XS], {}, ways=[LockStep()])
    with pytest.raises(AssertionError, match=r"pooled: lock-step on MaskedBatch, padding poisoned \(high\)"):
        check_equivalence(pooled, [XS], {"w": W}, ways=[LockStep(poison="high")])


def test_a_gradient_that_padding_reaches_is_reported(monkeypatch):
    right = op_kinds.unbroadcast

    def model(x, w):
        return x * w

    xs = [RNG.standard_normal(n).astype(np.float32) for n in (2, 5, 3)]
    shared = {"w": np.float32(2)}
    check_equivalence(model, [xs], shared, ways=[LockStep(poison="high")])
    gradient_from_padding(monkeypatch)
    with pytest.raises(AssertionError, match=r"gradient of the shared floats\[0\]: value is .*nan"):
        check_equivalence(model, [xs], shared, ways=[LockStep(poison="high")])
    assert op_kinds.unbroadcast is right


MODELS = [
    (pooled, XS, {"w": W}),
    (length, XS, {"w": W}),
    (fails_where_long, XS, {"w": W}),
    (bag, IDS, {"table": TABLE}),
]


@pytest.mark.parametrize(("f", "examples", "shared"), MODELS)
def test_right_models_pass_every_way_without_falling_back(f, examples, shared):
    report = assert_equivalent(f, examples, **shared)
    assert report.ways == [way.name for way in default_ways()]
    assert f is fails_where_long or not report.fallbacks
    assert report.max_error < 1e-4


def test_examples_that_are_no_arrays_are_compared_on_the_fly_only():
    def depth(tree, w):
        if isinstance(tree, str):
            return np.tanh(w[0] * len(tree))
        return np.tanh(sum(depth(child, w) for child in tree) * w[1])

    trees = ["abc", ["a", ["bc", "d"]], [["e"], "f", "g"]]
    report = assert_equivalent(depth, trees, w=np.float64([0.5, -0.3]))
    assert report.ways == ["ab.map"]
    assert set(report.skipped) == {way.name for way in default_ways()} - {"ab.map"}


class Halved(np.ndarray):
    def sum(self, *args, **kwargs):
        return np.asarray(self).sum() / 2


@pytest.mark.parametrize(
    "examples",
    [
        [np.ma.array([1.0, 2.0], mask=[False, True]), np.ma.array([3.0], mask=[False])],
        [np.ones(2).view(Halved), np.ones(3).view(Halved)],
    ],
    ids=["masked", "own"],
)
def test_arrays_of_a_class_of_their_own_are_compared_on_the_fly_only(examples):
    report = assert_equivalent(lambda x, w: x.sum() * w, examples, w=2.0)
    assert "ab.map" in report.ways
    assert "from which a batch would keep only the numbers" in report.skipped["lock-step on MaskedBatch"]


@pytest.mark.parametrize("dtype", [">f8", ">f4", ">i4"])
def test_arrays_of_another_byte_order_are_compared_by_every_way(dtype):
    xs = [np.arange(n).astype(dtype) for n in (3, 0, 2)]
    report = assert_equivalent(lambda x, w: (x * w).sum(), xs, w=2.0)
    assert {"lock-step on MaskedBatch", "lock-step on PackedBatch", "ab.map"} <= set(report.ways)


def test_trees_of_arrays_and_numbers_run_in_lock_step():
    def model(example, scale):
        return {"y": example["x"] * example["k"] * scale, "k": example["k"] + 1}

    examples = [{"x": np.ones(n, np.float32), "k": n} for n in (2, 0, 3)]
    report = assert_equivalent(model, examples, scale=np.float32(0.5))
    assert len(report.ways) == len(default_ways())


def test_a_decorated_function_is_compared_with_what_it_decorates():
    calls = []

    def counted(f):
        @functools.wraps(f)
        def counting(*args, **kwargs):
            calls.append(0)
            return f(*args, **kwargs)

        return counting

    report = assert_equivalent(batch(counted(pooled)), XS, w=W)
    assert len(report.ways) == len(default_ways())
    assert len(calls) >= len(XS)


def test_several_arguments():
    def dot(x, y, b):
        return (x * y).sum() + b

    ys = [x + 1 for x in XS]
    assert OnTheFly().name in assert_equivalent(dot, XS, ys, b=np.float32(1)).ways


def test_examples_of_different_rank_are_compared_on_the_fly():
    report = assert_equivalent(lambda x: x.sum(), [np.ones(2), np.ones((2, 2))])
    assert report.ways == ["ab.map"]
    assert "rank" in report.skipped["lock-step on MaskedBatch"]
