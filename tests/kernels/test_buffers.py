"""Gathering rows over several buffers by address."""

import numpy as np
import pytest

from autobatch.kernels.rows import (
    CONSECUTIVE,
    MISSING,
    ONE_BUFFER,
    SAME,
    SEVERAL,
    copy_spans,
    gather_buffers,
    locate,
    locate_operands,
    place_results,
)


def address(array):
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 3, 16])
def test_rows_of_several_buffers(dtype, width):
    rng = np.random.default_rng(0)
    buffers = [rng.integers(0, 100, (rows, width)).astype(dtype) for rows in (4, 1, 7)]
    buffers.append(rng.integers(0, 100, (12, width)).astype(dtype)[::3])  # rows far apart
    which = np.array([3, 0, 2, 2, 1, 3, 0])
    rows = np.array([3, 0, 6, 6, 0, 0, 3])
    out = np.full((9, width), 77, dtype)  # a row before and behind must stay
    inner = out[1:-1]
    gather_buffers(
        np.array([address(buffer) for buffer in buffers]),
        np.array([buffer.strides[0] for buffer in buffers]),
        which,
        rows,
        width * inner.itemsize,
        address(inner),
    )
    np.testing.assert_array_equal(inner, [buffers[k][row] for k, row in zip(which, rows, strict=True)])
    assert (out[[0, -1]] == 77).all()


def test_no_rows():
    none = np.zeros(0, np.int64)
    out = np.ones(3)
    gather_buffers(np.array([address(out)]), np.array([8]), none, none, 8, address(out))
    assert (out == 1).all()


def test_operands_of_launches():
    """Five calls in three launches; two places from outside, of which the second is row 4 of buffer 0."""
    order, starts = np.array([0, 1, 3, 2, 4]), np.array([0, 2, 4, 5])
    places = np.array([0, 1, 2, 4, 6])  # calls 2 and 3 have two outputs each
    offsets, refs = np.array([0, 1, 2, 4, 6, 8]), np.array([-2, -2, 0, 0, 1, 0, 5, -1])
    buffer_of, row_of = np.full(9, -1), np.zeros(9, np.int64)
    buffer_of[-2], row_of[-2] = 0, 4
    which, rows, how, heads = (np.zeros(n, np.int64) for n in (8, 8, 5, 5))
    place_results(order, starts, places, np.array([1, 2, 1]), 1, buffer_of, row_of)
    locate_operands(order, starts, offsets, refs, buffer_of, row_of, which, rows, how, heads)
    assert buffer_of.tolist() == [1, 1, 2, 3, 2, 3, 4, 0, -1]
    assert row_of.tolist() == [0, 1, 1, 1, 0, 0, 0, 4, 0]
    assert how.tolist() == [SAME, ONE_BUFFER, SAME, SAME, SAME]
    assert heads.tolist() == [-2, 1, 0, 5, -1]
    assert which.tolist() == [0, 0, 1, 1, 1, 1, 3, -1]
    assert rows.tolist() == [4, 4, 1, 0, 0, 0, 0, 0]


def test_nothing_is_said_of_lists_of_different_lengths():
    """The first launch is of two calls, of one operand and of two; the second of one call, whose operand is found."""
    buffer_of, row_of = np.array([0, 0, 1]), np.array([3, 4, 0])
    which, rows, how, heads = (np.full(n, 77) for n in (4, 4, 2, 2))
    locate_operands(
        np.arange(3), np.array([0, 2, 3]), np.array([0, 1, 3, 4]), np.array([0, 1, 0, 2]), buffer_of, row_of, which,
        rows, how, heads,
    )  # fmt: skip
    assert (how.tolist(), heads.tolist()) == ([77, SAME], [77, 2])
    assert (which.tolist(), rows.tolist()) == ([77, 77, 77, 1], [77, 77, 77, 0])


def test_spans_of_rows_follow_each_other():
    rows = np.arange(24, dtype=np.float32).reshape(8, 3)
    starts, lengths = np.array([5, 0, 2]), np.array([2, 0, 3])
    out = np.full((7, 3), 77, np.float32)
    copy_spans(address(rows) + starts * 12, lengths, 12, address(out[1:]))
    np.testing.assert_array_equal(out[1:6], rows[[5, 6, 2, 3, 4]])
    assert (out[[0, 6]] == 77).all()


@pytest.mark.parametrize(
    ("refs", "expected"),
    [([0, 1], CONSECUTIVE), ([1, 0], ONE_BUFFER), ([0, 2], SEVERAL), ([2, -1], MISSING), ([-1, -1], SAME)],
)
def test_where_an_operand_is(refs, expected):
    which, rows = np.zeros((2, 2), np.int64)
    found = locate(
        np.array(refs), np.arange(3), np.arange(2), 0, np.array([0, 0, 1, -1]), np.array([3, 4, 0, 0]), which, rows
    )
    assert found == expected
