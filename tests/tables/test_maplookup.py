"""Look-ups in several tables: every strategy is the list of single look-ups, to the bit."""

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import BadIdError, DTypeError, ShapeError, UnsupportedError

RANDOM = np.random.default_rng(12)
STRATEGIES = ab.strategies


def tables(dtype=np.float32):
    made = [RANDOM.standard_normal((rows, dim)).astype(dtype) for rows, dim in ((9, 5), (5, 1), (30, 33))]
    return [ab.EmbeddingTable(made[0]), made[1], ab.SplitTable.from_array(made[2], 7)]


MIXED = [np.array([8, 0, 8], np.int32), np.array([[1, 4], [0, 0], [3, 3]]), np.array([29, 3, 3])]


@pytest.mark.parametrize("strategy", [None, STRATEGIES.Default(), STRATEGIES.SimpleParallel()], ids=str)
def test_s0_10_to_s0_14_vectors_and_matrices_mixed(strategy):
    some = tables()
    for found, table, ids in zip(ab.maplookup(some, MIXED, strategy), some, MIXED, strict=True):
        assert found.tobytes() == ab.lookup(table, ids).tobytes()


@pytest.mark.parametrize("free", [0, 1, 5])
def test_s0_15_s0_16_preallocation_is_the_concatenation(free):
    some = tables()
    found = ab.maplookup(some, MIXED, STRATEGIES.Preallocation(prepend_rows=free))
    np.testing.assert_array_equal(found[:, free:], np.concatenate(ab.maplookup(some, MIXED), axis=1))
    np.testing.assert_array_equal(found[:, :free], 0)
    out = np.full((5, 39 + free + 2), 77, np.float32)
    assert ab.maplookup(some, MIXED, STRATEGIES.Preallocation(free), out=out[1:4, 1:-1]) is not None
    np.testing.assert_array_equal(out[1:4, 1 + free : -1], found[:, free:])
    out[1:4, 1 + free : -1] = 77
    assert (out == 77).all()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_s0_14_s0_17_threads_change_nothing(threads):
    some = [RANDOM.standard_normal((3000, 60), np.float32) for _ in range(5)]  # of no alignment that would compile more
    ids = [RANDOM.integers(0, 3000, (4000, 8)) for _ in some]
    expected = ab.maplookup(some, ids)
    with ab.options(threads=threads):
        parallel = ab.maplookup(some, ids, STRATEGIES.SimpleParallel())
        matrix = ab.maplookup(some, ids, STRATEGIES.Preallocation())
    assert all(a.tobytes() == b.tobytes() for a, b in zip(parallel, expected, strict=True))
    assert matrix.tobytes() == np.concatenate(expected, axis=1).tobytes()


def test_s0_08_s0_09_s0_18_in_place():
    some = tables()
    outs = [ab.EmbeddingTable(np.asarray(table)).destination(ids) for table, ids in zip(some, MIXED, strict=True)]
    for strategy in (None, STRATEGIES.SimpleParallel()):
        for out in outs:
            out[...] = 77
        assert ab.maplookup(some, MIXED, strategy, out=outs) is outs
        for out, expected in zip(outs, ab.maplookup(some, MIXED), strict=True):
            np.testing.assert_array_equal(out, expected)


def test_s0_11_a_column_for_each_table_and_sums_of_a_third_dimension():
    some = tables()
    ids = RANDOM.integers(0, 5, (6, 4, 3))
    for i, found in enumerate(ab.maplookup(some, ids[:, 0])):
        np.testing.assert_array_equal(found, some[i][ids[:, 0, i]])
    for i, found in enumerate(ab.maplookup(some, ids)):
        np.testing.assert_array_equal(found, ab.lookup(some[i], ids[:, :, i]))


@pytest.mark.parametrize(
    "strategy", [STRATEGIES.Default(), STRATEGIES.SimpleParallel(), STRATEGIES.Preallocation(prepend_rows=2)], ids=str
)
def test_the_gradient_is_that_of_single_look_ups(strategy):
    """Each table gets its own part of the cotangent, whatever the strategy (upstream, all got the first's)."""
    params = [ab.EmbeddingTable(RANDOM.standard_normal((5, dim))) for dim in (2, 3)]
    ids, cts = (
        [np.array([4, 0, 4]), np.array([[1, 2], [0, 0], [3, 3]])],
        [RANDOM.standard_normal((3, d)) for d in (2, 3)],
    )

    def loss(tables):
        found = ab.maplookup(tables, ids, strategy)
        if not isinstance(found, list):
            found = [found[:, 2:4], found[:, 4:]]
        return sum((x * ct).sum() for x, ct in zip(found, cts, strict=True))

    found = ab.grad(loss)(params)
    expected = ab.grad(lambda ts: sum((ab.lookup(t, i) * c).sum() for t, i, c in zip(ts, ids, cts, strict=True)))(
        params
    )
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(left.to_dense(), right.to_dense())


def features(ids, tables):
    return np.tanh(ab.maplookup(tables, [ids, ids[:, None]], STRATEGIES.Preallocation(1))).sum(axis=0)


def test_every_way_of_running():
    some = [ab.EmbeddingTable(RANDOM.standard_normal((5, 2))), ab.EmbeddingTable(RANDOM.standard_normal((6, 3)))]
    ab.testing.assert_equivalent(features, [np.array([1, 4, 1]), np.array([0]), np.array([2, 2])], tables=some)


TWO = [np.ones((3, 2)), np.ones((3, 2))]


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: ab.maplookup(TWO, [[0]]), ShapeError, r"1 arrays of ids for 2 tables"),
        (lambda: ab.maplookup(TWO, np.zeros((4, 3), int)), ShapeError, r"ids of shape \(4, 3\) for 2 tables"),
        (lambda: ab.maplookup(TWO, np.zeros(2, int)), ShapeError, r"ids of shape \(2,\) for 2 tables"),
        (lambda: ab.maplookup(TWO, [[0], [3]]), BadIdError, r"table 1: id 3 at position 0 is outside a table of 3"),
        (lambda: ab.maplookup(TWO, [[0], [0.5]]), DTypeError, r"float64; expected integers"),
        (lambda: ab.maplookup(TWO, [[0], [[[0]]]]), ShapeError, r"ids of table 1 have shape \(1, 1, 1\)"),
        (lambda: ab.maplookup([np.ones(3)], [[0]]), ShapeError, r"table 0 has shape \(3,\)"),
        (lambda: ab.maplookup(TWO, [[0], [0]], "parallel"), UnsupportedError, r"strategy='parallel'"),
        (lambda: ab.maplookup(TWO, [[0], [0]], out=np.ones(2)), ShapeError, r"expected a list of 2 arrays"),
        (lambda: ab.maplookup(TWO, [[0], [0]], out=[np.ones((1, 2)), np.ones((1, 3))]), ShapeError, r"out\[1\]"),
        (lambda: ab.maplookup(TWO, [[0], [0, 1]], STRATEGIES.Preallocation()), ShapeError, r"2 results of table 1"),
        (lambda: ab.maplookup([], [], STRATEGIES.Preallocation()), ShapeError, r"no tables"),
        (
            lambda: ab.maplookup(TWO, [[0], [0]], STRATEGIES.Preallocation(), out=np.ones((1, 5))),
            ShapeError,
            r"expected float64 of shape \(1, 4\)",
        ),
        (lambda: STRATEGIES.Preallocation(-1), ShapeError, r"prepend_rows=-1"),
    ],
)
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()
