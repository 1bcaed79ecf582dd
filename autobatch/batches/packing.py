"""Packed data: offsets checked and made from lengths or segment ids; padded and sparse forms taken apart."""

from typing import Any, NamedTuple

import numpy as np

from autobatch.core.abstract_eval import shape_of
from autobatch.core.batched import Lengths
from autobatch.core.op import is_boxed
from autobatch.errors import BadIdError, DTypeError, ShapeError

__all__ = [
    "CSR",
    "as_columns",
    "as_integers",
    "check_offsets",
    "counted",
    "offsets_of",
    "pack_rows",
    "pad_rows",
    "read_csr",
    "rows_of",
    "segment_order",
    "valid_lengths",
]


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


def as_integers(values: Any, what: str) -> np.ndarray:
    """A one-dimensional array of integers, as int64.

    Raises:
        DTypeError: no integers. ShapeError: not one dimension.
    """
    out = np.asarray(values)
    if out.size == 0 and out.dtype == np.float64:
        out = out.astype(np.int64)
    if out.dtype.kind not in "iu":
        raise DTypeError(f"{what} are {out.dtype}; expected integers")
    if out.ndim != 1:
        raise ShapeError(f"{what} of shape {out.shape}; expected one dimension")
    if out.dtype == np.uint64 and out.size and out.max() > np.iinfo(np.int64).max:
        raise ShapeError(f"{what} reach {out.max()}; expected at most {np.iinfo(np.int64).max}")
    return out.astype(np.int64)


def check_offsets(offsets: Any, count: int) -> np.ndarray:
    """(B + 1,) int64 offsets into `count` values: first 0, non-decreasing, last `count`."""
    out = as_integers(offsets, "offsets")
    if not len(out):
        raise ShapeError("offsets are empty; expected one more than there are examples, starting with 0")
    if out[0] != 0:
        raise ShapeError(f"offsets start with {out[0]}; expected 0")
    steps = np.diff(out)
    if (steps < 0).any():
        lane = int(np.argmax(steps < 0))
        raise ShapeError(f"offsets decrease, from {out[lane]} to {out[lane + 1]}, at example {lane}")
    if out[-1] != count:
        raise ShapeError(
            f"the last offset is {out[-1]}, but there are {count} values; expected equal "
            "(with offsets of starts only, append the number of values)"
        )
    out.flags.writeable = False
    return out


def offsets_of(lengths: Any, count: int) -> np.ndarray:
    """Offsets from the number of values of each example, which must add up to `count`."""
    out = as_integers(lengths, "lengths")
    if (out < 0).any():
        lane = int(np.argmax(out < 0))
        raise ShapeError(f"length {out[lane]} of example {lane} is negative")
    total = int(out.sum())
    if total != count:
        raise ShapeError(f"the lengths add up to {total}, but there are {count} values")
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(out)])


def segment_order(ids: Any, count: int, num_segments: int | None) -> tuple[np.ndarray | None, np.ndarray]:
    """How values sort by segment id (None: they are sorted), stably, and the length of each segment.

    Raises:
        ShapeError: not one id per value. BadIdError: an id that is negative or not below `num_segments`.
    """
    out = as_integers(ids, "segment ids")
    if len(out) != count:
        raise ShapeError(f"{len(out)} segment ids for {count} values; expected one id for each value")
    bound = int(out.max(initial=-1)) + 1 if num_segments is None else num_segments
    wrong = (out < 0) | (out >= bound)
    if wrong.any():
        position = int(np.argmax(wrong))
        raise BadIdError(f"segment id {out[position]} at position {position} is not in 0..{bound - 1}")
    lengths = np.bincount(out, minlength=bound)
    if (out[1:] >= out[:-1]).all():
        return None, lengths
    return np.argsort(out, kind="stable"), lengths


def rows_of(offsets: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows of the examples named by `index`, in that order, and their offsets."""
    lengths = np.diff(offsets)[index]
    ends = np.cumsum(lengths)
    rows = np.arange(int(lengths.sum())) + np.repeat(offsets[:-1][index] - (ends - lengths), lengths)
    return rows, np.concatenate([np.zeros(1, np.int64), ends])


def pad_rows(values: Any, lengths: Lengths, filler: Any = 0) -> Any:
    """(B, longest, ...) from packed rows; padding is `filler`. By one gather where the values carry gradients."""
    mask = lengths.mask(lengths.max())
    shape = shape_of(values)[1:]
    if not is_boxed(values):
        out = np.full((*mask.shape, *shape), filler, values.dtype)
        out[mask] = values
        return out
    rows = np.concatenate([values, np.full((1, *shape), filler, values.dtype)])
    index = np.full(mask.shape, shape_of(values)[0])
    index[mask] = np.arange(shape_of(values)[0])
    return rows[index]


def pack_rows(data: Any, lengths: Lengths) -> Any:
    """The rows inside the examples of (B, T, ...) data, one example after the other."""
    mask = lengths.mask(data.shape[1])
    if not is_boxed(data):
        return data[mask]
    flat = data.reshape((data.shape[0] * data.shape[1], *data.shape[2:]))
    return flat[np.flatnonzero(mask)]


def valid_lengths(padded: np.ndarray, filler: Any) -> np.ndarray:
    """The length of each example of (B, T, ...) data in which rows full of `filler` are padding.

    Raises:
        ShapeError: a filler before a value: padding must come last.
    """
    is_filler = padded != padded if filler != filler else padded == filler
    valid = ~is_filler.all(axis=tuple(range(2, padded.ndim)))
    lengths = valid.sum(axis=1)
    wrong = (valid != (np.arange(padded.shape[1]) < lengths[:, None])).any(axis=1)
    if wrong.any():
        raise ShapeError(
            f"example {int(np.argmax(wrong))} has the filler {filler!r} before a value; "
            "padding must come last, or give lengths= instead of filler="
        )
    return lengths


def read_csr(matrix: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(data, indices, indptr) of a sparse matrix, a triple of them, or a dense two-dimensional array."""
    if hasattr(matrix, "indptr"):
        parts = (matrix.data, matrix.indices, matrix.indptr)
    elif isinstance(matrix, tuple) and len(matrix) == 3:
        parts = matrix
    elif hasattr(matrix, "tocsr"):
        return read_csr(matrix.tocsr())
    else:
        dense = np.asarray(matrix)
        if dense.ndim != 2:
            raise ShapeError(
                f"a matrix of shape {dense.shape}; expected a CSR matrix, (data, indices, indptr), "
                "or a dense two-dimensional array"
            )
        rows, columns = np.nonzero(dense)
        counts = np.bincount(rows, minlength=dense.shape[0])
        return dense[rows, columns], columns, offsets_of(counts, len(rows))
    indices = as_integers(parts[1], "column indices")
    data = np.ones(len(indices), np.int64) if parts[0] is None else np.asarray(parts[0])
    if data.shape != indices.shape:
        raise ShapeError(f"{data.shape} entries for {indices.shape} column indices; expected one each")
    return data, indices, check_offsets(parts[2], len(indices))


def counted(data: np.ndarray, indices: np.ndarray, indptr: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each column as often as its entry says, and the row that it stands in."""
    counts = data.astype(np.int64)
    if (counts != data).any() or (counts < 0).any():
        raise DTypeError("entries that are no counts; weights=True returns them as a batch beside the ids")
    rows = np.repeat(np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)), counts)
    return np.repeat(indices, counts), rows


def as_columns(values: Any, num_columns: int | None) -> tuple[np.ndarray, int]:
    """Ids that name columns, and how many columns there are: by default the largest id plus one."""
    ids = as_integers(values, "the values")
    bound = int(ids.max(initial=-1)) + 1 if num_columns is None else num_columns
    wrong = (ids < 0) | (ids >= bound)
    if wrong.any():
        position = int(np.argmax(wrong))
        raise BadIdError(f"id {ids[position]} at position {position} is not a column in 0..{bound - 1}")
    return ids, bound
