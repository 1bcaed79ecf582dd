"""SIMD operations on rows of a table held in vector registers, from which bag kernels are written.

`VectorLayout(format, n)` describes n consecutive elements of a row and their format in memory. A kernel is compiled for
each `VectorLayout` it is called with, so n is a constant; the elements are one value, a tuple of machine vectors of 64
bytes, and of smaller powers of two for the rest. Formats:

- "f2", "f4", "f8", "i1" … "u8": NumPy's; computed in that dtype, float16 in float32.
- "b2": bfloat16, the upper half of a float32; computed in that.
- "q8": codes of 8 bits, and after them the row's scale and bias as float32; element j is scale * code[j] + bias, in
  float32.

A row is given by its address, of any alignment. Rows named by ids are scattered, and a cache miss costs more than the
computation: `prefetch_row` and `prefetch_source` prefetch them. Nothing is checked. With `NUMBA_DISABLE_JIT=1` the same
names are plain Python."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, config, types
from numba.core.base import BaseContext
from numba.core.typing import BaseContext as TypingContext
from numba.core.typing import Signature
from numba.extending import intrinsic, models, register_model

from autobatch.kernels.jit import jit

AHEAD = 8  # prefetch distance, in rows
LINE = 64  # bytes of a cache line


def emit_prefetch(builder: ir.IRBuilder, address: ir.Value, to_write: bool) -> None:
    """Emit a prefetch of the cache line at an integer address; it never faults.

    A line that is to be read goes to the second cache, which waits for many more lines at once than the first does.
    """
    byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
    llvm_type = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
    function = cgutils.get_or_insert_function(builder.module, llvm_type, "llvm.prefetch.p0")
    builder.call(function, [builder.inttoptr(address, byte), word(int(to_write)), word(3 if to_write else 2), word(1)])


def _prefetch_intrinsic(to_write: bool) -> Any:
    def ask(typing_context, address):
        def generate(context, builder, signature, args):
            emit_prefetch(builder, args[0], to_write)
            return context.get_dummy_value()

        return types.void(types.intp), generate

    return intrinsic(ask)


_to_write, _to_read = _prefetch_intrinsic(True), _prefetch_intrinsic(False)


def _prefetch_row(array, row):
    start = array.ctypes.data + row * array.strides[0]
    for byte in range(0, array.shape[1] * array.itemsize, LINE):
        _to_write(start + byte)


def _prefetch_source(array, row):
    start = array.ctypes.data + row * array.strides[0]
    for byte in range(0, array.shape[1] * array.itemsize, LINE):
        _to_read(start + byte)


def _prefetch_element(array, place):
    _to_read(array.ctypes.data + place * array.itemsize)


def _prefetch_number(array, place):
    _to_write(array.ctypes.data + place * array.strides[0])


def _no_prefetch(array: object, row: object) -> None:
    """Without compilation there is no prefetch."""


_compiled = not getattr(config, "DISABLE_JIT", 0)
prefetch_row = jit(_prefetch_row if _compiled else _no_prefetch)  # a row that is to be updated
prefetch_source = jit(_prefetch_source if _compiled else _no_prefetch)  # a row that is to be read
prefetch_element = jit(_prefetch_element if _compiled else _no_prefetch)  # one of an array without gaps, to be read
prefetch_number = jit(_prefetch_number if _compiled else _no_prefetch)  # an element that is to be updated


def read(builder: ir.IRBuilder, address: ir.Value, llvm_type: ir.Type) -> Any:
    """A value at an address of any alignment."""
    out = builder.load(builder.inttoptr(address, llvm_type.as_pointer()))
    out.align = 1
    return out


def splat(builder: ir.IRBuilder, scalar: ir.Value, k: int) -> Any:
    """A machine vector with k copies of a scalar."""
    one = ir.VectorType(scalar.type, 1)
    lone = builder.insert_element(ir.Constant(one, ir.Undefined), scalar, ir.IntType(32)(0))
    zero = ir.Constant(ir.VectorType(ir.IntType(32), k), None)
    return builder.shuffle_vector(lone, ir.Constant(one, ir.Undefined), zero)


def _constant(value: int, bits: int, k: int) -> Any:
    return ir.Constant(ir.VectorType(ir.IntType(bits), k), [value] * k)


def from_half(builder: ir.IRBuilder, bits: ir.Value, k: int) -> Any:
    """float16 as float32, in integer arithmetic, so that no machine lacks it: the exponent is moved by a product."""
    wide, real = ir.VectorType(ir.IntType(32), k), ir.VectorType(ir.FloatType(), k)
    word = builder.zext(bits, wide)
    rest = builder.shl(builder.and_(word, _constant(0x7FFF, 32, k)), _constant(13, 32, k))
    scaled = builder.fmul(builder.bitcast(rest, real), builder.bitcast(_constant(0x77800000, 32, k), real))  # 2^112
    whole = builder.icmp_unsigned(">=", rest, _constant(0x0F800000, 32, k))  # infinity or NaN
    special = builder.or_(rest, _constant(0x7F800000, 32, k))
    magnitude = builder.select(whole, special, builder.bitcast(scaled, wide))
    sign = builder.shl(builder.and_(word, _constant(0x8000, 32, k)), _constant(16, 32, k))
    return builder.bitcast(builder.or_(magnitude, sign), real)


FORMATS = ("b2", "f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "q8")
REGISTER = 64  # bytes; wider than the machine's is split by the compiler


class VectorLayout:
    """n consecutive elements of a row, in one format.

    `lead` is the number of elements before the first machine-vector boundary, the same in all rows: with it, no vector
    load crosses two cache lines, which would cost twice. `across` means that rows may touch one cache line more than
    their size needs, so that line is prefetched, too. A machine vector has at most `register` bytes.
    """

    __slots__ = ("_numba_type_", "across", "format", "lead", "n", "register")

    def __init__(self, format: str, n: int, lead: int = 0, across: bool = False, register: int = REGISTER) -> None:
        self.format = format
        self.n = n
        self.lead = lead
        self.across = across
        self.register = register
        # where the dispatcher looks before it calls any Python
        self._numba_type_ = LanesType(format, n, lead, across, register)


def computed_dtype(format: str) -> np.dtype:
    """The dtype in which elements are computed."""
    return np.dtype(np.float32) if format in ("b2", "f2", "q8") else np.dtype(format)


class LanesType(types.Dummy):
    """The type of a `VectorLayout`, which has its fields."""

    def __init__(self, format: str, n: int, lead: int, across: bool, register: int) -> None:
        self.format, self.n, self.lead, self.across, self.register = format, n, lead, across, register
        super().__init__(f"VectorLayout({format},{n},{lead},{across},{register})")


class VectorType(types.Type):
    """The value of some lanes."""

    def __init__(self, code: str, n: int, lead: int, register: int = REGISTER) -> None:
        self.code, self.n, self.lead, self.register = code, n, lead, register
        super().__init__(f"Vector({code},{n},{lead},{register})")


register_model(LanesType)(models.OpaqueModel)


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, fe_type: Any) -> None:
        llvm_type = element(fe_type.code)
        parts = [ir.VectorType(llvm_type, k) for _, k in machine_vectors(fe_type)]
        super().__init__(manager, fe_type, ir.LiteralStructType(parts))


@numba.extending.unbox(LanesType)
def _unbox_lanes(typ: object, obj: object, c: Any) -> Any:
    return numba.extending.NativeValue(c.context.get_dummy_value())


def vector_of(lanes: LanesType) -> VectorType:
    """The type of the value of some lanes."""
    return VectorType(computed_dtype(lanes.format).str[1:], lanes.n, lanes.lead, lanes.register)


def element(code: str) -> ir.Type:
    """The machine's type of an element."""
    if code == "f2":
        return ir.IntType(16)
    if code in ("f4", "f8"):
        return ir.FloatType() if code == "f4" else ir.DoubleType()
    return ir.IntType(8 * int(code[1:]))


def machine_vectors(vector: VectorType) -> list[tuple[int, int]]:
    """(first element, number of elements) of each machine vector."""
    out, at = [], 0
    for end in (vector.lead, vector.n):
        width = vector.register // int(vector.code[1:])
        while at < end:
            while width > end - at:
                width //= 2
            out.append((at, width))
            at += width
    return out


def intrinsic_or_plain(plain: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Compiled code uses the intrinsic; with the compiler switched off, the plain function takes its place.

    It is the intrinsic's `plain`, too, for tests that run a kernel uncompiled.
    """

    def declare(typed: object) -> Any:
        if vars(config)["DISABLE_JIT"]:
            return plain
        out: Any = intrinsic(typed)
        out.plain = plain
        return out

    return declare


def _bytes_at(address: int, count: int) -> np.ndarray:
    return np.frombuffer((ctypes.c_char * count).from_address(int(address)), np.uint8)


def plain_load(lanes: VectorLayout, address: int, column: int, dim: int) -> np.ndarray:
    """`load` without compilation."""
    if lanes.format == "b2":
        return (_bytes_at(address + 2 * column, 2 * lanes.n).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if lanes.format != "q8":
        dtype = np.dtype(lanes.format)
        data = _bytes_at(address + column * dtype.itemsize, lanes.n * dtype.itemsize)
        return data.view(dtype).astype(computed_dtype(lanes.format))
    codes, numbers = _bytes_at(address, dim), _bytes_at(address + dim, 8).view(np.float32)
    return codes[column : column + lanes.n].astype(np.float32) * numbers[0] + numbers[1]


@intrinsic_or_plain(plain_load)
def load(typingctx: TypingContext, lanes: LanesType, address: types.Type, column: types.Type, dim: types.Type) -> Any:
    """Elements [column, column + n) of the row at an address; `dim` is the length of the row."""
    vector = vector_of(lanes)
    integer = ir.IntType(64)

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> Any:
        address, column, dim = (
            context.cast(builder, x, t, types.int64) for x, t in zip(args[1:], signature.args[1:], strict=True)
        )
        out = ir.Constant(context.get_value_type(vector), ir.Undefined)
        scale = bias = None
        if lanes.format == "q8":
            end = builder.add(address, dim)
            scale = read(builder, end, ir.FloatType())
            bias = read(builder, builder.add(end, integer(4)), ir.FloatType())
        for index, (at, k) in enumerate(machine_vectors(vector)):
            first = builder.add(column, integer(at))
            if lanes.format == "q8":
                codes = read(builder, builder.add(address, first), ir.VectorType(ir.IntType(8), k))
            else:
                offset = builder.mul(first, integer(int(lanes.format[1:])))
                codes = read(builder, builder.add(address, offset), ir.VectorType(element(lanes.format), k))
            if lanes.format == "f2":
                codes = from_half(builder, codes, k)
            elif lanes.format == "b2":
                codes = builder.shl(builder.zext(codes, ir.VectorType(ir.IntType(32), k)), _constant(16, 32, k))
                codes = builder.bitcast(codes, ir.VectorType(ir.FloatType(), k))
            elif scale is not None:
                codes = builder.uitofp(codes, ir.VectorType(ir.FloatType(), k))
                codes = builder.fadd(builder.fmul(codes, splat(builder, scale, k)), splat(builder, bias, k))
            out = builder.insert_value(out, codes, index)
        return out

    return vector(lanes, address, column, dim), codegen


@intrinsic_or_plain(lambda lanes: np.zeros(lanes.n, computed_dtype(lanes.format)))
def zeros(typingctx: TypingContext, lanes: LanesType) -> Any:
    """A vector value of zeros."""
    vector = vector_of(lanes)

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> Any:
        return ir.Constant(context.get_value_type(vector), None)

    return vector(lanes), codegen


@intrinsic_or_plain(lambda lanes: lanes.n)
def width(typingctx: TypingContext, lanes: LanesType) -> Any:
    """The number of elements in the lanes."""
    return types.intp(lanes), lambda context, builder, signature, args: ir.IntType(64)(lanes.n)


def map_vectors(vector: Any, combine: Callable[[Any, int, list[Any]], Any], operands: int) -> Any:
    """Code that combines the machine vectors of the first operands, one piece after the other."""

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> Any:
        out = ir.Constant(context.get_value_type(vector), ir.Undefined)
        rest = list(args[operands:])
        if rest:  # a factor, in the dtype of the elements
            rest = [context.cast(builder, rest[0], signature.args[operands], _scalar(vector))]
        for index, (_, k) in enumerate(machine_vectors(vector)):
            parts = [builder.extract_value(x, index) for x in args[:operands]]
            out = builder.insert_value(out, combine(builder, k, [*parts, *rest]), index)
        return out

    return codegen


def _scalar(vector: Any) -> Any:
    return numba.from_dtype(np.dtype(vector.code))


def _plain_add(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return x + y


@intrinsic_or_plain(_plain_add)
def add(typingctx: TypingContext, x: VectorType, y: VectorType) -> Any:
    """x + y"""

    def combine(builder: ir.IRBuilder, k: int, parts: list[Any]) -> Any:
        return builder.fadd(*parts) if x.code[0] == "f" else builder.add(*parts)

    return x(x, y), map_vectors(x, combine, 2)


def _plain_scaled(x: np.ndarray, factor: object) -> np.ndarray:
    with np.errstate(all="ignore"):
        return x * x.dtype.type(factor)


@intrinsic_or_plain(_plain_scaled)
def scaled(typingctx: TypingContext, x: VectorType, factor: types.Type) -> Any:
    """x * factor, the factor rounded to the dtype of x."""

    def combine(builder: ir.IRBuilder, k: int, parts: list[Any]) -> Any:
        value, factor = parts
        return (builder.fmul if x.code[0] == "f" else builder.mul)(value, splat(builder, factor, k))

    return x(x, factor), map_vectors(x, combine, 1)


def _extremum(sign: str) -> Callable[..., Any]:
    def typed(typingctx: TypingContext, x: VectorType, y: VectorType) -> Any:
        def combine(builder: ir.IRBuilder, k: int, parts: list[Any]) -> Any:
            old, new = parts
            if x.code[0] == "f":
                better = builder.or_(builder.fcmp_ordered(sign, new, old), builder.fcmp_unordered("uno", new, new))
            else:
                compare = builder.icmp_signed if x.code[0] == "i" else builder.icmp_unsigned
                better = compare(sign, new, old)
            return builder.select(better, new, old)

        return x(x, y), map_vectors(x, combine, 2)

    return typed


# The greater, or the lesser, of each element; NaN where either is.
greater = intrinsic_or_plain(lambda x, y: np.where((y > x) | (y != y), y, x))(_extremum(">"))
lesser = intrinsic_or_plain(lambda x, y: np.where((y < x) | (y != y), y, x))(_extremum("<"))


def _plain_store(out: np.ndarray, row: int, column: int, x: np.ndarray) -> None:
    out[row, column : column + len(x)] = x


@intrinsic_or_plain(_plain_store)
def store(typingctx: TypingContext, out: types.Type, row: types.Type, column: types.Type, x: VectorType) -> Any:
    """out[row, column : column + n] = x, for a matrix of the dtype of x with contiguous rows."""

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        row, column = (context.cast(builder, args[i], signature.args[i], types.intp) for i in (1, 2))
        offset = builder.mul(row, cgutils.unpack_tuple(builder, array.strides, 2)[0])
        first = builder.gep(builder.bitcast(array.data, ir.IntType(8).as_pointer()), [offset])
        first = builder.gep(builder.bitcast(first, array.data.type), [column])
        for index, (at, k) in enumerate(machine_vectors(x)):
            place = builder.gep(first, [ir.IntType(64)(at)])
            llvm_type = ir.VectorType(element(x.code), k).as_pointer()
            builder.store(builder.extract_value(args[3], index), builder.bitcast(place, llvm_type)).align = 1
        return context.get_dummy_value()

    return types.none(out, row, column, x), codegen


def _plain_put(address: int, column: int, x: np.ndarray) -> None:
    ctypes.memmove(int(address) + column * x.itemsize, x.tobytes(), x.nbytes)


def _put(typingctx: TypingContext, address: types.Type, column: types.Type, x: VectorType, nontemporal: bool) -> Any:
    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> Any:
        integer = ir.IntType(64)
        address, column = (context.cast(builder, args[i], signature.args[i], types.int64) for i in (0, 1))
        size = integer(int(x.code[1:]))
        for index, (at, k) in enumerate(machine_vectors(x)):
            place = builder.add(address, builder.mul(builder.add(column, integer(at)), size))
            pointer = builder.inttoptr(place, ir.VectorType(element(x.code), k).as_pointer())
            stored = builder.store(builder.extract_value(args[2], index), pointer)
            stored.align = k * int(x.code[1:]) if nontemporal else 1
            if nontemporal:
                stored.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))
        return context.get_dummy_value()

    return types.none(address, column, x), codegen


@intrinsic_or_plain(_plain_put)
def put(typingctx: TypingContext, address: types.Type, column: types.Type, x: VectorType) -> Any:
    """Elements [column, column + n) of the row at an address become x, in the dtype of x."""
    return _put(typingctx, address, column, x, False)


@intrinsic_or_plain(_plain_put)
def put_nontemporal(typingctx: TypingContext, address: types.Type, column: types.Type, x: VectorType) -> Any:
    """Like `put`, with non-temporal stores; the address written must be a multiple of the vectors' size."""
    return _put(typingctx, address, column, x, True)


@intrinsic_or_plain(lambda x: x)
def held(typingctx: TypingContext, x: types.Type) -> Any:
    """The same integer, kept in a register, so that the compiler does not reload the argument from memory."""

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> Any:
        llvm_type = ir.FunctionType(args[0].type, [args[0].type])
        return builder.asm(llvm_type, "", "=r,0", [args[0]], False)

    return x(x), codegen


@intrinsic_or_plain(lambda lanes, address, column: None)
def prefetch(typingctx: TypingContext, lanes: LanesType, address: types.Type, column: types.Type) -> Any:
    """Prefetch elements of a row that will be read soon; the address need not be valid."""
    size = 1 if lanes.format == "q8" else int(lanes.format[1:])

    def codegen(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> Any:
        address, column = (context.cast(builder, args[i], signature.args[i], types.int64) for i in (1, 2))
        integer = ir.IntType(64)
        start = builder.add(address, builder.mul(column, integer(size)))
        for place in [*range(0, lanes.n * size, LINE), *([lanes.n * size - 1] if lanes.across else [])]:
            emit_prefetch(builder, builder.add(start, integer(place)), to_write=False)
        return context.get_dummy_value()

    return types.none(lanes, address, column), codegen
