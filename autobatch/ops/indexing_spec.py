"""What an index says, split into static structure (hashable, a param) and operands (integers and arrays).

A spec is a tuple with one entry for each item of the index, the ellipsis written out:

    ("n",)                      np.newaxis
    ("s", start, stop, step)    a slice with bounds known here
    ("d", 0/1, 0/1, 0/1)        a slice; the bounds marked 1 are operands, the others absent
    ("i",)                      an integer: the next operand
    ("a",)                      an integer array: the next operand
    ("b", ndim)                 a boolean array over `ndim` axes: the next operand
"""

import functools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, ndim_of
from autobatch.core.op import BATCH_RANK, is_boxed, rank_of
from autobatch.ops.table import Declined

__all__ = ["FULL", "Spec", "build", "is_basic", "is_static", "on_axis", "parse", "shown"]

Spec = tuple[tuple[Any, ...], ...]
FULL = ("s", None, None, None)
_KNOWN = frozenset((int, type(None)))
_INT = ("i",)
_ARRAY = ("a",)
_NEW = ("n",)
_ROWS: tuple[Spec, ...] = ((), *((_INT, *(FULL,) * rank) for rank in range(64)))  # x[i], by rank


def parse(x: Any, index: Any) -> tuple[Spec, list[Any]]:
    """The spec of `x[index]` and its operands.

    Raises:
        IndexError: too many indices, two ellipses, or something that cannot index.
    """
    if type(index) is int:
        rank = ndim_of(x)
        if rank:
            return _ROWS[rank], [np.int64(index)]
    items = index if type(index) is tuple else (index,)
    spec: list[tuple[Any, ...]] = []
    operands: list[Any] = []
    used = 0
    ellipsis = -1
    for item in items:
        kind = type(item)
        if kind is int:
            spec.append(_INT)
            operands.append(np.int64(item))
            used += 1
        elif kind is slice:
            spec.append(_slice(item, operands))
            used += 1
        elif item is None:
            spec.append(_NEW)
        elif item is Ellipsis:
            if ellipsis >= 0:
                raise IndexError("an index can only have a single ellipsis ('...')")
            ellipsis = len(spec)
        else:
            entry, operand = _array(item)
            spec.append(entry)
            operands.append(operand)
            used += entry[1] if entry[0] == "b" else 1
    rank = ndim_of(x)
    if used > rank:
        raise IndexError(f"too many indices for array: array is {rank}-dimensional, but {used} were indexed")
    if used < rank:
        place = ellipsis if ellipsis >= 0 else len(spec)
        spec[place:place] = [FULL] * (rank - used)
    return tuple(spec), operands


def _slice(item: slice, operands: list[Any]) -> tuple[Any, ...]:
    bounds = (item.start, item.stop, item.step)
    if _KNOWN.issuperset(map(type, bounds)):
        return ("s", *bounds)
    if any(rank_of(bound) == BATCH_RANK for bound in bounds):
        for bound in bounds:
            if bound is not None:
                operands.append(bound if is_boxed(bound) else np.int64(operator.index(bound)))
        return ("d", *(int(bound is not None) for bound in bounds))
    return ("s", *(None if bound is None else operator.index(bound) for bound in bounds))


def _array(item: Any) -> tuple[tuple[Any, ...], Any]:
    if not is_boxed(item):
        if isinstance(item, list | tuple) and any(is_boxed(part) for part in item):
            item = np.stack(item)
        else:
            item = np.asarray(item) if not (isinstance(item, list | tuple) and len(item) == 0) else np.empty(0, np.intp)
    dtype, rank = dtype_of(item), ndim_of(item)
    if dtype.kind == "b":
        if rank == 0:
            raise Declined("indexing with a single boolean")
        return ("b", rank), item
    if dtype.kind not in "iu":
        raise IndexError(
            "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and integer or boolean arrays are "
            "valid indices"
        )
    return (_INT if rank == 0 else _ARRAY), item


def build(spec: Spec, operands: Sequence[Any]) -> tuple[Any, ...]:
    """The index that NumPy takes, from a spec and plain operands."""
    static = _static(spec)
    if static is not None and not operands:
        return static
    out: list[Any] = []
    at = 0
    for entry in spec:
        kind = entry[0]
        if kind == "s":
            out.append(slice(entry[1], entry[2], entry[3]))
        elif kind == "n":
            out.append(None)
        elif kind == "i":
            out.append(int(operands[at]))
            at += 1
        elif kind == "d":
            bounds: list[Any] = []
            for present in entry[1:]:
                bounds.append(int(operands[at]) if present else None)
                at += present
            out.append(slice(*bounds))
        else:
            out.append(operands[at])
            at += 1
    return tuple(out)


@functools.lru_cache(maxsize=4096)
def _static(spec: Spec) -> tuple[Any, ...] | None:
    if any(entry[0] not in "sn" for entry in spec):
        return None
    return tuple(slice(*entry[1:]) if entry[0] == "s" else None for entry in spec)


@functools.lru_cache(maxsize=4096)
def is_basic(spec: Spec) -> bool:
    """Whether `x[index]` is a view: integers, slices and new axes only."""
    return all(entry[0] in "sind" for entry in spec)


@functools.lru_cache(maxsize=4096)
def is_static(spec: Spec) -> bool:
    """Whether no shape in the result depends on the operands' values."""
    return all(entry[0] in "sina" for entry in spec)


def shown(spec: Spec) -> str:
    """A spec as a person writes an index; "int", "array" and "mask" are operands.

    >>> shown((("n",), ("i",), ("s", 1, None, None), ("d", 0, 1, 0), ("a",), ("b", 2)))
    '[None, int, 1:, :int, array, mask]'
    """
    return f"[{', '.join(map(_shown_entry, spec))}]"


def _shown_entry(entry: tuple[Any, ...]) -> str:
    kind = entry[0]
    if kind == "s":
        bounds = ["" if bound is None else str(bound) for bound in entry[1:]]
    elif kind == "d":
        bounds = ["int" if known else "" for known in entry[1:]]
    else:
        return {"n": "None", "i": "int", "a": "array", "b": "mask"}[kind]
    return ":".join(bounds if bounds[2] else bounds[:2])


def on_axis(axis: int, item: Any) -> tuple[Any, ...]:
    """The index that applies `item` along one axis."""
    return (*(slice(None),) * axis, item)
