"""Integers that float64 or the dtype of an array does not hold: arrays made of them, and numbers written into parts."""

import numpy as np
import pytest

from tests.law import every_way_is_exact

MADE = {
    "arange": lambda n: np.arange(n[0], n[1]),
    "arange of a dtype": lambda n: np.arange(n[0], n[1], dtype=n.dtype),
    "arange with a step": lambda n: np.arange(n[0], n[1], n[2]),
    "arange downwards": lambda n: np.arange(n[1], n[0], -1),
    "arange of ints": lambda n: np.arange(int(n[0]), int(n[1])),
    "arange of both": lambda n: np.arange(n[0], int(n[1])),
    "arange of other bounds": lambda n: np.arange(int(n[0]), n[1], np.uint8(1)),
    "arange of int8": lambda n: np.arange(n[0], n[1], dtype=np.int8),
    "arange of uint64": lambda n: np.arange(n[0], n[1], dtype=np.uint64),
    "arange of float32": lambda n: np.arange(n[0], n[1], dtype=np.float32),
    "linspace": lambda n: np.linspace(n[0], n[1], 3),
    "linspace of a dtype": lambda n: np.linspace(n[0], n[1], 3, dtype=n.dtype),
    "full": lambda n: np.full(2, n[0]),
    "full of an int": lambda n: np.full(2, int(n[0]), dtype=n.dtype),
    "full of int8": lambda n: np.full(2, n[0], dtype=np.int8),
    "full_like": lambda n: np.full_like(n, int(n[0])),
    "array": lambda n: np.array([n[0], int(n[1])]),
    "array of a dtype": lambda n: np.array([int(n[0]), 1], dtype=n.dtype),
    "array of unlike parts": lambda n: np.array([int(n[0]), 0.5], dtype=np.int64),
    "array of int8": lambda n: np.array([n[0], 3.7], dtype=np.int8),
    "array of rows": lambda n: np.array([n, n - n[0]], dtype=np.int8),
    "asarray": lambda n: np.asarray([n[0], n[1]]),
    "fromiter": lambda n: np.fromiter([n[0], n[1]], n.dtype),
    "repeat": lambda n: np.repeat(int(n[0]), 3),
    "zeros": lambda n: np.zeros(3, n.dtype) + n[0],
    "eye": lambda n: np.eye(2, dtype=n.dtype) * n[0],
    "identity": lambda n: np.identity(2, n.dtype) * n[0],
    "tri": lambda n: np.tri(2, dtype=n.dtype) * n[0],
    "concatenate": lambda n: np.concatenate([n, [int(n[0])]]),
}


@pytest.mark.parametrize("name", MADE)
def test_creation_from_large_integers(name):
    f = MADE[name]
    for dtype in map(np.dtype, "bBILl"):
        info = np.iinfo(dtype)
        for low in (2**53 + 1, 2**63 + 1, info.max - 4, info.min):
            rows = [[1, 4, 1], [low, low + 3, 1], [low + 1, low + 3, 1]]
            if info.min <= low and low + 3 <= info.max:
                with np.errstate(all="ignore"):
                    every_way_is_exact(f, [np.array(row, dtype) for row in rows])


CAST = {
    "int": lambda n: np.arange(n[0], n[1], dtype=int),
    "complex": lambda n: np.arange(n[0], int(n[1]), dtype=complex),
    "float64": lambda n: np.arange(n[1], n[0], -1, dtype=np.float64),
    "falling uint64": lambda n: np.arange(n[1], n[0], -1, dtype=np.uint64),
    "falling uint8": lambda n: np.arange(n[1] - n[0], n[0] - n[0], -1, dtype=np.uint8),
    "objects": lambda n: np.arange(n[0], n[1], dtype=object),
    "full of objects": lambda n: np.full(2, n[0], dtype=object),
    "like of objects": lambda n: np.full_like(n, n[0], dtype="O"),
}


@pytest.mark.parametrize("name", CAST)
def test_creation_casts_what_the_bounds_numbers_hold(name):
    """From 2**24 on, float32 holds no odd numbers: there `np.arange` of another dtype repeats its first one."""
    for dtype in (np.float32, np.float64, np.int64, np.uint64):
        xs = [np.array([low, low + more], dtype) for low in (1, 2**24) for more in (4, 2, 4)]
        with np.errstate(all="ignore"):
            every_way_is_exact(CAST[name], xs)


def element(x, w):
    x[0] = w[0]
    return x


def piece(x, w):
    x[:2] = w[0]
    return x


def row(x, w):
    out = np.zeros((2, 3), np.int8)
    out[0] = w[0]
    return out + x[0]


def listed(x, w):
    x[[0, 1]] = w[0]
    return x


def masked(x, w):
    x[x > 1] = w[0]
    return x


def items(x, w):
    x[:2] = [w[0], 1]
    return x


def of_array(x, w):
    x[:2] = w[:2]
    return x


def of_0d(x, w):
    x[0] = w[..., 0]
    return x


def own_element(x, w):
    x[0] = (x * w[0]).sum()
    return x


def own_piece(x, w):
    x[:2] = (x * w[0]).sum()
    return x


def own_int(x, w):
    x[:2] = int(x[0]) * 100
    return x


def unsigned(x, w):
    out = np.zeros(3, np.uint8)
    out[0] = x[0]
    out[1:] = x[1]
    return out


def filled(x, w):
    x.fill(w[0])
    return x


def updated(x, w):
    x[0] += w[0]
    return x


def in_a_loop(x, w):
    out = np.zeros(3, np.int8)
    for i in range(3):
        out[i] = w[i]
    return out + x


WRITES = [
    element, piece, row, listed, masked, items, of_array, of_0d, own_element, own_piece, own_int, unsigned, filled,
    updated, in_a_loop,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")
@pytest.mark.parametrize("f", WRITES, ids=lambda f: f.__name__)
def test_numbers_written_into_parts(f):
    shared = [np.array([300, 2, 3]), np.array([-129, 2, 3], np.int16), np.array([200, 1, 2], np.uint8)]
    for w in (*shared, np.array([100, 2, 3]), np.array([np.nan, 1, 1])):
        for rows in ([[2, 1, 1]], [[1, 0, 0], [1, 2, 2]], [[1, 1, 1], [-1, 3, 2], [100, 1, 0]]):
            with np.errstate(over="ignore"):
                every_way_is_exact(f, [np.array(row, np.int8) for row in rows], w=w)


FILLED = {
    "full": lambda w, dtype: np.full(2, w[0], dtype),
    "full_like": lambda w, dtype: np.full_like(np.zeros(2, dtype), w[0]),
    "array of one": lambda w, dtype: np.array(w[0], dtype)[None],
    "array of several": lambda w, dtype: np.array([w[0], w[1]], dtype),
    "array of rows": lambda w, dtype: np.array([[w[0]], [w[1]]], dtype),
    "full of an int": lambda w, dtype: np.full(2, int(w[0]), dtype),
    "array of ints": lambda w, dtype: np.array([int(w[0]), w[1]], dtype),
}


@pytest.mark.parametrize("name", FILLED)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint64])
def test_what_handles_the_error_of_a_number_runs_where_numpy_raises_it(name, dtype):
    make = FILLED[name]

    def handled(x, w, dtype):
        try:
            return make(w, dtype) + x
        except OverflowError:
            return x

    for low in (300, -1, 3):
        every_way_is_exact(handled, [np.zeros(2, dtype)] * 2, w=np.array([low, 1]), dtype=dtype)


def one_item(x, w):
    x = x.copy()
    x[0] = w[:1]
    return x


def one_item_of_a_row(x, w):
    rows = np.stack([x, x])
    rows[1, 0] = w[None, :1]
    return rows


def one_item_of_a_list(x, w):
    x = x.copy()
    x[1] = [2]
    return x


@pytest.mark.parametrize("f", [one_item, one_item_of_a_row, one_item_of_a_list])
@pytest.mark.parametrize("dtype", [np.float64, np.int8])
def test_an_array_of_one_number_is_no_number(f, dtype):
    found = every_way_is_exact(f, [np.array([1, 2], dtype), np.array([3, 4], dtype)], w=np.array([5, 6]))
    assert found[0] in (ValueError, TypeError) or np.lib.NumpyVersion(np.__version__) < "2.4.0"


def an_element(y, w):
    y[0] = w[0]


def a_slice(y, w):
    y[1:] = w[0]


def a_sum(y, w):
    y[0] += w[0]


def a_list(y, w):
    y[1:] = [w[0], 1]


def an_item_of_flat(y, w):
    y.flat[1] = w[0]


def filled(y, w):
    y.fill(w[0])


def from_an_iterable(y, w):
    y[:2] = np.fromiter([w[0], 1], y.dtype)


@pytest.mark.parametrize("write", [an_element, a_slice, a_sum, a_list, an_item_of_flat, filled, from_an_iterable])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint64, np.int8])
def test_a_recorded_number_is_numpys_where_a_plain_array_takes_it(write, dtype):
    def handled(v, w):
        y = v.copy()
        try:
            write(y, w)
        except (OverflowError, ValueError):
            y = v + 1
        return y

    for low in (300, -1, 300.5, 3):
        every_way_is_exact(handled, [np.array([1, 2, 3], dtype), np.array([3, 4, 5], dtype)], w=np.array([low, 1]))
