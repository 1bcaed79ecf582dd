"""Machine vectors as they lie in memory, in LLVM's instructions: of any alignment, of 4 bits, of float16."""

from typing import Any

from llvmlite import ir

__all__ = ["from_half", "nibbles", "read", "spread_over"]


def read(builder: Any, address: Any, kind: ir.Type) -> Any:
    """A value at an address of any alignment."""
    out = builder.load(builder.inttoptr(address, kind.as_pointer()))
    out.align = 1
    return out


def spread_over(builder: Any, scalar: Any, k: int) -> Any:
    """A machine vector of k times the same."""
    one = ir.VectorType(scalar.type, 1)
    lone = builder.insert_element(ir.Constant(one, ir.Undefined), scalar, ir.IntType(32)(0))
    zero = ir.Constant(ir.VectorType(ir.IntType(32), k), None)
    return builder.shuffle_vector(lone, ir.Constant(one, ir.Undefined), zero)


def _constant(value: int, bits: int, k: int) -> Any:
    return ir.Constant(ir.VectorType(ir.IntType(bits), k), [value] * k)


def nibbles(builder: Any, address: Any, first: Any, k: int) -> Any:
    """k codes of 4 bits from an even element on, or one from any."""
    integer, byte = ir.IntType(64), ir.IntType(8)
    place = builder.add(address, builder.lshr(first, integer(1)))
    if k == 1:
        shift = builder.trunc(builder.shl(builder.and_(first, integer(1)), integer(2)), byte)
        code = builder.and_(builder.lshr(read(builder, place, byte), shift), byte(15))
        return spread_over(builder, code, 1)
    pairs = read(builder, place, ir.VectorType(byte, k // 2))
    low = builder.and_(pairs, _constant(15, 8, k // 2))
    high = builder.lshr(pairs, _constant(4, 8, k // 2))
    order = ir.Constant(ir.VectorType(ir.IntType(32), k), [j // 2 + (j % 2) * (k // 2) for j in range(k)])
    return builder.shuffle_vector(low, high, order)


def from_half(builder: Any, bits: Any, k: int) -> Any:
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
