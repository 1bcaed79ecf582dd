"""Elementwise functions and reductions of vector values (`kernels.simd_rows`), from which fused kernels are written.

Each gives NumPy's result for every element, including NaN and infinities; `exp`, `tanh`, `sigmoid` and `normal_cdf` of
float32 are within 4 ulp of NumPy's: polynomials after argument reduction (Cody and Waite, "Software Manual for the
Elementary Functions", 1980). A mask is a vector of bytes, 0 or 1. With `NUMBA_DISABLE_JIT=1` the names are plain NumPy.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.base import BaseContext
from numba.core.typing import BaseContext as TypingContext
from numba.core.typing import Signature

from autobatch.kernels.simd_rows import (
    LanesType,
    VectorLayout,
    VectorType,
    computed_dtype,
    element,
    intrinsic_or_plain,
    machine_vectors,
    map_vectors,
    plain_load,
    splat,
    vector_of,
)


def _ignoring_float_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    def plain(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*args)

    return plain


def _binary(plain: Callable[..., Any], instruction: str) -> Any:
    def typed(typingctx: TypingContext, x: VectorType, y: VectorType) -> Any:
        return x(x, y), map_vectors(x, lambda builder, k, parts: getattr(builder, instruction)(*parts), 2)

    return intrinsic_or_plain(_ignoring_float_errors(plain))(typed)


def _unary(plain: Callable[..., Any], combine: Callable[[Any, Any], Any]) -> Any:
    def typed(typingctx: TypingContext, x: VectorType) -> Any:
        return x(x), map_vectors(x, lambda builder, k, parts: combine(builder, parts[0]), 1)

    return intrinsic_or_plain(_ignoring_float_errors(plain))(typed)


def _comparison(plain: Callable[..., Any], sign: str, unordered: bool = False) -> Any:
    """Comparison intrinsic; its mask has machine vectors of as many elements as those of its operands."""

    def typed(typingctx: TypingContext, x: VectorType, y: VectorType) -> Any:
        mask = VectorType("u1", x.n, x.lead)
        assert [k for _, k in machine_vectors(mask)] == [k for _, k in machine_vectors(x)]

        def combine(builder: ir.IRBuilder, k: int, parts: list[Any]) -> Any:
            compare = builder.fcmp_unordered if unordered else builder.fcmp_ordered
            return builder.zext(compare(sign, *parts), ir.VectorType(ir.IntType(8), k))

        return mask(x, y), map_vectors(mask, combine, 2)

    return intrinsic_or_plain(lambda x, y: plain(x, y).astype(np.uint8))(typed)


def call_intrinsic(builder: ir.IRBuilder, name: str, *args: Any) -> Any:
    """Call the LLVM intrinsic `name` on vectors of one float type."""
    llvm_type = args[0].type
    suffix = f"v{llvm_type.count}f{32 if llvm_type.element == ir.FloatType() else 64}"
    function = builder.module.globals.get(f"llvm.{name}.{suffix}")
    if function is None:
        signature = ir.FunctionType(llvm_type, [llvm_type] * len(args))
        function = ir.Function(builder.module, signature, f"llvm.{name}.{suffix}")
    return builder.call(function, args)


subtract = _binary(np.subtract, "fsub")
multiply = _binary(np.multiply, "fmul")
divide = _binary(np.divide, "fdiv")
logical_and = _binary(np.bitwise_and, "and_")
logical_or = _binary(np.bitwise_or, "or_")
negative = _unary(np.negative, lambda builder, x: builder.fneg(x))
absolute = _unary(np.absolute, lambda builder, x: call_intrinsic(builder, "fabs", x))
sqrt = _unary(np.sqrt, lambda builder, x: call_intrinsic(builder, "sqrt", x))
less = _comparison(np.less, "<")
less_equal = _comparison(np.less_equal, "<=")
equal = _comparison(np.equal, "==")
not_equal = _comparison(np.not_equal, "!=", unordered=True)
inverse = _unary(lambda x: x ^ 1, lambda builder, x: builder.xor(x, _splat(x, 1)))


def _splat(x: Any, value: float) -> Any:
    """A vector constant of the type of x with all elements equal to `value`."""
    return ir.Constant(x.type, [value] * x.type.count)


@intrinsic_or_plain(lambda lanes, value: np.full(lanes.n, value, computed_dtype(lanes.format)))
def fill(typingctx: TypingContext, lanes: LanesType, value: types.Type) -> Any:
    """A vector with the same number in every lane, rounded to the lanes' dtype."""
    vector = vector_of(lanes)

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> Any:
        scalar = types.float32 if vector.code == "f4" else types.float64 if vector.code == "f8" else types.uint8
        value = context.cast(builder, args[1], signature.args[1], scalar)
        out = ir.Constant(context.get_value_type(vector), ir.Undefined)
        for index, (_, k) in enumerate(machine_vectors(vector)):
            out = builder.insert_value(out, splat(builder, value, k), index)
        return out

    return vector(lanes, value), codegen


@intrinsic_or_plain(lambda mask, x, y: np.where(mask, x, y))
def choose(typingctx: TypingContext, mask: types.Type, x: VectorType, y: VectorType) -> Any:
    """Elementwise: x where the mask is 1, else y."""

    def combine(builder: ir.IRBuilder, k: int, parts: list[Any]) -> Any:
        return builder.select(builder.icmp_unsigned("!=", parts[0], _splat(parts[0], 0)), parts[1], parts[2])

    return x(mask, x, y), map_vectors(x, combine, 3)


@intrinsic_or_plain(lambda x: int(not np.isfinite(x).all()))
def any_nonfinite(typingctx: TypingContext, x: VectorType) -> Any:
    """1 if any element is infinite or NaN, else 0."""

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> Any:
        out = ir.IntType(64)(0)
        for index, (_, k) in enumerate(machine_vectors(x)):
            part = builder.extract_value(args[0], index)
            zero = builder.fmul(part, _splat(part, 0.0))
            wrong = builder.bitcast(builder.fcmp_unordered("uno", zero, zero), ir.IntType(k))
            out = builder.or_(out, builder.zext(builder.icmp_unsigned("!=", wrong, ir.IntType(k)(0)), ir.IntType(64)))
        return out

    return types.int64(x), codegen


def _reduction(plain: Callable[..., Any], combine: Callable[[Any, Any, Any], Any]) -> Any:
    """Reduce a vector to one number: combine its two halves until one element is left."""

    def typed(typingctx: TypingContext, x: VectorType) -> Any:
        def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> Any:
            out = None
            for index, (_, k) in enumerate(machine_vectors(x)):
                part = builder.extract_value(args[0], index)
                while k > 1:
                    k //= 2
                    halves = [
                        builder.shuffle_vector(part, ir.Constant(part.type, ir.Undefined), _index_range(first, k))
                        for first in (0, k)
                    ]
                    part = combine(builder, *halves)
                out = part if out is None else combine(builder, out, part)
            return builder.extract_element(out, ir.IntType(32)(0))

        return numba.from_dtype(np.dtype(x.code))(x), codegen

    return intrinsic_or_plain(_ignoring_float_errors(plain))(typed)


def _index_range(first: int, k: int) -> Any:
    return ir.Constant(ir.VectorType(ir.IntType(32), k), list(range(first, first + k)))


def _either_nan(sign: str) -> Callable[[Any, Any, Any], Any]:
    def combine(builder: ir.IRBuilder, x: ir.Value, y: ir.Value) -> Any:
        better = builder.or_(builder.fcmp_ordered(sign, y, x), builder.fcmp_unordered("uno", y, y))
        return builder.select(better, y, x)

    return combine


def _sum_by_halves(x: np.ndarray) -> Any:
    if len(x) & (len(x) - 1):  # more than one machine vector
        return x.sum()
    while len(x) > 1:
        x = x[: len(x) // 2] + x[len(x) // 2 :]
    return x[0]


def _sum(builder: ir.IRBuilder, x: ir.Value, y: ir.Value) -> Any:
    return (builder.add if isinstance(x.type.element, ir.IntType) else builder.fadd)(x, y)


reduce_sum = _reduction(_sum_by_halves, _sum)
reduce_max = _reduction(np.max, _either_nan(">"))
reduce_min = _reduction(np.min, _either_nan("<"))


# exp, tanh, sigmoid and the normal distribution function of float32


def _fma(builder: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> Any:
    return call_intrinsic(builder, "fmuladd", x, y, z)


def _polynomial(builder: ir.IRBuilder, x: ir.Value, coefficients: Sequence[float]) -> Any:
    """A polynomial of x, whose coefficients begin with that of the highest power."""
    out = _splat(x, coefficients[0])
    for coefficient in coefficients[1:]:
        out = _fma(builder, out, x, _splat(x, coefficient))
    return out


def _f32(value: float) -> float:
    return float(np.float32(value))


_SHIFT = 12582912.0  # 1.5 * 2**23: adding it rounds to the nearest integer and puts that into the low bits
_LN2_HIGH = _f32(0.693359375)
_LN2_LOW = _f32(-2.12194440e-4)
_EXP = tuple(map(_f32, (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)))
_TANH = tuple(map(_f32, (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)))


def exp_vector(builder: ir.IRBuilder, x: ir.Value) -> Any:
    """e**x of one machine vector: 2**n * e**r, |r| <= ln(2) / 2; 2**n is two factors, so that it does not overflow."""
    x = builder.select(builder.fcmp_ordered(">", x, _splat(x, 89.0)), _splat(x, 89.0), x)
    x = builder.select(builder.fcmp_ordered("<", x, _splat(x, -105.0)), _splat(x, -105.0), x)
    shifted = _fma(builder, x, _splat(x, _f32(1.44269504088896341)), _splat(x, _SHIFT))
    whole = builder.fsub(shifted, _splat(x, _SHIFT))
    r = _fma(builder, whole, _splat(x, -_LN2_HIGH), x)
    r = _fma(builder, whole, _splat(x, -_LN2_LOW), r)
    series = _polynomial(builder, r, _EXP)
    value = builder.fadd(_fma(builder, builder.fmul(r, r), series, r), _splat(x, 1.0))
    integer = ir.VectorType(ir.IntType(32), x.type.count)
    number = ir.Constant(integer, [int(np.float32(_SHIFT).view(np.int32))] * integer.count)
    n = builder.sub(builder.bitcast(shifted, integer), number)
    half = builder.ashr(n, ir.Constant(integer, [1] * integer.count))
    for power in (half, builder.sub(n, half)):
        power = builder.add(power, ir.Constant(integer, [127] * integer.count))
        factor = builder.bitcast(builder.shl(power, ir.Constant(integer, [23] * integer.count)), x.type)
        value = builder.fmul(value, factor)
    return value


def sigmoid_vector(builder: ir.IRBuilder, x: ir.Value) -> Any:
    """1 / (1 + e**-x) of one machine vector."""
    one = _splat(x, 1.0)
    return builder.fdiv(one, builder.fadd(exp_vector(builder, builder.fneg(x)), one))


def tanh_vector(builder: ir.IRBuilder, x: ir.Value) -> Any:
    """tanh of one machine vector, from tanh(|x|): a polynomial below 0.625, else 1 - 2 / (e**2|x| + 1)."""
    size = call_intrinsic(builder, "fabs", x)
    square = builder.fmul(size, size)
    series = _polynomial(builder, square, _TANH)
    small = _fma(builder, builder.fmul(series, square), size, size)
    power = builder.fadd(exp_vector(builder, builder.fadd(size, size)), _splat(x, 1.0))
    large = builder.fsub(_splat(x, 1.0), builder.fdiv(_splat(x, 2.0), power))
    out = builder.select(builder.fcmp_ordered("<", size, _splat(x, 0.625)), small, large)
    return call_intrinsic(builder, "copysign", out, x)


_LEAN = 0.23  # in the argument of the polynomial `_MILLS`, with which it was fitted
_MILLS = (
    0.03261312774626167, -0.18838770081071818, 0.39861575293362206, -0.4059674408030493, 0.36964864570801875,
    -0.09915390907702126, 0.1336897316160435, 0.07355865892583277, 0.09380263691418057, 0.09157319124524638,
    7.3051121354250625e-06,
)  # fmt: skip
"""Phi(-a) * e**(a * a / 2) as a polynomial in 1 / (1 + _LEAN * a), for 0 <= a <= 14.5, within 1e-9;
fitted by least squares with larger weights where the error was largest."""
_SHIFT_WIDE = 6755399441055744.0  # 1.5 * 2**52
_EXP_WIDE = tuple(1 / math.factorial(n) for n in range(9, -1, -1))


def normal_cdf_vector(builder: ir.IRBuilder, x: ir.Value) -> Any:
    """The normal distribution function of one machine vector of float32, computed in float64 and rounded once."""
    size = call_intrinsic(builder, "fabs", x)
    size = builder.select(builder.fcmp_ordered(">", size, _splat(x, 14.5)), _splat(x, 14.5), size)
    a = builder.fpext(size, ir.VectorType(ir.DoubleType(), x.type.count))
    one = _splat(a, 1.0)
    lean = builder.fdiv(one, _fma(builder, a, _splat(a, _LEAN), one))
    mills = _polynomial(builder, lean, _MILLS)
    power = builder.fmul(builder.fmul(a, a), _splat(a, -0.5))
    shifted = _fma(builder, power, _splat(a, 1 / math.log(2)), _splat(a, _SHIFT_WIDE))
    r = _fma(builder, builder.fsub(shifted, _splat(a, _SHIFT_WIDE)), _splat(a, -math.log(2)), power)
    series = _polynomial(builder, r, _EXP_WIDE)
    integer = ir.VectorType(ir.IntType(64), x.type.count)
    number = ir.Constant(integer, [int(np.float64(_SHIFT_WIDE).view(np.int64)) - 1023] * integer.count)
    n = builder.sub(builder.bitcast(shifted, integer), number)
    factor = builder.bitcast(builder.shl(n, ir.Constant(integer, [52] * integer.count)), a.type)
    tail = builder.fmul(builder.fmul(series, factor), mills)
    is_below = builder.fcmp_ordered("<", x, _splat(x, 0.0))
    return builder.fptrunc(builder.select(is_below, tail, builder.fsub(one, tail)), x.type)


def _normal_cdf(x: np.ndarray) -> np.ndarray:
    a = np.minimum(np.abs(x.astype(np.float64)), 14.5)
    tail = np.polyval(_MILLS, 1 / (1 + _LEAN * a)) * np.exp(-0.5 * a * a)
    return np.where(x < 0, tail, 1 - tail).astype(x.dtype)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.reciprocal(np.exp(-x) + 1)


exp = _unary(np.exp, exp_vector)
tanh = _unary(np.tanh, tanh_vector)
sigmoid = _unary(_sigmoid, sigmoid_vector)
normal_cdf = _unary(_normal_cdf, normal_cdf_vector)


def _plain_load_first(lanes: VectorLayout, address: int, count: int) -> np.ndarray:
    out = np.zeros(lanes.n, lanes.format)
    part = min(int(count), lanes.n)
    if part:
        out[:part] = plain_load(VectorLayout(lanes.format, part), address, 0, part)
    return out


@intrinsic_or_plain(_plain_load_first)
def load_first(typingctx: TypingContext, lanes: LanesType, address: types.Type, count: types.Type) -> Any:
    """The first min(count, lanes) elements at an address, and zeros in the remaining lanes."""
    vector = vector_of(lanes)

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> Any:
        address, count = (context.cast(builder, args[i], signature.args[i], types.int64) for i in (1, 2))
        n = lanes.n
        places = ir.Constant(ir.VectorType(ir.IntType(64), n), list(range(n)))
        mask = builder.icmp_signed("<", places, splat(builder, count, n))
        llvm_type = ir.VectorType(element(vector.code), n)
        pointer = builder.inttoptr(address, llvm_type.as_pointer())
        signed = [pointer.type, ir.IntType(32), mask.type, llvm_type]
        name = f"llvm.masked.load.v{n}{_suffix(vector.code)}.p0"
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(llvm_type, signed), name)
        found = builder.call(function, [pointer, ir.IntType(32)(1), mask, ir.Constant(llvm_type, None)])
        return builder.insert_value(ir.Constant(context.get_value_type(vector), ir.Undefined), found, 0)

    return vector(lanes, address, count), codegen


def _suffix(code: str) -> str:
    """The suffix of an element type in LLVM intrinsic names, such as "f32"."""
    return f"{'f' if code[0] == 'f' else 'i'}{8 * int(code[1:])}"
