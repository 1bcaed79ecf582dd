"""`SparseRows`: the gradient of a table as (ids, rows), and how repeated ids are merged (coalesced)."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from autobatch.core.abstract_eval import check_own_dtype, check_plain, dtype_of, shape_of
from autobatch.core.cotangent import SparseCotangent
from autobatch.core.formatting import SHOWN_ROWS, few_rows, html_table, public_names
from autobatch.core.op import is_boxed
from autobatch.errors import DTypeError, ShapeError, StructureError, UnsupportedError
from autobatch.kernels.rows import unique_first_seen
from autobatch.kernels.segment_reductions import segment_sum
from autobatch.kernels.sparse_gradients import group_positions
from autobatch.ops.rules.ragged_checks import as_integers, check_ids, own_ids, whole_number
from autobatch.ops.rules.row_gather import Scatter, add_rows


class Index(NamedTuple):
    """Ids grouped by value; the arrays are views of the indexer's memory, valid until its next call.

    Attributes:
        unique: (u,) the distinct ids, in the order of first occurrence.
        inverse: (n,) such that ids == unique[inverse].
        starts: (u + 1,), and positions: (n,): unique[k] is at positions[starts[k]:starts[k + 1]] of ids, ascending.
    """

    unique: np.ndarray
    inverse: np.ndarray
    starts: np.ndarray
    positions: np.ndarray


class Indexer:
    """Groups the positions of a gradient by row id, with a hash table, a histogram and its prefix sum.

    Create one for each table and pass it to every step; memory is then allocated only if a step has more ids than any
    before. Two threads must not use it at the same time.

    Args:
        capacity: the number of ids to allocate memory for now.

    Raises:
        ValueError: capacity is negative.

    >>> index = Indexer()(np.array([7, 2, 7]))
    >>> index.unique, index.starts, index.positions
    (array([7, 2]), array([0, 2, 3]), array([0, 2, 1]))
    """

    __slots__ = ("_arrays", "_slots")

    def __init__(self, capacity: int = 0) -> None:
        self._arrays = np.empty((4, 0), np.int64)
        self._slots = np.empty(0, np.int64)
        self._reserve(whole_number(capacity, "capacity"))

    @property
    def capacity(self) -> int:
        """The number of ids for which memory is allocated."""
        return max(self._arrays.shape[1] - 1, 0)

    def _reserve(self, count: int) -> None:
        if count > self.capacity or not self._arrays.size:
            self._arrays = np.empty((4, count + 1), np.int64)
            self._slots = np.empty(_slots_for(count), np.int64)

    def __call__(self, ids: Any) -> Index:
        """Group ids (n,) by value."""
        unique, inverse = self.number(ids)
        starts, positions = self._arrays[2, : len(unique) + 1], self._arrays[3, : len(inverse)]
        starts.fill(0)
        group_positions(inverse, starts, positions)
        return Index(unique, inverse, starts, positions)

    def number(self, ids: Any) -> tuple[np.ndarray, np.ndarray]:
        """Only `unique` and `inverse` of ids (n,), as in `Index`."""
        ids = as_integers(ids)
        if ids.ndim != 1:
            raise ShapeError(f"ids have shape {ids.shape}; expected one dimension")
        n = ids.shape[0]
        self._reserve(n)
        unique, inverse = self._arrays[0, :n], self._arrays[1, :n]
        slots = self._slots[: _slots_for(n)]
        slots.fill(-1)
        count = unique_first_seen(np.ascontiguousarray(ids), slots, inverse, unique)
        return unique[:count], inverse

    def __repr__(self) -> str:
        return f"Indexer(capacity={self.capacity})"


def _slots_for(count: int) -> int:
    return 1 << max(3, (2 * count).bit_length())


_ADDED = frozenset(map(np.dtype, (np.float32, np.float64, np.int32, np.int64)))


class SparseRows(SparseCotangent):
    """A sparse gradient of a table: the rows of repeated ids add up, and rows without an id are zero.

    Args:
        ids: (n,) integers, 0 <= id < num_rows; ids may repeat.
        rows: (n, *row_shape).
        num_rows: the number of rows of the table; None: a table of keys, where ids are keys (any integers).

    Ids and rows are not copied; if they are changed later, they are checked again before they are used.

    Raises:
        ShapeError: there is not one row for each id.
        BadIdError: an id is outside the table.
        DTypeError: ids are not integers, or rows are not numbers.

    >>> SparseRows([3, 0, 3], [[1.0, 2.0], [5.0, 5.0], [10.0, 20.0]], 4).coalesce()
    SparseRows(ids=[3, 0], rows=array([[11., 22.],
           [ 5.,  5.]]), num_rows=4)
    """

    __slots__ = ("_rows", "_spread", "ids", "num_rows")

    def __init__(self, ids: Any, rows: Any, num_rows: int | None) -> None:
        ids = ids if num_rows is None and getattr(ids, "dtype", None) == np.uint64 else as_integers(ids)
        check_plain(rows, "the rows")
        rows = rows if is_boxed(rows) else np.asarray(rows)
        if ids.ndim != 1 or not shape_of(rows) or shape_of(rows)[0] != ids.shape[0]:
            raise ShapeError(
                f"ids of shape {ids.shape} and rows of shape {shape_of(rows)}; expected (n,) ids and (n, ...) rows"
            )
        dtype = dtype_of(rows)
        check_own_dtype(dtype, "the rows")
        if dtype.kind not in "fciub" or (dtype.kind == "f" and dtype.itemsize > 8):
            raise DTypeError(f"rows have dtype {dtype}; expected numbers: write rows.astype(np.float32)")
        self.num_rows = None if num_rows is None else whole_number(num_rows, "num_rows")
        check_ids(ids, self.num_rows)
        self.ids = ids
        self._rows = rows
        self._spread: SpreadRows | None = None

    @classmethod
    def trusted(cls, ids: Any, rows: Any, num_rows: int | None) -> "SparseRows":
        """Construct without checks; ids and rows may be boxed (on a tape or recorded)."""
        self = object.__new__(cls)
        self.ids, self._rows, self._spread, self.num_rows = ids, rows, None, num_rows
        return self

    @classmethod
    def spread(
        cls, ids: np.ndarray, sources: np.ndarray, segments: np.ndarray, factors: Any, num_rows: int | None, dtype: Any
    ) -> "SparseRows":
        """The gradient of sums over looked-up rows: the row of ids[i] is factors[i] * sources[segments[i]].

        The rows are computed only when `rows` is read; coalescing, `add_to` and optimisers do not need them. Unchecked.

        Args:
            sources: (segments, ...) the cotangent of each sum. segments: (n,) int64. factors: (n,), or None for ones.
            dtype: the dtype of the rows; `sources` may have a wider dtype.
        """
        return cls._lazy(ids, SpreadRows(np.asarray(sources), segments, factors, np.dtype(dtype)), num_rows)

    @classmethod
    def _lazy(cls, ids: Any, spread: "SpreadRows", num_rows: int | None) -> "SparseRows":
        self = cls.trusted(ids, None, num_rows)
        self._spread = spread
        return self

    @property
    def rows(self) -> Any:
        """The row of each id, (n, ...)."""
        if (spread := self._spread) is not None:
            self.checked_ids()
            out = spread.matrix.take(spread.segments, axis=0)
            if spread.factors is not None:
                with np.errstate(all="ignore"):  # no warnings, as in the kernels that compute it from `pieces`
                    out *= spread.factors[:, None]
            self._rows = out.astype(spread.dtype, copy=False).reshape(len(self.ids), *spread.sources.shape[1:])
            self._spread = None
        return self._rows

    @rows.setter
    def rows(self, rows: Any) -> None:
        self._rows, self._spread = rows, None

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """The shape of the dense gradient, (num_rows, *row_shape); for a table of keys, num_rows reads as -1."""
        rows = self._rows if self._spread is None else self._spread.sources
        return (-1 if self.num_rows is None else self.num_rows, *shape_of(rows)[1:])

    @property
    def ndim(self) -> int:
        """The number of dimensions of the dense gradient."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype:  # type: ignore[override]
        """The dtype of the rows."""
        return dtype_of(self._rows) if self._spread is None else self._spread.dtype

    @property
    def boxed(self) -> bool:
        return is_boxed(self._rows) or is_boxed(self.ids)

    def map_arrays(self, f: Callable[[Any], Any]) -> "SparseRows":
        """New `SparseRows` with `f` applied to the ids and to the rows."""
        return SparseRows.trusted(f(self.ids), f(self.rows), self.num_rows)

    def checked_ids(self) -> np.ndarray:
        """A checked copy of the ids for kernels, since the caller may have changed ids or rows by now, or do so yet.

        Raises:
            ShapeError, BadIdError, DTypeError: as for `SparseRows`.
        """
        ids = self.ids.view(np.int64) if self._has_uint64_keys else as_integers(self.ids)
        spread = self._spread
        parts = [self._rows] if spread is None else [x for x in (spread.segments, spread.factors) if x is not None]
        if ids.ndim != 1 or any(shape_of(part)[:1] != ids.shape for part in parts):
            raise ShapeError(
                f"ids of shape {ids.shape} for rows of shape {shape_of(parts[0])}; expected (n,) ids and (n, ...) rows"
            )
        ids = np.array(ids) if self.num_rows is None else own_ids(ids, self.num_rows)
        if spread is not None:
            check_ids(spread.segments, len(spread.sources))
        return ids

    @property
    def _has_uint64_keys(self) -> bool:
        return self.num_rows is None and isinstance(self.ids, np.ndarray) and self.ids.dtype == np.uint64

    def _id_copy(self, ids: np.ndarray) -> np.ndarray:
        """A copy of the ids, uint64 if the keys are uint64 (viewed as int64 in kernels), else int64."""
        return ids.astype(np.uint64 if self._has_uint64_keys else np.int64)

    def where(self, kept: np.ndarray) -> "SparseRows":
        """Only the positions where the mask `kept`, (n,), is True."""
        if not is_boxed(kept) and (shape_of(kept) != shape_of(self.ids) or dtype_of(kept) != np.bool_):
            raise ShapeError(f"where(kept) of shape {shape_of(kept)}; expected a bool for each of {len(self.ids)} ids")
        spread = self._spread
        if spread is None:
            return SparseRows.trusted(self.ids[kept], self._rows[kept], self.num_rows)
        factors = None if spread.factors is None else spread.factors[kept]
        spread = spread._replace(segments=spread.segments[kept], factors=factors)
        return SparseRows._lazy(self.ids[kept], spread, self.num_rows)

    def pieces(self) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
        """(sources, segments, factors) for the coalescing kernels; if the rows exist, (rows (n, width), None, None)."""
        if self._spread is not None:
            return self._spread.matrix, self._spread.segments, self._spread.factors
        width = int(np.prod(self.shape[1:], dtype=np.int64))
        dtype = np.float32 if self.dtype == np.float16 else None
        return np.ascontiguousarray(self._rows, dtype).reshape(len(self.ids), width), None, None

    def coalesce(self, indexer: Indexer | None = None) -> "SparseRows":
        """Merge repeated ids: each id once, in the order of first occurrence, its rows added in their given order.

        Equal inputs give bit-equal outputs; float16 rows are added in float32.

        Args:
            indexer: working memory, which can be reused from step to step.

        Returns:
            `SparseRows` with distinct ids and the sums of their rows; itself if no id repeats.

        Raises:
            UnsupportedError: something that is not an `Indexer`.
        """
        if not isinstance(indexer, Indexer | None):
            raise UnsupportedError(f"indexer={indexer!r:.60}; expected an Indexer, or None")
        unique, inverse = (indexer or Indexer(len(self.ids))).number(self.checked_ids())
        if len(unique) == len(self.ids):
            return self
        if self.dtype.kind not in "fiu" or not self.dtype.isnative:  # dtypes without a kernel
            out = np.zeros((len(unique), *self.shape[1:]), self.dtype)
            np.add.at(out, inverse, self.rows)
            return SparseRows.trusted(self._id_copy(unique), out, self.num_rows)
        sources, segments, factors = self.pieces()
        out = np.zeros((len(unique), sources.shape[1]), sources.dtype)
        segment_sum(sources, segments, factors, inverse, out)
        rows = out.astype(self.dtype, copy=False).reshape(len(out), *self.shape[1:])
        return SparseRows.trusted(self._id_copy(unique), rows, self.num_rows)

    def add_to(self, dense: np.ndarray) -> None:
        """Add the rows into a dense array, in place.

        Args:
            dense: a writable array of the dense gradient's shape; rows are cast to its dtype ("same_kind").

        Raises:
            ShapeError: another shape, or not an array. DTypeError: the cast is not allowed. UnsupportedError: `dense`
            is read-only, or this is the gradient of a table of keys. BadIdError: an id is outside the table by now.

        >>> dense = np.zeros((3, 1))
        >>> SparseRows([2, 2], [[1.0], [5.0]], 3).add_to(dense)
        >>> dense.ravel()
        array([0., 0., 6.])
        """
        if self.num_rows is None:
            raise UnsupportedError(
                "the gradient of a table of keys does not fit an array: differentiate look-ups, bags or "
                "np.asarray(table), not look-ups and the whole table"
            )
        if not isinstance(dense, np.ndarray) or dense.shape != self.shape:
            found = f"shape {dense.shape}" if isinstance(dense, np.ndarray) else f"a {type(dense).__name__}"
            raise ShapeError(f"add_to(dense) with {found}; expected an array of shape {self.shape}")
        if not np.can_cast(self.dtype, dense.dtype, "same_kind"):
            raise DTypeError(f"rows of {self.dtype} into an array of {dense.dtype}: write dense.astype({self.dtype})")
        if not dense.flags.writeable:
            raise UnsupportedError("add_to(dense) writes in place, and dense is read-only; pass a copy")
        ids, spread = self.checked_ids(), self._spread
        if spread is not None and dense.dtype == spread.sources.dtype in _ADDED and dense.flags.c_contiguous:
            matrix = dense.reshape(len(dense), spread.width)
            segment_sum(spread.matrix, spread.segments, spread.factors, ids, matrix)
        else:
            add_rows(dense, ids, np.asarray(self.rows))

    def to_dense(self) -> Any:
        """The dense gradient of the table, (num_rows, *row_shape).

        Returns:
            An array of the rows' dtype, 0 in rows without an id.

        Raises:
            UnsupportedError: the ids are keys, so the number of rows is not known.
        """
        if self.num_rows is None:
            raise UnsupportedError(
                "the gradient of a table of keys has no dense form; .coalesce() gives each key once, with its row"
            )
        if self.boxed:
            return Scatter(np.asarray(self.ids), self.rows, self.shape, self.dtype, unique=False).to_dense()
        return super().to_dense()

    def _ab_unexpanded(self, taken: set[int]) -> "SparseRows | None":
        """A copy with sources that own their memory (not in `taken`), while rows are not computed yet; else None."""
        if self._spread is None:
            return None
        sources = self._spread.sources
        owner = sources if sources.base is None else sources.base
        if id(owner) in taken or not isinstance(owner, np.ndarray):
            owner = sources = sources.copy()
        taken.add(id(owner))
        return SparseRows._lazy(self.ids, self._spread._replace(sources=sources), self.num_rows)

    @staticmethod
    def combine(parts: Sequence["SparseRows"]) -> "SparseRows":
        given = parts if isinstance(parts, list | tuple) else [parts]
        if wrong := {type(part).__name__ for part in given if not isinstance(part, SparseRows)}:
            raise UnsupportedError(f"combine got {', '.join(sorted(wrong))}; expected a list of SparseRows")
        if not parts:
            raise ShapeError("combine got no SparseRows; expected at least one")
        ids = np.concatenate([part.ids for part in parts])
        spreads = [part._spread for part in parts if part._spread is not None]
        if len(spreads) == len(parts):
            return SparseRows._lazy(ids, SpreadRows.join(spreads), parts[0].num_rows)
        return SparseRows.trusted(ids, np.concatenate([part.rows for part in parts]), parts[0].num_rows)

    def __add__(self, other: object) -> Any:
        if isinstance(other, SparseRows):
            if self.shape != other.shape:
                raise StructureError(f"SparseRows of shape {self.shape} and {other.shape} do not add up")
            return SparseRows.combine([self, other])
        if isinstance(other, int | float) and other == 0:  # the start value of sum()
            return self
        return self.to_dense() + other

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self + -other

    def __rsub__(self, other: object) -> Any:
        return -self + other

    def __mul__(self, scalar: Any) -> "SparseRows":
        return self._scaled(lambda rows: rows * scalar, scalar)

    __rmul__ = __mul__

    def __truediv__(self, scalar: Any) -> "SparseRows":
        return self._scaled(lambda rows: rows / scalar, scalar)

    def __neg__(self) -> "SparseRows":
        return self._scaled(lambda rows: -rows)

    def _scaled(self, scale: Callable[[Any], Any], by: object = 1) -> "SparseRows":
        if shape_of(by) != ():
            raise ShapeError(f"SparseRows times an array of shape {shape_of(by)}; expected a number: write .to_dense()")
        if (spread := self._spread) is not None:
            sources = scale(spread.sources)
            if type(sources) is np.ndarray and sources.dtype == spread.sources.dtype:
                return SparseRows._lazy(self.ids, spread._replace(sources=sources), self.num_rows)
        return SparseRows.trusted(self.ids, scale(self.rows), self.num_rows)

    def __reduce__(self) -> Any:
        return SparseRows.trusted, (self.ids, self.rows, self.num_rows)

    def __array__(self, dtype: Any = None, copy: object = None) -> np.ndarray:
        raise UnsupportedError(f"SparseRows as an array of shape {self.shape}: write .to_dense() if that is meant")

    __dir__ = public_names
    _ab_own_names = "boxed checked_ids gathered map_arrays pieces spread trusted"

    __array_ufunc__ = None  # so that array + sparse and array * sparse call this class, not the elements

    def __repr__(self) -> str:
        ids = self.ids.tolist() if isinstance(self.ids, np.ndarray) and len(self.ids) <= 20 else few_rows(self.ids)
        return f"SparseRows(ids={ids}, rows={few_rows(self.rows)}, num_rows={self.num_rows})"

    def _repr_html_(self) -> str:
        """HTML for notebooks: the first rows, and the number of the others."""
        count = len(self.ids)
        if is_boxed(self.ids) or is_boxed(self.rows):
            return html_table(repr(self), (), ())
        rows = zip(map(str, self.ids[:SHOWN_ROWS].tolist()), self.rows[:SHOWN_ROWS], strict=True)
        of = "a table of keys" if self.num_rows is None else f"a table of {self.num_rows}"
        caption = f"SparseRows: {count} rows ({len(np.unique(self.ids))} different) of {of}"
        return html_table(caption, ("id", "row"), rows, count)


class SpreadRows(NamedTuple):
    """Rows that are not computed yet: row i is factors[i] * sources[segments[i]]."""

    sources: np.ndarray
    segments: np.ndarray
    factors: np.ndarray | None
    dtype: np.dtype

    @property
    def width(self) -> int:
        return int(np.prod(self.sources.shape[1:], dtype=np.int64))

    @property
    def matrix(self) -> np.ndarray:
        return np.ascontiguousarray(self.sources).reshape(len(self.sources), self.width)

    @staticmethod
    def join(parts: Sequence["SpreadRows"]) -> "SpreadRows":
        base = np.cumsum([0, *(len(part.sources) for part in parts)])
        segments = np.concatenate([part.segments + start for part, start in zip(parts, base, strict=False)])
        factors = None
        if any(part.factors is not None for part in parts):
            dtype = parts[0].sources.dtype
            ones = [np.ones(len(p.segments), dtype) if p.factors is None else p.factors for p in parts]
            factors = np.concatenate(ones)
        return SpreadRows(np.concatenate([part.sources for part in parts]), segments, factors, parts[0].dtype)


def first_seen(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(unique, inverse): the distinct ids in the order of first occurrence, and for each id its index in them."""
    unique, inverse = Indexer(len(ids)).number(ids.view(np.int64) if ids.dtype == np.uint64 else ids)
    return unique.copy().view(ids.dtype if ids.dtype == np.uint64 else np.int64), inverse
