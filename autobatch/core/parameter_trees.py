"""Parameter trees: pytrees that also look into objects of any class, taking their float arrays and tables as leaves.

A dataclass is an ordinary pytree node: all of its attributes are children. In any other object that contains float
arrays or tables, at any depth, those are the leaves, and everything else in it is static: carried along unchanged. An
object without a float array is static as a whole.
"""

import dataclasses
import enum
import functools
import itertools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from autobatch.core import pytree
from autobatch.core.foreign_arrays import advice, library_of
from autobatch.core.pytree import PLAIN, TreeDef, children_of, is_container, is_node, leaf_def, node_def, paths
from autobatch.errors import StructureError, UnsupportedError

_OPAQUE = (type, types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType, enum.Enum)
_NOT_REBUILT = frozenset(("deque", "set", "frozenset", "mappingproxy"))  # containers that cannot get new leaves


def flatten(tree: Any, name: Callable[[], str] = lambda: "params") -> tuple[list[Any], TreeDef]:
    """The parameters of a tree, left to right, and its structure; `pytree.unflatten` is the inverse.

    Args:
        tree: nested containers, dataclasses and objects.
        name: returns the tree's name for error messages.

    Raises:
        StructureError: an object that contains itself. UnsupportedError: float arrays in a container that cannot be
            rebuilt, such as a deque, since they would silently stay unchanged; or arrays of torch or JAX.

    >>> import types
    >>> values, structure = flatten({"cell": types.SimpleNamespace(w=np.ones(2), units=2)})
    >>> values
    [array([1., 1.])]
    """
    if type(tree) is dict and (found := _flat(tuple(tree), tuple(map(type, (*tree, *tree.values()))))) is not None:
        return list(tree.values()), found
    reader = _ModelReader(name)
    structure = reader.read(tree, False)
    if reader.closed:
        reader.refuse(structure)
    if reader.foreign is not None:
        place, library = reader.foreign
        raise UnsupportedError(advice(name() + next(itertools.islice(paths(structure), place, None)), library))
    if structure.kind is None and not is_array_like(tree) and type(tree) not in PLAIN:
        numbers = [key for key, value in parts_of(tree).items() if type(value) is float]
        if numbers:
            raise UnsupportedError(
                f"{name()} is a {type(tree).__name__} without a float array, and numbers such as its {numbers[0]} are "
                f"settings; make it an array, np.array({parts_of(tree)[numbers[0]]!r}), or make the class a dataclass"
            )
    return reader.values, structure


@functools.lru_cache(maxsize=64)
def _flat(names: tuple[Any, ...], kinds: tuple[type, ...]) -> TreeDef | None:
    """The structure of a dict of these keys if they and, by their classes alone, all values are leaves; else None."""
    known = all(cls in PLAIN or ({"dtype", "shape"} <= {*dir(cls)} and not library_of(cls)) for cls in kinds)
    return node_def({}, names, (leaf_def,) * len(names)) if known and {*kinds[: len(names)]} <= {str} else None


def as_dicts(structure: TreeDef) -> TreeDef:
    """The same structure with a dict in place of each object that is not a pytree node, and None for static values."""
    if structure.kind is None:
        return structure
    if structure.kind is _Static:
        return TreeDef(_Static, build=lambda children: None)
    children = tuple(map(as_dicts, structure.children))
    if structure.build is not None:
        return TreeDef(dict, structure.keys, children)
    return dataclasses.replace(structure, children=children)


class _ModelReader:
    """Collects the leaves of one tree."""

    def __init__(self, name: Callable[[], str]) -> None:
        self.name = name
        self.values: list[Any] = []
        self.closed: list[tuple[int, Any]] = []  # (leaf number, `_NOT_REBUILT` container with float arrays)
        self.foreign: tuple[int, str] | None = None  # (leaf number, library) of the first array of another library
        self.above: list[Any] = []  # the enclosing objects, to detect cycles

    def read(self, tree: Any, in_object: bool) -> TreeDef:
        """Collect the leaves of a part of the tree; returns its structure."""
        cls = type(tree)
        if cls in PLAIN or (cls is not dict and cls is not list and is_array_like(tree)):
            return self._leaf(tree, in_object)
        if is_node(tree):
            keys, children = children_of(tree)
            within = in_object and is_container(cls)
            if not within and set(map(type, children)) == {np.ndarray}:
                self.values += children
                return node_def(tree, keys, (leaf_def,) * len(children))
            return node_def(tree, keys, tuple([self.read(child, within) for child in children]))
        if isinstance(tree, _OPAQUE):
            return self._leaf(tree, in_object)
        parts = parts_of(tree)
        own = {key: value for key, value in parts.items() if holds_floats(value)}
        if cls.__name__ in _NOT_REBUILT and own:
            self.closed.append((len(self.values), tree))
            return self._leaf(tree, False)
        return self._object(tree, parts, own) if own else self._leaf(tree, in_object)

    def _leaf(self, leaf: object, in_object: bool) -> TreeDef:
        if in_object and not is_float_array(leaf):
            return TreeDef(_Static, build=lambda children: leaf)
        if type(leaf) is not np.ndarray and (library := library_of(type(leaf))) and self.foreign is None:  # type: ignore[arg-type]
            self.foreign = len(self.values), library
        self.values.append(leaf)
        return leaf_def

    def _object(self, tree: object, parts: dict[Any, Any], own: dict[Any, Any]) -> TreeDef:
        if any(tree is each for each in self.above):
            raise StructureError(
                f"{self.name()} holds a {type(tree).__name__} that contains itself, so it is not a tree; "
                "keep references from a part back to the whole outside of the model"
            )
        self.above.append(tree)
        children = tuple([self.read(value, True) for value in own.values()])
        self.above.pop()
        cls = type(tree)
        static = {key: value for key, value in parts.items() if key not in own}
        names = tuple(own)

        def build(values: Sequence[Any]) -> Any:
            return pytree.new_object(cls, {**static, **dict(zip(names, values, strict=True))})

        return TreeDef(cls, names, children, build=build)

    def refuse(self, structure: TreeDef) -> None:
        place, tree = self.closed[0]
        path = self.name() + next(itertools.islice(paths(structure), place, None))
        raise UnsupportedError(
            f"{path} is a {type(tree).__name__}, which is not searched: float arrays in it would get no "
            f"gradient; pass a plain dict or list, dict({path}) or list({path})"
        )


class _Static:
    """`TreeDef.kind` of a static part: it is no leaf and contains none."""


def is_array_like(value: object) -> bool:
    """True for an array, a NumPy scalar, a table, or a stand-in for one; not for an object that only has a `dtype`.

    >>> import types
    >>> is_array_like(np.ones(2)), is_array_like(types.SimpleNamespace(dtype=np.float32))
    (True, False)
    """
    if isinstance(value, np.ndarray | np.generic):
        return True
    if isinstance(value, type):
        return False
    cls: Any = type(value)
    own = getattr(value, "__dict__", ())  # not `hasattr(value, ...)`: `__getattr__` may answer every name
    return (hasattr(cls, "dtype") or "dtype" in own) and (hasattr(cls, "shape") or "shape" in own)


def is_float_array(value: Any) -> bool:
    """True for an array or table of floats; False for a NumPy scalar, which counts as a number."""
    if isinstance(value, np.generic) or not is_array_like(value):
        return False
    return getattr(value.dtype, "kind", "") == "f"


def holds_floats(part: object) -> bool:
    """True if this contains an array or table of floats, at any depth."""
    parts, seen = [part], {id(part)}
    for each in parts:  # the list grows during the loop
        if is_array_like(each):
            if is_float_array(each):
                return True
            continue
        inner = parts_of(each).values()
        if set(map(type, inner)) <= PLAIN:  # such as a vocabulary, which may be large
            continue
        for value in inner:
            if type(value) not in PLAIN and id(value) not in seen:
                seen.add(id(value))
                parts.append(value)
    return False


def parts_of(tree: Any) -> dict[Any, Any]:
    """The parts of any container or object, by key or attribute name; empty for a class, function or module.

    >>> import collections
    >>> parts_of(collections.deque([3, 4]))
    {0: 3, 1: 4}
    """
    if isinstance(tree, dict | types.MappingProxyType):
        return dict(tree)
    cls = type(tree)
    if cls in PLAIN or isinstance(tree, _OPAQUE):
        return {}
    if is_container(cls) or cls.__name__ in _NOT_REBUILT:
        return dict(enumerate(tree))
    slots = [name for each in cls.__mro__ for name in _slots(each)]
    return {name: getattr(tree, name) for name in slots if hasattr(tree, name)} | getattr(tree, "__dict__", {})


def _slots(cls: type) -> list[str]:
    """The names of the slots that this class itself defines."""
    members = [name for name, each in vars(cls).items() if isinstance(each, types.MemberDescriptorType)]
    return [name for name in members if name[:2] != "__"]


def like_leaves(structure: TreeDef, tree: Any, what: str, path: str = "") -> Iterator[Any]:
    """The parts of `tree` at the positions where `structure` has leaves; a part may itself be a container.

    Args:
        structure: the structure of the parameters. tree: has the same structure, at least down to the leaves.
        what, path: the tree's name, and the path of this part in it, for error messages.

    Raises:
        StructureError: the two differ; the message names the first such place.
    """
    if (cls := structure.kind) is None:
        yield tree
        return
    if cls is _Static:
        return
    if (parts := _parts_like(structure, tree)) is None:
        size = f" of {len(tree)}" if hasattr(tree, "__len__") else ""
        keys = f" with {list(tree)}" if isinstance(tree, dict) else size
        given = "None" if tree is None else f"a {type(tree).__name__}{keys}"
        raise StructureError(
            f"{what}{path} is {given}; expected what the parameters have there, "
            f"a {cls.__name__} with {list(structure.keys)}"
            + (": write value, grads = ab.value_and_grad(f)(params)" if what == "grads" else "")
        )
    for key, child, part in zip(structure.keys, structure.children, parts, strict=True):
        yield from like_leaves(child, part, what, f"{path}[{key!r}]")


def _parts_like(structure: TreeDef, tree: object) -> list[Any] | None:
    """The children of `tree` in the order of the structure's keys; None if it is no such node."""
    cls: Any = structure.kind
    keys = structure.keys
    if issubclass(cls, dict) or (structure.build is not None and isinstance(tree, dict)):
        return [tree[key] for key in keys] if isinstance(tree, dict) and tree.keys() == set(keys) else None
    if issubclass(cls, list | tuple):
        return list(tree) if isinstance(tree, list | tuple) and len(tree) == len(keys) else None
    return [getattr(tree, key) for key in keys] if all(hasattr(tree, key) for key in keys) else None
