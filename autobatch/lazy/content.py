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

__all__ = ["CONTAINERS", "NUMBERS", "Classes", "Unsuited", "Writer"]

NUMBERS = (int, bool, str, type(None), float, complex)
Writer = Callable[[Any], tuple[bytes, list[np.ndarray]]]
CONTAINERS = (tuple, list, dict)
_SILENT = frozenset((
    "__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__annotate__", "__annotate_func__",
    "__annotations_cache__", "__firstlineno__", "__static_attributes__", "__slots__", "__match_args__",
    "__slotnames__", "__init__", "__post_init__", "__new__", "__init_subclass__", "__class_getitem__", "__setattr__",
    "__delattr__", "__replace__", "__parameters__", "__orig_bases__", "__type_params__", "__dataclass_fields__",
    "__dataclass_params__",
))  # fmt: skip
"""What a class may have that does not run where its objects are only read, compared or written."""
_GENERATED = ("<string>", dataclasses.__file__)


class Unsuited(Exception):  # noqa: N818  (a signal between the modules that keep recordings)
    """Something that a recording cannot be kept of."""


class Classes:
    """The classes of objects whose attributes a function reads.

    Args:
        attributes: names that it reads.
    """

    def __init__(self, attributes: Iterable[str]) -> None:
        self.attributes = frozenset(attributes)
        self._known: dict[type, list[tuple[type, dict[str, Any]]]] = {}

    def hold(self) -> bool:
        """Whether all of them still are what they were."""
        return all(dict(vars(base)) == space for bases in self._known.values() for base, space in bases)

    def admit(self, kind: type) -> bool:
        """Whether an object of this class is what is stored in it."""
        if kind not in self._known:
            if not self._is_plain(kind):
                return False
            copyreg._slotnames(kind)  # type: ignore[attr-defined]  # which notes on the class what it finds
            self._known[kind] = [(base, dict(vars(base))) for base in kind.__mro__[:-1]]
        return True

    def _is_plain(self, kind: type) -> bool:
        if type(kind) is not type:
            return False
        read = self.attributes | set(getattr(kind, "__match_args__", ()))
        for base in kind.__mro__[:-1]:
            if not base.__flags__ & _HEAP:
                return False
            for name, value in vars(base).items():
                if name.startswith("__") and name.endswith("__"):
                    if name not in _SILENT and value is not None and not _is_generated(value):
                        return False
                elif hasattr(type(value), "__get__") and type(value) is not types.MemberDescriptorType:
                    if name in read or any(hasattr(each, name) for each in (*CONTAINERS, str, np.ndarray)):
                        return False
                elif name in read and not _is_constant(value) and type(value) is not types.MemberDescriptorType:
                    return False
        return True

    def containers_in(self, value: Any) -> set[int]:
        """The containers and objects in a value, by id.

        Raises:
            Unsuited: there is something else in it, other than arrays, numbers and text.
        """
        out: set[int] = set()
        seen = [value]
        for each in seen:  # which grows on the way
            kind = type(each)
            if kind in NUMBERS or id(each) in out or _is_array(each):
                continue
            out.add(id(each))
            if kind is dict:
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
        self._admit = classes.admit
        self._known = classes._known
        self.inputs: list[np.ndarray] = []

    def reducer_override(self, obj: Any) -> Any:
        """Called for each object that is no plain container, number or text, and for each class that one names."""
        kind = type(obj)
        if _is_array(obj):
            if obj.ndim == 0 or obj.dtype.kind not in "fc":
                return _written, (kind.__name__, obj.dtype.str, obj.shape, obj.strides, obj.tobytes())
            if not obj.flags.c_contiguous:
                raise Unsuited
            self.inputs.append(obj)
            return _written, (obj.dtype.str, obj.shape)
        if kind in self._known or obj is _written or (kind is type and obj in self._known) or self._admit(kind):
            return NotImplemented
        raise Unsuited


def _written(*parts: Any) -> None:
    """What stands for an array."""


def _is_array(value: Any) -> bool:
    return (type(value) is np.ndarray or isinstance(value, np.generic)) and value.dtype.kind in "biufc"


def _is_constant(value: Any) -> bool:
    return type(value) in NUMBERS or (type(value) is tuple and all(map(_is_constant, value)))


def _is_generated(value: Any) -> bool:
    """Whether a special method is one that `dataclasses` wrote, which compares or shows what is stored."""
    return isinstance(value, types.FunctionType) and value.__code__.co_filename in _GENERATED


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
