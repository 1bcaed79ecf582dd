"""Gathering rows over several buffers by address."""

import numpy as np
import pytest

from autobatch.kernels.buffers import gather_buffers


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
