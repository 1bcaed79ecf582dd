"""Reading by index: per-example and shared positions, on per-example and shared arrays."""

import numpy as np
import pytest

from autobatch import MaskedBatch
from autobatch.errors import FallbackWarning, NeedsLoop
from autobatch.ops.numpy.indexing import getitem
from autobatch.ops.rules.row_gather import Scatter
from tests.inspect import Tape
from tests.law import Shared, check, check_grads, every_way_equals_loop, ragged
from tests.numpy_functions.cases import BOTH, CUBES, ROWS, STATIC, VECTORS, normals

TABLE = Shared(np.random.default_rng(0).normal(size=(6, 4)))
CUBE = Shared(np.random.default_rng(1).normal(size=(5, 3, 4)))
IDS = [np.array(x) for x in ([0, 5, 5], [2], [], [-1, 1])]
IDS = [x.astype(np.int64) for x in IDS]
IDS3 = [np.array(x, np.int32) for x in ([0, -1, 2, 2], [0], [4, 1])]
GRIDS = [np.array(x) for x in ([[0, 1], [2, 0]], [[0, 0]], [[1, 1], [0, 3], [-2, 2]])]
MASKS = [np.array(x) for x in ([True, False, True], [False], [True] * 5)]
STARTS, STOPS = [1, 0, -3], [2, 1, 5]

READS = {
    "table": (getitem, TABLE, IDS),
    "table_grid": (getitem, TABLE, GRIDS),
    "table_row": (getitem, TABLE, [3, -1, 0]),
    "table_cells": (lambda t, i: getitem(t, (i, [0])), TABLE, IDS),
    "table_columns": (lambda t, i: getitem(t, (slice(None), i % 4)), TABLE, IDS),
    "table_pairs": (lambda t, i: getitem(t, (i, i % 4)), TABLE, IDS),
    "table_span": (lambda t, a, b: getitem(t, slice(a, b)), TABLE, STARTS, STOPS),
    "table_span_back": (lambda t, a: getitem(t, slice(a, None, -2)), TABLE, STARTS),
    "cube_middle": (lambda t, i: getitem(t, (slice(1, 4), i % 3)), CUBE, IDS),
    "cube_split": (lambda t, i: getitem(t, (i % 5, slice(None), i % 4)), CUBE, IDS),
    "cube_new": (lambda t, i: getitem(t, (i % 5, None, i % 3)), CUBE, IDS),
    "cube_int": (lambda t, i, a: getitem(t, (a, slice(None), i % 4)), CUBE, IDS[:3], STARTS),
    "cube_spans": (lambda t, a, b: getitem(t, (slice(a, b), slice(None, b))), CUBE, STARTS, STOPS),
    "lane_int": (lambda x, i: x[i], ROWS, [2, 0, -4]),
    "lane_int_column": (lambda x, i: x[:, i], ROWS, [2, 0, -4]),
    "lane_both": (lambda x, i, j: x[i, j], ROWS, [2, 0, -4], [0, 1, 2]),
    "lane_ids": (lambda x, i: x[i], ROWS, [np.array([0, 2]), np.array([0]), np.array([4, 4, -5])]),
    "lane_ids_columns": (lambda x, i: x[:, i % 4], ROWS, IDS3),
    "lane_grid": (lambda x, i: x[i], ROWS, [np.array([[0, 2]]), np.array([[0, 0]]), np.array([[4, 4], [1, -5]])]),
    "lane_mixed": (lambda x, i: x[i % x.shape[0], [0, 1, 2, 3]], ROWS, [np.arange(4)] * 3),
    "lane_mask": (lambda x, m: x[m], ROWS, MASKS),
    "lane_mask_column": (lambda x, m: x[m, 1], ROWS, MASKS),
    "lane_mask_new": (lambda x, m: x[None, m], ROWS, MASKS),
    "shared_mask": (lambda x, m: x[:, m], ROWS, Shared(np.array([True, False, True, True]))),
    "shared_ids": (lambda x, i: x[:, i], ROWS, Shared(np.array([[0, -1], [2, 2]]))),
    "shared_ids_rows": (lambda x, i: x[i], ROWS, Shared(np.array([0, -1, 0]))),
    "shared_split": (lambda x, i: x[i, None, i], STATIC, Shared(np.array([0, -1, 0]))),
    "shared_cells": (lambda x, i: x[i, :, i], CUBES, Shared(np.array([0, -1, 0]))),
    "span": (lambda x, a, b: x[a:b], ROWS, STARTS, STOPS),
    "span_prefix": (lambda x, b: x[:b], ROWS, STOPS),
    "span_columns": (lambda x, a, b: x[:, a:b], ROWS, STARTS, STOPS),
    "span_step": (lambda x, s: x[::s], ROWS, [1, -1, 2]),
    "span_both": (lambda x, a: x[a:, :a], BOTH, STARTS),
    "middle": (lambda x: x[:, 0], CUBES),
    "ellipsis": (lambda x: x[..., 0, :], CUBES),
    "middle_list": (lambda x: x[:, [0, -1]], CUBES),
    "last": (lambda x: x[-1], VECTORS),
    "zeroth": (lambda x: x[0], VECTORS),
}


@pytest.mark.parametrize("name", READS)
def test_read(name):
    f, *operands = READS[name]
    check(f, *operands, exact=True)


@pytest.mark.parametrize("name", READS)
def test_read_grads(name):
    f, *operands = READS[name]
    check_grads(f, *operands)


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (lambda x: x[1], "index 1 is out of bounds for axis 0 with size 1 in example 1"),
        (lambda x: x[-2], "index -2 is out of bounds for axis 0 with size 1 in example 1"),
        (lambda x: x[[0, 3]], "index 3 is out of bounds for axis 0 with size 3 in example 0"),
        (lambda x: x[:, 4], "index 4 is out of bounds for axis 1 with size 4"),
        (lambda x: x[:, [0, 9]], "index 9 is out of bounds for axis 1 with size 4"),
        (lambda x: x[0, 0, 0], "too many indices for array: array is 2-dimensional, but 3 were indexed"),
        (lambda x: x[np.array([True, False, True])], "boolean index did not match indexed array along axis 0; size of"),
        (lambda x: x["a"], "only integers, slices"),
        (lambda x: x[1.0], "only integers, slices"),
        (lambda x: x[..., ...], "single ellipsis"),
    ],
)
def test_errors(f, message):
    with pytest.raises(IndexError, match=message):
        f(MaskedBatch.from_examples(ROWS))
    with pytest.raises(IndexError, match=message.partition(" in example")[0]):
        list(map(f, ROWS))


def test_a_bad_id_is_named_and_padding_never_is():
    ids = MaskedBatch(np.array([[1, 99], [6, 99]]), lengths=[1, 1])
    with pytest.raises(IndexError, match="index 6 is out of bounds for axis 0 with size 6 in example 1"):
        getitem(TABLE.value, ids)
    assert getitem(np.ones((7, 2)), ids).data.shape == (2, 1, 2)


def test_empty_batches():
    for shape in [(0, 3, 4), (0, 0, 4)]:
        x = MaskedBatch(np.zeros(shape), lengths=np.zeros(0, int))
        for f in (lambda x: x[:, 1], lambda x: x[::-1], lambda x: x[x > 0], lambda x: x[:-1], lambda x: x[[0]]):
            assert f(x).batch_size == 0


def test_static_reads_are_views():
    x = MaskedBatch(np.arange(24.0).reshape(2, 3, 4))
    for f in (lambda x: x[0], lambda x: x[1:], lambda x: x[:, ::-1], lambda x: x[None, ..., 2], lambda x: x.T):
        assert np.shares_memory(f(x).data, x.data)


def test_a_table_gets_the_rows_that_were_read():
    tape = Tape()
    table = tape.leaf(np.zeros((1000, 3)))
    out = getitem(table, MaskedBatch.from_examples([np.array([1, 1]), np.array([5])]))
    (grad,) = tape.backward([out.data], [np.where(out.mask, 1.0, np.nan)], [table._ab_index])
    assert isinstance(grad, Scatter)
    assert grad.index.tolist() == [1, 1, 5]
    dense = grad.to_dense()
    assert dense[1].tolist() == [2.0] * 3
    assert dense[5].tolist() == [1.0] * 3


def test_one_huge_poisoned_batch():
    check(lambda x, i: x[i], normals(*[(n, 3) for n in range(1, 30)]), [n // 2 for n in range(1, 30)])


def test_a_single_boolean_index_runs_as_a_loop():
    x = MaskedBatch.from_examples(VECTORS)
    with pytest.warns(FallbackWarning, match="single boolean"):
        got = x[True]
    np.testing.assert_array_equal(got.examples()[1], VECTORS[1][True])
    with pytest.raises(NeedsLoop, match="single boolean"):
        x[True] = 1.0


@pytest.mark.parametrize(
    "f",
    [
        lambda i, x: np.choose(i, [x, -x, 2 * x]),
        lambda i, x: np.choose(i, [x, -x], mode="wrap"),
        lambda i, x: np.choose(i, [x, -x], mode="clip"),
        lambda i, x: np.take(x, i),
        lambda i, x: np.take(x, i, mode="clip"),
        lambda i, x: np.take_along_axis(x, i, 0),
    ],
)
@pytest.mark.parametrize("last", [[1, 0], [1, 5], [-1, 0], [0, -5]])
def test_wrong_positions_raise_what_numpy_raises(f, last):
    """By every way, and of the first example that has one."""
    every_way_equals_loop(f, [np.array(each) for each in ([0, 1, 2], [0], last, last)], ragged(3, 1, 2, 2))


@pytest.mark.parametrize("lengths", [(0, 0), (0, 2), (2, 0, 1)])
def test_index_arrays_that_broadcast_to_none_are_not_looked_at(lengths):
    far = [np.array([[7 if n == 0 else 1]]) for n in lengths]
    near = [np.zeros((1, n), int) for n in lengths]
    every_way_equals_loop(lambda i, j, x: x[i, j], far, near, [np.eye(3)] * len(lengths))
    check(lambda i, j, x: getitem(x, (i, j[:, :0])), far, near, Shared(np.eye(3)))
    check(lambda j, x: getitem(x, (7, j)), [j[:, :0] for j in near], Shared(np.eye(3)))  # an integer is
