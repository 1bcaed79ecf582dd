"""Segment reductions over every representation, against a loop over the segments."""

import numpy as np
import pytest

from autobatch.autodiff.grad import grad
from autobatch.embedding.representations import lengths_to_offsets, lengths_to_segment_ids, segment_ids_to_lengths
from autobatch.embedding.segments import segment_max, segment_mean, segment_min, segment_sum
from autobatch.embedding.sparse import SparseRows
from autobatch.embedding.table import EmbeddingTable
from autobatch.errors import BadIdError, DTypeError, ShapeError
from tests import naive

RANDOM = np.random.default_rng(5)
FAMILY = {"sum": segment_sum, "mean": segment_mean, "max": segment_max, "min": segment_min}
DATA = np.array([[1, 2], [11, 5], [3, 3], [11, 9]])


def make(shape, dtype=np.float64):
    return (RANDOM.standard_normal(shape) * 10).astype(dtype)


def test_seed_s3_13_the_first_dimension_only():
    assert segment_sum(DATA, [0, 0, 1, 1]).tolist() == [[12, 7], [14, 12]]


def test_seed_s3_08_and_s3_09_lengths_and_segment_ids():
    lengths = [1, 3, 0, 2]
    assert lengths_to_segment_ids(lengths).tolist() == [0, 1, 1, 1, 3, 3]
    assert segment_ids_to_lengths([0, 1, 1, 1, 3, 3]).tolist() == lengths
    assert segment_ids_to_lengths([1, 0], 3).tolist() == [1, 1, 0]
    assert lengths_to_offsets(lengths).tolist() == [0, 1, 4, 4, 6]
    assert lengths_to_offsets([]).tolist() == [0]
    assert segment_ids_to_lengths([]).tolist() == []


@pytest.mark.parametrize("shape", [(0, 2), (1, 2), (6,), (6, 2), (6, 2, 3), (6, 0)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32])
@pytest.mark.parametrize("mode", FAMILY)
def test_every_representation_is_the_loop(mode, dtype, shape):
    if mode == "mean" and dtype == np.int32:
        dtype = np.float32
    data = make(shape, dtype)
    lengths = {0: [0, 0], 1: [0, 1], 6: [2, 0, 3, 1, 0]}[shape[0]]
    ids = np.repeat(np.arange(len(lengths)), lengths)
    expected = naive.segments(data, ids, len(lengths), mode)
    rtol = 2e-2 if dtype == np.float16 else 1e-5
    for described in ({"lengths": lengths}, {"offsets": np.cumsum([0, *lengths])}):
        out = FAMILY[mode](data, **described)
        assert out.dtype == dtype
        np.testing.assert_allclose(out, expected, rtol, rtol)
    order = RANDOM.permutation(shape[0])
    out = FAMILY[mode](data[order], ids[order], num_segments=len(lengths))  # S3.19: unsorted
    np.testing.assert_allclose(out, expected, rtol, rtol)
    out = FAMILY[mode](data, ids)  # S3.21: up to the greatest id
    np.testing.assert_allclose(out, expected[: ids.max(initial=-1) + 1], rtol, rtol)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_weights(mode):
    data, weights = make((4, 2)), make(4)
    out = FAMILY[mode](data, [1, 0, 1, 3], weights=weights)
    for segment, rows in enumerate([[1], [0, 2], [], [3]]):
        np.testing.assert_allclose(out[segment], naive.bag(data[rows], mode, weights[rows]))


@pytest.mark.parametrize("mode", FAMILY)
def test_seed_s3_22_fused_ids_equal_gather_and_reduce(mode):
    data, ids = make((9, 2)), np.array([3, 8, 3, 0])
    np.testing.assert_array_equal(FAMILY[mode](data, lengths=[1, 3], ids=ids), FAMILY[mode](data[ids], lengths=[1, 3]))


def test_an_empty_segment_has_the_value_asked_for():
    np.testing.assert_array_equal(segment_max(DATA * 1.0, [2, 2, 2, 2], empty=-np.inf)[:2], np.full((2, 2), -np.inf))


@pytest.mark.parametrize("mode", FAMILY)
@pytest.mark.parametrize("shape", [(5,), (5, 2), (5, 2, 2)])
def test_gradients_are_the_differences(mode, shape):
    data, ids = make(shape), np.array([2, 0, 2, 2, 0])
    ct = make((4, *shape[1:]))

    def loss(data):
        return (FAMILY[mode](data, ids, num_segments=4) * ct).sum()

    np.testing.assert_allclose(grad(loss)(data), naive.numeric_gradient(loss, data), atol=1e-6)


def test_gradients_of_weights_and_of_a_table():
    table, weights, ids = make((6, 2)), make(4), np.array([5, 1, 5, 0])

    def loss(table, weights):
        return (segment_mean(table, lengths=[3, 1], ids=ids, weights=weights) ** 2).sum()

    sparse, found = grad(loss, (0, 1))(EmbeddingTable(table), weights)
    assert isinstance(sparse, SparseRows)
    np.testing.assert_allclose(sparse.to_dense(), naive.numeric_gradient(lambda t: loss(t, weights), table), 1e-5, 1e-5)
    np.testing.assert_allclose(found, naive.numeric_gradient(lambda w: loss(table, w), weights), 1e-4, 1e-4)


def test_the_gradient_goes_to_the_first_of_ties():
    np.testing.assert_array_equal(grad(lambda x: segment_max(x, [0, 0, 0]).sum())(np.array([1.0, 3.0, 3.0])), [0, 1, 0])


def test_gradients_of_gradients_of_a_sum():
    x, ids = make(5), np.array([0, 1, 1, 0, 2])

    def g(x):
        inner = grad(lambda x: (segment_mean(x, ids) ** 3).sum())(x)
        return (inner * inner).sum()

    np.testing.assert_allclose(grad(g)(x), naive.numeric_gradient(g, x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "match"),
    [
        ((DATA,), {}, ShapeError, r"exactly one of segment_ids, lengths= and offsets="),
        ((DATA, [0] * 4), {"lengths": [4]}, ShapeError, r"exactly one of"),
        ((DATA, [0, 1, 2]), {}, ShapeError, r"segment_ids have shape \(3,\); expected one for each row, \(4,\)"),
        ((DATA, [0, 1, -1, 0]), {}, BadIdError, r"segment id -1 at position 2 is negative"),
        ((DATA, [0, 1, 3, 0]), {"num_segments": 3}, BadIdError, r"segment id 3 at position 2 is outside 3 segments"),
        ((DATA,), {"lengths": [1, 2]}, ShapeError, r"lengths add up to 3; expected the number of rows, 4"),
        ((DATA,), {"lengths": [5, -1]}, ShapeError, r"lengths\[1\] is -1"),
        ((DATA,), {"lengths": [4], "num_segments": 2}, ShapeError, r"num_segments=2, but 1 segments"),
        ((DATA,), {"offsets": [0, 3]}, BadIdError, r"the last of the offsets is 3"),
        ((DATA, [0.0] * 4), {}, DTypeError, r"segment_ids have dtype float64"),
        ((DATA, [0]), {"ids": [4]}, BadIdError, r"id 4 at position 0 is outside a table of 4 rows"),
        ((DATA, [0] * 4), {"weights": np.ones(3)}, ShapeError, r"weights have shape \(3,\)"),
        ((3.0, [0]), {}, ShapeError, r"data is a single number"),
        ((DATA > 3, [0] * 4), {}, DTypeError, r"a segment reduction of bool"),
    ],
)
def test_bad_input(arguments, options, error, match):
    with pytest.raises(error, match=match):
        segment_sum(*arguments, **options)


def test_the_mean_of_integers_is_refused():
    with pytest.raises(DTypeError, match="the mean of int64 is no int64"):
        segment_mean(DATA, [0] * 4)
