"""Makes batches of columns of numbers, lists, records and missing values, from whichever library they come.

A reader of some format (`arrow.py`, `awkward.py`, `collate.py` beside this file) walks its own from the
leaves up and calls this for each level.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from autobatch.batches.any_batch import Batch
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.packed_batch import PackedBatch, own_offsets, ragged_rows
from autobatch.batches.packing import check_numbers
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.core.batched import Batched, Lengths
from autobatch.core.pytree import leaves, map_tree
from autobatch.errors import DTypeError, OptionError, ShapeError, StructureError, UnsupportedError
from autobatch.ops.rules.ragged_checks import offsets_from

Valid = np.ndarray | None


class Column(NamedTuple):
    """The elements of one level of the data.

    Attributes:
        tree: a batch of them, or of records a dict of batches.
        valid: (n,) bool, False where one is missing and is to be left out; None if none is.
    """

    tree: Any
    valid: Valid = None


class DataPlace(NamedTuple):
    """Where in the data a column is, for messages: its path, and the example that an element of it belongs to."""

    path: str = ""
    example_of: Callable[[int], int] = int

    def field(self, name: object) -> "DataPlace":
        """The place of a field of these records."""
        return DataPlace(f"{self.path}[{name!r}]", self.example_of)

    def items(self, offsets: np.ndarray) -> "DataPlace":
        """The `DataPlace` of the items of these lists."""
        return DataPlace(
            f"{self.path}[...]", lambda i: self.example_of(int(np.searchsorted(offsets, i, side="right")) - 1)
        )

    def runs(self, starts: np.ndarray, lengths: np.ndarray) -> "DataPlace":
        """The `DataPlace` of items of lists that lie anywhere; an item of several lists counts as the first's."""

        def example_of(i: int) -> int:
            return self.example_of(int(np.argmax((starts <= i) & (i < starts + lengths))))

        return DataPlace(f"{self.path}[...]", example_of)

    def __str__(self) -> str:
        return f" at {self.path}" if self.path else ""


class Columns:
    """Makes columns, and applies a policy for missing values.

    Args:
        nulls: "raise"; "drop", the element of a list, or the example, that is missing; or the number that stands for a
            missing number (a missing list is then empty).
    """

    def __init__(self, nulls: Any) -> None:
        if not (isinstance(nulls, int | float | complex | np.generic) or nulls in ("raise", "drop")):
            raise OptionError(f"nulls={nulls!r}; expected 'raise', 'drop', or the number that stands for a missing one")
        self.nulls = nulls

    def missing(self, valid: Valid, place: DataPlace, what: str) -> Valid:
        """The missing elements under this policy; None if there are none.

        Raises:
            ShapeError: something is, and the policy is to raise.
        """
        if valid is None or valid.all():
            return None
        if isinstance(self.nulls, str) and self.nulls == "raise":
            raise ShapeError(
                f"example {place.example_of(int(np.argmin(valid)))} has a missing {what}{place}; nulls='drop' leaves "
                "it out, nulls=0 or another number replaces it (a missing list is then empty), ab.map takes it as it is"
            )
        return valid

    def numbers(self, data: np.ndarray, valid: Valid, place: DataPlace, scalar: type | None = None) -> Column:
        """Numbers, or arrays of one shape: (n, ...) data; `scalar` where they are Python's own."""
        if not data.shape:
            raise ShapeError(f"an array without dimensions{place}; expected (number of examples, ...)")
        check_numbers(data.dtype, f"the data{place}")
        valid = self.missing(valid, place, "number")
        if valid is not None and not isinstance(self.nulls, str):
            data = self._filled(data, valid, place)
            valid = None
        return Column(MaskedBatch.of_data(data, data.shape[1:], None, scalar), valid)

    def _filled(self, data: np.ndarray, valid: np.ndarray, place: DataPlace) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            fill = np.asarray(self.nulls).astype(data.dtype)
        if data.dtype.kind in "mM" or not (fill == self.nulls or (fill != fill and self.nulls != self.nulls)):
            raise DTypeError(f"nulls={self.nulls!r} is not a value of {data.dtype}{place}; convert the column first")
        out = data.copy()
        out[~valid] = fill
        return out

    def objects(self, values: Sequence[Any], valid: Valid, place: DataPlace) -> Column:
        """Strings, or other objects that no array holds."""
        valid = self.missing(valid, place, "value")
        if valid is not None and not isinstance(self.nulls, str):
            raise DTypeError(f"nulls={self.nulls!r} is a number, but the missing value{place} is not; use nulls='drop'")
        return Column(ObjectBatch(values), valid)

    def lists(self, items: Column, offsets: np.ndarray, valid: Valid, place: DataPlace) -> Column:
        """Lists of the items between offsets: (n + 1,) integers from 0 to the number of items."""
        offsets = own_offsets(offsets, size_of(items.tree))
        valid = self.missing(valid, place, "list")
        if valid is not None and not isinstance(self.nulls, str):
            lengths = np.where(valid, np.diff(offsets), 0)
            if not np.array_equal(lengths, np.diff(offsets)):  # a missing list may point at items
                rows, offsets = ragged_rows(offsets[:-1], lengths)
                items = Column(take_examples(items.tree, rows), None if items.valid is None else items.valid[rows])
            valid = None
        if items.valid is not None:
            kept = np.flatnonzero(items.valid)
            items = Column(take_examples(items.tree, kept))
            offsets = offsets_from(np.diff(np.searchsorted(kept, offsets)))  # of the kept items
        size = Lengths(np.diff(offsets))
        return Column(map_tree(lambda leaf: _listed(leaf, offsets, size), items.tree), valid)

    def runs(self, items: Column, starts: np.ndarray, lengths: np.ndarray, valid: Valid, place: DataPlace) -> Column:
        """Lists that lie anywhere among the items, in any order."""
        lengths = lengths if valid is None else np.where(valid, lengths, 0)
        starts = np.where(lengths > 0, starts, 0)  # where an empty list points means nothing
        count = size_of(items.tree)
        outside = (lengths < 0) | (starts < 0) | (starts > count)
        if (outside | (lengths > count - starts)).any():  # a sum of the two could wrap around
            raise ShapeError(f"lists{place} that lie outside their {count} items")
        rows, offsets = ragged_rows(starts, lengths)
        if len(rows) == count and (rows == np.arange(count)).all():
            return self.lists(items, offsets, valid, place)
        taken = Column(take_examples(items.tree, rows), None if items.valid is None else items.valid[rows])
        return self.lists(taken, offsets, valid, place)

    def fixed(self, items: Column, width: int, count: int, valid: Valid, place: DataPlace) -> Column:
        """Lists of `width` items each."""
        if items.valid is None and all(map(_is_stack, leaves(items.tree))):
            valid = self.missing(valid, place, "list")
            if valid is None or isinstance(self.nulls, str):
                return Column(map_tree(lambda leaf: _fixed(leaf, width, count), items.tree), valid)
        return self.lists(items, np.arange(count + 1) * width, valid, place)

    def records(self, fields: dict[Any, Column], valid: Valid, place: DataPlace) -> Column:
        """Records with these fields; a record with a missing field is left out whole."""
        if not fields:
            raise StructureError(f"records without fields{place}, so the number of examples is not known")
        valid = self.missing(valid, place, "record")
        for column in fields.values():
            if column.valid is not None:
                valid = column.valid if valid is None else valid & column.valid
        if valid is not None and not isinstance(self.nulls, str):
            raise DTypeError(f"nulls={self.nulls!r} is a number, but a record is missing{place}; use nulls='drop'")
        return Column({name: column.tree for name, column in fields.items()}, valid)

    def optional(self, present: Column, valid: np.ndarray, place: DataPlace) -> Column:
        """Optional elements: `present` holds those that are not missing, and `valid` says where they belong."""
        if self.missing(valid, place, "value") is None:
            return present
        if not isinstance(self.nulls, str) and _is_stack(present.tree) and present.tree.ndim:
            present = Column(PackedBatch.from_masked(present.tree), present.valid)  # of which one may be empty
        column = Column(map_tree(lambda leaf: _spread(leaf, valid), present.tree), valid)
        if isinstance(self.nulls, str):
            valid = valid.copy()
            valid[valid] = True if present.valid is None else present.valid
            return Column(column.tree, valid)
        if _is_stack(column.tree):
            return self.numbers(column.tree.data, valid, place, column.tree.scalar)
        return Column(column.tree) if isinstance(column.tree, PackedBatch) else self.objects([], valid, place)

    def whole(self, column: Column) -> Any:
        """The tree of all examples, without the left-out ones."""
        return column.tree if column.valid is None else take_examples(column.tree, np.flatnonzero(column.valid))


def size_of(tree: object) -> int:
    """The number of elements of a column."""
    for leaf in leaves(tree):
        if isinstance(leaf, Batch):
            return leaf.batch_size
    raise UnsupportedError("records without fields have no values to batch")


def take_examples(tree: object, index: np.ndarray) -> Any:
    """The examples that `index` names, in that order; batches with the same lengths share them afterwards too."""
    memo: dict[Any, Any] = {}
    return map_tree(lambda leaf: leaf._take(index, memo) if isinstance(leaf, Batch) else leaf, tree)


def _is_stack(leaf: object) -> bool:
    return isinstance(leaf, MaskedBatch) and not leaf.is_ragged


def _spread(leaf: object, valid: np.ndarray) -> Any:
    """The elements of a leaf at the places that are valid; zeros, empty lists or None elsewhere."""
    if isinstance(leaf, ObjectBatch):
        values = iter(leaf.values)
        return ObjectBatch([next(values) if each else None for each in valid.tolist()])
    if isinstance(leaf, PackedBatch):
        lengths = np.zeros(len(valid), np.int64)
        lengths[valid] = leaf.lengths
        return PackedBatch.of(leaf.values, offsets_from(lengths))
    if not isinstance(leaf, MaskedBatch):
        return leaf
    data = np.zeros((len(valid), *leaf.data.shape[1:]), leaf.dtype)
    data[valid] = leaf.data
    sizes = []
    for size in leaf.sizes:
        if isinstance(size, Lengths):
            lengths = np.zeros(len(valid), np.int64)
            lengths[valid] = size.values
            size = Lengths(lengths)
        sizes.append(size)
    return MaskedBatch.of(Batched(data, sizes, leaf.scalar))


def _listed(leaf: Any, offsets: np.ndarray, size: Lengths) -> Any:
    """Items as lists: arrays where the items are numbers or arrays of one shape."""
    if _is_stack(leaf):
        return PackedBatch.of(leaf.data, offsets, size)
    if isinstance(leaf, PackedBatch):
        return PackedBatch.of(leaf, offsets, size)
    if isinstance(leaf, MaskedBatch) and not any(leaf.dims[1:]):
        return PackedBatch.of(PackedBatch.from_masked(leaf), offsets, size)
    values = leaf.examples()
    return ObjectBatch([values[a:b] for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)])


def _fixed(leaf: Any, width: int, count: int) -> Any:
    shape = (width, *leaf.data.shape[1:])
    return MaskedBatch.of(Batched(leaf.data.reshape(count, *shape), shape))
