"""The kinds of values in a generated recorder: what is known of a value before any example is given."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from autobatch.core.abstract_eval import Aval, known_aval, unknown_lengths
from autobatch.core.recorded_array import is_recorded
from autobatch.errors import Unsupported
from autobatch.facts.types import SCALARS
from autobatch.lazy.array import LazyArray
from autobatch.program import normal_form as nf


class RecorderKind:
    """A kind of value; each subclass says how the recorder represents such a value at run time."""

    __slots__ = ()


class _Named(RecorderKind):
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


PLAIN = _Named("plain")
"""An example's own Python object, or a number; represented by itself."""
NOTHING = _Named("nothing")
"""No value yet: the result of a call whose result kind is not known yet."""
MIXED = _Named("mixed")
"""A variable whose value is of several kinds; nothing may read it."""


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedNode(RecorderKind):
    """A recorded array; represented by the number of its node in the segment."""

    aval: Aval


@dataclasses.dataclass(frozen=True, slots=True)
class RaggedNode(RecorderKind):
    """A recorded array of unknown size; represented by the number of its node."""

    aval: Aval


@dataclasses.dataclass(frozen=True, slots=True)
class DeferredRows(RecorderKind):
    """Rows of a shared table by any number of ids, which only a bag may reduce; represented by the ids' reference.

    Attributes:
        table: the number of the table's constant.
    """

    table: int


@dataclasses.dataclass(frozen=True, slots=True)
class Const(RecorderKind):
    """A value shared by all examples; not represented at run time, except that a scalar is written as a literal."""

    number: int
    value: Any = dataclasses.field(compare=False, repr=False)

    @property
    def is_scalar(self) -> bool:
        return type(self.value) in SCALARS


@dataclasses.dataclass(frozen=True, slots=True)
class Parts(RecorderKind):
    """A tuple, or a dataclass object of which only the fields are used; represented by a tuple of its parts.

    Attributes:
        make: the class, None for a tuple; names: the names of the fields.
    """

    parts: tuple[RecorderKind, ...]
    make: Any = None
    names: tuple[str, ...] = ()

    @property
    def is_tuple(self) -> bool:
        return self.make is None or issubclass(self.make, tuple)


class _Site:
    """The lists made at one place in the code; sites whose lists turn out to be of one kind are united (union-find)."""

    __slots__ = ("item", "parent")

    def __init__(self) -> None:
        self.item: RecorderKind = NOTHING
        self.parent: _Site | None = None


class ListKind(RecorderKind):
    """A list that the function makes; represented by a list of its items' representations."""

    __slots__ = ("_site",)

    def __init__(self) -> None:
        self._site = _Site()

    @property
    def site(self) -> _Site:
        site = self._site
        while site.parent is not None:
            site = site.parent
        return site

    @property
    def item(self) -> RecorderKind:
        return self.site.item

    def add(self, item: RecorderKind) -> bool:
        """Add a kind of items; True if the item kind changed."""
        site = self.site
        before = site.item
        site.item = join(before, item)
        return site.item != before

    def unite(self, other: "ListKind") -> bool:
        a, b = self.site, other.site
        if a is b:
            return False
        b.parent = a
        a.item = join(a.item, b.item)
        return True

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.site is self.site

    def __hash__(self) -> int:
        return hash(ListKind)


class DictKind(ListKind):
    """A dict that the function makes, with numbers or text as keys; represented by a dict."""

    __slots__ = ()


@dataclasses.dataclass(frozen=True, slots=True)
class NodeOrNumber(RecorderKind):
    """A recorded array or a number (before there is an array); represented by the node number, or a tuple (number,)."""

    node: RecordedNode


@dataclasses.dataclass(frozen=True, slots=True)
class IterKind(RecorderKind):
    """An iterator over items of one kind."""

    item: RecorderKind


@dataclasses.dataclass(frozen=True, slots=True)
class ClosureKind(RecorderKind):
    """A function defined inside another; not represented at run time.

    Attributes:
        form: its program; owner: the version of the function that defines it.
    """

    form: nf.Closure
    owner: Any


class Seen(NamedTuple):
    """What is known of an example's own object.

    Attributes:
        value: its value in one example; None if unknown.
        origin: the argument that holds it, and the path from there; None if it may be one of several objects.
    """

    value: Any = None
    origin: tuple[Any, ...] | None = None

    def part(self, value: Any, name: str) -> "Seen":
        """What is known of a part of the object."""
        return Seen(value, None if self.origin is None else (*self.origin, name))

    def or_else(self, other: "Seen") -> "Seen":
        """What is known of a value that is either this or the other."""
        return self if self.origin == other.origin else Seen(other.value if self.value is None else self.value)


UNKNOWN = Seen()


@dataclasses.dataclass(slots=True)
class Term:
    """An expression in a recorder's source.

    Attributes:
        text: its source; parts: the parts of a tuple that is never created.
        simple: a plain value that is a number or text in every example.
        seen: what is known of a plain value; maybe: a variable that may be unbound, where Python raises.
    """

    kind: RecorderKind
    text: str
    parts: "Sequence[Term] | None" = None
    simple: bool = False
    maybe: bool = False
    seen: Seen = dataclasses.field(default=UNKNOWN, compare=False, repr=False)


def without_values(kind: RecorderKind) -> RecorderKind:
    """The same kind without references to constants; scalars stay."""
    if isinstance(kind, Const):
        return kind if kind.is_scalar else Const(kind.number, None)
    if isinstance(kind, Parts):
        return Parts(tuple(map(without_values, kind.parts)), kind.make, kind.names)
    if isinstance(kind, ListKind):
        out = type(kind)()
        out.add(without_values(kind.item))
        return out
    return kind


def join(a: RecorderKind, b: RecorderKind) -> RecorderKind:
    """The kind of a value that has one kind or the other.

    Raises:
        Unsupported: there is no such kind.
    """
    if a is NOTHING or a == b:
        return b
    if b is NOTHING:
        return a
    if _is_plain(a) and _is_plain(b):
        return PLAIN
    if isinstance(a, Parts) and isinstance(b, Parts) and a.make is b.make and len(a.parts) == len(b.parts):
        return Parts(tuple(map(join, a.parts, b.parts)), a.make, a.names)
    if isinstance(a, ListKind) and type(a) is type(b):
        a.unite(b)
        return a
    for one, other in ((a, b), (b, a)):
        if isinstance(other, RecordedNode) and aval_of_constant(one) is other.aval:
            return other
        node = other.node if isinstance(other, NodeOrNumber) else other
        if isinstance(node, RecordedNode) and (one is PLAIN or one == node or _is_number(one)):
            return NodeOrNumber(node)
    if isinstance(a, IterKind) and isinstance(b, IterKind):
        item = join(a.item, b.item)
        if not any(isinstance(each, NodeOrNumber) for each in within(item)):  # nobody converts its items
            return IterKind(item)
    raise Unsupported(f"a value is {_shown(a)} or {_shown(b)}")


def constants_of(values: "Sequence[Term]") -> list[Const] | None:
    """The kinds of the values if all are shared by all examples; else None."""
    kinds = [each.kind for each in values if isinstance(each.kind, Const)]
    return kinds if len(kinds) == len(values) else None


def aval_of_constant(kind: RecorderKind) -> Aval | None:
    """The `Aval` of a constant array used as an operand of an example's own; None for anything else."""
    if not isinstance(kind, Const):
        return None
    value = kind.value
    if type(value) is LazyArray:
        return value.aval.key if type(value.aval.key) is Aval and type(value.source) is not float else None
    return known_aval(value) if type(value) is np.ndarray and is_recorded(value) else None


def within(kind: RecorderKind) -> Iterator[RecorderKind]:
    """A kind, and the kinds of all that is in such a value."""
    yield kind
    if isinstance(kind, Parts | ListKind | IterKind):
        for each in kind.parts if isinstance(kind, Parts) else [kind.item]:
            yield from within(each)


def list_count(kind: RecorderKind) -> int:
    """The number of lists in a value whose lengths decide what is computed."""
    return sum(map(list_count, kind.parts)) if isinstance(kind, Parts) else isinstance(kind, ListKind)


def is_empty(kind: RecorderKind) -> bool:
    """True if the kind of some part is not known yet."""
    return any(each is NOTHING for each in within(kind))


def is_python(kind: RecorderKind) -> bool:
    """True if a value is represented by itself: nothing in it is recorded."""
    return all(
        each.make is None if isinstance(each, Parts) else each is NOTHING or _is_plain(each)
        for each in within(kind)
        if not isinstance(each, ListKind | IterKind)
    )


def _is_plain(kind: RecorderKind) -> bool:
    return kind is PLAIN or (isinstance(kind, Const) and kind.is_scalar)


def _is_number(kind: RecorderKind) -> bool:
    return isinstance(kind, Const) and type(kind.value) in (int, float, type(None))


def _shown(kind: RecorderKind) -> str:
    return f"the constant {kind.value!r}" if isinstance(kind, Const) else repr(kind)


def built(kind: RecorderKind, trace: Any, values: Sequence[Any], lengths: Iterator[int]) -> Any:
    """Build a Python value of this kind, with placeholder recorded arrays in it.

    Args:
        values: the constants' values; lengths: the lengths of its lists.

    Raises:
        Unsupported: the kind says too little.
    """
    if isinstance(kind, Const):
        return values[kind.number]
    if isinstance(kind, RecordedNode | RaggedNode):
        return LazyArray(trace, kind.aval, trace.segment, 0)
    if isinstance(kind, Parts):
        parts = [built(part, trace, values, lengths) for part in kind.parts]
        return tuple(parts) if kind.make is None else kind.make(**dict(zip(kind.names, parts, strict=True)))
    if type(kind) is ListKind:
        return [built(kind.item, trace, values, lengths) for _ in range(next(lengths))]
    raise Unsupported(f"an operation on {kind!r}")


def has_any_length(kind: RecorderKind) -> bool:
    """True if a value contains arrays of any length."""
    return any(isinstance(each, RaggedNode) for each in within(kind))


def node_kind(aval: Aval) -> RecorderKind:
    """The kind of a recorded array."""
    return RaggedNode(aval) if unknown_lengths(aval.shape) else RecordedNode(aval)
