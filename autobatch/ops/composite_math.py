"""Numeric functions composed of ops: differences, comparisons with tolerance, products, polynomials."""

import functools
from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, shape_of
from autobatch.core.op import is_boxed
from autobatch.ops.rules.aliasing import into
from autobatch.ops.rules.dispatch import Declined, as_array, implements

__all__ = []


# differences and integrals


# comparison


# numbers


@implements(np.nan_to_num)
def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    dtype = dtype_of(x)
    if dtype.kind == "c":
        raise Declined("np.nan_to_num of complex numbers")
    if dtype.kind != "f":
        return np.copy(x) if copy else x
    limits = np.finfo(dtype)
    out = np.where(np.isnan(x), np.asarray(nan, dtype), x)
    out = np.where(x == np.inf, np.asarray(limits.max if posinf is None else posinf, dtype), out)
    out = np.where(x == -np.inf, np.asarray(limits.min if neginf is None else neginf, dtype), out)
    return out if copy or not is_boxed(x) else into(x, out)


@implements(np.angle)
def angle(z: Any, deg: bool = False) -> Any:
    out = np.arctan2(np.imag(z), np.real(z))
    return out * (180 / np.pi) if deg else out


@implements(np.sinc)
def sinc(x: Any) -> Any:
    y = np.pi * np.where(x == 0, 1.0e-20, x)
    return np.sin(y) / y


@implements(np.fix)
def fix(x: Any, out: Any = None) -> Any:
    new = np.trunc(x)
    return new if out is None else into(out, new)


@implements(np.round, np.around)
def round_(a: Any, decimals: int = 0, out: Any = None) -> Any:
    kind = dtype_of(a).kind
    if kind == "b" and decimals:
        raise Declined("np.round of bools to other than integers")
    if kind in "biu" and decimals >= 0:
        new = np.copy(a).astype(np.float16) if kind == "b" else np.copy(a)
    elif kind != "f":
        raise Declined("np.round of integers to tens, or of complex numbers")
    elif decimals == 0:
        new = np.rint(a)
    else:
        factor = np.asarray(10.0 ** abs(decimals), np.result_type(dtype_of(a)))
        new = np.rint(a * factor) / factor if decimals > 0 else np.rint(a / factor) * factor
    return new if out is None else into(out, new)


@implements(np.isneginf)
def isneginf(x: Any, out: Any = None) -> Any:
    return (x == -np.inf) if out is None else into(out, x == -np.inf)


@implements(np.isposinf)
def isposinf(x: Any, out: Any = None) -> Any:
    return (x == np.inf) if out is None else into(out, x == np.inf)


@implements(np.iscomplex)
def iscomplex(x: Any) -> Any:
    return np.imag(x) != 0


@implements(np.isreal)
def isreal(x: Any) -> Any:
    return np.imag(x) == 0


# products


@implements(np.polyval)
def polyval(p: Any, x: Any) -> Any:
    p = as_array(p)
    count = shape_of(p)[0]
    if is_boxed(count):
        raise Declined("np.polyval of degrees that differ between examples")
    return functools.reduce(lambda y, i: y * x + p[i], range(count), np.zeros_like(x))
