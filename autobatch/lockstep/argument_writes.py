"""Writes into the arguments of a lock-step call: the caller's data changes, as in the loop over the examples.

Inside of a call a batch is a new object, which a write gives another value; the data that it came with stays as it is.
When the call has its result, the new values go into the caller's arrays. Where one of these shares memory with another
argument, the order of the writes counts, and the examples decide.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from autobatch.batches.any_batch import Batch
from autobatch.batches.masked import MaskedBatch
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.packed import PackedBatch
from autobatch.core.op import is_boxed
from autobatch.core.pytree import leaves, map_tree
from autobatch.errors import NeedsLoop


def argument_writes(entered: Iterable[tuple[Any, Any]], arguments: Any) -> list[tuple[Any, Any, Any]]:
    """(array, where, value) of what has been written to; where there is padding, it stays as it is.

    Args:
        entered: the batches among the arguments, each with what it is inside of the call.
        arguments: all of the call.

    Raises:
        NeedsLoop: what is written shares memory with another argument, or cannot be written to.
    """
    found = []
    for given, inside in entered:
        write = _write(given, inside)
        if write is not None:
            found.append(write)
    if found:
        _require_apart([target for target, _, _ in found], arguments)
    return found


def apart_from(writes: list[tuple[Any, Any, Any]], result: Any) -> Any:
    """A result of which nothing lies in memory that is about to be written to: it was read before.

    Args:
        writes: as `argument_writes` gives them.
    """
    targets = [target for target, _, _ in writes if isinstance(target, np.ndarray)]

    def own(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value.copy() if any(np.may_share_memory(value, each) for each in targets) else value
        if isinstance(value, MaskedBatch):
            value.data = own(value.data)
            value.guard_data()
        elif isinstance(value, PackedBatch):
            value.values = own(value.values)
        elif isinstance(value, ObjectBatch):
            value.values = [map_tree(own, each) for each in value.values]
        return value

    return map_tree(own, result) if targets else result


def _write(given: Any, inside: Any) -> tuple[Any, Any, Any] | None:
    if isinstance(given, MaskedBatch):
        if not getattr(inside, "_written", False):
            return None  # its rows may be held in another way, though
        old, new = given.data, inside.data
    elif isinstance(given, PackedBatch):
        old, new = given.values, inside.values
    else:
        return None  # lanes of objects: each write is refused
    if new is old:
        return None
    new = new._ab_force() if hasattr(new, "_ab_force") else new
    if is_boxed(new) and not is_boxed(old):
        return None  # an array cannot hold a gradient
    if np.shape(new) != np.shape(old) or isinstance(new, Batch):
        raise NeedsLoop("a write into an argument whose data lies in another way")
    if isinstance(given, MaskedBatch) and any(given.dims):
        new = np.where(given.mask, new, old)
    return old, ..., new


def _require_apart(written: list[Any], arguments: Any) -> None:
    """Raise NeedsLoop if a write could not be made, or would be one into another argument too."""
    others = {id(leaf): leaf for leaf in leaves(arguments)}
    arrays = [array for array in map(_memory, others.values()) if array is not None]
    for target in written:
        if not isinstance(target, np.ndarray):
            continue
        if not target.flags.writeable:
            raise NeedsLoop("a write into an argument that is read-only")
        if sum(np.may_share_memory(target, array) for array in arrays) > 1:  # itself, and another
            raise NeedsLoop("a write into an argument that shares memory with another")


def _memory(leaf: Any) -> np.ndarray | None:
    """The array that an argument is, or lies in."""
    if isinstance(leaf, MaskedBatch | PackedBatch):
        leaf = leaf.data if isinstance(leaf, MaskedBatch) else leaf.values
    return leaf if isinstance(leaf, np.ndarray) and leaf.size else None
