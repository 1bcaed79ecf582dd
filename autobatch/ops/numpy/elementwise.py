"""Elementwise ops: a table with one op per ufunc and the vjp of each argument; casts, copies and rounding.

If the operands of maximum or minimum are equal, the gradient goes to the first operand.
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy._core import umath

from autobatch.core.abstract_eval import dtype_of, ndim_of
from autobatch.core.batched import Batched
from autobatch.core.op import Op, is_boxed
from autobatch.errors import NeedsLoop, Unsupported, UnsupportedError
from autobatch.facts.operators import DIFFERENCES, ScalarDifference
from autobatch.ops.rules.aliasing import is_scalar, write_into
from autobatch.ops.rules.dispatch import UFUNCS, UNSUPPORTED, as_array, implements, leave_to_python, name_of, source
from autobatch.ops.rules.op_kinds import elementwise, elementwise_rule
from autobatch.ops.rules.padding import where_or_zero

_LN2 = float(np.log(2.0))
_OBJECT = np.dtype(object)
_LN10 = float(np.log(10.0))


# x / y, but 0 where x is 0, whatever y is; linear in x. So the gradient of a masked-out sqrt(0) is 0, not 0/0.
share_p: Op = elementwise(
    lambda x, y: x / np.where(x == 0, np.ones((), dtype_of(y)), y), lambda ct, out, x, y: share_p(ct, y),
    lambda ct, out, x, y: -share_p(share_p(where_or_zero((x != 0) | (y != 0), ct * x), y), y), name="share",
    pad=(None, 1.0), fused={"text": "choose(equal({0}, fill({lanes}, 0.0)), {0}, divide({0}, {1}))", "keeps": False},
)  # fmt: skip


def _power_x(ct: Any, out: Any, x: Any, y: Any) -> Any:
    x = dtype_of(out).type(x) if type(x) in (int, float) else x  # a Python 0.0 ** -1 raises; NumPy's is inf
    if type(y) in (int, float):
        return ct * (y * x ** (y - 1)) if y else ct * 0
    flat = y == 0
    return ct * np.where(flat, np.zeros((), dtype_of(out)), y * x ** np.where(flat, np.ones((), dtype_of(y)), y - 1))


def _power_y(ct: Any, out: Any, x: Any, y: Any) -> Any:
    return ct * out * np.log(np.where(x == 0, np.ones((), dtype_of(out)), x))


def _not_minus_inf(out: Any) -> Any:
    return np.where(out == -np.inf, np.zeros((), dtype_of(out)), out)


def _phase(size: Any, x: Any) -> Any:
    """The derivative of the absolute value: sign(x), or conj(x) / |x| for complex x; `size` is |x|."""
    if dtype_of(x).kind != "c":
        return np.sign(x)
    return np.conjugate(x) / np.where(size == 0, np.ones((), dtype_of(size)), size)


def lowest(dtype: np.dtype) -> Any:
    """The least value of a dtype (-inf for floats)."""
    return np.iinfo(dtype).min if dtype.kind in "iu" else dtype.kind != "b" and -np.inf


def highest(dtype: np.dtype) -> Any:
    """The greatest value of a dtype (inf for floats)."""
    return np.iinfo(dtype).max if dtype.kind in "iu" else dtype.kind == "b" or np.inf


def _as(text: str, **how: Any) -> dict[str, Any]:
    return {"text": text, **how}


# fmt: off
add_p     = elementwise(np.add,           lambda ct, out, x, y: ct, lambda ct, out, x, y: ct, identity=0,
                          fused=_as("add({0}, {1})", bound=operator.add))
sub_p     = elementwise(np.subtract,      lambda ct, out, x, y: ct, lambda ct, out, x, y: -ct,
                          fused=_as("subtract({0}, {1})", bound=operator.add))
mul_p     = elementwise(np.multiply,      lambda ct, out, x, y: ct * y, lambda ct, out, x, y: ct * x, identity=1,
                          fused=_as("multiply({0}, {1})", bound=lambda x, y: x * y if x + y < math.inf else math.inf))
div_p     = elementwise(np.divide,        lambda ct, out, x, y: ct / y, lambda ct, out, x, y: -ct * out / y,
                          pad=(None, 1.0), fused=_as("divide({0}, {1})", keeps=False))
pow_p     = elementwise(np.power,         _power_x, _power_y, pad=(1.0, 1.0), number=math.pow)
fpow_p    = elementwise(np.float_power,   _power_x, _power_y, pad=(1.0, 1.0))
mod_p     = elementwise(np.remainder,     lambda ct, out, x, y: ct,
                                          lambda ct, out, x, y: -ct * np.floor(x / y), pad=(None, 1))
fmod_p    = elementwise(np.fmod,          lambda ct, out, x, y: ct,
                          lambda ct, out, x, y: -ct * np.trunc(x / y), pad=(None, 1), number=(math.fmod, "np.fmod"))
floordiv_p = elementwise(np.floor_divide, pad=(None, 1))

neg_p     = elementwise(np.negative,      lambda ct, out, x: -ct, fused=_as("negative({0})", quiet=True, bound=abs))
pos_p     = elementwise(np.positive,      lambda ct, out, x: ct, fused=_as("{0}", quiet=True, bound=abs))
abs_p     = elementwise(np.absolute,      lambda ct, out, x: ct * _phase(out, x),
                          fused=_as("absolute({0})", quiet=True, bound=abs))
fabs_p    = elementwise(np.fabs,          lambda ct, out, x: ct * np.sign(x), number=math.fabs)
square_p  = elementwise(np.square,        lambda ct, out, x: 2 * ct * x,
                          fused=_as("multiply({0}, {0})", bound=lambda x: x * x))
recip_p   = elementwise(np.reciprocal,    lambda ct, out, x: -ct * out * out, pad=1,
                          fused=_as("divide(fill({lanes}, 1.0), {0})", keeps=False))
sqrt_p    = elementwise(np.sqrt,          lambda ct, out, x: share_p(0.5 * ct, out), pad=1.0, fused=_as("sqrt({0})"),
                          number=math.sqrt)
cbrt_p    = elementwise(np.cbrt,          lambda ct, out, x: share_p(ct, 3 * out * out), pad=1.0, number=math.cbrt)
conj_p    = elementwise(np.conjugate,     lambda ct, out, x: np.conjugate(ct))

exp_p     = elementwise(np.exp,           lambda ct, out, x: ct * out, pad=0.0,
                          fused=_as("exp({0})", exact=False, keeps=False), number=math.exp)
exp2_p    = elementwise(np.exp2,          lambda ct, out, x: ct * out * _LN2, pad=0.0, number=math.exp2)
expm1_p   = elementwise(np.expm1,         lambda ct, out, x: ct * (out + 1), pad=0.0, number=math.expm1)
log_p     = elementwise(np.log,           lambda ct, out, x: ct / x, pad=1.0, number=math.log)
log2_p    = elementwise(np.log2,          lambda ct, out, x: ct / (x * _LN2), pad=1.0, number=math.log2)
log10_p   = elementwise(np.log10,         lambda ct, out, x: ct / (x * _LN10), pad=1.0, number=math.log10)
log1p_p   = elementwise(np.log1p,         lambda ct, out, x: ct / (1 + x), pad=0.0, number=math.log1p)
logaddexp_p = elementwise(np.logaddexp,   each=lambda ct, out, x: ct * np.exp(x - _not_minus_inf(out)), pad=0.0,
                          identity=-np.inf)
logaddexp2_p = elementwise(np.logaddexp2, each=lambda ct, out, x: ct * np.exp2(x - _not_minus_inf(out)), pad=0.0,
                          identity=-np.inf)

sin_p     = elementwise(np.sin,           lambda ct, out, x: ct * np.cos(x), number=math.sin)
cos_p     = elementwise(np.cos,           lambda ct, out, x: -ct * np.sin(x), number=math.cos)
tan_p     = elementwise(np.tan,           lambda ct, out, x: ct * (1 + out * out), number=math.tan)
arcsin_p  = elementwise(np.arcsin,        lambda ct, out, x: ct / np.sqrt(1 - x * x), pad=0.0, number=math.asin)
arccos_p  = elementwise(np.arccos,        lambda ct, out, x: -ct / np.sqrt(1 - x * x), pad=0.0, number=math.acos)
arctan_p  = elementwise(np.arctan,        lambda ct, out, x: ct / (1 + x * x), number=math.atan)
arctan2_p = elementwise(np.arctan2,       lambda ct, out, y, x: ct * x / (x * x + y * y),
                          lambda ct, out, y, x: -ct * y / (x * x + y * y), pad=(0.0, 1.0), number=math.atan2)
hypot_p   = elementwise(np.hypot,         each=lambda ct, out, x: ct * x / np.where(out == 0, 1, out), pad=1.0,
                          identity=0, number=(math.hypot, "hypot"))
sinh_p    = elementwise(np.sinh,          lambda ct, out, x: ct * np.cosh(x), pad=0.0, number=math.sinh)
cosh_p    = elementwise(np.cosh,          lambda ct, out, x: ct * np.sinh(x), pad=0.0, number=math.cosh)
tanh_p    = elementwise(np.tanh,          lambda ct, out, x: ct * (1 - out * out),
                          fused=_as("tanh({0})", exact=False, keeps=False, quiet=True, bound=lambda x: 1.0),
                          number=math.tanh)
arcsinh_p = elementwise(np.arcsinh,       lambda ct, out, x: ct / np.sqrt(x * x + 1), number=math.asinh)
arccosh_p = elementwise(np.arccosh,       lambda ct, out, x: ct / np.sqrt(x * x - 1), pad=2.0, number=math.acosh)
arctanh_p = elementwise(np.arctanh,       lambda ct, out, x: ct / (1 - x * x), pad=0.0, number=math.atanh)
deg2rad_p = elementwise(np.deg2rad,       lambda ct, out, x: np.deg2rad(ct))
rad2deg_p = elementwise(np.rad2deg,       lambda ct, out, x: np.rad2deg(ct))
radians_p = elementwise(np.radians,       lambda ct, out, x: np.radians(ct), number=math.radians)
degrees_p = elementwise(np.degrees,       lambda ct, out, x: np.degrees(ct), number=math.degrees)

max_p     = elementwise(np.maximum,       lambda ct, out, x, y: where_or_zero((x >= y) | (x != x), ct),
                                          lambda ct, out, x, y: where_or_zero(np.invert((x >= y) | (x != x)), ct),
                          fused=_as("greater({0}, {1})", keeps=False, quiet=True, bound=max), identity=lowest)
min_p     = elementwise(np.minimum,       lambda ct, out, x, y: where_or_zero((x <= y) | (x != x), ct),
                                          lambda ct, out, x, y: where_or_zero(np.invert((x <= y) | (x != x)), ct),
                          fused=_as("lesser({0}, {1})", keeps=False, quiet=True, bound=max), identity=highest)
fmax_p    = elementwise(np.fmax,          lambda ct, out, x, y: where_or_zero((x >= y) | (y != y), ct),
                                          lambda ct, out, x, y: where_or_zero(np.invert((x >= y) | (y != y)), ct),
                          identity=lambda dtype: np.nan if dtype.kind in "fc" else lowest(dtype))
fmin_p    = elementwise(np.fmin,          lambda ct, out, x, y: where_or_zero((x <= y) | (y != y), ct),
                                          lambda ct, out, x, y: where_or_zero(np.invert((x <= y) | (y != y)), ct),
                          identity=lambda dtype: np.nan if dtype.kind in "fc" else highest(dtype))
clip_p    = elementwise(umath.clip,  # type: ignore[attr-defined]
                                          lambda ct, out, x, lo, hi: where_or_zero(np.invert((x < lo) | (x > hi)), ct),
                                          lambda ct, out, x, lo, hi: where_or_zero((x < lo) & np.invert(lo > hi), ct),
                                          lambda ct, out, x, lo, hi: where_or_zero((x > hi) | (lo > hi), ct))
copysign_p = elementwise(np.copysign,     lambda ct, out, x, y: ct * np.copysign(1.0, x) * np.copysign(1.0, y), None,
                          number=math.copysign)
heaviside_p = elementwise(np.heaviside,   None, lambda ct, out, x, y: where_or_zero(x == 0, ct))
nextafter_p = elementwise(np.nextafter,   lambda ct, out, x, y: ct, None)
ldexp_p   = elementwise(np.ldexp,         lambda ct, out, x, n: np.ldexp(ct, n), None, pad=(1.0, 0))

# Piecewise constant: no gradient.
_MASK: dict[str, Any] = {"to_mask": True, "keeps": False, "quiet": True}
_COMPARISONS: dict[Any, str] = {
    np.less: "less({0}, {1})", np.less_equal: "less_equal({0}, {1})", np.equal: "equal({0}, {1})",
    np.greater: "less({1}, {0})", np.greater_equal: "less_equal({1}, {0})", np.not_equal: "not_equal({0}, {1})",
}
_OF_MASKS: dict[Any, str] = {np.bitwise_and: "logical_and({0}, {1})", np.bitwise_or: "logical_or({0}, {1})",
                             np.logical_not: "inverse({0})", np.invert: "inverse({0})"}
for _ufunc, _text in (_COMPARISONS | _OF_MASKS).items():
    elementwise(_ufunc, fused=_as(_text, **_MASK, masks=tuple(range(_ufunc.nin)) if _ufunc in _OF_MASKS else ()))
elementwise(np.logical_and, fused=_as("logical_and({0}, {1})", **_MASK, masks=(0, 1)), identity=True)
elementwise(np.logical_or, fused=_as("logical_or({0}, {1})", **_MASK, masks=(0, 1)), identity=False)
for _ufunc, _number in [(np.isnan, math.isnan), (np.isinf, math.isinf), (np.isfinite, math.isfinite)]:
    elementwise(_ufunc, number=_number)
# fmt: on

_CONSTANT = (
    np.sign, np.floor, np.ceil, np.rint, np.trunc, np.spacing, np.gcd, np.lcm, np.logical_xor, np.isnat, np.signbit,
    np.bitwise_xor, np.bitwise_count, np.left_shift, np.right_shift,
)  # fmt: skip
_OF_STRINGS = [each for each in vars(np.strings).values() if isinstance(each, np.ufunc) and each not in UFUNCS]
for _ufunc in (*_CONSTANT, *_OF_STRINGS, umath._ones_like):  # type: ignore[attr-defined]
    elementwise(_ufunc)


def _output(ufunc: np.ufunc, place: int) -> Callable[..., Any]:
    return lambda *args, **kwargs: ufunc(*args, **kwargs)[place]


# A ufunc with two outputs becomes two ops.
# fmt: off
quotient_p      = elementwise(_output(np.divmod, 0), name="divmod[0]", pad=(None, 1))
divmod_rest_p   = elementwise(_output(np.divmod, 1), lambda ct, out, x, y: ct,
                              lambda ct, out, x, y: -ct * np.floor(x / y), name="divmod[1]", pad=(None, 1))
fraction_p      = elementwise(_output(np.modf, 0), lambda ct, out, x: ct, name="modf[0]")
whole_p         = elementwise(_output(np.modf, 1), name="modf[1]")
exponent_p      = elementwise(_output(np.frexp, 1), name="frexp[1]")
mantissa_p      = elementwise(_output(np.frexp, 0), lambda ct, out, x: np.ldexp(ct, -exponent_p(x)), name="frexp[0]")
# fmt: on


UFUNCS[np.divmod] = lambda *xs, **how: (quotient_p(*xs, **how), divmod_rest_p(*xs, **how))
UFUNCS[np.modf] = lambda *xs, **how: (fraction_p(*xs, **how), whole_p(*xs, **how))
UFUNCS[np.frexp] = lambda *xs, **how: (mantissa_p(*xs, **how), exponent_p(*xs, **how))

_CONTRACTIONS = (np.matmul, np.vecdot, np.matvec, np.vecmat)
for _ufunc in vars(umath).values():  # the list of numpy.testing.overrides, whose import takes 30 ms
    if isinstance(_ufunc, np.ufunc) and _ufunc not in UFUNCS and _ufunc not in _CONTRACTIONS:
        UNSUPPORTED[_ufunc] = "it works on strings, whose dtype depends on their length"


def _power_of_one_exponent(x: Any, y: Any, **params: Any) -> Any:
    out = np.power(x, y, **params)
    roots = np.equal(y, 0.5) & (np.equal(x, 0) | np.equal(x, -np.inf)) if out.dtype.char in "fd" else np.False_
    return np.where(roots, np.sqrt(x, **params), out) if roots.any() else out


def _clip_to_numbers(x: Any, low: Any, high: Any) -> Any:
    out = umath.clip(x, low, high)  # type: ignore[attr-defined]
    above = np.where(x < low, low, x)
    kept = np.where((low == low) & (high == high), np.where(above > high, high, above), out)
    return kept if out.dtype.kind == "f" else out


def _of_numbers(op: Op, impl: Callable[..., Any]) -> None:
    """Let `impl` compute an op where all operands but the first are one number in each example, not the same in all."""
    own = Op(op.name, impl, rule=elementwise_rule, vjp=op.vjp, kind="elementwise", pad=op.pad, operator=op.operator)

    def rule(op: Op, operands: Any, params: dict[str, Any]) -> Batched:
        ranks = [x.rank if isinstance(x, Batched) else ndim_of(x) for x in operands[1:]]
        numbers = not any(ranks) and any(isinstance(x, Batched) for x in operands[1:])
        return elementwise_rule(own if numbers else op, operands, params)

    op.rule = rule


_of_numbers(pow_p, _power_of_one_exponent)  # NumPy takes the square root if the number is 0.5
_of_numbers(clip_p, _clip_to_numbers)  # NumPy keeps an element that equals a bound, such as -0.0 beside 0.0


def operator_of(ufunc: np.ufunc, function: Callable[..., Any], unclear: bool = False) -> Callable[..., Any]:
    """The op of Python's operator `function`: that of its ufunc, but between NumPy scalars one of their own if the two
    differ there (`facts.operators`).

    Args:
        unclear: it may be the operator or a call of the ufunc. What is reported is the operator's, and an error ends
            the batched call anyway; where the values differ, NeedsLoop is raised.
    """
    op: Any = UFUNCS.get(ufunc)
    difference = DIFFERENCES.get(ufunc)
    if difference is None or op is None:
        return op
    chars = difference.chars
    lanes = _of_scalars(ufunc, function, difference, unclear)
    own = Op(f"scalar {op.name}", lanes, rule=elementwise_rule, vjp=op.vjp, kind="elementwise", operator=op.operator)

    def call(*operands: Any) -> Any:
        for x in operands:
            if getattr(x, "dtype", _OBJECT).char in chars:
                break
        else:  # floats, nearly always
            return op(*operands)
        concerned = False
        for x in operands:
            boxed = is_boxed(x)
            if boxed and ndim_of(x):  # the usual operand
                return op(*operands)
            if x.__class__ in (int, float, bool, complex) or (hasattr(type(x), "scalar") and x.scalar):
                continue  # a number of Python's
            if not (is_scalar(x) if boxed else isinstance(x, np.generic)):
                return op(*operands)
            concerned = concerned or dtype_of(x).char in chars
        return (own if concerned else op)(*operands)

    return call


def _of_scalars(
    ufunc: np.ufunc, function: Callable[..., Any], difference: ScalarDifference, refuse: bool
) -> Callable[..., Any]:
    """`function` of scalars, or of arrays with a scalar at each place; `refuse`: not where its values differ."""

    def of_scalars(*operands: Any) -> Any:
        if np.ndarray not in map(type, operands):
            return function(*operands)
        if np.result_type(*operands).char not in difference.chars:
            return ufunc(*operands)
        ignored: dict[str, Any] = dict.fromkeys(difference.quiet, "ignore")
        with np.errstate(**ignored):
            out = ufunc(*operands)
        suspects = difference.suspects(out, *operands)
        if not suspects.any():
            return out
        integers = out.dtype.kind in "iu"  # whose overflow is the same at each place
        if refuse and difference.values and not integers:
            raise NeedsLoop(f"{ufunc.__name__} of numbers, which may be the operator or the function of NumPy")
        places = np.argwhere(suspects)
        for place in map(tuple, places[:1] if integers else places):
            out[place] = function(
                *[np.broadcast_to(x, out.shape)[place] if hasattr(x, "dtype") else x for x in operands]
            )
        return out

    return of_scalars


astype_p = elementwise(
    lambda x, *, dtype: np.asarray(x).astype(dtype) if not isinstance(x, np.generic) else x.astype(dtype),
    lambda ct, out, x: ct,
    name="astype",
)


copy_p = elementwise(lambda x: np.array(x), lambda ct, out, x: ct, name="copy")


def _copy_in(order: str) -> Op:
    """The op of a copy in memory order "C", "F" or "A" ("A": C or F, depending on the operand's memory order)."""
    op = elementwise(functools.partial(np.array, order=order), lambda ct, out, x: ct, name="copy")
    if order != "A":
        op.layout = lambda params, non_c_order, rank: order == "F"
    return op


_copies = {"K": copy_p, **{order: _copy_in(order) for order in "CFA"}}


real_p = elementwise(np.real, lambda ct, out, x: ct, name="real")


imag_p = elementwise(np.imag, lambda ct, out, x: -1j * ct, name="imag")


@implements(np.astype)
def astype(x: Any, dtype: Any, /, *, copy: bool = True) -> Any:
    dtype = np.dtype(dtype)
    if dtype.kind not in "biufc":
        raise Unsupported(f"a cast to {dtype}")
    return x if dtype_of(x) == dtype and not copy else astype_p(x, dtype=dtype)


@implements(np.copy)
def copy(a: Any, order: str = "K") -> Any:
    if order is not None and not (isinstance(order, str) and order in _copies):
        np.zeros(1).copy(order)  # type: ignore[arg-type]  # raises NumPy's own error for what is no order
        order = (order.decode() if isinstance(order, bytes) else order).upper()
    return _copies[order or "K"](a)


@implements(np.real)
def real(val: Any) -> Any:
    if getattr(val, "scalar", None) is not None:
        return val.__getattr__("real")  # of Python's numbers, of which that of a bool is an int
    return real_p(val) if dtype_of(val).kind == "c" else val


@implements(np.imag)
def imag(val: Any) -> Any:
    if getattr(val, "scalar", None) is not None:
        return val.__getattr__("imag")
    if dtype_of(val).kind == "c":
        return imag_p(val)
    zeros = np.zeros_like(val)
    return zeros[()] if is_scalar(val) else zeros


@implements(np.clip, out=write_into)
def clip(a: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> Any:
    a = as_array(a)
    low = a_min if a_min is not None else min
    high = a_max if a_max is not None else max
    if low is None and high is None:
        return copy_p(a) if ndim_of(a) else copy_p(a)[()]
    return min_p(a, high) if low is None else max_p(a, low) if high is None else clip_p(a, low, high)


@source(np.clip)
def _clip_of_one(a, a_min=None, a_max=None):
    if a_min is None and a_max is None:
        leave_to_python()
    if a_min is None or a_max is None:
        return np.minimum(a, a_max) if a_min is None else np.maximum(a, a_min)
    if isinstance(a_min, np.ndarray) or isinstance(a_max, np.ndarray):
        return np.minimum(np.maximum(a, a_min), a_max)
    if isinstance(a, np.ndarray):  # between two numbers, NumPy keeps an element that equals one: -0.0 beside 0.0
        if a_min != a_min or a_max != a_max:
            leave_to_python()
        above = np.where(a < a_min, a_min, a)
        return np.where(above > a_max, a_max, above)
    out = np.minimum(np.maximum(a, a_min), a_max)
    if out == 0 and (a == 0 or a_min == a_max) and (np.signbit(a) or np.signbit(a_min) or np.signbit(a_max)):
        leave_to_python()
    return out


implements(np.fix, out=write_into)(lambda x: np.trunc(x))


@implements(np.round, np.around, out=write_into)
def round_(a: Any, decimals: int = 0) -> Any:
    np.zeros(()).round(decimals)  # raises what NumPy raises
    letter = dtype_of(a).kind
    if letter == "b" and decimals:
        raise Unsupported("np.round of bools to a dtype that is not an integer's")
    if letter in "biu" and decimals >= 0:
        out = np.copy(a).astype(np.float16) if letter == "b" else np.copy(a)
        return out if ndim_of(out) else out[()]
    if letter != "f":
        raise Unsupported("np.round of integers to tens, or of complex numbers")
    if decimals == 0:
        return np.rint(a)
    with np.errstate(over="ignore"):
        factor = (np.float64(10.0) ** abs(decimals)).astype(dtype_of(a))
    return np.rint(a * factor) / factor if decimals > 0 else np.rint(a / factor) * factor


source(np.round, np.around)(lambda a: np.rint(a))


@functools.lru_cache(maxsize=256)
def elementwise_of(ufunc: np.ufunc) -> Callable[..., Any] | None:
    """An elementwise op without gradient for a ufunc that has no declared op (SciPy's, for example).

    Returns:
        An op, or for several outputs a function that returns a tuple; None for generalised ufuncs (with a signature),
        ufuncs of Python objects only, and those in `UNSUPPORTED`.
    """
    if not isinstance(ufunc, np.ufunc) or ufunc.signature or ufunc in UNSUPPORTED:
        return None
    if all(types.endswith("O") for types in ufunc.types):
        return None
    if ufunc.nout == 1:
        return _of_unknown_derivative(name_of(ufunc), ufunc)
    ops = [_of_unknown_derivative(f"{name_of(ufunc)}[{at}]", _output(ufunc, at)) for at in range(ufunc.nout)]
    return lambda *operands, **params: tuple(op(*operands, **params) for op in ops)


def _of_unknown_derivative(name: str, impl: Callable[..., Any]) -> Op:
    def vjp(position: int, ct: Any, out: Any, args: Any, params: Any) -> Any:
        raise UnsupportedError(
            f"the derivative of {name} is not known here; write it in NumPy's functions, or declare an op with its vjp "
            "(ab.extend.elementwise)"
        )

    return Op(name, impl, rule=elementwise_rule, vjp=vjp, kind="elementwise")
