"""What a generated recorder knows of a value before any example is there: its kind."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from autobatch.core.abstract_eval import Aval, known_aval
from autobatch.core.recorded_array import is_recorded
from autobatch.facts.types import SCALARS
from autobatch.lazy.array import LazyArray


class NotCovered(Exception):  # noqa: N818  (a signal inside of this folder)
    """A function does what no generated recorder does; the message says what."""


class RecorderKind:
    """A kind of values. In a recorder a value is what is said with each kind."""

    __slots__ = ()


class _Named(RecorderKind):
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


PLAIN = _Named("plain")
"""An example's own Python object, or a number: itself."""
NOTHING = _Named("nothing")
"""Of no value: what a call gives of which it is not known yet what it gives."""


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedNode(RecorderKind):
    """A recorded array: the number of its node in the segment."""

    aval: Aval


@dataclasses.dataclass(frozen=True, slots=True)
class RaggedNode(RecorderKind):
    """A recorded array of any length: the number of its node. What it would be at each of a few lengths."""

    samples: tuple[Aval, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Const(RecorderKind):
    """The same for all examples: nothing, since it is known; but a scalar is a literal where it stands."""

    number: int
    value: Any = dataclasses.field(compare=False, repr=False)

    @property
    def is_scalar(self) -> bool:
        return type(self.value) in SCALARS


@dataclasses.dataclass(frozen=True, slots=True)
class Parts(RecorderKind):
    """A tuple, or an object of a dataclass, of which no more is seen than its parts: a tuple of these.

    Attributes:
        make: the class, None for a tuple; names: of its fields.
    """

    parts: tuple[RecorderKind, ...]
    make: Any = None
    names: tuple[str, ...] = ()

    @property
    def is_tuple(self) -> bool:
        return self.make is None or issubclass(self.make, tuple)


class _Site:
    """The lists that are made at one place, as far as they are of one kind."""

    __slots__ = ("item", "parent")

    def __init__(self) -> None:
        self.item: RecorderKind = NOTHING
        self.parent: _Site | None = None


class Listed(RecorderKind):
    """A list that the function makes: a list of these."""

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
        """Let there be such items in it; whether that is new."""
        site = self.site
        before = site.item
        site.item = join(before, item)
        return site.item != before

    def unite(self, other: "Listed") -> bool:
        a, b = self.site, other.site
        if a is b:
            return False
        b.parent = a
        a.item = join(a.item, b.item)
        return True

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.site is self.site

    def __hash__(self) -> int:
        return hash(Listed)


class Keyed(Listed):
    """A dict that the function makes, from numbers and text: a dict of these."""

    __slots__ = ()


@dataclasses.dataclass(frozen=True, slots=True)
class NodeOrNumber(RecorderKind):
    """A recorded array or, before there is one, a number: the number of its node, or a tuple of the number."""

    node: RecordedNode


@dataclasses.dataclass(frozen=True, slots=True)
class Items(RecorderKind):
    """What gives items of one kind, once: an iterator."""

    item: RecorderKind


@dataclasses.dataclass(frozen=True, slots=True)
class Closure(RecorderKind):
    """A function that is defined in another: nothing.

    Attributes:
        tree: its definition; owner: the function that defines it.
    """

    tree: Any
    owner: Any


class Seen(NamedTuple):
    """What is known of an example's own object.

    Attributes:
        value: what it was in an example; None if that is not known.
        origin: the argument that it is, or lies in, and how it is found there; None if it may be several objects.
    """

    value: Any = None
    origin: tuple[Any, ...] | None = None

    def part(self, value: Any, name: Any) -> "Seen":
        """What is known of a part of it."""
        return Seen(value, None if self.origin is None else (*self.origin, name))

    def or_else(self, other: "Seen") -> "Seen":
        """What is known of what is one of two."""
        return self if self.origin == other.origin else Seen(other.value if self.value is None else self.value)


UNKNOWN = Seen()


@dataclasses.dataclass(slots=True)
class Term:
    """An expression of a recorder.

    Attributes:
        text: its source; parts: of a tuple that was not made, its parts.
        simple: a plain one is a number or text, whatever the example.
        seen: what is known of a plain one.
    """

    kind: RecorderKind
    text: str
    parts: "Sequence[Term] | None" = None
    simple: bool = False
    seen: Seen = dataclasses.field(default=UNKNOWN, compare=False, repr=False)


def without_values(kind: RecorderKind) -> RecorderKind:
    """The same kind, which keeps no constant alive; scalars stay."""
    if isinstance(kind, Const):
        return kind if kind.is_scalar else Const(kind.number, None)
    if isinstance(kind, Parts):
        return Parts(tuple(map(without_values, kind.parts)), kind.make, kind.names)
    if isinstance(kind, Listed):
        out = type(kind)()
        out.add(without_values(kind.item))
        return out
    return kind


def join(a: RecorderKind, b: RecorderKind) -> RecorderKind:
    """The kind of what is of one kind or the other.

    Raises:
        NotCovered: there is none.
    """
    if a is NOTHING or a == b:
        return b
    if b is NOTHING:
        return a
    if _is_plain(a) and _is_plain(b):
        return PLAIN
    if isinstance(a, Parts) and isinstance(b, Parts) and a.make is b.make and len(a.parts) == len(b.parts):
        return Parts(tuple(map(join, a.parts, b.parts)), a.make, a.names)
    if isinstance(a, Listed) and type(a) is type(b):
        a.unite(b)
        return a
    for one, other in ((a, b), (b, a)):
        if isinstance(other, RecordedNode) and aval_of_constant(one) is other.aval:
            return other
        node = other.node if isinstance(other, NodeOrNumber) else other
        if isinstance(node, RecordedNode) and (one is PLAIN or one == node or _is_number(one)):
            return NodeOrNumber(node)
    if isinstance(a, Items) and isinstance(b, Items):
        return Items(join(a.item, b.item))
    raise NotCovered(f"a value is {_shown(a)} or {_shown(b)}")


def constants_of(values: "Sequence[Term]") -> list[Const] | None:
    """The kinds of values that are all the same for all examples; None where one is not."""
    kinds = [each.kind for each in values if isinstance(each.kind, Const)]
    return kinds if len(kinds) == len(values) else None


def aval_of_constant(kind: RecorderKind) -> Aval | None:
    """What a constant array is as an operand of one example's own; None for what is none."""
    if not isinstance(kind, Const):
        return None
    value = kind.value
    if type(value) is LazyArray:
        return value.aval.key if type(value.aval.key) is Aval and type(value.source) is not float else None
    return known_aval(value) if type(value) is np.ndarray and is_recorded(value) else None


def is_empty(kind: RecorderKind) -> bool:
    """Whether there is a part of which nothing is known yet."""
    if isinstance(kind, Parts):
        return any(map(is_empty, kind.parts))
    return kind is NOTHING or (isinstance(kind, Listed | Items) and is_empty(kind.item))


def _is_plain(kind: RecorderKind) -> bool:
    return kind is PLAIN or (isinstance(kind, Const) and kind.is_scalar)


def _is_number(kind: RecorderKind) -> bool:
    return isinstance(kind, Const) and type(kind.value) in (int, float, type(None))


def _shown(kind: RecorderKind) -> str:
    return f"the constant {kind.value!r}" if isinstance(kind, Const) else repr(kind)


def built(kind: RecorderKind, trace: Any, values: Sequence[Any], lengths: Iterator[int], sample: int = 0) -> Any:
    """A value of this kind as Python has it, with recorded arrays in it that stand for any.

    Args:
        values: of the constants; lengths: of the lists in it; sample: which of the lengths of what is of any length.

    Raises:
        NotCovered: it is not known that well.
    """
    if isinstance(kind, Const):
        return values[kind.number]
    if isinstance(kind, RecordedNode):
        return LazyArray(trace, kind.aval, trace.segment, 0)
    if isinstance(kind, RaggedNode):
        return LazyArray(trace, kind.samples[sample], trace.segment, 0)
    if isinstance(kind, Parts):
        parts = [built(part, trace, values, lengths, sample) for part in kind.parts]
        return tuple(parts) if kind.make is None else kind.make(**dict(zip(kind.names, parts, strict=True)))
    if type(kind) is Listed:
        return [built(kind.item, trace, values, lengths, sample) for _ in range(next(lengths))]
    raise NotCovered(f"an operation on {kind!r}")


def has_any_length(kind: RecorderKind) -> bool:
    """Whether there are arrays of any length in a value."""
    if isinstance(kind, Parts):
        return any(map(has_any_length, kind.parts))
    return isinstance(kind, RaggedNode) or (isinstance(kind, Listed | Items) and has_any_length(kind.item))


def kind_at_samples(avals: Sequence[Aval]) -> RecorderKind:
    """The kind of a recorded array, given what it is at each of a few lengths."""
    if all(aval is avals[0] for aval in avals):
        return RecordedNode(avals[0])
    return RaggedNode(tuple(avals))
