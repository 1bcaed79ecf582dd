"""Examples as bytes: two that are written alike are alike in all that code can see which runs no code of theirs.

Plain lists, tuples, dicts, numbers and text are written by `marshal`. Arrays and objects among them are written by
`pickle`, objects if their class is one whose objects are what is stored in them: no code of the class runs when one is
read, or written. Of an array of floats, which an example sees as a lazy one, only shape and dtype count.
"""

import copyreg
import dataclasses
import io
import marshal
import pickle
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from autobatch.core.recorded import is_recorded
from autobatch.facts.types import COMPARISON_METHODS, SILENT_ATTRIBUTES

__all__ = ["CONTAINERS", "NUMBERS", "Classes", "Unsuited", "Writer", "is_constant"]

NUMBERS = (int, bool, str, type(None), float, complex)
Writer = Callable[[Any], tuple[bytes, list[np.ndarray]]]
CONTAINERS = (tuple, list, dict)
_WRITTEN = (*COMPARISON_METHODS, "__repr__", "__setattr__", "__delattr__")


class Unsuited(Exception):  # noqa: N818  (a signal between the modules that keep recordings)
    """Something that a recording cannot be kept of."""


class Classes:
    """The classes of objects whose attributes a function reads.

    Args:
        attributes: names that it reads; `__repr__` if it may show an object, or an array, as text.
    """

    def __init__(self, attributes: Iterable[str]) -> None:
        self.attributes = frozenset(attributes)
        self._known: dict[type, tuple[tuple[type, ...], list[dict[str, Any]]]] = {}

    def hold(self) -> bool:
        """Whether all of them still are what they were."""
        for kind, (order, spaces) in self._known.copy().items():  # to which another thread may add
            if kind.__mro__ != order or not all(map(_holds, order, spaces)):
                return False
        return True

    def admit(self, kind: type) -> bool:
        """Whether an object of this class is what is stored in it."""
        if kind not in self._known:
            if not self._is_plain(kind):
                return False
            copyreg._slotnames(kind)  # type: ignore[attr-defined]  # which notes on the class what it finds
            self._known[kind] = kind.__mro__, [dict(vars(base)) for base in kind.__mro__[:-1]]
        return True

    def _is_plain(self, kind: type) -> bool:
        if type(kind) is not type:
            return False
        if "__repr__" in self.attributes and kind.__repr__ is object.__repr__:  # which shows where an object lies
            return False
        read = self.attributes.union(*[vars(base).get("__match_args__", ()) for base in kind.__mro__])
        for base in kind.__mro__[:-1]:
            if not base.__flags__ & _HEAP:
                return False
            for name, value in vars(base).items():
                if name.startswith("__") and name.endswith("__"):
                    if name not in SILENT_ATTRIBUTES and value is not None and not _is_generated(value):
                        return False
                elif is_constant(value) or type(value) is types.MemberDescriptorType:
                    continue
                elif name in read or any(hasattr(each, name) for each in (*CONTAINERS, str, np.ndarray)):
                    return False
        return True

    def containers_in(self, value: Any, write: Writer) -> set[int]:
        """The containers and objects in an example, by id.

        Args:
            write: what has written it.

        Raises:
            Unsuited: its bytes do not tell all there is. There is something else in it, other than arrays, numbers and
                text; a number that is not equal to itself; or an array that `marshal` has written.
        """
        if write is _marshalled and not _is_plain(value):
            raise Unsuited
        out: set[int] = set()
        seen = [value]
        for each in seen:  # which grows on the way
            kind = type(each)
            if id(each) in out or _is_array(each):
                continue
            if kind in NUMBERS:
                if each != each:  # of which `x in [x]` shows which one it is
                    raise Unsuited
                continue
            out.add(id(each))
            if kind is dict:
                if not all(map(is_constant, each)):  # the order of a set of objects is one of their addresses
                    raise Unsuited
                seen += each
                seen += each.values()
            elif kind in CONTAINERS:
                seen += each
            elif kind in self._known:
                seen += self._stored(each)
            else:
                raise Unsuited
        return out

    def _stored(self, value: Any) -> Iterator[Any]:
        """What is stored in an object."""
        yield from getattr(value, "__dict__", {}).values()
        for base in type(value).__mro__:
            for name, each in vars(base).items():
                if type(each) is types.MemberDescriptorType and hasattr(value, name):
                    yield getattr(value, name)

    def writer(self, first: Any) -> Writer | None:
        """What writes examples of the kind of this one; None if there is nothing.

        It gives the bytes, and the arrays of which they only tell the shape. It raises `Unsuited` or another error for
        an example that cannot be written.
        """
        if _is_plain(first):
            return _marshalled
        try:
            self._pickled(first)
        except Exception:  # whatever pickle makes of it
            return None
        return self._pickled

    def _pickled(self, given: Any) -> tuple[bytes, list[np.ndarray]]:
        file = io.BytesIO()
        pickler = _Pickler(file, self)
        pickler.dump(given)
        return file.getvalue(), pickler.inputs


def _marshalled(given: Any) -> tuple[bytes, list[np.ndarray]]:
    return marshal.dumps(given, 2), []  # a version that writes a value alike wherever it occurs


_HEAP = 1 << 9  # a class made by a class statement


class _Pickler(pickle.Pickler):
    """Writes nothing but containers, arrays, numbers, text and objects of admitted classes.

    Attributes:
        inputs: the arrays of floating-point numbers, in order.
    """

    def __init__(self, file: io.BytesIO, classes: Classes) -> None:
        super().__init__(file, 5)
        self.dispatch_table = {}  # not what the user has registered
        self._admit = classes.admit
        self._known = classes._known
        self._shows = "__repr__" in classes.attributes
        self.inputs: list[np.ndarray] = []

    def reducer_override(self, obj: Any) -> Any:
        """Called for each object that is no plain container, number or text, and for each class that one names."""
        kind = type(obj)
        if _is_array(obj):
            if obj.dtype.metadata:
                raise Unsuited
            if not is_recorded(obj):
                if self._shows:  # as NumPy is told to
                    raise Unsuited
                kinds = kind.__name__, obj.dtype.str, obj.dtype.char
                return _written, (*kinds, obj.shape, obj.strides, obj.tobytes())
            if not obj.flags.c_contiguous:
                raise Unsuited
            self.inputs.append(obj)
            return _written, (obj.dtype.str, obj.shape)
        if kind is type and obj in self._known:
            return _written, (id(obj),)  # another class may have its name
        if kind in self._known or obj is _written or self._admit(kind):
            return NotImplemented
        raise Unsuited


def _written(*parts: Any) -> None:
    """What stands for an array."""


def _is_array(value: Any) -> bool:
    return (type(value) is np.ndarray or isinstance(value, np.generic)) and value.dtype.kind in "biufc"


def is_constant(value: Any) -> bool:
    """Whether it is a plain number or text, or a tuple of such."""
    return type(value) in NUMBERS or (type(value) is tuple and all(map(is_constant, value)))


def _holds(base: type, space: dict[str, Any]) -> bool:
    """Whether a class holds what it held: the very objects, since equal ones may differ."""
    now = vars(base)
    return len(now) == len(space) and all(now.get(name) is value for name, value in space.items())


def _is_generated(value: Any) -> bool:
    """Whether a special method is one that `dataclasses` wrote, which compares or shows what is stored."""
    return isinstance(value, types.FunctionType) and (value.__code__.co_filename, value.__code__.co_qualname) in [
        *[("<string>", f"__create_fn__.<locals>.{name}") for name in _WRITTEN],
        (dataclasses.__file__, "_recursive_repr.<locals>.wrapper"),
    ]


def _is_plain(value: Any) -> bool:
    """Whether a value is made of plain containers, numbers and text: all that `marshal` writes is all there is.

    No `bytes`, which is how it would write an array; no sets, which are written in any order.
    """
    seen = [value]
    done: set[int] = set()
    for each in seen:  # which grows on the way
        kind = type(each)
        if kind in NUMBERS:
            continue
        if kind not in CONTAINERS:
            return False
        if id(each) not in done:
            done.add(id(each))
            seen += each
            if kind is dict:
                seen += each.values()
    return True
