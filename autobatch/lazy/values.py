"""What goes into an example as a lazy array, and what comes out of it as a plain one."""

import copy
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.core.pytree import attributes
from autobatch.lazy.array import LazyArray
from autobatch.lazy.gather import row_p
from autobatch.lazy.trace import Trace
from autobatch.tables.sparse import SparseRows

__all__ = ["finish", "plain_parts", "rebuild", "settled", "wrap_example", "wrap_shared"]

_PLAIN = frozenset(
    (int, float, bool, complex, str, bytes, type(None), np.int64, np.int32, np.float64, np.float32, np.bool_)
)


# By id, structures of examples of which it is known that there are only numbers and strings in them.
plain_parts: dict[int, Any] = {}


def rebuild(
    tree: Any, leaf: Callable[[Any], Any], parts_of: dict[int, Any] | None = None, copies: list[Any] | None = None
) -> Any:
    """A nested dict, list, tuple or dataclass with its leaves replaced; `tree` itself where no leaf changes.

    Objects that occur twice occur twice in the result. A structure that contains itself is left as it is.

    Args:
        parts_of: receives the parts of a structure of only numbers and strings, by their ids.
        copies: receives (container, its copy, the keys or names, the old values, the new ones) of what was copied.
    """
    kind = type(tree)
    if kind is LazyArray or kind is np.ndarray:
        return leaf(tree)
    if _is_plain(tree, parts_of):
        return tree
    try:
        return _rebuild(tree, leaf, {}, copies)
    except (_CycleError, RecursionError):
        return tree


def _is_plain(tree: Any, parts_of: dict[int, Any] | None) -> bool:
    """Whether there are only numbers and strings in a structure: a tree of words, say, which may be large.

    Args:
        parts_of: receives the structure and its parts by their ids, if so.
    """
    seen: dict[int, Any] = {id(tree): tree}
    nodes = [tree]
    for node in nodes:  # which grows on the way
        kind = type(node)
        parts: Any
        if kind is tuple or kind is list:
            parts = node
        elif kind is dict:
            parts = node.values()
        elif dataclasses.is_dataclass(kind):
            parts = [getattr(node, name) for name in attributes(node)]
        else:
            return kind in _PLAIN
        for part in parts:
            if type(part) not in _PLAIN and id(part) not in seen:
                seen[id(part)] = part
                nodes.append(part)
    if parts_of is not None:
        parts_of.update(seen)
    return True


class _CycleError(Exception):
    pass


_BUSY = object()


def _rebuild(tree: Any, leaf: Callable[[Any], Any], done: dict[int, Any], copies: list[Any] | None) -> Any:
    kind = type(tree)
    if kind in _PLAIN:
        return tree
    is_dataclass = dataclasses.is_dataclass(kind)
    found = done.get(id(tree))
    if found is _BUSY:
        raise _CycleError
    if found is not None:
        return found
    if not (is_dataclass or isinstance(tree, dict | list | tuple)):
        out = leaf(tree)
        if out is not tree:
            done[id(tree)] = out
        return out
    done[id(tree)] = _BUSY
    if is_dataclass:
        keys: Any = attributes(tree)
        old = [getattr(tree, key) for key in keys]
    elif isinstance(tree, dict):
        keys, old = list(tree), list(tree.values())
    else:
        keys, old = None, list(tree)
    new = [_rebuild(child, leaf, done, copies) for child in old]
    out = tree
    if any(a is not b for a, b in zip(old, new, strict=True)):
        out = _with_children(tree, kind, keys, new, is_dataclass)
        if copies is not None:
            copies.append((tree, out, keys, old, new))
    done[id(tree)] = out
    return out


def _with_children(tree: Any, kind: type, keys: Any, new: list[Any], is_dataclass: bool) -> Any:
    if is_dataclass:
        out = copy.copy(tree)
        for key, value in zip(keys, new, strict=True):
            object.__setattr__(out, key, value)
        return out
    if isinstance(tree, dict):
        out = copy.copy(tree)
        out.update(zip(keys, new, strict=True))
        return out
    if isinstance(tree, list):
        out = copy.copy(tree)
        out[:] = new
        return out
    return kind(*new) if hasattr(kind, "_fields") else kind(new)


def wrap_example(trace: Trace, value: Any, copies: list[Any] | None = None) -> Any:
    """One example's argument as its function sees it: float arrays as lazy arrays, ids and objects as they are."""
    found: list[Any] = []

    def leaf(x: Any) -> Any:
        if type(x) is np.ndarray:
            lazy = x.ndim and x.dtype.kind in "fc"
        else:
            lazy = (
                hasattr(x, "_ab_rank")
                and hasattr(x, "dtype")
                and x.dtype.kind in "fc"
                and not (type(x) is LazyArray and x.trace is trace)
            )
        if not lazy:
            return x
        found.append(x)
        if (
            type(getattr(x, "value", None)) is float
        ):  # a Python number on a tape, whose place in a signature is its kind
            return trace.shared(x)
        return trace.known(x)

    out = rebuild(value, leaf, plain_parts, copies)
    if out is not value:  # else its arrays, if it has any, stay as they are
        for each in found:
            trace.inputs.add(each, trace.example)
    return out


def wrap_shared(trace: Trace, value: Any, copies: list[Any] | None = None) -> Any:
    """A shared argument as the examples see it: every array and table as one shared lazy array."""

    def leaf(x: Any) -> Any:
        if type(x) is np.ndarray:
            return trace.shared(x) if x.ndim and x.dtype.kind in "biufc" else x
        if type(x) is LazyArray and x.trace is trace:
            return x
        return trace.shared(x) if hasattr(x, "_ab_rank") or hasattr(x, "_ab_lookup") else x

    return rebuild(value, leaf, copies=copies)


def settled(trace: Trace, value: Any) -> Any:
    """A result in which no look-up is put off any more, so that all of them are launched together."""

    def leaf(x: Any) -> Any:
        if type(x) is LazyArray and x.wave is None and x.source is None and x.trace is trace:
            trace.settle(x)
        return x

    return rebuild(value, leaf)


def finish(trace: Trace, value: Any) -> Any:
    """A result with plain arrays and scalars (arrays on a tape, under a gradient) instead of lazy ones."""
    return rebuild(value, functools.partial(_finished, trace))


def _finished(trace: Trace, x: Any) -> Any:
    if type(x) is not LazyArray or x.trace is not trace:
        return x.map_arrays(functools.partial(_finished, trace)) if isinstance(x, SparseRows) else x
    if x.source is None:
        trace.place(x)
    source, row = x.source, x.row
    if row < 0:
        return source.copy() if row == -2 and type(source) is np.ndarray else source
    if type(source) is not np.ndarray:
        return row_p(source, row=row)
    out = source[row]
    if x.aval.ndim == 0:
        return out if x.aval.scalar else np.array(out)
    return out if out.flags.writeable else out.copy()
