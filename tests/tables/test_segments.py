"""Segment reductions: the seeds' own examples, bad input, and what a gradient costs."""

import inspect
import tracemalloc

import numpy as np
import pytest

import autobatch as ab
from autobatch import (
    EmbeddingTable,
    grad,
    lengths_to_offsets,
    lengths_to_segment_ids,
    segment_ids_to_lengths,
    segment_sum,
)
from autobatch.errors import BadIdError, DTypeError, ShapeError

RANDOM = np.random.default_rng(5)
DATA = np.array([[1, 2], [11, 5], [3, 3], [11, 9]])


def make(shape, dtype=np.float64):
    return (RANDOM.standard_normal(shape) * 10).astype(dtype)


def test_seed_s3_08_and_s3_09_lengths_and_segment_ids():
    lengths = [1, 3, 0, 2]
    assert lengths_to_segment_ids(lengths).tolist() == [0, 1, 1, 1, 3, 3]
    assert segment_ids_to_lengths([0, 1, 1, 1, 3, 3]).tolist() == lengths
    assert segment_ids_to_lengths([1, 0], 3).tolist() == [1, 1, 0]
    assert lengths_to_offsets(lengths).tolist() == [0, 1, 4, 4, 6]
    assert lengths_to_offsets([]).tolist() == [0]
    assert segment_ids_to_lengths([]).tolist() == []


def test_s3_14_and_s3_21_up_to_the_greatest_id():
    assert segment_sum(DATA, [0, 2, 2, 2]).tolist() == [[1, 2], [0, 0], [25, 17]]
    assert segment_sum(DATA, [2, 0, 2, 2]).tolist() == [[11, 5], [0, 0], [15, 14]]
    assert segment_sum(DATA[:0], []).shape == (0, 2)


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
        ((DATA * 1j, [0] * 4), {}, DTypeError, r"a segment reduction of complex128"),
        ((DATA, [0] * 4), {"weights": [1j] * 4}, DTypeError, r"weights have dtype complex128"),
        ((DATA, [0, 1, 0, 2]), {"sorted": True}, BadIdError, r"segment_ids fall, from 1 to 0 at position 2"),
        ((DATA, np.full(4, 2**63, np.uint64)), {}, BadIdError, r"segment_ids hold 9223372036854775808"),
        ((DATA, [0, 0]), {"ids": np.full(2, 2**64 - 1, np.uint64)}, BadIdError, r"ids hold 18446744073709551615"),
        ((DATA,), {"lengths": [2**62] * 4 + [4]}, ShapeError, r"lengths add up to 18446744073709551620"),
        ((DATA,), {"lengths": np.full(2, 2**63, np.uint64)}, BadIdError, r"lengths hold 9223372036854775808"),
        ((DATA,), {"offsets": [0, 3, 2, 4]}, BadIdError, r"offsets\[2\] is 2, below offsets\[1\] = 3"),
        ((DATA,), {"offsets": [1, 4]}, BadIdError, r"offsets\[0\] is 1; expected 0"),
        ((DATA,), {"offsets": [0, 5]}, BadIdError, r"offsets\[1\] is 5, above the number of values, 4"),
        ((DATA,), {"offsets": []}, BadIdError, r"offsets are empty"),
        ((DATA,), {"offsets": [[0, 4]]}, ShapeError, r"offsets have shape \(1, 2\)"),
        ((DATA,), {"lengths": [[4]]}, ShapeError, r"lengths have shape \(1, 1\)"),
        ((DATA, [[0] * 4]), {}, ShapeError, r"segment_ids have shape \(1, 4\)"),
        ((DATA, [[0], [1, 2]]), {}, ShapeError, r"nested lists of different lengths"),
        ((DATA, [0, 1]), {"ids": [[0, 1]]}, ShapeError, r"ids have shape \(1, 2\); expected one dimension"),
        ((DATA, [0]), {"ids": [-1]}, BadIdError, r"id -1 at position 0 .* a table has no negative ids"),
        ((DATA, [0] * 4), {"num_segments": -1}, ShapeError, r"num_segments=-1; expected at least 0"),
        ((DATA, [0] * 4), {"num_segments": 1.5}, TypeError, r"num_segments=1\.5; expected a whole number"),
        ((DATA, [0] * 4), {"empty": [1, 2]}, ShapeError, r"empty has shape \(2,\); expected one number"),
    ],
)
def test_bad_input(arguments, options, error, match):
    with pytest.raises(error, match=match):
        segment_sum(*arguments, **options)


@pytest.mark.parametrize("bad", [[0, 1, 5, 0], [0, -2, 1, 1]])
def test_s3_nothing_unchecked_reaches_a_kernel(bad):
    """No function of the family writes for a bad id: memory around its data stays as it was."""
    whole = np.full((8, 2), 77.0)
    data = whole[2:6]
    for name in ab.segments.__all__:
        if name.startswith("segment_") and not name.startswith("segment_ids"):
            more = {"k": 1} if name == "segment_topk" else {}
            with pytest.raises(BadIdError, match="segment id"):
                getattr(ab, name)(data, bad, num_segments=5, **more)
            with pytest.raises(BadIdError, match="outside a table"):
                getattr(ab, name)(data, [0] * 4, ids=bad, **more)
    assert (whole == 77).all()


def test_the_gradient_of_a_fused_sum_is_not_repeated_for_each_id():
    """Backward and update need memory for the bags and for one row, not for one row for each id nor for the table."""
    rows, dim, n = 20_000, 64, 50_000
    table, opt = EmbeddingTable(np.zeros((rows, dim), np.float32)), ab.optim.SGD(0.1)
    ids, lengths = RANDOM.integers(0, rows, n), np.full(50, n // 50)
    indexer, state = ab.optim.Indexer(n), opt.init(table)

    def step():
        gradient = grad(lambda t: segment_sum(t, lengths=lengths, ids=ids).sum())(table)
        opt.update(table, gradient, state, indexers=indexer, threads=2)

    step()
    before = table.weights.copy()
    tracemalloc.start()
    step()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3_000_000 < n * dim * 4 / 4
    expected = before.copy()
    np.subtract.at(expected, ids, np.float32(0.1))
    np.testing.assert_allclose(table.weights, expected, atol=1e-4)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "cumsum", "sort"])
def test_a_result_with_a_row_for_each_row_has_no_empty_segment(name):
    function = getattr(ab, f"segment_{name}")
    assert "empty" not in inspect.signature(function).parameters
    with pytest.raises(TypeError, match=rf"segment_{name} takes no empty="):
        function(DATA, [0, 0, 1, 1], empty=1)
