"""Arithmetic for compiled code: int64 operations that detect overflow, float status flags, and NumPy's ufunc loops.

`add`, `subtract` and `multiply` return an int64 and an overflow flag. `float_flags` and `clear_flags` access C's
floating-point status: an invalid operation (NaN from numbers), a division by zero or an overflow sets a flag. `apply_1`
and `apply_2` call the inner loop of a NumPy ufunc by its address, so that results are bit-identical to NumPy's.
"""

import math
import operator
import platform
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, imputils, types
from numba.core.typing import BaseContext as TypingContext
from numba.cpython import listobj
from numba.cpython.unsafe.tuple import tuple_setitem
from numba.extending import intrinsic

from autobatch.kernels.jit import jit

_POW_ERROR_IS_KNOWN = sys.platform == "linux"  # the C libraries there document the error bound of `pow`
FLAGS = 0b111 if platform.machine().lower() in ("arm64", "aarch64") else 0b1101  # invalid, divided by zero, overflow


def _with_overflow(name: str) -> Any:
    @intrinsic
    def operation(typing_context, a, b):
        pair: Any = types
        signature = pair.UniTuple(types.int64, 2)(types.int64, types.int64)

        def generate(context, builder, signature, args):
            word, bit = ir.IntType(64), ir.IntType(1)
            llvm_type = ir.FunctionType(ir.LiteralStructType([word, bit]), [word, word])
            function = cgutils.get_or_insert_function(builder.module, llvm_type, f"llvm.s{name}.with.overflow.i64")
            both = builder.call(function, args)
            flag = builder.zext(builder.extract_value(both, 1), word)
            return context.make_tuple(builder, signature.return_type, [builder.extract_value(both, 0), flag])

        return signature, generate

    return operation


add = _with_overflow("add")
subtract = _with_overflow("sub")
multiply = _with_overflow("mul")


def _call_of_status(builder: Any, name: str, flags: Any) -> Any:
    word = ir.IntType(32)
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(word, [word]), name)
    return builder.call(function, [flags])


def _status_call(name: str) -> Any:
    @intrinsic
    def call(typing_context):
        def generate(context, builder, signature, args):
            return _call_of_status(builder, name, ir.IntType(32)(FLAGS))

        return types.int32(), generate

    return call


float_flags = _status_call("fetestexcept")  # the floating-point status flags that are set
clear_flags = _status_call("feclearexcept")


def _opaque(builder: ir.IRBuilder, value: ir.Value) -> Any:
    """Hide a float's value from the optimiser, by an empty inline assembly statement."""
    register = "w" if FLAGS == 0b111 else "x"
    assembly = ir.InlineAsm(ir.FunctionType(value.type, [value.type]), "", f"={register},0", side_effect=False)
    return builder.call(assembly, [value])


@intrinsic
def opaque(typing_context, value):
    """The same float, hidden from the optimiser, which turns `pow` of known exponent into products with other bits, and
    works out a call of known arguments itself, so that it sets no flag."""

    def generate(context, builder, signature, args):
        return _opaque(builder, args[0])

    return value(value), generate


_LIST: Any = types.ListType  # type: ignore[attr-defined]  # Numba's own


def _by_operator(typing_context: TypingContext, function: Callable[..., Any], *kinds: types.Type) -> Any:
    """Numba's implementation of an operator: its signature, and the function that generates its code."""
    known = typing_context.resolve_value_type(function)
    signature = known.get_call_type(typing_context, kinds, {})
    return signature, lambda context, builder, _, args: context.get_function(known, signature)(builder, args)


@intrinsic
def list_item(typing_context, items, index):
    """items[index], where the index is known to be in range."""
    if isinstance(items, _LIST):
        return _by_operator(typing_context, operator.getitem, items, types.int64)
    signature = items.dtype(items, types.int64)

    def generate(context, builder, signature, args):
        value = listobj.ListInstance(context, builder, signature.args[0], args[0]).getitem(args[1])
        return imputils.impl_ret_borrowed(context, builder, signature.return_type, value)

    return signature, generate


@intrinsic
def list_put(typing_context, items, index, value):
    """items[index] = value, where the index is known to be in range."""
    if isinstance(items, _LIST):
        return _by_operator(typing_context, operator.setitem, items, types.int64, items.dtype)
    signature = types.void(items, types.int64, items.dtype)

    def generate(context, builder, signature, args):
        listobj.ListInstance(context, builder, signature.args[0], args[0]).setitem(args[1], args[2], incref=True)
        return context.get_dummy_value()

    return signature, generate


def _loop_call(builder: Any, address: Any, data: Any, pointers: list[Any], count: Any, steps: list[Any]) -> None:
    """Call a ufunc's inner loop: `void (char **args, intptr *dimensions, intptr *steps, void *data)`.

    Flags that were set stay set: loops that compare (maximum, sign) clear all, as NumPy asks for them call by call.
    """
    byte, word = ir.IntType(8).as_pointer(), ir.IntType(64)

    def array_of(llvm_type: object, values: list[Any]) -> Any:
        place = cgutils.alloca_once(builder, llvm_type, size=len(values))
        for index, value in enumerate(values):
            builder.store(value, builder.gep(place, [ir.IntType(32)(index)]))
        return place

    routine = ir.FunctionType(
        ir.VoidType(), [byte.as_pointer(), word.as_pointer(), word.as_pointer(), byte]
    ).as_pointer()
    arguments = [array_of(byte, pointers), array_of(word, [count]), array_of(word, steps)]
    before = _call_of_status(builder, "fetestexcept", ir.IntType(32)(FLAGS))
    builder.call(builder.inttoptr(address, routine), [*arguments, builder.inttoptr(data, byte)])
    with builder.if_then(builder.icmp_unsigned("!=", before, ir.IntType(32)(0)), likely=False):
        _call_of_status(builder, "feraiseexcept", before)


def _loop_of_arrays(count: int) -> tuple[Any, Any]:
    """The signature and the code of a call of a loop: its address, data, so many pointers, the length, their steps."""

    def generate(context, builder, signature, args):
        pointers = [builder.inttoptr(each, ir.IntType(8).as_pointer()) for each in args[2 : 2 + count]]
        _loop_call(builder, args[0], args[1], pointers, args[2 + count], list(args[3 + count :]))
        return context.get_dummy_value()

    return types.void(*[types.int64] * (3 + 2 * count)), generate


@intrinsic
def _call_1(typing_context, address, data, x, y, count, x_step, y_step):
    return _loop_of_arrays(2)


@intrinsic
def _call_2(typing_context, address, data, x, y, z, count, x_step, y_step, z_step):
    return _loop_of_arrays(3)


def _loop_of_numbers(kinds: tuple[Any, ...], like: Any) -> tuple[Any, Any]:
    def generate(context, builder, signature, args):
        byte, word, models = ir.IntType(8).as_pointer(), ir.IntType(64), context.data_model_manager
        values = [models[number].as_data(builder, value) for number, value in zip(kinds, args[2:], strict=False)]
        places = [cgutils.alloca_once_value(builder, value) for value in values]
        places.append(cgutils.alloca_once(builder, context.get_data_type(like)))
        pointers = [builder.bitcast(place, byte) for place in places]
        _loop_call(builder, args[0], args[1], pointers, word(1), [word(8)] * len(places))
        return models[like].from_data(builder, builder.load(places[-1]))

    return like(types.int64, types.int64, *kinds, like), generate


@intrinsic
def scalar_1(typing_context, address, data, x, like):
    """loop(x) of one number; `like` is a number of the result's type."""
    return _loop_of_numbers((x,), like)


@intrinsic
def scalar_2(typing_context, address, data, x, y, like):
    """loop(x, y) of two numbers; `like` is a number of the result's type."""
    return _loop_of_numbers((x, y), like)


@intrinsic
def _reduce(typing_context, address, data, x, count, step, start):
    def generate(context, builder, signature, args):
        model, word, byte = context.data_model_manager[start], ir.IntType(64), ir.IntType(8).as_pointer()
        total = cgutils.alloca_once_value(builder, model.as_data(builder, args[5]))
        pointers = [builder.bitcast(total, byte), builder.inttoptr(args[2], byte), builder.bitcast(total, byte)]
        _loop_call(builder, args[0], args[1], pointers, args[3], [word(0), args[4], word(0)])
        return model.from_data(builder, builder.load(total))

    return start(*[types.int64] * 5, start), generate


@jit
def reduced(address, data, x, start):
    """x reduced, from `start`, with a binary ufunc's inner loop, so that terms are paired as in NumPy's reductions."""
    return _reduce(address, data, x.ctypes.data, x.size, x.itemsize, start)


@jit
def reduced_rows(address, data, x, starts):
    """`reduced` of each row of an array (rows, numbers, 1), from zero, or from its first number if `starts` is 1."""
    out = np.zeros((x.shape[0], 1), x.dtype)
    for i in range(x.shape[0]):
        row = x[i].ravel()
        out[i, 0] = reduced(address, data, row[starts:], row[0] if starts else out[i, 0])
    return out


@jit
def clamp_slice_bound(end, length):
    """The start or end of a slice, with a negative one counted from the end, limited to [0, length]."""
    return max(0, end + length) if end < 0 else min(end, length)


@jit
def equal_strings(a, b):
    """True if two strings are equal."""
    if a.size != b.size:
        return False
    for i in range(a.size):  # noqa: SIM110  # a loop that Numba compiles well
        if a[i] != b[i]:
            return False
    return True


@jit
def compare_strings(a, b):
    """-1 if a < b, 0 if a == b, 1 if a > b; of strings."""
    for i in range(min(a.size, b.size)):
        if a[i] != b[i]:
            return -1 if a[i] < b[i] else 1
    return (a.size > b.size) - (a.size < b.size)


@jit
def stable_argsort(keys, backwards):
    """The indices that sort a list, by a stable merge sort; descending if `backwards`."""
    count = len(keys)
    order, other = np.arange(count), np.empty(count, np.int64)
    width = 1
    while width < count:
        for start in range(0, count, 2 * width):
            middle, end = min(start + width, count), min(start + 2 * width, count)
            i, j = start, middle
            for k in range(start, end):
                if i < middle and j < end:
                    one, two = keys[order[i]], keys[order[j]]
                    second = two > one if backwards else two < one
                else:
                    second = i >= middle
                if second:
                    other[k] = order[j]
                    j += 1
                else:
                    other[k] = order[i]
                    i += 1
        order, other = other, order
        width *= 2
    return order


@jit
def apply_1(address, data, x, out):
    """out[i] = loop(x[i]); both are one-dimensional and contiguous."""
    _call_1(address, data, x.ctypes.data, out.ctypes.data, x.size, x.itemsize, out.itemsize)


@jit
def apply_2(address, data, x, y, out):
    """out[i] = loop(x[i], y[i]); an operand of size 1 is broadcast. All are contiguous."""
    count = out.size
    x_step = x.itemsize if x.size == count else 0
    y_step = y.itemsize if y.size == count else 0
    _call_2(address, data, x.ctypes.data, y.ctypes.data, out.ctypes.data, count, x_step, y_step, out.itemsize)


@jit
def floor_divide(a, b):
    """Python's `a // b` of floats; b is not 0."""
    mod = np.fmod(a, b)
    div = (a - mod) / b
    if mod != 0.0 and (b < 0.0) != (mod < 0.0):
        div -= 1.0
    if div != 0.0:
        out = np.floor(div)
        if div - out > 0.5:
            out += 1.0
        return out
    return math.copysign(0.0, a / b)


@jit
def modulo(a, b):
    """Python's `a % b` of floats; b is not 0."""
    mod = np.fmod(a, b)
    if mod != 0.0:
        if (b < 0.0) != (mod < 0.0):
            mod += b
        return mod
    return math.copysign(0.0, b)


@jit
def hypot(a, b):
    """`math.hypot(a, b)` as CPython computes it since 3.10: scaled by a power of two, with a correction of the root."""
    x, y = abs(a), abs(b)
    if x == np.inf or y == np.inf:
        return np.inf
    if x != x or y != y:
        return np.nan
    largest = max(x, y)
    if largest == 0.0:
        return 0.0
    _, exponent = math.frexp(largest)
    if exponent < -1023:
        # subnormal: like CPython, scale by the smallest normal number first
        tiny = 2.2250738585072014e-308
        return tiny * hypot(a / tiny, b / tiny)
    scale = math.ldexp(1.0, -exponent)
    total, low_1, low_2 = 1.0, 0.0, 0.0
    for value in (x, y):
        part = value * scale
        high, low = square_exactly(part)
        sum_ = total + high
        low_1 += low
        low_2 += (total - sum_) + high
        total = sum_
    root = math.sqrt(total - 1.0 + (low_1 + low_2))
    high, low = square_exactly(root)
    sum_ = total - high
    low_1 -= low
    low_2 += (total - sum_) - high
    total = sum_
    correction = total - 1.0 + (low_1 + low_2)
    return (root + correction / (2.0 * root)) / scale


@jit
def square_exactly(x):
    """(x * x rounded to a float, the rounding error): their exact sum is the square."""
    scaled = x * 134217729.0
    high = scaled - (scaled - x)
    low = x - high
    square = x * x
    return square, ((high * high - square) + 2.0 * high * low) + low * low


@intrinsic
def select(typing_context, condition, a, b):
    """`a if condition else b` without a branch; both values are already computed."""
    signature = a(types.boolean, a, a)

    def generate(context, builder, signature, args):
        return builder.select(args[0], args[1], args[2])

    return signature, generate


def _rare_power(module: Any) -> Any:
    """A function that calls C's `pow(x, 2)`, not inlined and cold, so that its callers keep values in registers."""
    double, name = ir.DoubleType(), "autobatch_rare_power"
    if name in module.globals:
        return module.globals[name]
    function = ir.Function(module, ir.FunctionType(double, [double]), name)
    function.linkage = "internal"
    for attribute in ("noinline", "cold"):
        function.attributes.add(attribute)
    builder = ir.IRBuilder(function.append_basic_block())
    power = cgutils.get_or_insert_function(module, ir.FunctionType(double, [double, double]), "pow")
    builder.ret(builder.call(power, [function.args[0], _opaque(builder, double(2.0))]))
    return function


@intrinsic
def squared(typing_context, x):
    """`x ** 2.0` with the result of C's `pow`, mostly computed as the product x * x.

    For numbers of moderate size, `pow` has an error below 0.515 ulp (documented by glibc and Arm's optimized routines).
    If adding 1.03 times the product's rounding error does not change the product, the exact square is within 0.485 ulp
    of it, so `pow` must return the same number. Otherwise `pow` is called.
    """

    def generate(context, builder, signature, args):
        (x,), double, word = args, ir.DoubleType(), ir.IntType(64)
        if not _POW_ERROR_IS_KNOWN:
            return builder.call(_rare_power(builder.module), [x])
        low, high = (int(np.float64(bound).view(np.int64)) for bound in (1e-18, 1e18))
        product = builder.fmul(x, x)
        rest = builder.fma(x, x, builder.fneg(product))
        stays = builder.fcmp_ordered("==", builder.fma(rest, double(1.0 / 0.97), product), product)
        bits = builder.sub(builder.bitcast(product, word), word(low))
        stays = builder.and_(stays, builder.icmp_unsigned("<", bits, word(high - low)))
        out = cgutils.alloca_once_value(builder, product)
        with builder.if_then(builder.not_(stays), likely=False):
            builder.store(builder.call(_rare_power(builder.module), [x]), out)
        return builder.load(out)

    return types.float64(types.float64), generate


@jit
def integer_power(base, exponent):
    """(`base ** exponent`, 1 if it overflowed else 0); the exponent must not be negative."""
    out, over = np.int64(1), np.int64(0)
    square, left = np.int64(base), np.int64(exponent)
    while left > 0:
        if left & 1:
            out, flag = multiply(out, square)
            over |= flag
        left >>= 1
        if left > 0:
            square, flag = multiply(square, square)
            over |= flag
    return out, over


@jit
def reserve(buffer, used, more):
    """The buffer, or a larger copy of it if `more` elements after the first `used` do not fit."""
    if used + more <= buffer.size:
        return buffer
    out = np.empty(max(2 * buffer.size, used + more), buffer.dtype)
    out[:used] = buffer[:used]
    return out


@jit
def common_shape(a, b):
    """(broadcast shape, True if valid) of two shapes, of which b has at least as many dimensions."""
    out, fits, more = b, True, len(b) - len(a)
    for axis in range(len(a)):
        if a[axis] != b[axis + more]:
            if b[axis + more] == 1:
                out = tuple_setitem(out, axis + more, a[axis])
            elif a[axis] != 1:
                fits = False
    return out, fits


@jit
def broadcast_aligned(x, shape):
    """x broadcast to a shape, as a C-contiguous array: x itself if it is contiguous and has that shape."""
    if x.ndim == len(shape) and x.shape == shape:
        return np.ascontiguousarray(x)
    whole = np.broadcast_to(x, shape)
    if len(shape) != 2 or whole.size == 0:
        return np.ascontiguousarray(whole)
    out = np.empty(shape, x.dtype)
    for i in range(shape[0]):
        row = whole[i]
        if whole.strides[1] == 0:
            number = row[0]
            for j in range(shape[1]):
                out[i, j] = number
        else:
            for j in range(shape[1]):
                out[i, j] = row[j]
    return out


@jit
def nonnegative_indices(places, length):
    """Indices with negative ones counted from the end; an array one longer if an index is out of range."""
    out = np.empty(places.size, np.int64)
    for i in range(places.size):
        place = np.int64(places[i])
        if place < 0:
            place += length
        if place < 0 or place >= length:
            return np.empty(places.size + 1, np.int64)
        out[i] = place
    return out
