"""Pytrees: nested dicts, lists, tuples, named tuples and dataclasses whose leaves are anything else.

The idea is from JAX (`jax.tree_util`). There, `None` is a node without leaves; here it is a leaf like any other object,
because an example's function may return it as a value.
"""

import collections
import copy
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from autobatch.errors import StructureError

PLAIN = frozenset(
    (int, float, bool, complex, str, bytes, type(None), np.int64, np.int32, np.float64, np.float32, np.bool_)
)


@dataclasses.dataclass(frozen=True, slots=True)
class TreeDef:
    """The structure of a tree: how to build a node from its children. A leaf is a TreeDef of kind None.

    Attributes:
        kind: the class of the node, None for a leaf.
        keys: dict keys, attribute names of a dataclass object, or positions.
        children: one TreeDef per key.
        factory: a defaultdict's `default_factory`.
        exact: what tells keys apart that are equal but not the same, such as 1 and True, or 0.0 and -0.0.
        build: function that rebuilds a node from its children, for nodes other than the pytree kinds.
    """

    kind: type | None
    keys: tuple[Any, ...] = ()
    children: tuple["TreeDef", ...] = ()
    factory: Any = None
    exact: tuple[Any, ...] = ()
    build: Callable[[list[Any]], Any] | None = dataclasses.field(default=None, compare=False)

    @property
    def num_leaves(self) -> int:
        return 1 if self.kind is None else sum(child.num_leaves for child in self.children)

    def __str__(self) -> str:
        """The structure as messages show it, with a `*` for each leaf: `{'a': *, 'b': [*, *]}`."""
        parts = [str(child) for child in self.children]
        if self.kind is None:
            return "*"
        if issubclass(self.kind, dict):
            return f"{{{', '.join(f'{key!r}: {part}' for key, part in zip(self.keys, parts, strict=True))}}}"
        if self.kind is list:
            return f"[{', '.join(parts)}]"
        if self.kind is tuple:
            return f"({', '.join(parts)}{',' * (len(parts) == 1)})"
        names = getattr(self.kind, "_fields", self.keys)
        return f"{self.kind.__name__}({', '.join(map('{}={}'.format, names, parts))})"


leaf_def = TreeDef(None)


def is_node(tree: object) -> bool:
    """True if `tree` is a node: a dict, list, tuple or dataclass object."""
    return _kind_of(type(tree)) is not _OTHER  # type: ignore[arg-type]


def is_container(cls: type) -> bool:
    """True if the class is a dict, list or tuple, or a subclass."""
    return _kind_of(cls) is _CONTAINER


_CONTAINER, _FIELDS, _OTHER = "container", "fields", "other"


@functools.lru_cache(maxsize=1024)
def _kind_of(cls: type) -> str:
    if issubclass(cls, dict | list | tuple):
        return _CONTAINER
    return _FIELDS if dataclasses.is_dataclass(cls) else _OTHER


def children_of(tree: Any) -> tuple[tuple[Any, ...], list[Any]]:
    """The keys or names of a node's children, and the children."""
    if isinstance(tree, dict):
        return tuple(tree), list(tree.values())
    if isinstance(tree, list | tuple):
        return tuple(range(len(tree))), list(tree)
    names = attributes(tree)
    return names, [getattr(tree, name) for name in names]


def attributes(tree: object) -> tuple[str, ...]:
    """The names of a dataclass object's fields, then (sorted) of other attributes set on it.

    >>> attributes(TreeDef(None))
    ('kind', 'keys', 'children', 'factory', 'exact', 'build')
    """
    names = _fields(type(tree))  # type: ignore[arg-type]
    more = [name for name in getattr(tree, "__dict__", ()) if name not in names]
    return (*names, *sorted(more)) if more else names


@functools.lru_cache(maxsize=1024)
def _fields(kind: type) -> tuple[str, ...]:
    return tuple([field.name for field in dataclasses.fields(kind)])


def flatten(tree: object) -> tuple[list[Any], TreeDef]:
    """The leaves of a tree, left to right, and its structure.

    >>> values, structure = flatten({"a": 1, "b": (2, [3])})
    >>> values
    [1, 2, 3]
    >>> unflatten(structure, [10, 20, 30])
    {'a': 10, 'b': (20, [30])}
    """
    out: list[Any] = []
    return out, _flatten_into(tree, out)


def _flatten_into(tree: object, out: list[Any]) -> TreeDef:
    if not is_node(tree):
        out.append(tree)
        return leaf_def
    keys, children = children_of(tree)
    return node_def(tree, keys, tuple(_flatten_into(child, out) for child in children))


def node_def(tree: object, keys: tuple[Any, ...], children: tuple[TreeDef, ...]) -> TreeDef:
    """The structure of a node, given its keys and its children's structures."""
    factory = tree.default_factory if isinstance(tree, collections.defaultdict) else None
    told = [repr(k) if type(k) in PLAIN or type(k) is tuple else type(k) for k in keys if type(k) not in (str, int)]
    return TreeDef(getattr(type(tree), "_ab_tree", type(tree)), keys, children, factory, tuple(told))


def unflatten(structure: TreeDef, values: Iterable[Any]) -> Any:
    """The tree of this structure with these leaves; the inverse of `flatten`."""
    return _build(structure, iter(values))


def _build(structure: TreeDef, values: Any) -> Any:
    if (kind := structure.kind) is None:
        return next(values)
    children = [next(values) if child.kind is None else _build(child, values) for child in structure.children]
    if structure.build is not None:
        return structure.build(children)
    if issubclass(kind, dict):
        items = dict(zip(structure.keys, children, strict=True))
        return items if kind is dict else _rebuild_dict(structure, items)
    if hasattr(kind, "_fields"):
        return kind(*children)
    if issubclass(kind, list | tuple):
        return kind(children)
    return new_object(kind, dict(zip(structure.keys, children, strict=True)))


def new_object(cls: Any, parts: dict[str, Any]) -> Any:
    """A new object of this class with these attributes, without `__init__`, whose checks must not run again."""
    try:
        out: Any = object.__new__(cls)
    except TypeError:  # a class implemented in C, such as types.SimpleNamespace
        out = cls.__new__(cls)
    for name, value in parts.items():
        object.__setattr__(out, name, value)
    return out


def _rebuild_dict(structure: TreeDef, items: dict[Any, Any]) -> Any:
    kind: Any = structure.kind
    if issubclass(kind, collections.defaultdict):
        return kind(structure.factory, items)
    try:
        return kind(items)  # a dict, not pairs: a Counter would count the pairs
    except TypeError:  # a subclass with another constructor
        out = kind()
        out.update(items)
        return out


def leaves(tree: Any, out: list[Any] | None = None) -> list[Any]:
    """The leaves of a tree, left to right; added to `out` if it is given."""
    out = [] if out is None else out
    if not is_node(tree):
        out.append(tree)
        return out
    for child in children_of(tree)[1]:
        leaves(child, out)
    return out


def leaves_of_kind(tree: object, kinds: Any) -> list[Any]:
    """The leaves of a tree that are instances of `kinds` (a type, or a tuple of types), left to right.

    Much faster than `leaves` where a container has many others: their types are collected in C. A container that occurs
    several times, or contains itself, is searched once.

    >>> leaves_of_kind({"a": 1, "b": (2.5, [3])}, int)
    [1, 3]
    """
    out: list[Any] = []
    _collect_kind(tree, kinds, out, {})
    return out


def _collect_kind(tree: Any, kinds: Any, out: list[Any], seen: dict[int, Any], is_searched: bool = False) -> None:
    kind: Any = type(tree)
    own: Any
    if kind is dict:
        children: Any = tree.values()
    elif kind is tuple or kind is list:
        children = tree
    elif isinstance(tree, kinds):
        out.append(tree)
        return
    elif _kind_of(kind) is _FIELDS and tuple(own := getattr(tree, "__dict__", ())) == _fields(kind):
        children = own.values()  # nearly always
    elif is_node(tree):
        children = children_of(tree)[1]
    else:
        return
    if not children or id(tree) in seen:
        return
    seen[id(tree)] = tree  # also keeps it, so that no other object gets its id
    wanted, nodes = _searched(frozenset(map(type, children)), kinds)
    if not wanted:
        return
    found = [child for child in children if type(child) in wanted]
    if not nodes:
        out += found
        return
    for child in found:
        kind = type(child)
        if kind not in nodes:
            out.append(child)
        elif kind not in _SEQUENCES or is_searched or not child or type(child[0]) not in _SEQUENCES:
            _collect_kind(child, kinds, out, seen)
        elif _may_hold(child, kinds):
            _collect_kind(child, kinds, out, seen, True)


_SEQUENCES = frozenset((list, tuple))
_LEVELS, _MOST = 64, 1 << 16  # levels, and items of one: what contains itself has them without end


def _may_hold(tree: Any, kinds: Any) -> bool:
    """False if lists and tuples, one in another, have no leaf of these kinds: level by level, in C."""
    level: Any = tree
    for _ in range(_LEVELS):
        wanted, _ = _searched(frozenset(map(type, level)), kinds)
        if not wanted:
            return False
        if not wanted <= _SEQUENCES or len(level) > _MOST:
            break
        level = list(itertools.chain.from_iterable([each for each in level if type(each) in _SEQUENCES]))
    return True


@functools.lru_cache(maxsize=1024)
def _searched(types: frozenset[type], kinds: Any) -> tuple[frozenset[type], frozenset[type]]:
    """Those of the types that are of `kinds`, or of nodes; and those of nodes."""
    nodes = frozenset(each for each in types if _kind_of(each) is not _OTHER)
    return nodes | {each for each in types if issubclass(each, kinds)}, nodes


def has_more_parts(tree: Any, most: int) -> bool:
    """True if the containers of a tree have more than `most` items or attributes in total.

    >>> has_more_parts([1, (2, 3)], 4), has_more_parts([1, (2, 3)], 3)
    (False, True)
    """
    waiting = [tree]
    for node in waiting:  # the list grows during the loop
        if is_node(node):
            most -= len(node) if is_container(type(node)) else len(attributes(node))
            if most < 0:
                return True
            waiting += [child for child in children_of(node)[1] if type(child) not in PLAIN]
    return False


def paths(structure: TreeDef) -> Iterator[str]:
    """The path of each leaf in source code notation, left to right.

    >>> list(paths(flatten({"w": [1, 2]})[1]))
    ["['w'][0]", "['w'][1]"]
    """
    kind = structure.kind
    if kind is None:
        yield ""
        return
    for key, child in zip(structure.keys, structure.children, strict=True):
        for rest in paths(child):
            yield step_to(kind, key) + rest


def step_to(kind: type, key: object) -> str:
    """Source code notation for the access to child `key` of a node of this class."""
    if issubclass(kind, dict):
        return f"[{key!r}]"
    if issubclass(kind, list | tuple):
        fields = getattr(kind, "_fields", None)
        return f".{fields[key]}" if fields else f"[{key}]"
    return f".{key}"


def in_dataclass(structure: TreeDef, inside: bool = False) -> Iterator[bool]:
    """For each leaf, left to right: True if it is inside a dataclass object, at any depth.

    >>> holder = dataclasses.make_dataclass("Holder", ["size"])
    >>> list(in_dataclass(flatten([1, holder((2, 3))])[1]))
    [False, True, True]
    """
    if structure.kind is None:
        yield inside
        return
    within = inside or _kind_of(structure.kind) is _FIELDS
    for child in structure.children:
        yield from in_dataclass(child, within)


def map_tree(f: Callable[..., Any], tree: object, *others: object) -> Any:
    """Apply `f` leaf by leaf to trees of one structure.

    Raises:
        StructureError: the trees differ in structure.

    >>> map_tree(lambda x, y: x + y, {"a": 1}, {"a": 2})
    {'a': 3}
    """
    if not others and not is_node(tree):
        return f(tree)
    values, structure = flatten(tree)
    columns = [values]
    for position, other in enumerate(others, 1):
        other_values, other_structure = flatten(other)
        if other_structure != structure:
            raise StructureError(f"tree {position} is {other_structure}; expected the structure of tree 0, {structure}")
        columns.append(other_values)
    return unflatten(structure, [f(*row) for row in zip(*columns, strict=True)])


def replace_leaves(
    tree: object,
    leaf: Callable[[Any], Any],
    parts_of: dict[int, Any] | None = None,
    copies: list[Any] | None = None,
    originals: Mapping[int, Any] | None = None,
) -> Any:
    """Replace the leaves of a nested dict, list, tuple or dataclass; returns `tree` itself if no leaf changes.

    An object that occurs twice is replaced by one object that occurs twice. A cyclic structure is returned unchanged.

    Args:
        parts_of: receives {id: part} of all parts of a structure that contains only numbers and strings.
        copies: receives (container, copy, keys or names, old values, new values) for each copied container.
        originals: {id of a container: what to put in its place}; other containers, but tuples, are changed, not copied.
    """
    kind: Any = type(tree)
    if kind is np.ndarray or (kind not in PLAIN and _kind_of(kind) is _OTHER):
        return leaf(tree)
    if not originals and _is_plain(tree, parts_of):
        return tree
    try:
        return _replaced(tree, leaf, {}, copies, originals)
    except RecursionError:
        return tree


def _is_plain(tree: Any, parts_of: dict[int, Any] | None) -> bool:
    """True if a structure contains only numbers and strings (such as a tree of words, which may be large).

    Args:
        parts_of: if True is returned, receives {id: part} of the structure and its parts.
    """
    seen: dict[int, Any] = {id(tree): tree}
    nodes = [tree]
    for node in nodes:  # the list grows during the loop
        kind = type(node)
        parts: Any
        if kind is tuple or kind is list:
            parts = node
        elif kind is dict:
            parts = node.values()
        elif dataclasses.is_dataclass(kind):
            parts = [getattr(node, name) for name in attributes(node)]
        else:
            return kind in PLAIN
        if PLAIN.issuperset(map(type, parts)):
            continue
        for part in parts:
            if type(part) not in PLAIN and id(part) not in seen:
                seen[id(part)] = part
                nodes.append(part)
    if parts_of is not None:
        parts_of.update(seen)
    return True


_BUSY = object()


def _replaced(
    tree: Any, leaf: Callable[[Any], Any], done: dict[int, Any], copies: list[Any] | None, originals: Any
) -> Any:
    kind: Any = type(tree)
    if kind in PLAIN:
        return tree
    found = originals[id(tree)] if originals and id(tree) in originals else done.get(id(tree))
    if found is _BUSY:
        raise RecursionError
    if found is not None:
        return found
    if _kind_of(kind) is _OTHER:
        out = leaf(tree)
        if out is not tree:
            done[id(tree)] = out
        return out
    done[id(tree)] = _BUSY
    keys, old = children_of(tree)
    new = [_replaced(child, leaf, done, copies, originals) for child in old]
    out = tree
    if any(a is not b for a, b in zip(old, new, strict=True)):
        out = _with_children(tree, keys, new, originals is not None)
        if copies is not None:
            copies.append((tree, out, keys, old, new))
    done[id(tree)] = out
    return out


def _with_children(tree: Any, keys: Any, new: list[Any], in_place: bool) -> Any:
    """A container, or a copy of it, with new children."""
    if isinstance(tree, tuple):
        return type(tree)(*new) if hasattr(tree, "_fields") else type(tree)(new)
    out = tree if in_place else copy.copy(tree)
    if isinstance(tree, list):
        out[:] = new
    elif isinstance(tree, dict):
        out.update(zip(keys, new, strict=True))
    else:
        for key, value in zip(keys, new, strict=True):
            object.__setattr__(out, key, value)
    return out
