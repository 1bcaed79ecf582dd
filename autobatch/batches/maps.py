"""Examples that are maps: id to score, or feature to list of ids, as packed batches and back."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autobatch.batches.packed import PackedBatch
from autobatch.batches.packing import as_integers
from autobatch.errors import DTypeError, ShapeError

__all__ = ["maps_to_packed", "packed_to_maps"]


def maps_to_packed(examples: Sequence[Mapping[int, Any]]) -> tuple[PackedBatch, PackedBatch]:
    """The keys and the values of examples that are maps, in the maps' order.

    Args:
        examples: {id: score}, every value a number; or {feature: ids}, every value a list or array of one dimension.

    Returns:
        (keys, values): of scores two batches with the same offsets; of lists `values` is nested, an example of it a
        list of arrays, with the same offsets at its outer level.

    Raises:
        DTypeError: an example that is no map, keys that are no integers. ShapeError: lists beside numbers.

    Source: Caffe2's nested segments, `LIST<MAP<INT, LIST<INT>>>`.

    >>> keys, values = maps_to_packed([{1: [10, 11], 3: [101]}, {2: [50]}])
    >>> keys.examples(), values.values.values
    ([array([1, 3]), array([2])], array([ 10,  11, 101,  50]))
    """
    for i, example in enumerate(examples):
        if not isinstance(example, Mapping):
            raise DTypeError(f"example {i} is a {type(example).__name__}; expected a dict of integer keys")
    lengths = [len(example) for example in examples]
    entries = [np.asarray(value) for example in examples for value in example.values()]
    keys = PackedBatch.from_lengths(as_integers([key for example in examples for key in example], "keys"), lengths)
    nested = bool(entries) and entries[0].ndim > 0
    at = 0
    for i, example in enumerate(examples):
        for key in example:
            if entries[at].ndim != int(nested):
                kind = "a list" if entries[at].ndim else "a number"
                raise ShapeError(f"example {i} has {kind} under key {key}; expected all numbers, or all lists")
            at += 1
    if nested:
        whole = np.concatenate(entries)
        if not whole.size:
            whole = whole.astype(np.int64)
        inner = PackedBatch.from_lengths(whole, [len(entry) for entry in entries])
        return keys, PackedBatch(inner, np.array(keys.offsets))
    return keys, PackedBatch(np.array(entries), np.array(keys.offsets))


def packed_to_maps(keys: PackedBatch, values: PackedBatch) -> list[dict[int, Any]]:
    """The examples as maps again: of numbers, or of the arrays of a nested batch.

    Raises:
        ShapeError: values that do not belong to the keys.

    >>> packed_to_maps(*maps_to_packed([{1: 0.4, 3: 0.7}, {2: 0.5}]))
    [{1: 0.4, 3: 0.7}, {2: 0.5}]
    """
    if not np.array_equal(keys.offsets, values.offsets):
        raise ShapeError("the keys and the values have different lengths; expected a value for each key")
    maps = []
    for own, entries in zip(keys.examples(), values.examples(), strict=True):
        items = entries if isinstance(entries, list) else entries.tolist()
        maps.append(dict(zip(own.tolist(), items, strict=True)))
    return maps
