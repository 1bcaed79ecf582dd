"""The types of values in compiled code: each value's exact Python or NumPy type, and how compiled code holds it.

A type (in the code: `kind`) is what `type(value)` says and, for arrays, `dtype` and `ndim`: Python's `int` and
`np.int64` are two types of one machine word. A number whose type depends on the path taken is a `Union`, which compiled
code holds as `(tag, int64, float64)`. All containers that are made at one place in the program (`AllocationSite`) have
one element type, which is widened as the program is read, until nothing changes any more.
"""

import dataclasses
import enum
import functools
from collections.abc import Iterator
from typing import Any, TypeGuard

import numpy as np

from autobatch.errors import Unsupported

OWN, FIXED, PART, EITHER = 1, 2, 4, 8
"""Bits of `Array.given`: whose memory an array is. OWN: an argument that differs by example. FIXED: must not be written
into, since all examples share it, or since compiled code has a copy where NumPy has a view. For OWN also PART: a view,
which is a new object even where it covers all; EITHER: a view or the argument itself, depending on the path taken."""


@dataclasses.dataclass(frozen=True, slots=True)
class Scalar:
    """A number or None: Python's if `python`, else NumPy's scalar of this dtype."""

    name: str
    python: bool

    def __str__(self) -> str:
        return {"int64": "int", "float64": "float"}.get(self.name, self.name) if self.python else f"np.{self.name}"

    @property
    def kind(self) -> str:
        """NumPy's letter for the kind of dtype: b, i, u or f; n for None."""
        return "n" if self.name == "none" else np.dtype(self.name).kind


INT, FLOAT, BOOL, NONE = Scalar("int64", True), Scalar("float64", True), Scalar("bool", True), Scalar("none", True)
DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float32", "float64")
TAGS = {scalar: tag for tag, scalar in enumerate([NONE, BOOL, INT, FLOAT, *(Scalar(name, False) for name in DTYPES)])}


@dataclasses.dataclass(frozen=True, slots=True)
class Union:
    """A scalar of one of these types; which one is known only when it runs."""

    scalars: frozenset[Scalar]

    def __str__(self) -> str:
        return " or ".join(sorted(map(str, self.scalars)))


@dataclasses.dataclass(frozen=True, slots=True)
class Array:
    """An array; `given` has the bits `OWN`, `FIXED`, `PART` and `EITHER`, which say whose memory it may be."""

    dtype: str
    ndim: int
    given: int = 0

    def view(self, ndim: int) -> "Array":
        """The type of a view of the array; a view is a new object."""
        return Array(self.dtype, ndim, self.given & ~EITHER | PART if self.given & OWN else self.given)

    def __str__(self) -> str:
        return f"{self.ndim}-d array of {self.dtype}"


@dataclasses.dataclass(frozen=True, slots=True)
class LookedUp:
    """An `EmbeddingTable`, which is indexed by ids; it lies in memory as the matrix of its weights."""

    weights: Array

    def __str__(self) -> str:
        return f"table of {self.weights.dtype}"


@dataclasses.dataclass(frozen=True, slots=True)
class Text:
    """A string, held as the code points of its characters."""

    def __str__(self) -> str:
        return "str"


STR = Text()


@dataclasses.dataclass(frozen=True, slots=True)
class _Nested:
    """What holds values of these types; a `Unsupported` where it has no end, as of `node = (value, node)` in a loop."""

    items: tuple[Any, ...]
    parts: int = dataclasses.field(init=False, compare=False, repr=False)  # each twice as much a level further in

    def __post_init__(self) -> None:
        inside = [item.inner if isinstance(item, Maybe) else item for item in self.items]
        parts = len(inside) + 2 * sum(item.parts for item in inside if isinstance(item, _Nested))
        if parts > 1 << 20:
            raise Unsupported(f"{type(self).__name__.lower()}s nested without end")
        object.__setattr__(self, "parts", parts)


@dataclasses.dataclass(frozen=True, slots=True)
class Tuple(_Nested):
    """A tuple with items of these types."""

    def __str__(self) -> str:
        return f"tuple ({', '.join(map(str, self.items))})"


@dataclasses.dataclass(frozen=True, slots=True)
class Struct(_Nested):
    """An object with named parts: a dict of string keys, dataclass, named tuple or range; `given`: an argument's."""

    cls: type
    names: tuple[str, ...]
    given: bool = False

    def __str__(self) -> str:
        return self.cls.__name__


class _NodeType(enum.Enum):
    """What an attribute of a node holds that is no number, array or string."""

    NODE, NODE_OR_NONE, NODES = "node", "node or None", "list of nodes"


NODE, NODE_OR_NONE, NODES = _NodeType


@dataclasses.dataclass(frozen=True, slots=True)
class TreeField:
    """An attribute of the nodes of a tree.

    Attributes:
        name: of an item of a tuple its place, None for the number that is a leaf.
        kind: its type, or `NODE`, `NODE_OR_NONE` or `NODES`.
        forms: the places in `ObjectTree.forms` of those that have it.
        word, real, array: the first of its whole and of its real numbers in a node's rows; the array of its elements.
    """

    name: str | int | None
    kind: Any
    forms: tuple[int, ...]
    word: int
    real: int
    array: int


@dataclasses.dataclass(frozen=True, slots=True)
class ObjectTree:
    """An object, dict or tuple that holds others of its form, at any depth; tuples hold numbers of one type, too.

    It is held as the arrays of `object_trees.dtypes_of`, and its place among the nodes.

    Attributes:
        forms: the classes of the nodes, each with names of attributes or keys.
        words, reals: how many whole and real numbers a node's rows have; the first word is the place of its form.
    """

    forms: tuple[tuple[type, tuple[Any, ...]], ...]
    fields: tuple[TreeField, ...]
    words: int
    reals: int

    def __str__(self) -> str:
        return f"tree of {' or '.join(sorted({cls.__qualname__ for cls in self.classes}))}"

    @property
    def classes(self) -> list[type]:
        """The class of each form."""
        return [cls for cls, _ in self.forms]

    @property
    def names(self) -> list[Any]:
        """The names of the attributes."""
        return [field.name for field in self.fields]

    @property
    def leaf(self) -> Any:
        """Of nested tuples, whose form is the second, the type of the numbers in them; None of other trees."""
        return self.fields[-1].kind if self.fields[-1].name is None else None


@dataclasses.dataclass(frozen=True, slots=True)
class TreeNodes:
    """A list or tuple of nodes that a node holds: held as the node is, with first and last place for its own."""

    tree: ObjectTree

    def __str__(self) -> str:
        return f"list of nodes of a {self.tree}"


@dataclasses.dataclass(frozen=True)
class Static:
    """An object that is known while compiling: a function, a module, a class, a dtype."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)

    def __str__(self) -> str:
        return f"{getattr(self.value, '__name__', self.value)!s}"


@dataclasses.dataclass(frozen=True, slots=True)
class Maybe:
    """A value that is not a scalar, or None: held as a pair of whether it is not None, and the value."""

    inner: Any

    def __str__(self) -> str:
        return f"{self.inner} or None"


class _Conflict:
    def __str__(self) -> str:
        return "value whose type depends on the path taken"


CONFLICT = _Conflict()
"""The type of a variable that may hold values of types which cannot be joined: the variable must not be read."""


class AllocationSite:
    """A place in the program that makes containers (`site` in the code), and the element types found so far.

    Attributes:
        given: bits as in `Array.given`, if the containers come from an argument.
        boxed: its lists are values of a dict, which can hold only Numba's typed lists.
        cls, names: of objects the class, and the names of the attributes, whose types are the `items`.
        vague: its keys may be Python's ints or NumPy's, it is not known which: they may be looked up, but not read.
        changes: a counter shared by all sites of a program, raised at each change: the fixpoint is found by it.
    """

    def __init__(self, number: int, changes: list[int], size: int = 1, given: int = 0) -> None:
        self.number, self.given, self.changes = number, given, changes
        self.vague = False
        self.items: list[Any] = [None] * size
        self.parent: AllocationSite | None = None
        self.container: Any = None  # the type of container that it makes
        self.factory: Any = None
        self.boxed = False
        self.cls: Any = None
        self.names: list[str] = []

    def find(self) -> "AllocationSite":
        """The representative of this site (union-find)."""
        site = self
        while site.parent is not None:
            site = site.parent
        return site

    def place(self, name: str) -> int:
        """The place of an attribute."""
        if name not in self.names:
            self.names.append(name)
            self.items.append(None)
            self.changes[0] += 1
        return self.names.index(name)

    def widen(self, place: int, kind: Any) -> None:
        """Record that its containers hold values of this type, too."""
        site = self.find()
        joined = join(site.items[place], kind)
        if joined != site.items[place]:
            site.items[place] = joined
            site.changes[0] += 1

    def merge(self, other: "AllocationSite") -> None:
        """Merge two sites whose containers may be held by one variable."""
        one, two = sorted((self.find(), other.find()), key=lambda site: site.number)  # the older one keeps its name
        if one is two:
            return
        two.parent = one
        one.changes[0] += 1
        one.given |= two.given
        one.vague |= two.vague
        one.boxed |= two.boxed
        for place, kind in enumerate(two.items):
            place = one.place(two.names[place]) if two.names else place
            if kind is not None:
                one.widen(place, kind)


@dataclasses.dataclass(frozen=True)
class _Container:
    site: AllocationSite

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.site.find() is self.site.find()

    def __hash__(self) -> int:
        return hash(type(self))  # not of the site, since two sites may be merged into one

    def __str__(self) -> str:
        return f"{type(self).__name__.lower()} of {self.site.find().items[0]}"

    @property
    def elem(self) -> Any:
        """The type of the elements, or of the keys; None if none is known yet."""
        return self.site.find().items[0]

    @property
    def given(self) -> int:
        return self.site.find().given


class List(_Container):
    """A list of elements of one type."""


class Deque(List):
    """A deque of elements of one type: a list with more methods."""


class Set(_Container):
    """A set of elements of one type."""


class Dict(_Container):
    """A dict of keys of one type and values of one type."""

    @property
    def value(self) -> Any:
        """The type of the values; None if none is known yet."""
        return self.site.find().items[1]


class Counts(Dict):
    """A `collections.Counter`: a key that is missing counts 0."""


class DefaultDict(Dict):
    """A `collections.defaultdict` of `AllocationSite.factory`: reading a missing key inserts it."""


class Object(_Container):
    """An object of the class `AllocationSite.cls`."""

    def __str__(self) -> str:
        return str(self.site.find().cls.__name__)


Type = Any  # one of the above

PYTHON: dict[type, Type] = {bool: BOOL, int: INT, float: FLOAT, type(None): NONE, str: STR}
"""The types of Python's own numbers and strings, by their classes."""
RANGE = Struct((INT, INT, INT), range, ("start", "stop", "step"))
_OF_KIND = {Text: str, Tuple: tuple, List: list, Dict: dict, Array: np.ndarray}


def class_of(kind: Type) -> Any:
    """The class of the values of a type; None if it is not known or there are several."""
    if isinstance(kind, Scalar):
        return next((cls for cls, each in PYTHON.items() if each == kind), None) or np.dtype(kind.name).type
    if isinstance(kind, Object):
        return kind.site.find().cls
    if isinstance(kind, ObjectTree):
        return kind.classes[0] if len(set(kind.classes)) == 1 else None
    return kind.cls if isinstance(kind, Struct) else _OF_KIND.get(type(kind))


def within(kind: Type, around: tuple[AllocationSite, ...] = ()) -> Iterator[Type]:
    """A type and, recursively, the types of its parts; `around`: the sites of the containers that hold it."""
    yield kind
    items: Any = (kind.inner,) if isinstance(kind, Maybe) else getattr(kind, "items", ())
    if isinstance(kind, _Container):
        site = kind.site.find()
        items, around = () if site in around else site.items, (*around, site)
    for item in items:
        yield from within(item, around)


def is_record(kind: Type) -> TypeGuard[Struct]:
    """True if a type is that of objects with attributes, or of dicts of named parts."""
    return isinstance(kind, Struct) and not issubclass(kind.cls, tuple)


def objects_in(kind: Type) -> list[Type]:
    """The types of the objects that a value of a type is, or holds, and that can be changed."""
    return [each for each in within(kind) if is_record(each) or isinstance(each, Array | _Container)]


@functools.cache
def of_dtype(dtype: Any) -> Scalar:
    """The type of NumPy's scalars of a dtype.

    Raises:
        Unsupported: the dtype has no compiled form.
    """
    found = np.dtype(dtype)
    if found.name not in DTYPES or found.byteorder not in "=|":
        raise Unsupported(f"numbers of dtype {found}")
    return Scalar(found.name, False)


def is_number(kind: Type) -> bool:
    """True if a type is surely that of a number: neither a `Union` nor None."""
    return isinstance(kind, Scalar) and kind is not NONE and kind.name != "none"


def members(kind: Type) -> list[Scalar]:
    """The types of scalar that a value may have, in a fixed order."""
    return sorted(kind.scalars, key=TAGS.__getitem__) if isinstance(kind, Union) else [kind]


def union_of(scalars: Any) -> Type:
    """The type of a scalar that may be any of these."""
    found = frozenset(scalars)
    return next(iter(found)) if len(found) == 1 else Union(found)


def join(a: Type, b: Type) -> Type:
    """The type of a value that has one of two types; None stands for no value.

    Raises:
        Unsupported: no variable of compiled code can hold both.
    """
    if a is None or a == b:
        return b
    if b is None:
        return a
    if isinstance(a, Scalar | Union) and isinstance(b, Scalar | Union):
        return union_of([*members(a), *members(b)])
    if Maybe in (type(a), type(b)) or NONE in (a, b):
        one, two = (x.inner if isinstance(x, Maybe) else None if x == NONE else x for x in (a, b))
        inner = join(one, two)
        if isinstance(inner, Array | Text | Tuple | Struct | ObjectTree | _Container):
            return Maybe(inner)
    if isinstance(a, Array) and isinstance(b, Array) and (a.dtype, a.ndim) == (b.dtype, b.ndim):
        which = EITHER if a.given & b.given & OWN and (a.given ^ b.given) & PART else 0
        return Array(a.dtype, a.ndim, a.given | b.given | which)
    if isinstance(a, Tuple) and isinstance(b, Tuple) and len(a.items) == len(b.items):
        return Tuple(tuple(map(join, a.items, b.items)))
    if isinstance(a, Struct) and isinstance(b, Struct) and (a.cls, a.names) == (b.cls, b.names):
        return Struct(tuple(map(join, a.items, b.items)), a.cls, a.names, a.given or b.given)
    if isinstance(a, _Container) and type(a) is type(b) and a.site.find().cls is b.site.find().cls:
        a.site.merge(b.site)
        return a
    raise Unsupported(f"{a} and {b}")


def unified_ints(kind: Type) -> Type:
    """The type of a key, with Python's int for an int that may be Python's or NumPy's: they hash and compare alike."""
    if isinstance(kind, Tuple):
        return Tuple(tuple(map(unified_ints, kind.items)))
    return INT if isinstance(kind, Union) and all(each.name == "int64" for each in kind.scalars) else kind


_SAMPLES: dict[str, Any] = {"int64": 1, "float64": 1.0, "bool": True}


def sample(kind: Type) -> Any:
    """A value of this type, with which NumPy or Python is asked for the type of a result."""
    if isinstance(kind, Scalar):
        return _SAMPLES[kind.name] if kind.python else np.dtype(kind.name).type(1)
    return np.ones((1,) * kind.ndim, kind.dtype)
