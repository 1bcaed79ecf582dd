"""How values of each type are written in the text that Numba compiles: names, conversions, placeholders."""

import dataclasses
import functools
import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from autobatch.compiled.translation import exact_types as types
from autobatch.compiled.translation import object_trees
from autobatch.compiled.translation.exact_types import NONE
from autobatch.facts.types import COMPARISON_METHODS

NO_CONSTANT = object()


class Bounds(NamedTuple):
    """Known bounds of an int: it has at most `bits` bits (32, 48, 56 or 64), and is at least `low` (None: unknown)."""

    bits: int = 64
    low: int | None = None

    def plus(self, other: "Bounds", constant: Any, sign: int = 1) -> "Bounds":
        """The bounds of a sum, or of a difference if `sign` is -1; `constant`: the other operand, if it is known.

        An int counted up or down by small constants keeps its bits (48 at least): exceeding 56 would take days.
        """
        # One counts up or down by no larger constant.
        counts = isinstance(constant, int) and abs(constant) <= 16
        bits = max(self.bits, 48) if counts else {32: 48, 48: 56}.get(max(self.bits, other.bits), 64)
        more = other.low if sign > 0 else -constant if isinstance(constant, int) else None
        return Bounds(bits, None if self.low is None or more is None else self.low + more)

    def join(self, other: "Bounds") -> "Bounds":
        """Bounds that cover both; few steps lead to the widest, so a loop that joins them soon settles."""
        low = self.low if self.low == other.low else None
        if self.low is not None and other.low is not None and min(self.low, other.low) >= 0:
            low = self.low if self.low == other.low else 0
        return Bounds(max(self.bits, other.bits), low)


ANY = Bounds()
LENGTH = Bounds(48, 0)


def bounds_of(number: int) -> Bounds:
    """The bounds of a constant."""
    return Bounds(32, number) if abs(number) < 2**31 else Bounds(64, number)


def joined_bounds(reaches: Iterable[Bounds]) -> Bounds:
    """Bounds that cover all of these."""
    return functools.reduce(Bounds.join, reaches)


class Applied(str):
    """Text that says what is applied to which operands, each of which may be `Applied` in turn.

    Text without that may name values, but not pass on a number that carries a gradient (`taping.tape_writer`).

    Attributes:
        head: `f` of `f(x, y)`; `*` of `x * y`; `.f` of `x.f(y)`, `.f!` of `x.f`; `[]` of `x[y]`; `()` of a tuple; of a
            line `=`, `+=`, `for` (its variable and what it runs over), `return` (status and value) or `call` (the
            variables of the status and of the result, the function, the arguments).
    """

    head: str
    operands: tuple[str, ...]


def code(head: str, *operands: str) -> Applied:
    """The text in which `head` is applied to `operands`."""
    first, rest = (operands or ("",))[0], operands[1:]
    match head:
        case "[]":
            text = f"{first}[{', '.join(rest)}]"
        case "()":
            text = f"({''.join(each + ', ' for each in operands)})"
        case "for":
            text = f"for {first} in {rest[0]}:"
        case "return":
            text = f"return {first}, {rest[0]}"
        case "call":
            text = f"{first}, {rest[0]} = {rest[1]}({', '.join(rest[2:])}@extra@)"
        case _ if head[0] == ".":
            text = f"{first}{head[:-1]}" if head[-1] == "!" else f"{first}{head}({', '.join(rest)})"
        case _ if head[0].isalpha():
            text = f"{head}({', '.join(operands)})"
        case _:
            text = f" {head} ".join(operands) if rest else head + first
    out = Applied(text)
    out.head, out.operands = head, operands
    return out


def assigned(target: str, text: str) -> Applied:
    """The line `target = text`."""
    return code("=", target, text)


def item_text(text: str, place: int | str) -> Applied:
    """The text of an item."""
    return code("[]", text, str(place))


@dataclasses.dataclass(slots=True)
class Value:
    """A value in compiled code.

    Attributes:
        kind: its type.
        text: a name, or an expression that may be written any number of times.
        constant: the value, if it is known while compiling.
        bounds: for an int, its known bounds.
        parts: for a tuple that was just made, its items.
    """

    kind: types.Type
    text: str
    constant: Any = NO_CONSTANT
    bounds: "Bounds" = ANY
    parts: Any = None

    @property
    def small(self) -> bool:
        """True if it is an int far from overflow: of fewer than 64 bits."""
        return self.bounds.bits < 64


_AS_TUPLES = (
    *COMPARISON_METHODS, "__ne__", "__add__", "__array__", "__bool__", "__contains__", "__getitem__", "__iadd__",
    "__imul__", "__iter__", "__len__", "__mul__", "__radd__", "__reversed__", "__rmul__",
)  # fmt: skip


def as_tuple(value: Value) -> Value:
    """A named tuple, unless its class changes what a tuple does, as the tuple that it is; any other value unchanged."""
    kind = value.kind
    if not (isinstance(kind, types.Struct) and issubclass(kind.cls, tuple)):
        return value
    is_changed = any(getattr(kind.cls, name, None) is not getattr(tuple, name, None) for name in _AS_TUPLES)
    return value if is_changed else Value(types.Tuple(kind.items), value.text, parts=value.parts)


def parts_of(value: Value) -> list[Value]:
    """The items of a tuple, whose text must be a name."""
    return value.parts or [Value(kind, item_text(value.text, i)) for i, kind in enumerate(value.kind.items)]


def numba_type(kind: types.Scalar) -> str:
    """Numba's name for the machine type of a scalar."""
    return {"bool": "boolean", "none": "int64"}.get(kind.name, kind.name)


def rep(kind: types.Type) -> str:
    """A name for how values of a type lie in memory; types of the same `rep` can be held by one variable."""
    match kind:
        case types.Scalar():
            return kind.name
        case types.Union():
            return "U"
        case types.Array():
            return f"A{kind.ndim}{kind.dtype}"
        case types.LookedUp():
            return rep(kind.weights)
        case types.Text():
            return "S"
        case types.ObjectTree() | types.TreeNodes():
            tree = kind if isinstance(kind, types.ObjectTree) else kind.tree
            told = repr(([cls.__qualname__ for cls in tree.classes], tree.fields))
            return f"{type(kind).__name__}{zlib.crc32(told.encode()):08x}"
        case types.Tuple() | types.Struct():
            return f"T{len(kind.items)}_{'_'.join(map(rep, kind.items))}_"
        case types.Maybe():
            return f"M{rep(kind.inner)}"
        case types.List() | types.Set() | types.Dict() | types.Object():
            return f"{type(kind).__name__}{kind.site.find().number}"
        case None:
            return "int64"
    return f"X{id(kind.value) if isinstance(kind, types.Static) else id(kind)}"


def dummy(kind: types.Type) -> str:
    """The text of some value of this type, where nobody reads the value."""
    match kind:
        case None:
            return "0"
        case types.Scalar():
            return f"{numba_type(kind)}(0)"
        case types.Union():
            return "(0, 0, 0.0)"
        case types.Array():
            return f"np.empty(({'0, ' * kind.ndim}), np.{kind.dtype})"
        case types.LookedUp():
            return dummy(kind.weights)
        case types.Text():
            return "np.empty(0, np.int32)"
        case types.ObjectTree():
            return code("()", *(f"np.empty(0, np.{dtype})" for dtype in object_trees.dtypes_of(kind)), "int64(0)")
        case types.TreeNodes():
            return code("()", *(f"np.empty(0, np.{dtype})" for dtype in object_trees.dtypes_of(kind.tree)), "0", "0")
        case types.Tuple() | types.Struct():
            return code("()", *map(dummy, kind.items))
        case types.Maybe():
            return f"(False, {dummy(kind.inner)})"
        case types.List() | types.Set() | types.Dict() | types.Object():
            return code(f"new_{rep(kind)}")
    return "0"


def constructor(kind: types.Type) -> str:
    """The source of the function that makes an empty container of this type."""
    name = rep(kind)
    if isinstance(kind, types.Object):
        return f"@jit\ndef new_{name}():\n    return [{code('()', 'int64(0)', *map(dummy, kind.site.find().items))}]\n"
    if isinstance(kind, types.List) and not kind.site.find().boxed:
        return f"@jit\ndef new_{name}():\n    return [{dummy(kind.elem)} for _ in range(0)]\n"
    if isinstance(kind, types.List):
        return f"@jit\ndef new_{name}():\n    out = TypedList([{dummy(kind.elem)}])\n    out.clear()\n    return out\n"
    content = f"{dummy(kind.elem)}: {dummy(kind.value)}" if isinstance(kind, types.Dict) else dummy(kind.elem)
    return f"@jit\ndef new_{name}():\n    out = {{{content}}}\n    out.clear()\n    return out\n"


def convert(text: str, kind: types.Type, to: types.Type) -> str:
    """The text of a value as another type holds it; `to` is a type joined from `kind`, so nothing is lost."""
    match kind, to:
        case _ if rep(kind) == rep(to):
            pass
        case types.Maybe(), types.Maybe():
            return code("()", item_text(text, 0), convert(item_text(text, 1), kind.inner, to.inner))
        case _, types.Maybe():
            return dummy(to) if kind == NONE else code("()", "True", convert(text, kind, to.inner))
        case types.Maybe(), _:
            return "0" if to == NONE else convert(item_text(text, 1), kind.inner, to)
        case types.Scalar(), types.Union():
            word, number = ("0", code("float64", text)) if kind.kind == "f" else (code("int64", text), "0.0")
            return code("()", str(types.TAGS[kind]), "0" if kind == NONE else word, number)
        case types.Union(), types.Scalar():
            payload = item_text(text, 2 if to.kind == "f" else 1)
            payload = payload if to.name in ("int64", "float64") else code(numba_type(to), payload)
            return "0" if to == NONE else payload
        case types.Scalar(), types.Scalar():
            return code(numba_type(to), text)
        case ((types.Tuple() | types.Struct()), (types.Tuple() | types.Struct())):
            pairs = enumerate(zip(kind.items, to.items, strict=True))
            return code("()", *(convert(item_text(text, i), a, b) for i, (a, b) in pairs))
    return text
