"""Where an operator between NumPy scalars differs from its ufunc, in its result or in the errors that it reports.

NumPy computes `x + y` of two scalars (or of a scalar and a Python number) by loops of their own: an integer that
overflows is reported, complex X"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

INTEGERS = "bhilqBHILQ"
_REAL = "efdg"
_COMPLEX = "FDG"


def overflowed(ufunc: np.ufunc, out: Any, x: Any, y: Any = 0) -> np.ndarray:
    """True where the integers `out` are not the exact `ufunc` (add, subtract, multiply, negative, absolute) of x and y.

    Args:
        out: the result as computed in its own dtype, wrapped around.
        x, y: the operands, or Python numbers that fit into the dtype of `out`.

    >>> x = np.array([100, 50], np.int8)
    >>> overflowed(np.add, x + x, x, x)
    array([ True, False])
    """
    dtype = out.dtype
    if dtype.itemsize < 8:
        operands = (x, y)[: ufunc.nin]
        return ufunc(*operands, dtype=np.int64) != out
    x, y = np.asarray(x, dtype), np.asarray(y, dtype)
    if ufunc is np.multiply:
        return _wrong_products(out, x, y)
    if dtype.kind == "u":
        return {np.add: out < x, np.subtract: x < y, np.negative: x != 0}.get(ufunc, np.zeros(out.shape, np.bool_))
    if ufunc is np.add:
        return ((x ^ out) & (y ^ out)) < 0
    if ufunc is np.subtract:
        return ((x ^ y) & (x ^ out)) < 0
    return x == np.iinfo(dtype).min


def _wrong_products(out: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    limit = float(np.iinfo(out.dtype).max)
    size = np.abs(np.multiply(x, y, dtype=np.float64))
    wrong = size > limit * (1 + 2**-50)
    if np.iinfo(out.dtype).min == 0:
        wrong |= np.multiply(x, y, dtype=np.float64) < 0
    close = ~wrong & (size > limit * (1 - 2**-50))
    if close.any():
        exact = np.multiply(x, y, dtype=object)
        wrong |= close & np.asarray(exact != out, np.bool_)
    return wrong


@dataclasses.dataclass(frozen=True)
class Difference:
    """How the operator between scalars differs from its ufunc.

    Attributes:
        chars: the characters of the dtypes that it concerns; an operand has one of them.
        suspects: `suspects(out, *operands)` is True where the operator may report or give something else than `out`,
            the result of the ufunc; None: nowhere.
        values: results other than integers may differ there; otherwise only what is reported, the same at each place.
        quiet: the ufunc reports what the operator does not, and nothing at other places.
    """

    chars: str
    suspects: Callable[..., np.ndarray | None]
    values: bool = False
    quiet: bool = False


def _overflow(ufunc: np.ufunc) -> Difference:
    def suspects(out: np.ndarray, *operands: Any) -> np.ndarray | None:
        return overflowed(ufunc, out, *operands) if out.dtype.char in INTEGERS else None

    return Difference(INTEGERS, suspects)


def _overflow_or_rounding(out: np.ndarray, x: Any, y: Any) -> np.ndarray | None:
    if out.dtype.char in INTEGERS:
        return overflowed(np.multiply, out, x, y)
    if out.dtype.kind != "c":
        return None
    large = np.finfo(out.dtype).max / 4
    return ~((np.abs(out.real) < large) & (np.abs(out.imag) < large))


def _imaginary_nan(out: np.ndarray, x: Any, y: Any) -> np.ndarray:
    return np.isnan(x) | np.isnan(y)


def _division(out: np.ndarray, x: Any, y: Any) -> np.ndarray | None:
    if out.dtype.char != "e":
        return None
    with np.errstate(all="ignore"):
        return ~np.isfinite(np.divide(x, y, dtype=np.float16))


def _root(out: np.ndarray, x: Any, y: Any) -> np.ndarray | None:
    if out.dtype.char not in _REAL or (type(y) in (int, float) and y != 0.5):
        return None
    return np.equal(y, 0.5) & (np.equal(x, 0) | np.equal(x, -np.inf))


DIFFERENCES: dict[Any, Difference] = {
    **{ufunc: _overflow(ufunc) for ufunc in (np.add, np.subtract, np.negative, np.absolute)},
    np.multiply: Difference(INTEGERS + _COMPLEX, _overflow_or_rounding, values=True, quiet=True),
    **{
        ufunc: Difference(_COMPLEX, _imaginary_nan, values=True, quiet=True)
        for ufunc in (np.less, np.less_equal, np.greater, np.greater_equal)
    },
    np.floor_divide: Difference("e", _division),
    np.remainder: Difference("e", _division),
    np.power: Difference(_REAL, _root, values=True),
}
"""The ufuncs whose operator differs for scalars; for all other ufuncs and dtypes the two are the same."""
