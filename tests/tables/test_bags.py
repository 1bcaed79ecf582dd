"""Bags, plain and batched, against a loop over the bags; gradients against central differences."""

import tracemalloc
import types

import numpy as np
import pytest

from autobatch import EmbeddingTable, SparseRows, embedding_bag, grad, value_and_grad
from autobatch.api.extend import Batched, Lengths
from autobatch.core.batched import Packed
from autobatch.errors import BadIdError, DTypeError, ShapeError, UnsupportedError
from autobatch.tables.bag_and_segment_op import segment_p
from autobatch.tables.lookup import lookup_p
from autobatch.tables.reduction_modes import BAG_MODES as MODES
from tests import naive

RANDOM = np.random.default_rng(2)
WEIGHTED = ("sum", "mean", "sqrtn")


def one_bag(table, ids, *weights, **params):
    """The rows of one list of ids, reduced."""
    return segment_p(table, ids, *weights, form="one", **params)


def batch_of_bags(operands, mode="sum", **params):
    """The bags of all examples by the batching rule."""
    return segment_p.rule(segment_p, operands, {"mode": mode, "form": "one", **params})


def make(shape, dtype=np.float64):
    return RANDOM.standard_normal(shape).astype(dtype)


def test_seed_s1_01_the_programs_example():
    weight = np.array([[0, 1], [2, 3], [4, 5], [6, 7]], np.float64)
    out = embedding_bag(np.array([0, 2, 3]), weight, np.array([0, 1]), mode="sum")
    np.testing.assert_array_equal(out, [[0, 1], [10, 12]])


@pytest.mark.parametrize("lengths", [[], [0], [3], [0, 2, 0, 5, 1, 0]])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_bags_are_the_loop(dtype, mode, lengths):
    table, offsets = make((7, 3), dtype), np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    ids = RANDOM.integers(0, 7, offsets[-1])
    expected = naive.bags(table, ids, offsets, mode)
    tolerance = 1e-2 if dtype == np.float16 else 1e-5
    for weight in (table, EmbeddingTable(table), EmbeddingTable(np.asfortranarray(table))):
        for out in (
            embedding_bag(ids, weight, offsets[:-1], mode=mode),
            embedding_bag(ids, weight, offsets, mode=mode, include_last_offset=True),
            embedding_bag(types.SimpleNamespace(values=ids, offsets=offsets), weight, mode=mode),
        ):
            assert out.dtype == dtype
            np.testing.assert_allclose(out, expected, tolerance, tolerance)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (4, 4)])
def test_rows_of_ids_are_bags(shape, mode):
    table, ids = make((5, 3)), RANDOM.integers(0, 5, shape)
    out = embedding_bag(ids, table, mode=mode)
    np.testing.assert_allclose(out, naive.bags(table, ids.ravel(), np.arange(shape[0] + 1) * shape[1], mode))


@pytest.mark.parametrize("mode", WEIGHTED)
def test_weights(mode):
    table, ids, weights = make((5, 3)), np.array([1, 4, 4, 0]), make(4) + 2
    out = embedding_bag(ids, table, [0, 1, 1], mode=mode, per_sample_weights=weights)
    np.testing.assert_allclose(out, naive.bags(table, ids, [0, 1, 1, 4], mode, weights))


SLOWER = [pytest.param(dim, length, marks=pytest.mark.slow) for dim, length in ((8, 4), (4, 50))]


@pytest.mark.parametrize(("dim", "length"), [(2, 4), (32, 4), (2, 50), (2, 1), *SLOWER])
def test_padding_idx_takes_little_memory(dim, length):
    """A bit of truth for each id; of the ids that stay a part at a time, never all."""
    table, ids = make((100, dim)).astype(np.float32), RANDOM.integers(0, 100, 400_000)
    offsets = np.arange(0, len(ids), length)

    def peak(**options):
        embedding_bag(ids, table, offsets, mode="sum", **options)
        tracemalloc.start()
        embedding_bag(ids, table, offsets, mode="sum", **options)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    out = len(offsets) * dim * table.itemsize
    assert peak(padding_idx=3) < peak() + len(ids) + 0.3 * (out + ids.nbytes)


def test_bags_of_which_padding_is_left_out_a_part_at_a_time():
    """Empty bags, bags longer than a part and one that is all padding, with weights, in one mode and in several."""
    table, ids = make((50, 3)), RANDOM.integers(0, 50, 150_000)
    lengths = np.array([0, 3, 70_000, 0, 0, 5, 33_000, 40_000, 6_992, 0])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids[offsets[5] : offsets[6]] = 7
    weights = RANDOM.random(len(ids))
    keep = ids != 7
    stays = np.concatenate([[0], np.cumsum(keep)])[offsets]
    for mode, given in (("sum", weights), ("mean", None), (("max", "mean"), None)):
        own = None if given is None else given[keep]
        options = {"mode": mode, "include_last_offset": True, "empty": -1.0}
        found = embedding_bag(ids, table, offsets, per_sample_weights=given, padding_idx=7, **options)
        known = embedding_bag(ids[keep], table, stays, per_sample_weights=own, **options)
        np.testing.assert_array_equal(np.asarray(found), np.asarray(known))


@pytest.mark.parametrize("mode", MODES)
def test_padding_idx_is_as_if_the_id_were_not_there(mode):
    table, ids, offsets = make((5, 3)), np.array([1, 2, 2, 4, 2, 1]), [0, 3, 4, 5]
    out = embedding_bag(ids, table, offsets, mode=mode, padding_idx=2)
    np.testing.assert_allclose(out, naive.bags(table, np.array([1, 4, 1]), [0, 1, 2, 2, 3], mode))
    np.testing.assert_array_equal(out, embedding_bag(ids, table, np.array(offsets), mode=mode, padding_idx=2))
    np.testing.assert_array_equal(out, embedding_bag(ids, table, offsets, mode=mode, padding_idx=-3))


def test_max_norm_scales_each_row_that_is_read_once():
    table = np.array([[3.0, 4.0], [0.3, 0.4], [6.0, 8.0]])
    out = embedding_bag([0, 0, 1], table, [0], mode="sum", max_norm=1.0)
    np.testing.assert_allclose(table, [[0.6, 0.8], [0.3, 0.4], [6.0, 8.0]], rtol=1e-6)
    np.testing.assert_allclose(out, [[1.5, 2.0]], rtol=1e-6)


def test_empty_has_the_value_asked_for():
    out = embedding_bag([0], np.ones((2, 2)), [0, 1], mode="mean", empty=np.nan)
    np.testing.assert_array_equal(out, [[1, 1], [np.nan, np.nan]])


@pytest.mark.parametrize(("mode", "weighted"), [*((m, False) for m in MODES), *((m, True) for m in WEIGHTED)])
def test_gradients_are_the_differences(mode, weighted):
    table, ids, offsets, ct = make((5, 3)), np.array([1, 4, 4, 0, 2]), [0, 1, 1, 4], make((4, 3))
    weights = make(5) + 3 if weighted else None

    def loss(table, weights):
        out = embedding_bag(ids, table, offsets, mode=mode, per_sample_weights=weights)
        return (out * ct).sum()

    expected = naive.numeric_gradient(lambda t: loss(t, weights), table)
    np.testing.assert_allclose(grad(loss)(table, weights), expected, atol=1e-7)
    sparse = grad(loss)(EmbeddingTable(table), weights)
    assert isinstance(sparse, SparseRows)
    assert sparse.ids.tolist() == ids.tolist()
    np.testing.assert_allclose(sparse.to_dense(), expected, atol=1e-7)
    if weighted:
        expected = naive.numeric_gradient(lambda w: loss(table, w), weights)
        np.testing.assert_allclose(grad(loss, 1)(EmbeddingTable(table), weights), expected, atol=1e-7)


def test_the_gradient_of_an_extremum_goes_to_the_first():
    table = EmbeddingTable(np.array([[1.0, 2.0], [1.0, 3.0], [1.0, 3.0]]))
    sparse = grad(lambda t: embedding_bag([0, 1, 2], t, [0], mode="max").sum())(table)
    np.testing.assert_array_equal(sparse.rows, [[1, 0], [0, 1], [0, 0]])


def test_weights_that_add_up_to_zero_are_ieee():
    table = np.array([[1.0, 0.0], [2.0, 0.0]])
    out = embedding_bag([0, 1], table, [0], mode="mean", per_sample_weights=np.array([1.0, -1.0]))
    np.testing.assert_array_equal(out, [[-np.inf, np.nan]])


def padded(lists, fill, dtype):
    data = np.full((len(lists), max(map(len, lists), default=0) + 1), fill, dtype)
    for row, values in zip(data, lists, strict=True):
        row[: len(values)] = values
    return Batched(data, (Lengths(list(map(len, lists))),))


def packed(lists, dtype):
    return Packed(np.concatenate([np.array(x, dtype) for x in [[], *lists]]), np.cumsum([0, *map(len, lists)]))


@pytest.mark.parametrize("lists", [[], [[]], [[1, 1, 3]], [[2], [], [4, 0, 4], [1, 1]]])
@pytest.mark.parametrize("mode", MODES)
def test_a_batch_of_bags_is_the_loop_and_reads_no_padding(mode, lists):
    table = make((5, 3))
    expected = [one_bag(table, x, mode=mode) for x in lists]
    for ids in (padded(lists, 2**62, np.int64), padded(lists, -7, np.int32), packed(lists, np.int64)):
        out = batch_of_bags([EmbeddingTable(table), ids], mode=mode)
        assert out.sizes == (3,)
        np.testing.assert_array_equal(out.data, np.reshape(expected, (-1, 3)))
        if mode in WEIGHTED:
            weights = [[i + 1.5 for i, _ in enumerate(x)] for x in lists]
            for operand in (padded(weights, np.nan, np.float64), packed(weights, np.float64)):
                out = batch_of_bags([table, ids, operand], mode=mode)
                loop = [one_bag(table, x, np.array(w), mode=mode) for x, w in zip(lists, weights, strict=True)]
                np.testing.assert_allclose(out.data, np.reshape(loop, (-1, 3)))


def test_empty_as_numpy_has_it():
    table, ids = make((5, 3)), packed([[1], []], np.int64)
    with pytest.warns(RuntimeWarning, match="Mean of empty slice"), np.errstate(invalid="ignore"):
        out = batch_of_bags([table, ids], mode="mean", empty="numpy")
    np.testing.assert_array_equal(out.data, [table[1], [np.nan] * 3])
    with pytest.raises(ValueError, match="zero-size array") as caught:
        batch_of_bags([table, ids], mode="max", empty="numpy")
    assert caught.value.__notes__ == ["raised for example 1"]
    with pytest.raises(ValueError, match="zero-size array"):
        one_bag(table, [], mode="max", empty="numpy")
    np.testing.assert_array_equal(batch_of_bags([table, ids], mode="sum", empty="numpy").data[1], 0)


@pytest.mark.parametrize("mode", MODES)
def test_the_gradient_of_a_batch_of_bags(mode):
    table, lists = make((5, 2)), [[2], [], [4, 0, 4]]
    ct = make((3, 2))

    def loop(table):
        return sum((naive.bag(table[x], mode) * c).sum() for x, c in zip(lists, ct, strict=True))

    def batched(table):
        out = batch_of_bags([table, padded(lists, 2**62, np.int64)], mode=mode)
        return (out.data * ct).sum()

    value, sparse = value_and_grad(batched)(EmbeddingTable(table))
    np.testing.assert_allclose(value, loop(table))
    np.testing.assert_allclose(sparse.to_dense(), naive.numeric_gradient(loop, table), atol=1e-7)


@pytest.mark.parametrize(
    "ids", [padded([[2], [], [4, 0, 4]], 2**62, np.int64), Batched(np.array([[1, 2], [0, 0]]), (2,))]
)
def test_a_batched_lookup_reads_no_padding(ids):
    table = make((5, 2))
    examples = [
        row[: n if isinstance(ids.sizes[0], int) else None] for row, n in zip(ids.data, [2, 2, 2], strict=False)
    ]
    if isinstance(ids.sizes[0], Lengths):
        examples = [row[:n] for row, n in zip(ids.data, ids.sizes[0].values, strict=True)]

    def total(table):
        out = lookup_p.rule(lookup_p, [table, ids], {})
        assert out.sizes[1:] == (2,)
        parts = [out.data[i, : len(x)] for i, x in enumerate(examples)]
        for part, x in zip(parts, examples, strict=True):
            np.testing.assert_array_equal(getattr(part, "_ab_value", part), table_of(table)[x])
        return sum((part * part).sum() for part in parts)

    def table_of(table):
        return np.asarray(getattr(table, "_ab_value", table))

    total(table)
    expected = naive.numeric_gradient(lambda t: sum((t[x] ** 2).sum() for x in examples), table)
    np.testing.assert_allclose(grad(total)(EmbeddingTable(table)).to_dense(), expected, atol=1e-6)


def test_a_table_of_each_example():
    tables = Batched(make((2, 4, 3)), (Lengths([2, 4]), 3))
    out = lookup_p.rule(lookup_p, [tables, padded([[1], [3, 0]], -5, np.int64)], {})
    np.testing.assert_array_equal(out.data[0, :1], tables.data[0, [1]])
    np.testing.assert_array_equal(out.data[1, :2], tables.data[1, [3, 0]])
    with pytest.raises(BadIdError, match=r"^id 2 at position 0 is outside a table of 2 rows"):
        lookup_p.rule(lookup_p, [tables, padded([[2], [3, 0]], -5, np.int64)], {})


@pytest.mark.parametrize("batched", [lambda operands: lookup_p.rule(lookup_p, operands, {}), batch_of_bags])
def test_a_bad_id_is_the_error_of_its_example(batched):
    for ids in (padded([[0], [1, 9]], 2**62, np.int64), Batched(np.array([[0, 0], [1, 9]]), (2,))):
        with pytest.raises(BadIdError, match=r"^id 9 at position 1 is outside a table of 5 rows") as caught:
            batched([make((5, 3)), ids])
        assert caught.value.__notes__ == ["raised for example 1"]


def test_weights_of_another_length_name_their_example():
    with pytest.raises(ShapeError, match=r"weights have shape \(1,\); expected one for each id, \(2,\)"):
        batch_of_bags([make((5, 3)), packed([[0], [1, 2]], int), packed([[1.0], [1.0]], float)])


def test_bags_of_each_example():
    table, ids = make((5, 3)), Batched(np.array([[0, 1, 2], [3, 3, 4]]), (3,))
    out = segment_p.rule(
        segment_p, [table, np.array([0, 2, 3]), ids], {"mode": "sum", "runs": True, "fused": True, "count": 2}
    )
    np.testing.assert_allclose(out.data, [naive.bags(table, x, [0, 2, 3], "sum") for x in ids.data])


TABLE = np.ones((4, 2))


@pytest.mark.parametrize(
    ("arguments", "options", "error", "match"),
    [
        (([0, 4], TABLE, [0, 1]), {}, BadIdError, r"id 4 at position 1, in bag 1 is outside a table of 4 rows"),
        (([-1], TABLE, [0]), {}, BadIdError, r"a table has no negative ids"),
        (([0, 1], TABLE, [1]), {}, BadIdError, r"offsets\[0\] is 1; expected 0"),
        (([0, 1], TABLE, [0, 2, 1]), {}, BadIdError, r"offsets\[2\] is 1, below offsets\[1\] = 2"),
        (([0, 1], TABLE, [0, 3]), {}, BadIdError, r"offsets\[1\] is 3, above the number of values, 2"),
        (([0, 1], TABLE, [0, 1]), {"include_last_offset": True}, BadIdError, r"last of the offsets is 1"),
        (([0, 1], TABLE, []), {"include_last_offset": True}, BadIdError, r"offsets are empty"),
        (([0, 1], TABLE, [[0]]), {}, ShapeError, r"offsets have shape \(1, 1\)"),
        (([0, 1], TABLE), {}, ShapeError, r"offsets are needed"),
        (([[0, 1]], TABLE, [0]), {}, ShapeError, r"leave offsets out"),
        (([[[0]]], TABLE), {}, ShapeError, r"input has shape \(1, 1, 1\)"),
        ((TABLE, np.array([0]), [0]), {}, ShapeError, r"is it the second argument\?"),
        (([0.5], TABLE, [0]), {}, DTypeError, r"input have dtype float64"),
        (([0], TABLE, [0.0]), {}, DTypeError, r"offsets have dtype float64"),
        (([0], TABLE, [0]), {"mode": "median"}, UnsupportedError, r"mode='median'; expected one of sum, mean"),
        (([0], TABLE, [0]), {"mode": "avg"}, ValueError, r"mode='avg'; expected one of sum, mean"),
        (([0], TABLE, [0]), {"mode": None}, ValueError, r"mode=None; expected one of sum, mean"),
        (([0], TABLE, [0]), {"mode": ("sum", 3)}, ValueError, r"mode=3; expected one of sum, mean"),
        (([0], TABLE, [0]), {"bad_ids": "drop"}, ValueError, r"bad_ids='drop'; expected"),
        (([0], TABLE, [0]), {"scale_grad_by_freq": True, "mode": "max"}, UnsupportedError, r"freq=True with mode"),
        (([0], TABLE, [0]), {"bad_ids": "drop"}, UnsupportedError, r"bad_ids='drop'; expected 'raise' or 'skip'"),
        (([0], TABLE, [0]), {"sparse": True}, UnsupportedError, r"sparse=True with a plain array"),
        (([0], TABLE, [0]), {"mode": "max", "per_sample_weights": np.ones(1)}, UnsupportedError, r"with mode='max'"),
        (([0], TABLE, [0]), {"per_sample_weights": np.ones(2)}, ShapeError, r"per_sample_weights have shape \(2,\)"),
        (([0], TABLE, [0]), {"per_sample_weights": np.ones(1, int)}, DTypeError, r"expected floats"),
        (([0], TABLE, [0]), {"padding_idx": 4}, BadIdError, r"padding_idx=4"),
        (([0], TABLE.astype(int), [0]), {}, DTypeError, r"mode 'mean' over a table of int64"),
        (([0], TABLE.astype(bool), [0]), {"mode": "sum"}, DTypeError, r"a bag over a table of bool"),
    ],
)
def test_bad_input(arguments, options, error, match):
    with pytest.raises(error, match=match):
        embedding_bag(*arguments, **options)
