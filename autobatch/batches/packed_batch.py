"""`PackedBatch`: the concatenated values of the examples and the offsets where each begins; no padding."""

import copy
import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from autobatch.batches.any_batch import ARRAY_SLOTS, Batch, narrowed, refusal, register_form
from autobatch.batches.array_batch import ArrayBatch, collated
from autobatch.batches.packing import as_arrays, flat_numbers
from autobatch.batches.padded_batch import MaskedBatch, as_data
from autobatch.core.abstract_eval import dtype_of, ndim_of
from autobatch.core.batched import Batched, Lengths, Packed
from autobatch.core.current_region import current_region
from autobatch.core.diagnostics import hiding_frames
from autobatch.core.formatting import ArrayLike
from autobatch.core.op import BATCH_RANK, Op, is_boxed
from autobatch.errors import DTypeError, ShapeError, UnsupportedError
from autobatch.facts.other_libraries import ARRAY, missing
from autobatch.ops.rules.aliasing import unclear_view
from autobatch.ops.rules.padding import end_to_end
from autobatch.ops.rules.ragged_checks import (
    as_ids,
    check_offsets,
    check_one_each,
    check_total,
    columns_of,
    filler_lengths,
    lengths_of,
    offsets_from,
    own_segments,
    read_csr,
)
from autobatch.ops.rules.row_gather import pad_rows


class CSR(NamedTuple):
    """A sparse matrix by rows, in SciPy's terms: `scipy.sparse.csr_matrix((data, indices, indptr), shape)`.

    Attributes:
        data: (n,) entries; repeated positions add up.
        indices: (n,) int64 column of each entry.
        indptr: (rows + 1,) int64; row i is `indptr[i]:indptr[i + 1]`.
        shape: (rows, columns).
    """

    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray
    shape: tuple[int, int]

    def to_dense(self) -> np.ndarray:
        """The matrix as an array."""
        out = np.zeros(self.shape, self.data.dtype)
        np.add.at(out, (np.repeat(np.arange(self.shape[0]), np.diff(self.indptr)), self.indices), self.data)
        return out


@register_form("packed")
class PackedBatch(Packed, ArrayBatch):
    """A batch of examples whose first dimension varies, without padding.

    Args:
        values: (N, ...) array, the concatenated values of the examples; or a `PackedBatch` of N, for nested examples:
            each is a list of examples of that batch.
        offsets: (B + 1,) integers from 0 to N, non-decreasing; example i is `values[offsets[i]:offsets[i + 1]]`.

    Raises:
        ShapeError: offsets that do not describe the values. DTypeError: offsets that are not integers.

    Element-wise operations, products with a shared matrix, look-ups and bags of ids run on the packed values; other
    operations go through `to_masked()`. Operators and attributes mean what they mean for one example, as for a
    `MaskedBatch`: `x[0]` is element 0 of each example, `x.example(0)` the first example.

    >>> x = PackedBatch([1, 2, 3, 4], offsets=[0, 3, 4])
    >>> (x * 10).examples()
    [array([10, 20, 30]), array([40])]
    """

    __slots__ = (*ARRAY_SLOTS, "_pending", "_size", "_values")
    _ab_rank = BATCH_RANK

    @hiding_frames
    def __init__(self, values: ArrayLike, offsets: ArrayLike | None = None) -> None:
        if offsets is None:
            raise TypeError("PackedBatch takes values and offsets; for examples write PackedBatch.from_examples(list)")
        if isinstance(values, Batch) and not isinstance(values, PackedBatch):
            raise UnsupportedError("the values of a PackedBatch are an array or a PackedBatch, not a padded batch")
        rows = as_rows(values)
        self._set(rows, own_offsets(offsets, _count(rows)))

    def _set(self, values: Any, offsets: np.ndarray, size: Lengths | None = None) -> None:
        self._values, self.offsets, self._size, self.region = values, offsets, size, current_region()
        self._pending: Any = None

    def _set_values(self, values: Any) -> None:
        self._values, self._pending = values, None

    # The examples' values one after the other, read without a call of Python: pending ones leave their slot unset.
    values = property(operator.attrgetter("_values"), _set_values)

    @property
    def _kind(self) -> Any:  # has the dimensions and the dtype of the values
        return self._values if self._pending is None else self._pending

    @classmethod
    def of(cls, values: Any, offsets: np.ndarray, size: Lengths | None = None) -> "PackedBatch":
        """A batch in the current region, without checks of the offsets."""
        self = object.__new__(cls)
        self._set(values, offsets, size)
        return self

    @classmethod
    def pending(cls, rows: Any, offsets: np.ndarray, size: Lengths | None = None) -> "PackedBatch":
        """A batch whose values are computed when they are first needed.

        Args:
            rows: has the values' `shape`, `ndim`, `dtype`. `force()` computes them; `reduced(op, params, offsets)`
                reduces each example without computing them, or returns None.
        """
        self = cls.of(None, offsets, size)
        del self._values
        self._pending = rows
        return self

    @classmethod
    @hiding_frames
    def from_examples(cls, examples: Sequence[Any], depth: int = 1) -> "PackedBatch":
        """Pack examples that differ in their first dimension only.

        Args:
            examples: B arrays (n, ...) of one dtype, or nested lists of numbers; or any other data that `ab.collate`
                takes.
            depth: 2: each example is itself a list of such arrays, 3: a list of lists of them; packed level by level.

        Returns:
            A batch of B examples, of their dtype.

        Raises:
            ShapeError, DTypeError: as `MaskedBatch.from_examples`; and trailing dimensions that differ.

        >>> PackedBatch.from_examples([[1, 2, 3], [4]]).offsets
        array([0, 3, 4])
        """
        if not isinstance(examples, list | tuple):
            out = collated(examples)
            if isinstance(out, PackedBatch):
                return out
            return cls.from_masked(out) if isinstance(out, MaskedBatch) else cls.from_examples(out.examples())
        if depth > 1:
            inner = cls.from_examples([item for example in examples for item in example], depth - 1)
            return cls.from_lengths(inner, [len(example) for example in examples])
        numbers = flat_numbers(examples)
        if numbers is not None and numbers[0].size:
            return cls.of(numbers[0], offsets_from(numbers[1]))
        arrays = as_arrays(examples)
        for i, x in enumerate(arrays):
            if x.ndim == 0:
                raise ShapeError(f"example {i} has no dimensions; expected at least one, the one that varies")
            if x.shape[1:] != arrays[0].shape[1:]:
                raise ShapeError(
                    f"example {i} has shape {x.shape}, example 0 {arrays[0].shape}; "
                    "only the first dimension of a PackedBatch varies: use MaskedBatch.from_examples"
                )
        return cls.from_lengths(end_to_end(arrays), [x.shape[0] for x in arrays])

    @classmethod
    @hiding_frames
    def from_lengths(cls, values: ArrayLike, lengths: ArrayLike) -> "PackedBatch":
        """From the concatenated values and the length of each example.

        Args:
            values: (N, ...), the concatenated values of the examples; or a batch of N.
            lengths: (B,) integers that add up to N.

        Returns:
            A batch of B examples.

        Raises:
            ShapeError: a negative length, or lengths that do not add up. DTypeError: lengths that are not integers.

        >>> PackedBatch.from_lengths([5, 6, 7], [1, 2]).offsets
        array([0, 1, 3])
        """
        rows, found = as_rows(values), lengths_of(lengths)
        check_total(found, _count(rows))
        return cls(rows, offsets_from(found))

    @classmethod
    def from_segment_ids(cls, values: ArrayLike, ids: ArrayLike, num_segments: int | None = None) -> "PackedBatch":
        """From the values and the example that each belongs to, sorted or not; the order within an example is kept.

        Args:
            values: (N, ...) array; or a batch of N.
            ids: (N,) integers, the example of each value.
            num_segments: the number of examples, B; by default the largest id plus one.

        Returns:
            A batch of B examples.

        Raises:
            BadIdError: an id that is negative or not below `num_segments`.
            ShapeError: not one id for each value. DTypeError: ids that are not integers.

        >>> PackedBatch.from_segment_ids([4, 1, 3], [1, 0, 1]).examples()
        [array([1]), array([4, 3])]
        """
        rows, (found, count) = as_rows(values), own_segments(ids, num_segments)
        lengths = np.bincount(found, minlength=count)
        check_one_each(found, _count(rows))
        return cls.from_lengths(_rows(rows, np.argsort(found, kind="stable")), lengths)

    @classmethod
    def from_padded(
        cls, padded: ArrayLike, *, filler: object = None, lengths: ArrayLike | None = None
    ) -> "PackedBatch":
        """From padded data, and either the lengths or the value that fills the padding.

        Args:
            padded: (B, T, ...) array.
            filler: the number that fills the padding after the values of each example.
            lengths: in place of `filler`: (B,) integers, the length of each example.

        Returns:
            A batch of B examples.

        Raises:
            ShapeError: neither or both are given, or a filler stands before a value.

        >>> PackedBatch.from_padded([[1, 2], [3, -1]], filler=-1).examples()
        [array([1, 2]), array([3])]
        """
        data = as_rows(padded)
        if data.ndim < 2:
            raise ShapeError(f"padded data of shape {data.shape}; expected (batch size, longest, ...)")
        if (filler is None) == (lengths is None):
            raise ShapeError("give either filler= or lengths=, to say what is padding")
        if lengths is None:
            lengths = filler_lengths(np.asarray(data), filler)
        return cls.from_masked(MaskedBatch(data, lengths=lengths_of(lengths)))

    @classmethod
    def from_masked(cls, masked: MaskedBatch) -> "PackedBatch":
        """From a padded batch whose examples vary in no dimension but the first.

        Args:
            masked: a batch of B examples.

        Returns:
            The same examples without padding.

        Raises:
            ShapeError: the examples have no dimensions, or another dimension varies.
            UnsupportedError: something that is not a `MaskedBatch`.
        """
        if not isinstance(masked, MaskedBatch):
            given = type(masked).__name__
            raise UnsupportedError(f"from_masked got {given}; expected a MaskedBatch: for arrays write from_examples")
        if not masked.sizes or any(masked.dims[1:]):
            raise ShapeError(f"a batch with dims={masked.dims}; only the first dimension of a PackedBatch varies")
        size = masked.sizes[0]
        if not isinstance(size, Lengths):
            size = Lengths(np.full(masked.batch_size, size))
        offsets = offsets_from(size.values)
        return cls.of(pack_rows(masked.data, size), offsets, size)

    @classmethod
    def from_sparse(cls, matrix: object, weights: bool = False) -> Any:
        """From a sparse matrix with one row per example: the ids of an example are the columns of its entries.

        Args:
            matrix: a CSR matrix (anything with `data`, `indices`, `indptr`), that triple, or a dense array.
            weights: also return the entries, as a second batch with the same offsets. Without it every entry must be
                a count; an id with entry 2 occurs twice, with 0 not at all.

        Returns:
            A batch of the int64 ids of each row; with `weights` a pair of batches, the ids and the entries.

        Raises:
            DTypeError: entries that are not counts, without `weights`.

        >>> PackedBatch.from_sparse([[0, 1, 1], [1, 0, 0]]).examples()
        [array([1, 2]), array([0])]
        """
        data, indices, indptr = read_csr(matrix)
        if weights:
            ids = cls(indices, indptr)
            return ids, cls.of(data, ids.offsets)
        return cls.from_segment_ids(*counted(data, indices, indptr), len(indptr) - 1)

    def to_masked(self) -> MaskedBatch:
        """The same examples, padded with zeros.

        Returns:
            A `MaskedBatch` whose first dimension varies.

        Raises:
            UnsupportedError: the batch is nested.
        """
        if isinstance(self.values, PackedBatch):
            raise UnsupportedError(
                "the examples are lists of arrays of different lengths, which one padded array cannot hold; "
                "use .values (all inner lists as one batch), .to_padded(filler), or ab.Examples(batch)[:8] for a few"
            )
        data, sizes = pad_rows(self.values, self.size_of_first), (self.size_of_first, *self.values.shape[1:])
        return MaskedBatch.in_region(Batched(data, sizes), self.region)

    def to_padded(self, filler: object = 0) -> Any:
        """The examples in one array, padded to the longest; those of a nested batch at each level.

        Args:
            filler: a number of the values' dtype, which fills the padding.

        Returns:
            (B, longest, ...) array of the values' dtype.

        Raises:
            DTypeError: the dtype has no such number.
        """
        values = self.values
        values = values.to_padded(filler) if isinstance(values, PackedBatch) else values
        if np.asarray(filler).astype(values.dtype) != filler and filler == filler:
            raise DTypeError(f"filler {filler!r} is not a value of {values.dtype}")
        return pad_rows(values, self.size_of_first, filler)

    def to_sparse(self, num_columns: int | None = None, weights: Any = None) -> CSR:
        """The matrix with a row per example and an entry in the column of each of its ids.

        Args:
            num_columns: by default the largest id plus one.
            weights: the entries, a `PackedBatch` with the same offsets; by default 1.

        Returns:
            A `CSR` matrix of (B, num_columns).

        Raises:
            DTypeError, BadIdError: values that are not ids of a column. ShapeError: weights of other lengths.
        """
        ids, bound = columns_of(self.values, num_columns)
        if weights is not None:
            _check_packed("weights", weights)
            if not np.array_equal(weights.offsets, self.offsets):
                raise ShapeError("the weights and the ids have different lengths")
        entries = np.ones(len(ids), np.int64) if weights is None else weights.values
        return CSR(entries, ids, self.offsets, (self.batch_size, bound))

    @property
    def size_of_first(self) -> Lengths:
        """The lengths of the first dimension, one object for all batches that share these offsets."""
        self._size = Lengths(np.diff(self.offsets)) if self._size is None else self._size
        return self._size

    @property
    def lengths(self) -> np.ndarray:
        """(B,) int64, the number of values of each example."""
        return self.size_of_first.values

    @property
    def segment_ids(self) -> np.ndarray:
        """(N,) int64, the example that each value belongs to."""
        return np.repeat(np.arange(self.batch_size), self.lengths)

    def examples(self) -> list[Any]:
        values = self.values
        if isinstance(values, PackedBatch):
            return super().examples()
        return [values[start:stop] for start, stop in itertools.pairwise(self.offsets.tolist())]

    def _lane(self, index: int) -> Any:
        start, stop = int(self.offsets[index]), int(self.offsets[index + 1])
        values = self.values
        return [values._lane(i) for i in range(start, stop)] if isinstance(values, PackedBatch) else values[start:stop]

    def _take(self, index: Any, memo: dict[Any, Any]) -> "PackedBatch":
        known = memo.get(("rows", id(self.offsets)))  # the entry keeps the offsets alive, so their id stays theirs
        if known is None:
            rows, offsets = rows_of(self.offsets, index)
            known = memo["rows", id(self.offsets)] = (rows, offsets, Lengths(np.diff(offsets)), self.offsets)
        rows, offsets, size, _ = known
        return PackedBatch.of(_rows(self.values, rows), offsets, size)

    def _prefix(self, count: int, memo: dict[Any, Any]) -> "PackedBatch":
        offsets = self.offsets[: count + 1]
        values, stop = self.values, int(offsets[-1])
        return PackedBatch.of(values._prefix(stop, memo) if isinstance(values, PackedBatch) else values[:stop], offsets)

    @property
    def ndim(self) -> int:
        """The number of dimensions of an example; each level of nested lists counts as one."""
        return self._kind.ndim + (1 if isinstance(self._kind, PackedBatch) else 0)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of every example."""
        return self._kind.dtype

    @property  # type: ignore[misc]  # an array's can be written
    def shape(self) -> tuple[Any, ...]:
        """The example's shape; the first entry is a batch of one int per example."""
        if isinstance(self._kind, PackedBatch):
            raise UnsupportedError("an example of a nested PackedBatch is a list of arrays and has no shape")
        first = MaskedBatch.in_region(Batched(self.lengths, (), int), self.region)
        return (first, *self._kind.shape[1:])

    def _on_values(self, op: Op, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """Run an op on the concatenated values as if they were one example; None if the op needs them separate."""
        rows = self._pending if len(args) == 1 else None
        if rows is not None and (out := rows.reduced(op, params, self.offsets)) is not None:
            return MaskedBatch.of(Batched(out, out.shape[1:]))
        operands = _operands_on_values(op, args, self)
        if operands is None:
            return None
        try:
            return PackedBatch.of(op(*operands, **params), self.offsets, self._size)
        except IndexError:
            if op.kind != "lookup":
                raise
            return None  # an id not in the table: the padded batch's error names the example and the position in it

    def _ab_rebind(self, new: Any) -> None:
        """Replace this batch's value by `new`, a packed or padded batch or an array: the effect of a write in place."""
        if not isinstance(new, Batch):
            new = MaskedBatch.of(Batched(np.broadcast_to(new, (self.batch_size, *new.shape)), new.shape))
        if new.region is not self.region:
            raise refusal("a packed batch that several examples share is written for some of them")
        packed = new if isinstance(new, PackedBatch) else PackedBatch.from_masked(new)
        self.values, self.offsets, self._size = packed.values, packed.offsets, packed._size

    @hiding_frames
    def __len__(self) -> int:
        raise self._no_len()

    @hiding_frames
    def __iter__(self) -> Iterator[Any]:
        if current_region() is not None and not isinstance(self.values, PackedBatch):
            return (unclear_view(row, self) for row in narrowed(self).to_masked())
        raise self._no_iteration()

    def __reduce__(self) -> Any:
        return PackedBatch, (self.values, np.array(self.offsets))

    def __copy__(self) -> "PackedBatch":
        make, held = (PackedBatch.of, self._values) if self._pending is None else (PackedBatch.pending, self._pending)
        return make(held, self.offsets, self._size)

    def __deepcopy__(self, memo: Any) -> "PackedBatch":
        return PackedBatch.of(copy.deepcopy(self.values, memo), self.offsets, self._size)

    if not TYPE_CHECKING:  # else each attribute would have the type Any

        @hiding_frames
        def __getattr__(self, name: str) -> Any:
            if name == "_values" and self._pending is not None:
                self.values = self._pending.force()
                return self._values
            raise missing("'PackedBatch' object", name, ARRAY)

    def __repr__(self) -> str:
        of = "lists" if isinstance(self.values, PackedBatch) else str(dtype_of(self.values))
        return f"PackedBatch(batch_size={self.batch_size}, of={of}{self._shown(np.diff(self.offsets))})"


def _check_packed(name: str, given: object) -> None:
    if not isinstance(given, PackedBatch):
        raise DTypeError(
            f"{name} are a {type(given).__name__}; expected a PackedBatch, whose offsets are checked: write "
            f"ab.PackedBatch({name}.values, {name}.offsets)"
        )


def as_rows(values: object) -> Any:
    """The values as an array or a batch; values with a gradient keep it."""
    return as_data(values, "the array of values", "PackedBatch")


def _count(values: Any) -> int:
    if isinstance(values, PackedBatch):
        return values.batch_size
    if values.ndim == 0:
        raise ShapeError("values of shape (); expected (number of values, ...)")
    return values.shape[0]


def _rows(values: Any, index: np.ndarray) -> Any:
    return values._take(index, {}) if isinstance(values, PackedBatch) else values[index]


def _operands_on_values(op: Op, args: Sequence[Any], first: PackedBatch) -> list[Any] | None:
    """The op's operands for `_on_values`; None if the op cannot run on concatenated values."""
    if op.kind == "elementwise":
        rank = max(arg.ndim for arg in args if isinstance(arg, PackedBatch))
        operands = [_against_values(arg, rank, first) for arg in args]
        return None if any(x is None for x in operands) else operands
    if op.name == "lookup" and args[1] is first and first.ndim == 1 and not isinstance(args[0], Batch):
        return [args[0], first.values]
    if op.name == "matmul" and args[0] is first and not isinstance(args[1], Batch):
        nested = isinstance(first.values, PackedBatch)
        return [first.values, args[1]] if not nested and first.ndim >= 2 and ndim_of(args[1]) <= 2 else None
    return None


def _against_values(arg: object, rank: int, first: PackedBatch) -> Any:
    """An operand of an element-wise op aligned with the values; None if it depends on the examples' lengths."""
    if isinstance(arg, PackedBatch):
        agrees = arg.offsets is first.offsets or np.array_equal(arg.offsets, first.offsets)
        return arg.values if agrees and arg.ndim == rank else None
    if not isinstance(arg, Batch):
        return arg if ndim_of(arg) < rank else None
    if not isinstance(arg, MaskedBatch) or arg.scalar is not None or arg.is_ragged or arg.ndim >= rank:
        return None
    if isinstance(first.values, PackedBatch):
        return None
    shape = arg.data.shape
    return arg.data.reshape((shape[0],) + (1,) * (rank - 1 - arg.ndim) + shape[1:])[first.segment_ids]


def own_offsets(offsets: ArrayLike, count: int) -> np.ndarray:
    """(B + 1,) int64 offsets into `count` values, checked, as a read-only copy."""
    out = check_offsets(offsets, count)
    out.flags.writeable = False
    return out


def rows_of(offsets: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers of the examples `index`, in that order, and the offsets of those examples among them."""
    starts = offsets[:-1][index]
    return ragged_rows(starts, offsets[1:][index] - starts)


def ragged_rows(starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers of consecutive runs, given their starts and lengths, and the offsets of the runs among them.

    >>> ragged_rows(np.array([5, 0]), np.array([2, 1]))
    (array([5, 6, 0]), array([0, 2, 3]))
    """
    offsets = offsets_from(lengths)
    return np.arange(int(offsets[-1])) + np.repeat(starts - offsets[:-1], lengths), offsets


def pack_rows(data: Any, lengths: Lengths) -> Any:
    """The (N, ...) rows inside the examples of padded (B, T, ...) data, concatenated."""
    mask = lengths.mask(data.shape[1])
    if not is_boxed(data):
        return data[mask]
    flat = data.reshape((data.shape[0] * data.shape[1], *data.shape[2:]))
    return flat[np.flatnonzero(mask)]


def counted(data: np.ndarray, indices: np.ndarray, indptr: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each column index repeated by its entry, a count, and the row of each; DTypeError for entries not counts."""
    counts = data.astype(np.int64)
    if (counts != data).any() or (counts < 0).any():
        raise DTypeError("the entries are not counts; weights=True returns them as a second batch")
    rows = np.repeat(np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)), counts)
    return np.repeat(indices, counts), rows


def maps_to_packed(examples: Sequence[Mapping[int, Any]]) -> tuple[PackedBatch, PackedBatch]:
    """The keys and the values of examples that are dicts, in the dicts' order.

    Args:
        examples: {id: score}, every value a number; or {feature: ids}, every value a list or array of one dimension.

    Returns:
        (keys, values): of scores two batches with the same offsets; of lists `values` is nested, an example of it a
        list of arrays, with the same offsets at its outer level.

    Raises:
        DTypeError: an example that is not a dict, keys that are not integers. ShapeError: lists beside numbers.

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
    keys = PackedBatch.from_lengths(as_ids([key for example in examples for key in example], "keys"), lengths)
    nested = bool(entries) and entries[0].ndim > 0
    for i, example in enumerate(examples):
        for key, value in example.items():
            if np.ndim(value) != int(nested):
                given = "a list" if np.ndim(value) else "a number"
                raise ShapeError(f"example {i} has {given} under key {key}; expected all numbers, or all lists")
    if nested:
        whole = np.concatenate(entries)
        if not whole.size:
            whole = whole.astype(np.int64)
        inner = PackedBatch.from_lengths(whole, [len(entry) for entry in entries])
        return keys, PackedBatch(inner, np.array(keys.offsets))
    return keys, PackedBatch(np.array(entries), np.array(keys.offsets))


def packed_to_maps(keys: PackedBatch, values: PackedBatch) -> list[dict[int, Any]]:
    """The examples as maps again: of numbers, or of the arrays of a nested batch.

    Args:
        keys: int64, the keys of each example.
        values: with the same offsets, a number or an array for each key.

    Returns:
        A dict for each example.

    Raises:
        ShapeError: values that do not belong to the keys.

    >>> packed_to_maps(*maps_to_packed([{1: 0.4, 3: 0.7}, {2: 0.5}]))
    [{1: 0.4, 3: 0.7}, {2: 0.5}]
    """
    _check_packed("keys", keys)
    _check_packed("values", values)
    if not np.array_equal(keys.offsets, values.offsets):
        raise ShapeError("the keys and the values have different lengths; expected a value for each key")
    maps = []
    for own, entries in zip(keys.examples(), values.examples(), strict=True):
        items = entries if isinstance(entries, list) else entries.tolist()
        maps.append(dict(zip(own.tolist(), items, strict=True)))
    return maps
