"""Trees of the user's objects, and nested tuples: nodes that hold nodes of their own classes at any depth.

Compiled code holds a node as the numbers of all nodes that are packed with it, and its own place among them, so a
function that calls itself for each child has one type of argument at every depth.
"""

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.compiled.translation import exact_types as types
from autobatch.compiled.translation.exact_types import NODE, NODE_OR_NONE, NODES, ObjectTree, TreeField
from autobatch.core.pytree import PLAIN, is_container
from autobatch.errors import Unsupported
from autobatch.facts.types import is_stored

_Walk = Callable[[Sequence[Any]], tuple[list[Any], list[Any], list[Any]]]
_walked: tuple[Sequence[Any], Any, Any] = (), None, None
"""The trees that were typed last, and how they were walked and what was found: they are packed next."""
_MOST_FORMS = 16  # sets of attributes: more are a dict's keys that mean nothing
_NO_ITEMS = object()
"""The type of a list without items, which may be one of nodes."""


def type_of_trees(values: Sequence[Any]) -> ObjectTree | None:
    """The type of objects that hold objects of their own classes; None if that is not what these values are.

    Raises:
        Unsupported: an attribute is of several types, or of one that nodes cannot hold.
    """
    if not values or not all(map(_is_node, values)) or not _hold_nodes(values):
        return None
    nodes, parts, edges = _below(_nodes_below, values, typed=False)
    forms_of = list(zip(map(type, nodes), map(tuple, parts), strict=True))
    inside: dict[Any, set[Any]] = {form: set() for form in forms_of}  # the forms of nodes that nodes of a form hold
    for holder, held in edges:
        inside[forms_of[holder]].add(forms_of[held])
    if not any(_reaches(inside, each) for each in inside):
        return None
    by_form: dict[Any, list[dict[str, Any]]] = {form: [] for form in inside}
    for form, own in zip(forms_of, parts, strict=True):
        by_form[form].append(own)
    if len(by_form) > _MOST_FORMS:
        raise Unsupported(f"nodes of a tree with {len(by_form)} sets of attributes")
    forms = tuple(sorted(by_form, key=lambda form: (form[0].__module__, form[0].__qualname__, form[1])))
    kinds: dict[str, Any] = {}
    for (cls, names), alike in by_form.items():
        for name in names:
            if cls is not dict and not is_stored(cls, name):
                raise Unsupported(f"{cls.__qualname__}.{name}, which is computed")
            for kind in _kinds_of([own[name] for own in alike]):
                kinds[name] = _joined(kinds.get(name), kind, name)
    fields, first = [], [1, 0, 3]
    for name, kind in sorted(kinds.items()):  # whichever node comes first
        kind = NODES if kind is _NO_ITEMS else kind
        have = tuple(k for k, (_, names) in enumerate(forms) if name in names)
        fields.append(TreeField(name, kind, have, *first))
        first = [at + width for at, width in zip(first, _widths(kind), strict=True)]
    return ObjectTree(forms, tuple(fields), *first[:2])


def type_of_nested(values: Sequence[Any]) -> ObjectTree | None:
    """The type of tuples nested to any depth, each of as many items, around numbers of one type; None of others."""
    _, leaves, tuples = _below(_nested_below, values)
    classes: set[Any] = set(map(type, leaves))
    sizes = set(map(len, tuples))
    if len(sizes) != 1 or len(classes) != 1:
        return None
    (cls,), (size,) = classes, sizes
    leaf = types.PYTHON.get(cls) or (types.of_dtype(np.dtype(cls)) if issubclass(cls, np.generic) else None)
    if leaf is None or not types.is_number(leaf):
        return None
    items = [TreeField(k, NODE, (1,), 1 + k, 0, 3) for k in range(size)]
    forms = (cls, (None,)), (tuple, tuple(range(size)))
    return ObjectTree(forms, (*items, TreeField(None, leaf, (0,), 1, 0, 3)), 1 + size, _widths(leaf)[1])


def are_of_one_form(values: Sequence[Any]) -> bool:
    """True if these values are tuples nested in the same way."""
    first = _nested_below(values[:1])[0]
    return all(_nested_below((value,))[0] == first for value in values[1:])


def _pack_nested(kind: ObjectTree, values: Sequence[Any]) -> list[np.ndarray]:
    """`pack_trees` of nested tuples: all tuples, and then all numbers."""
    numbers, leaves, tuples = _below(_nested_below, values)
    found, count = np.array(numbers, np.int64), len(tuples)
    found = np.where(found < 0, count + ~found, found)
    words = np.zeros((count + len(leaves), kind.words), np.int64)
    reals = np.zeros((len(words), kind.reals))
    words[:count, 0], words[:count, 1:] = 1, found[len(values) :].reshape(count, kind.words - 1)
    if kind.reals:
        reals[count:, 0] = leaves
    else:
        words[count:, 1] = np.array(leaves, kind.leaf.name)
    return [words.reshape(-1), np.zeros(0, np.int64), reals.reshape(-1), found[: len(values)]]


def _nested_below(values: Sequence[Any]) -> tuple[list[int], list[Any], list[Any]]:
    """The number of each value, and of each item of their tuples, one after the other; the numbers in them (`~k` is the
    k-th of these); and their tuples."""
    numbers: list[int] = []
    leaves: list[Any] = []
    waiting: list[Any] = [values]
    for node in waiting:  # its own tuples come at the end
        for child in node:
            if type(child) is tuple:
                numbers.append(len(waiting) - 1)
                waiting.append(child)
            else:
                numbers.append(~len(leaves))
                leaves.append(child)
    return numbers, leaves, waiting[1:]


def _below(walk: _Walk, values: Sequence[Any], typed: bool = True) -> tuple[list[Any], list[Any], list[Any]]:
    """`walk(values)`; if they were typed before, what was found then."""
    global _walked
    known, by, found = _walked
    if not typed or by is not walk or len(known) != len(values) or not all(map(operator.is_, known, values)):
        found = walk(values)
        _walked = list(values), walk, found
    return found


def pack_trees(kind: ObjectTree, values: Sequence[Any]) -> list[np.ndarray]:
    """All nodes of these trees as arrays: those of `dtypes_of`, and the place of each value among the nodes."""
    if kind.leaf is not None:
        return _pack_nested(kind, values)
    nodes, parts, _ = _below(_nodes_below, values)
    place = dict(zip(map(id, nodes), itertools.count()))
    words, reals = np.zeros((len(nodes), kind.words), np.int64), np.zeros((len(nodes), kind.reals))
    number = dict(zip(kind.forms, itertools.count()))
    words[:, 0] = [number[form] for form in zip(map(type, nodes), map(tuple, parts), strict=True)]
    children: list[int] = []
    arrays: list[np.ndarray] = []
    for field in kind.fields:
        everywhere = len(field.forms) == len(kind.forms)
        rows: Any = slice(None) if everywhere else [k for k, own in enumerate(parts) if field.name in own]
        found: list[Any] = [own[field.name] for own in parts if everywhere or field.name in own]
        at = field.word
        if field.kind in (NODE, NODE_OR_NONE):
            words[rows, at] = [-1 if value is None else place[id(value)] for value in found]
        elif field.kind == NODES:
            words[rows, at], words[rows, at + 1] = _bounds(found, len(children))
            children += [place[id(each)] for value in found for each in value]
        elif isinstance(field.kind, types.Array | types.Text):
            if isinstance(field.kind, types.Text):
                found = [np.frombuffer(value.encode("utf-32-le", "surrogatepass"), np.int32) for value in found]
            flat = [value.reshape(-1) for value in found]
            words[rows, at] = _bounds(flat, 0)[0]
            for axis in range(found[0].ndim if found else 0):
                words[rows, at + 1 + axis] = [value.shape[axis] for value in found]
            arrays.append(np.concatenate([np.empty(0, getattr(field.kind, "dtype", np.int32)), *flat]))
        elif isinstance(field.kind, types.Union):
            scalars = [types.PYTHON.get(type(value)) or types.of_dtype(value.dtype) for value in found]
            pairs = list(zip(found, scalars, strict=True))
            words[rows, at] = [types.TAGS[scalar] for scalar in scalars]
            words[rows, at + 1] = [int(value) if scalar.kind in "iub" else 0 for value, scalar in pairs]
            reals[rows, field.real] = [value if scalar.kind == "f" else 0.0 for value, scalar in pairs]
        elif field.kind.kind == "f":
            reals[rows, field.real] = found
        elif field.kind != types.NONE:
            words[rows, at] = found
    roots = np.array([place[id(value)] for value in values], np.int64)
    return [words.reshape(-1), np.array(children, np.int64), reals.reshape(-1), *arrays, roots]


def dtypes_of(kind: ObjectTree) -> list[str]:
    """The dtypes of the arrays that hold the nodes: of whole numbers, a row for each node; of the nodes that lie in
    lists; of real numbers, a row each; and of the elements of each attribute that is an array or a string."""
    own = [getattr(field.kind, "dtype", "int32") for field in kind.fields if _widths(field.kind)[2]]
    return ["int64", "int64", "float64", *own]


@functools.lru_cache(maxsize=256)
def _may_be_node(cls: Any) -> bool:
    """True if objects of a class are the user's, and no more than attributes: neither containers nor numbers."""
    if cls is dict or (issubclass(cls, tuple) and hasattr(cls, "_fields")):
        return True
    has_parts = cls.__dictoffset__ != 0 or dataclasses.is_dataclass(cls)
    own = ("_ab_rank", "__len__", "__bool__", "__array__", "__getattr__", "__float__")
    return has_parts and type(cls) is type and not is_container(cls) and not any(hasattr(cls, name) for name in own)


def _is_node(value: Any) -> bool:
    """True if this may be a node of a tree: an object, or a dict of string keys."""
    cls: Any = type(value)
    return _may_be_node(cls) and (cls is not dict or (value and set(map(type, value)) == {str}))


def _hold_nodes(values: Sequence[Any]) -> bool:
    """True if one of these nodes holds another: records, which hold none, are many, and are seen in C."""
    held = list(itertools.chain.from_iterable(_parts_of(value).values() for value in values))
    kinds: set[Any] = set(map(type, held))
    if list in kinds or tuple in kinds:
        kinds |= {type(value[0]) for value in held if type(value) in (list, tuple) and value}
    return any(cls not in types.PYTHON and _may_be_node(cls) for cls in kinds)


def _parts_of(node: Any) -> dict[str, Any]:
    """The attributes of a node, or the items of a dict."""
    cls: Any = type(node)
    if cls is dict:
        return node
    if issubclass(cls, tuple):
        return dict(zip(cls._fields, node, strict=True))
    return (
        vars(node)
        if cls.__dictoffset__
        else {field.name: getattr(node, field.name) for field in dataclasses.fields(node)}
    )


def _nodes_below(values: Sequence[Any]) -> tuple[list[Any], list[dict[str, Any]], list[tuple[int, int]]]:
    """These nodes and all that they hold, each once; the attributes of each; and which (place) holds which."""
    places: dict[int, int] = {}
    nodes: list[Any] = []
    for value in values:
        if places.setdefault(id(value), len(nodes)) == len(nodes):
            nodes.append(value)
    parts: list[dict[str, Any]] = []
    edges: list[tuple[int, int]] = []
    for holder, node in enumerate(nodes):  # grows
        own = _parts_of(node)
        parts.append(own)
        for value in own.values():
            cls: Any = type(value)
            if cls in PLAIN or cls is np.ndarray:
                continue
            for each in value if cls is list or cls is tuple else (value,):
                if not _is_node(each):
                    break
                place = places.setdefault(id(each), len(nodes))
                if place == len(nodes):
                    nodes.append(each)
                edges.append((holder, place))
    return nodes, parts, edges


def _reaches(inside: dict[Any, set[Any]], cls: Any) -> bool:
    """True if nodes of a form hold, at any depth, nodes of the same."""
    reached = list(inside[cls])
    for each in reached:  # grows
        reached += [inner for inner in inside[each] if inner not in reached]
    return cls in reached


def _kinds_of(values: Sequence[Any]) -> set[Any]:
    """The types of these values of an attribute."""
    out: set[Any] = set()
    found: set[Any] = set(map(type, values))
    for cls in found:
        if cls in types.PYTHON:
            out.add(types.PYTHON[cls])
        elif cls is list or cls is tuple:
            own = [value for value in values if type(value) is cls]
            if not all(map(_is_node, itertools.chain.from_iterable(own))):
                raise Unsupported(f"a {cls.__name__} of something else than nodes in a node of a tree")
            out |= {NODES if value else _NO_ITEMS for value in own}
        elif issubclass(cls, np.generic):
            out.add(types.of_dtype(np.dtype(cls)))
        elif cls is np.ndarray:
            forms = {(value.dtype, value.ndim) for value in values if type(value) is cls}
            out |= {types.Array(types.of_dtype(dtype).name, ndim, types.FIXED) for dtype, ndim in forms}
        elif all(_is_node(value) for value in values if type(value) is cls):
            out.add(NODE)
        else:
            raise Unsupported(f"a {cls.__qualname__} in a node of a tree")
    return out


def _joined(one: Any, other: Any, name: str) -> Any:
    if one is None or one == other:
        return other
    kinds = {id(one): one, id(other): other}.values()
    if all(each in (NODE, NODE_OR_NONE, types.NONE) for each in kinds):
        return NODE_OR_NONE
    if all(each in (NODES, _NO_ITEMS) for each in kinds):
        return NODES
    if not all(isinstance(each, types.Scalar | types.Union) for each in kinds):
        raise Unsupported(f"nodes of a tree whose {name} is of several types")
    return types.join(one, other)


def _widths(kind: Any) -> tuple[int, int, int]:
    """How many whole numbers and real numbers of a node, and arrays, an attribute takes."""
    match kind:
        case types.Array():
            return 1 + kind.ndim, 0, 1
        case types.Text():
            return 2, 0, 1
        case types.Union():
            return 2, 1, 0
        case types.Scalar():
            return (0, 0, 0) if kind == types.NONE else (0, 1, 0) if kind.kind == "f" else (1, 0, 0)
    return (2, 0, 0) if kind == NODES else (1, 0, 0)


def _bounds(parts: Sequence[Any], first: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each part starts and ends if all lie one after the other."""
    ends = np.array([*itertools.accumulate(map(len, parts), initial=first)], np.int64)
    return ends[:-1], ends[1:]
