"""Columns turn a call's batched arguments into one list of per-example values per batch, and results into batches."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.batches.any_batch import Batch
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.packed_batch import PackedBatch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.batches.stacking import lanes_of, stack_results
from autobatch.core.batched import Batched, Lengths
from autobatch.core.memory import write_all
from autobatch.core.pytree import PLAIN, children_of, flatten, is_node, leaf_def, leaves_of_kind, node_def, unflatten
from autobatch.lockstep.lanes.region import concatenate_lanes, stackable
from autobatch.program.purity import may_change


class ExampleColumns:
    """The arguments of a call on batches: one column of per-example values for each batch, and the shared arguments.

    As in lock-step, the function's writes into its arguments reach the batches. An example's array cut from a padded
    one is copied to be contiguous, as it would be alone; `giving_back` writes the copy back into the batch.
    `known` are all batches in the arguments, if the caller has looked for them: containers are then not searched again.

    Attributes:
        batches: the distinct batches among the arguments; shared: the others, by str(position) or name.
    """

    __slots__ = ("_copies", "_function", "_is_flat", "_mixed", "_takes", "batches", "shared")

    def __init__(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any], known: Any = None) -> None:
        self._function, self._is_flat = function, True
        self._copies: list[tuple[np.ndarray, np.ndarray]] = []
        self._takes: list[tuple[Any, int | None]] = []  # per argument: position or name; column or None
        self._mixed: set[str] = set()  # the keys of `shared` whose containers hold batches
        self.batches: list[Any] = []
        self.shared: dict[str, Any] = {}
        is_known = known is not None and len(known) == sum(map(isinstance, args, itertools.repeat(Batch)))
        for key, arg in (*enumerate(args), *kwargs.items()) if kwargs else enumerate(args):
            if isinstance(arg, Batch):
                self._takes.append((key, self._column(arg)))
                self._is_flat = self._is_flat and type(key) is int
                continue
            self._takes.append((key, None))
            other = arg if is_known or not is_node(arg) else map_batches(lambda leaf: _Slot(self._column(leaf)), arg)
            if other is not arg:
                self._is_flat = False
                self._mixed.add(str(key))
            self.shared[str(key)] = other

    def _column(self, batch: Any) -> int:
        for column, each in enumerate(self.batches):
            if each is batch:
                return column
        self.batches.append(batch)
        return len(self.batches) - 1

    def values(self, start: int = 0, stop: int | None = None) -> list[list[Any]]:
        """The values of examples `start:stop`, one list for each batch."""
        whole = start == 0 and stop is None
        columns = []
        for batch in self.batches:
            column = (batch if whole else lanes_between(batch, start, stop)).examples()
            if column and type(column[0]) is np.ndarray and column[0].ndim > 1:
                column = [value if value.flags.c_contiguous else self._without_gaps(value) for value in column]
            columns.append(column)
        return columns

    def _without_gaps(self, value: np.ndarray) -> np.ndarray:
        out = np.ascontiguousarray(value)
        if value.flags.writeable:
            self._copies.append((value, out))
        else:
            out.flags.writeable = False
        return out

    def giving_back(self, call: Callable[..., Any], *args: Any) -> Any:
        """Run `call`; then, however it ended, write the copies back if the function may have changed them."""
        try:
            try:
                return call(*args)
            finally:
                self._give_back()
        finally:  # again, where an interrupt came in between
            self._give_back()

    def _give_back(self) -> None:
        if self._copies and may_change([self._function], []):
            write_all(iter([(value, ..., copy) for value, copy in self._copies]))
        self._copies = []

    def in_order(self, columns: list[list[Any]]) -> tuple[list[Any], dict[str, Any]] | None:
        """(one iterable of per-example values for each positional argument, the shared keyword arguments).

        None if a batch is passed by keyword or inside a container; `arguments_of` handles those.
        """
        if not self._is_flat:
            return None
        count = len(columns[0])
        positional = [
            itertools.repeat(self.shared[str(key)], count) if at is None else columns[at]
            for key, at in self._takes
            if type(key) is int
        ]
        return positional, {key: self.shared[key] for key, _ in self._takes[len(positional) :]}

    def arguments_of(self, values: Sequence[Any], given: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """One example's (args, kwargs). `values`: its value of each column; `given`: `shared`, possibly transformed."""
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for key, column in self._takes:
            if column is not None:
                arg = values[column]
            else:
                arg = given[name := f"{key}"]
                if name in self._mixed:
                    arg = map_leaves(_Slot, lambda at: values[at.column], arg)
            if isinstance(key, int):
                positional.append(arg)
            else:
                named[key] = arg
        return positional, named


@dataclasses.dataclass(slots=True, eq=False)
class _Slot:
    """Placeholder for a batch inside a shared container argument; `column` is the batch's column."""

    column: int


def map_batches(change: Callable[[Any], Any], tree: Any) -> Any:
    """Replace each batch in a tree by `change(batch)`; subtrees without a batch stay the same objects."""
    return map_leaves(Batch, change, tree)


def map_leaves(cls: Any, change: Callable[[Any], Any], tree: Any) -> Any:
    """Replace each leaf of type `kind` by `change(leaf)`; subtrees without one stay the same objects."""
    if isinstance(tree, cls):
        return change(tree)
    if not is_node(tree) or not leaves_of_kind(tree, cls):
        return tree
    keys, children = children_of(tree)
    one_level = dataclasses.replace(node_def(tree, keys, (leaf_def,) * len(keys)), kind=type(tree))
    return unflatten(
        one_level, [child if type(child) in PLAIN else map_leaves(cls, change, child) for child in children]
    )


def lanes_between(batch: Any, start: int, stop: int | None) -> Any:
    """Lanes `start:stop` of a batch outside any lock-step call; arrays are views of the batch's."""
    if isinstance(batch, MaskedBatch):
        sizes = tuple(Lengths(n.values[start:stop]) if isinstance(n, Lengths) else n for n in batch.sizes)
        return MaskedBatch.in_region(Batched(batch.data[start:stop], sizes, batch.scalar), None)
    if isinstance(batch, PackedBatch):
        offsets = batch.offsets[start : None if stop is None else stop + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        values = batch.values
        values = lanes_between(values, first, last) if isinstance(values, PackedBatch) else values[first:last]
        return PackedBatch.of(values, offsets - first)
    return ObjectBatch(batch.examples()[start:stop])


def join(pieces: Sequence[Any], counts: Sequence[int]) -> Any:
    """Join results of calls on consecutive parts of batches (`counts` examples each), before `normalised` is called."""
    flat = [flatten(piece) for piece in pieces]
    if all(structure == flat[0][1] for _, structure in flat[1:]):
        columns = list(zip(*(values for values, _ in flat), strict=True))
        if columns and all(_is_alike(column) for column in columns):
            leaves_ = [concatenate_lanes(column) if isinstance(column[0], Batch) else column[0] for column in columns]
            return unflatten(flat[0][1], leaves_)
    lanes = [lane for piece, count in zip(pieces, counts, strict=True) for lane in lanes_of(piece, count)]
    return stack_results(lanes)


def _is_alike(column: Sequence[Any]) -> bool:
    first = column[0]
    if isinstance(first, Batch):
        return stackable(column)
    return not isinstance(first, np.ndarray) and all(each is first for each in column)
