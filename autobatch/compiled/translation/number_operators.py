"""Operators on numbers, as in Python: NumPy gives the type of each result, and guards catch what raises in Python.

An int that overflows, a division by zero, and whatever else compiled code would do differently, leaves the example to
Python. What goes wrong only in floats is seen in the processor's floating-point flags, after the example.
"""

import functools
import operator
import warnings
from typing import Any

import numpy as np

from autobatch.compiled.translation import exact_types as types
from autobatch.compiled.translation.exact_types import BOOL, FLOAT, INT, NONE
from autobatch.compiled.translation.source_program import Lines
from autobatch.compiled.translation.statement_reader import Reader
from autobatch.compiled.translation.typed_text import (
    ANY,
    NO_CONSTANT,
    Bounds,
    Value,
    assigned,
    code,
    convert,
    numba_type,
)
from autobatch.facts import operators

OPERATORS = {each.syntax: each for each in operators.ARITHMETIC}
COMPARISONS = {each.syntax: each for each in operators.COMPARISONS}
_GUARDED = {"Add": "add", "Sub": "subtract", "Mult": "multiply"}
_PLAIN = {name: OPERATORS[name].symbol for name in ("Add", "Sub", "Mult", "Div", "BitAnd", "BitOr", "BitXor")}
_EXACT = 2**53  # ints up to here are exact as floats


def result_of(reader: Reader, function: Any, *kinds: types.Type) -> types.Type:
    """The type of the result that NumPy or Python computes from numbers of these types.

    Raises:
        Unsupported: they raise, or the type has no compiled form.
    """
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            out = function(*map(types.sample, kinds))
        return types.PYTHON.get(type(out)) or types.of_dtype(out.dtype)
    except Exception as error:
        raise reader.refuse(f"{type(error).__name__}: {error}") from None


def lift(reader: Reader, function: Any, *values: Value) -> Value:
    """`function` of scalars; if one is a `Union`, in a branch for each type that it may have."""
    for place, value in enumerate(values):
        if isinstance(value.kind, types.Union):
            return _by_type(reader, function, list(values), place)
    return function(*values)


def _by_type(reader: Reader, function: Any, values: list[Value], place: int) -> Value:
    """Like `lift`, if the value at this place is a `Union`: one branch for each type."""
    held = reader.held(values[place])
    arms: list[tuple[types.Scalar, Lines, Value | None]] = []
    for scalar in types.members(held.kind):
        made: list[Value] = []
        one = Value(scalar, convert(held.text, held.kind, scalar))
        arguments = [*values[:place], one, *values[place + 1 :]]

        def arm(made: list[Value] = made, arguments: list[Value] = arguments) -> None:
            made.append(lift(reader, function, *arguments))

        lines, env = reader.arm(arm, reader.env)
        arms.append((scalar, lines, None if env is None else made[0]))
    kinds = [result.kind for _, _, result in arms if result is not None]
    if not kinds:
        reader.stop()
    kind = functools.reduce(reader.join, kinds)
    name = reader.declared(kind)
    for number, (scalar, lines, result) in enumerate(arms):
        if result is not None:
            lines.append(assigned(name, convert(result.text, result.kind, kind)))
        is_last = bool(number) and number == len(arms) - 1
        word = "if" if number == 0 else "elif"
        reader.emit("else:" if is_last else f"{word} {held.text}[0] == {types.TAGS[scalar]}:", lines)
    return Value(kind, name)


_TAGGED = {
    frozenset([FLOAT, types.Scalar("float64", False)]): FLOAT,
    frozenset([INT, types.Scalar("int64", False)]): INT,
}


def payload(value: Value) -> Value | None:
    """A number that is surely a float64, or surely an int64, as Python's number; None for any other."""
    kinds = frozenset(types.members(value.kind))
    for pair, kind in _TAGGED.items():
        if kinds <= pair:
            return Value(kind, convert(value.text, value.kind, kind), value.constant, value.bounds)
    return None


def tagged_operation(reader: Reader, op: str, a: Value, b: Value) -> Value | None:
    """`a op b` where a number may be Python's or NumPy's, of one machine type: one operation, two possible tags.

    None for other operands. One guard serves both types: an example that fails it runs in Python.
    """
    if not (isinstance(a.kind, types.Union) or isinstance(b.kind, types.Union)) or op == "Pow":
        return None
    one, two = payload(reader.once(a)), payload(reader.once(b))
    if one is None or two is None:
        return None
    out = arithmetic(reader, op, one, two)
    if out.kind not in (FLOAT, INT):
        return None
    numpys = types.Scalar(out.kind.name, False)
    kinds = (a.kind, b.kind)
    if any(isinstance(kind, types.Scalar) and not kind.python for kind in kinds):
        return Value(numpys, out.text)
    tags = [f"({value.text}[0] > 3)" for value in (a, b) if isinstance(value.kind, types.Union)]
    tag = code("select", " or ".join(tags), str(types.TAGS[numpys]), str(types.TAGS[out.kind]))
    parts = ("0", out.text) if out.kind == FLOAT else (out.text, "0.0")
    return reader.temp(code("()", tag, *parts), types.union_of([out.kind, numpys]))


def quick_compare(reader: Reader, op: str, a: Value, b: Value) -> str | None:
    """The text of a comparison of two numbers of one machine type, which may be Python's or NumPy's; else None."""
    if op not in COMPARISONS or not all(isinstance(value.kind, types.Scalar | types.Union) for value in (a, b)):
        return None
    if not any(isinstance(value.kind, types.Union) for value in (a, b)):
        return None
    one, two = payload(a), payload(b)
    if one is None or two is None or one.kind != two.kind:
        return None
    return reader.temp(f"{one.text} {COMPARISONS[op].symbol} {two.text}", BOOL).text


def cast(value: Value, to: types.Scalar) -> str:
    """The text of a number, converted to this machine type."""
    if value.kind.name == to.name:
        return value.text
    if to.kind == "b":
        return f"({value.text} != 0)"
    return code(numba_type(to), value.text)


def truth_of(value: Value) -> str:
    """The text of an expression that is true if a scalar is."""
    return "False" if value.kind == NONE else cast(value, BOOL)


def arithmetic(reader: Reader, op: str, a: Value, b: Value) -> Value:
    """`a op b` of two numbers, neither of which is a `Union`."""
    if NONE in (a.kind, b.kind):
        reader.stop()
    if a.constant is not NO_CONSTANT and b.constant is not NO_CONSTANT and a.kind.python and b.kind.python:
        try:
            return reader.constant(OPERATORS[op].function(a.constant, b.constant), None)
        except (ArithmeticError, ValueError, TypeError):
            reader.stop()
    kind = result_of(reader, OPERATORS[op].function, a.kind, b.kind)
    if op == "Pow" and kind.kind in "iu":
        return _integer_power(reader, kind, a, b)
    for value, other in ((a, b), (b, a)):  # a Python int outside of the NumPy dtype's range raises
        if value.kind == INT and not other.kind.python and kind.kind in "iu" and kind.name != "int64":
            _check_range(reader, value.text, kind)
    if kind.kind in "iu" and op in ("Add", "Sub", "Mult"):
        return _guarded(reader, op, kind, a, b)
    if kind.kind == "b":
        if op not in ("BitAnd", "BitOr", "BitXor", "Add", "Mult"):
            raise reader.refuse(f"{op} of bools")
        sign = {"Add": "|", "Mult": "&"}.get(op, _PLAIN.get(op))
        return reader.temp(f"boolean({a.text} {sign} {b.text})", kind)
    if kind.kind in "iu":
        return _integers(reader, op, kind, a, b)
    x, y = cast(a, kind), cast(b, kind)
    if op == "Div" and kind == FLOAT:
        if a.kind.kind != "f" and b.kind.kind != "f":  # Python rounds the quotient of two ints once
            for value in (a, b):
                if value.kind == INT and not value.small:
                    reader.fail_if(f"{value.text} > {_EXACT} or {value.text} < -{_EXACT}")
        if b.constant is NO_CONSTANT or not b.constant:
            reader.fail_if(f"{y} == 0", ZeroDivisionError)
    if op in ("FloorDiv", "Mod"):
        if kind.name != "float64":
            raise reader.refuse(f"{op} of {kind}")
        if b.constant is NO_CONSTANT or not b.constant:
            reader.fail_if(f"{y} == 0", ZeroDivisionError if kind.python else None)
        return reader.temp(code("floor_divide" if op == "FloorDiv" else "modulo", x, y), kind)
    if op == "Pow" and kind.name == "float64" and b.constant is not NO_CONSTANT and b.constant == 2:
        return reader.temp(code("squared", x), kind)
    if op == "Pow":
        if not kind.python:
            guard_root(reader, b, x, y)  # the base may be an array without dimensions
        return reader.temp(code("math.pow", x, code("opaque", code(numba_type(kind), y))), kind)
    if op not in _PLAIN:
        raise reader.refuse(f"{op} of {a.kind} and {b.kind}")
    return reader.temp(code(_PLAIN[op], x, y), kind)


def guard_root(reader: Reader, exponent: Value, x: str, y: str) -> None:
    """Leave `x ** 0.5` of -0.0 and -inf to Python: NumPy takes the square root for some operands and not for others."""
    if exponent.constant is NO_CONSTANT or exponent.constant == 0.5:
        reader.fail_if(f"{y} == 0.5 and math.copysign(1.0, {x}) < 0 and {x} * 0.5 == {x}")


def _check_range(reader: Reader, text: str, kind: types.Scalar) -> None:
    """Leave the example to Python if an int64 is outside of this dtype's range."""
    info = np.iinfo(kind.name)
    reader.fail_if(f"{text} < {info.min} or {text} > {info.max}")


def _of_dtype(reader: Reader, text: str, kind: types.Scalar, bounds: Bounds = ANY) -> Value:
    """An int64 as an integer of this dtype, if it is in its range."""
    if kind.name == "int64":
        return Value(kind, text, bounds=bounds)
    _check_range(reader, text, kind)
    return Value(kind, f"{kind.name}({text})", bounds=bounds)


def _guarded(reader: Reader, op: str, kind: types.Scalar, a: Value, b: Value) -> Value:
    """A sum, difference or product of integers, guarded against overflow."""
    x, y = cast(a, INT), cast(b, INT)
    bounds = ANY
    if a.small and b.small and op != "Mult":
        bounds = a.bounds.plus(b.bounds, b.constant, 1 if op == "Add" else -1)
        out = reader.temp(f"{x} {_PLAIN[op]} {y}", INT)
    else:
        out = Value(INT, reader.declared(INT))
        flag = reader.fresh("o")
        reader.emit(assigned(f"{out.text}, {flag}", code(_GUARDED[op], x, y)))
        reader.fail_if(f"{flag} != 0")
    return _of_dtype(reader, out.text, kind, bounds)


def _integers(reader: Reader, op: str, kind: types.Scalar, a: Value, b: Value) -> Value:
    x, y = cast(a, INT), cast(b, INT)
    if op in ("FloorDiv", "Mod"):
        if b.constant is NO_CONSTANT or b.constant in (0, -1):
            reader.fail_if(f"{y} == 0", ZeroDivisionError if kind.python else None)
            reader.fail_if(f"{y} == -1 and {x} == -9223372036854775808")
        text = f"{x} {'//' if op == 'FloorDiv' else '%'} {y}"
    elif op in ("LShift", "RShift"):
        reader.fail_if(f"{y} < 0 or {y} > 62")
        text = f"{x} {'<<' if op == 'LShift' else '>>'} {y}"
        if op == "LShift":
            reader.fail_if(f"(({x} << {y}) >> {y}) != {x}")
    elif op in _PLAIN and op != "Div":
        text = f"{x} {_PLAIN[op]} {y}"
    else:
        raise reader.refuse(f"{op} of {a.kind} and {b.kind}")
    low = 0 if all(x.bounds.low is not None and x.bounds.low >= 0 for x in (a, b)) else None
    bits = {"FloorDiv": a.bounds.bits, "RShift": a.bounds.bits, "Mod": b.bounds.bits}.get(op, 64)
    if op == "Mod" and b.bounds.low is not None and b.bounds.low >= 0:
        low = 0
    return _of_dtype(reader, reader.temp(text, INT).text, kind, Bounds(bits, low))


def _integer_power(reader: Reader, kind: types.Scalar, a: Value, b: Value) -> Value:
    """`a ** b` of ints; in Python a negative exponent gives a float, or raises."""
    x, y = cast(a, INT), cast(b, INT)
    if isinstance(b.constant, int) and b.constant < 0 and kind == INT:
        reader.fail_if(f"{x} == 0")
        return reader.temp(f"math.pow(float64({x}), opaque(float64({y})))", FLOAT)
    reader.fail_if(f"{y} < 0")
    out = reader.declared(INT)
    reader.emit(assigned(f"{out}, o_{out}", code("integer_power", x, y)))
    reader.fail_if(f"o_{out} != 0")
    return _of_dtype(reader, out, kind)


def compare(reader: Reader, op: str, a: Value, b: Value) -> Value:
    """`a op b`, a comparison of two scalars, each of one type."""
    if NONE in (a.kind, b.kind):
        if op not in ("Eq", "NotEq"):
            reader.stop()
        same = (a.kind == b.kind) == (op == "Eq")
        return Value(BOOL, str(same), same)
    if a.constant is not NO_CONSTANT and b.constant is not NO_CONSTANT and a.kind.python and b.kind.python:
        return reader.constant(COMPARISONS[op].function(a.constant, b.constant), None)
    kind = BOOL if a.kind.python and b.kind.python else types.Scalar("bool", False)
    sign = COMPARISONS[op].symbol
    floats = [value.kind.kind == "f" for value in (a, b)]
    if not any(floats):
        return reader.temp(f"{cast(a, INT)} {sign} {cast(b, INT)}", kind)
    alike = all(floats) and a.kind.name == b.kind.name
    if kind == BOOL and not alike:  # Python compares an int and a float exactly
        for value, is_float in zip((a, b), floats, strict=True):
            if not is_float and value.kind == INT and not value.small:
                reader.fail_if(f"{value.text} > {_EXACT} or {value.text} < -{_EXACT}")
        return reader.temp(f"{cast(a, FLOAT)} {sign} {cast(b, FLOAT)}", kind)
    common = a.kind if alike else result_of(reader, operator.add, a.kind, b.kind)
    # A known zero is hidden: LLVM makes `0.0 if x < 0 else float64(x)` a maximum, which is 0.0 for x = -0.0.
    hide = [common.name == "float32" and value.constant == 0 for value in (a, b)]
    one, two = (f"opaque({cast(v, common)})" if own else cast(v, common) for v, own in zip((a, b), hide, strict=True))
    return reader.temp(f"{one} {sign} {two}", kind)


def negative(reader: Reader, value: Value) -> Value:
    """`-value`."""
    if value.constant is not NO_CONSTANT and value.kind.python and value.kind != NONE:
        return reader.constant(-value.constant, None)
    if value.kind == NONE:
        reader.stop()
    kind = result_of(reader, operator.neg, value.kind)
    if kind.kind == "f":
        return reader.temp(code("-", value.text), kind)
    if kind.kind == "u":
        raise reader.refuse("the negative of an unsigned number")
    return _guarded(reader, "Sub", kind, Value(INT, "0", 0, Bounds(32, 0)), value)


def in_range(reader: Reader, index: str, length: str, value: Value, signed: bool = True) -> str:
    """An index with negative ones wrapped to count from the start; out of range leaves the example to Python.

    Args:
        signed: it is computed with; otherwise it only indexes an array, for which unsigned is cheaper.
    """
    out = reader.temp(f"uint64({index})", INT)
    if value.bounds.low is None or value.bounds.low < 0:
        reader.emit(f"if {index} < 0:", [f"{out.text} = uint64({index} + {length})"])
    reader.fail_if(f"{out.text} >= uint64({length})", IndexError)
    return f"int64({out.text})" if signed else out.text
