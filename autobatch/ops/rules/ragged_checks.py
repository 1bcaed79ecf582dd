"""Checks of ragged data (ids, offsets, lengths, segment ids), and conversions of padded rows to packed ones.

Each value is checked once, while the caller's original values are at hand for the message. Kernels run without the GIL,
so another thread may write into the caller's arrays meanwhile. So what kernels take is copied first, then checked:
`as_ids` copies, and so do `check_offsets` and `lengths_of`; `own_ids` copies what `integer_ids` and `table_ids` give.
Only kernels that check each id while they read it take the caller's own memory.

The second half packs the rows of all examples without padding, for batching rules of ragged ops.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import check_plain, ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths, Packed, Size
from autobatch.core.op import is_boxed
from autobatch.errors import BadIdError, DTypeError, OffsetsError, OptionError, ShapeError, note_example
from autobatch.kernels.rows import copy_ids, first_bad_id, first_bad_offset
from autobatch.ops.rules.padding import fill

_BEYOND = 1 << 62  # so that twice a size is an int64
_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)


def whole_number(value: Any, name: str, least: int = 0) -> int:
    """A count of rows, segments or columns as an int, checked.

    Raises:
        DTypeError: not a whole number. ShapeError: less than `least`, or not less than 2**62.

    >>> whole_number(np.uint8(3), "num_rows")
    3
    """
    try:
        found = operator.index(value)
    except TypeError:
        raise DTypeError(f"{name}={value!r}; expected a whole number") from None
    if not least <= found < _BEYOND:
        shown = found if abs(found) < 1 << 64 else f"a number of {found.bit_length()} bits"
        raise ShapeError(f"{name}={shown}; expected at least {least}, and less than 2**62")
    return int(found)


def whole_option(value: Any, name: str, least: int = 1) -> int:
    """An integer option (not a bool) that is at least `least`, as an int; raises OptionError otherwise."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise OptionError(f"{name}={value!r:.60}; expected a whole number, at least {least}")
    try:
        return whole_number(value, name, least)
    except (DTypeError, ShapeError) as error:
        raise OptionError(*error.args) from None


def as_ids(ids: Any, what: str = "ids") -> np.ndarray:
    """Ids of any integer dtype as an int64 array of the library's own; an empty list gives an empty array.

    Raises:
        DTypeError: not integers.
        ShapeError: nested lists of different lengths.
        BadIdError: an unsigned id that int64 does not hold.
    """
    found = as_integers(ids, what)
    is_own = isinstance(ids, list) or (type(ids) is np.ndarray and found is not ids)
    return found if is_own else np.array(found)


def as_integers(ids: Any, what: str = "ids") -> np.ndarray:
    """`as_ids`, but int64 ids may be the caller's own memory."""
    check_plain(ids, what)
    try:
        array = np.asarray(ids)
    except ValueError as error:
        raise ShapeError(f"{what} are nested lists of different lengths; make them one list and offsets") from error
    if array.dtype == _INT64:
        return array
    if array.dtype.kind not in "iu" and (array.size or hasattr(ids, "dtype")):  # an empty list has none
        better = "ab.Vocabulary() makes them" if array.dtype.kind in "UST" else f"write {what}.astype(np.int64)"
        raise DTypeError(f"{what} have dtype {array.dtype}; expected integers: {better}")
    if array.dtype == np.uint64 and array.size and int(array.max()) > np.iinfo(np.int64).max:
        at = int(np.argmax(array > np.uint64(np.iinfo(np.int64).max)))
        raise BadIdError(f"{what} hold {array.flat[at]}{_place(at, array.shape)}, which is beyond any table")
    return array.astype(_INT64)


def integer_ids(ids: Any, what: str = "ids") -> np.ndarray:
    """`as_integers`, but 32-bit ids stay as they are.

    >>> integer_ids(np.array([1, 2], np.int32)).dtype, integer_ids(np.array([1, 2], np.uint8)).dtype
    (dtype('int32'), dtype('int64'))
    """
    return ids if type(ids) is np.ndarray and ids.dtype == _INT32 else as_integers(ids, what)


def table_ids(table: Any, ids: Any, what: str = "ids") -> np.ndarray:
    """Ids in the form that the table takes: `integer_ids`, or for a table with keys, keys in its key dtype."""
    convert = getattr(table, "_ab_ids", None)
    return integer_ids(ids, what) if convert is None else convert(ids)


def id_bound(table: Any) -> int | None:
    """The upper bound of the ids: the table's number of rows; None for a table with keys, which takes any key."""
    return shape_of(table)[0] if getattr(table, "_ab_ids", None) is None else None


def is_integer_index(index: Any) -> bool:
    """True if an index is an integer or an integer array (a look-up), not a slice, mask or tuple."""
    dtype = getattr(index, "dtype", None)
    if dtype is not None:
        return bool(dtype.kind in "iu")
    if isinstance(index, list):
        return not index or np.asarray(index).dtype.kind in "iu"
    return isinstance(index, int) and not isinstance(index, bool)


def check_ids(ids: np.ndarray, num_rows: int | None, offsets: np.ndarray | None = None) -> None:
    """Check that every id names a row of a table of `num_rows` rows.

    Args:
        num_rows: None for keys, which are all valid.
        offsets: bounds of the bags (B + 1,), for the message.

    Raises:
        BadIdError: names the first bad id, its position, its bag and the table's size.
    """
    if num_rows is None:
        return
    flat = ids.reshape(-1)
    at = first_bad_id(flat, num_rows)
    if at < 0:
        return
    bag = "" if offsets is None else f", in bag {int(np.searchsorted(offsets, at, side='right')) - 1}"
    raise bad_id(flat[at], _place(at, ids.shape) + bag, num_rows)


def own_ids(ids: np.ndarray, num_rows: int | None, offsets: np.ndarray | None = None) -> np.ndarray:
    """A copy of the ids, checked as by `check_ids`.

    >>> own_ids(np.array([2, 0]), 3)
    array([2, 0])
    """
    if num_rows is None:
        return ids.copy()
    out, low, high = _copied(ids)
    if low < 0 or high >= num_rows:
        check_ids(out, num_rows, offsets)
    return out


def _copied(ids: np.ndarray) -> tuple[np.ndarray, int, int]:
    """A copy of ids, and the least and the greatest of them: 0 and -1 if there are none."""
    out = np.empty(ids.shape, ids.dtype)
    return out, *(copy_ids(ids.reshape(-1), out.reshape(-1)) if out.size else (0, -1))


def bad_id(found: Any, place: str, num_rows: int) -> BadIdError:
    """The error for an invalid id; `place` is " at position 3", " at position (0, 3)", or "" for a single id."""
    hint = "; a table has no negative ids" if found < 0 else ""
    return BadIdError(f"id {int(found)}{place} is outside a table of {num_rows} rows{hint}")


def _place(at: int, shape: tuple[int, ...]) -> str:
    """The position of an element in messages: " at position 3", or nothing for a single one."""
    if not shape:
        return ""
    return f" at position {at if len(shape) == 1 else tuple(map(int, np.unravel_index(at, shape)))}"


def check_offsets(offsets: Any, total: int, *, closed: bool = True) -> np.ndarray:
    """Checked offsets as int64: 1-D, starting at 0, non-decreasing, at most `total`; if `closed`, the last is `total`.

    Raises:
        DTypeError: not integers. ShapeError: not 1-D.
        OffsetsError: names the first wrong offset.
    """
    try:
        found = as_ids(offsets, "offsets")
    except BadIdError as error:
        raise OffsetsError(str(error)) from None
    if found.ndim != 1:
        raise ShapeError(f"offsets have shape {found.shape}; expected one dimension")
    if not found.size:
        if closed:
            raise OffsetsError("offsets are empty; with the last offset included there is at least the 0")
        if total:
            raise OffsetsError(f"offsets are empty, and {total} ids are in no bag; offsets=[0] makes them one bag")
        return found
    if found[0] != 0:
        raise OffsetsError(f"offsets[0] is {found[0]}; expected 0, where the first bag or example starts")
    at = first_bad_offset(found, total)
    if at >= 0:
        above = found[at] > total
        why = f"above the number of values, {total}" if above else f"below offsets[{at - 1}] = {found[at - 1]}"
        raise OffsetsError(f"offsets[{at}] is {found[at]}, {why}")
    if closed and found[-1] != total:
        raise OffsetsError(
            f"the last of the offsets is {found[-1]}, but there are {total} values; expected equal "
            "(to offsets of starts only, append the number of values)"
        )
    return found


def lengths_of(lengths: Any) -> np.ndarray:
    """Checked lengths as int64: 1-D and non-negative.

    Raises:
        DTypeError: not integers. ShapeError: not 1-D, or a negative length.
    """
    found = as_ids(lengths, "lengths")
    if found.ndim != 1:
        raise ShapeError(f"lengths have shape {found.shape}; expected one dimension")
    if found.size and found.min() < 0:
        at = int(np.argmax(found < 0))
        raise ShapeError(f"lengths[{at}] is {found[at]}; a length is at least 0")
    return found


def check_total(lengths: np.ndarray, total: int, of: str = "values") -> None:
    """Check that lengths add up to the number of values, `total`; raise ShapeError otherwise."""
    if lengths.sum() != total or lengths.max(initial=0) > total:  # the second test rules out int64 overflow
        raise ShapeError(f"the lengths add up to {sum(lengths.tolist())}; expected the number of {of}, {total}")


def check_sorted(segment_ids: np.ndarray) -> None:
    """Check that segment ids never decrease; raise BadIdError otherwise."""
    falls = np.flatnonzero(segment_ids[1:] < segment_ids[:-1])
    if falls.size:
        at = int(falls[0]) + 1
        before, here = segment_ids[at - 1], segment_ids[at]
        raise BadIdError(f"segment_ids fall, from {before} to {here} at position {at}; expected sorted ids")


def check_one_each(segment_ids: np.ndarray, total: int) -> None:
    """Check that there is one segment id for each of `total` rows; raise ShapeError otherwise."""
    if segment_ids.shape != (total,):
        raise ShapeError(f"segment_ids have shape {segment_ids.shape}; expected one for each row, ({total},)")


def own_segments(segment_ids: Any, num_segments: int | None, own: bool = True) -> tuple[np.ndarray, int]:
    """A checked copy of segment ids, and the number of segments: `num_segments`, or the greatest id plus one.

    Args:
        own: False for kernels that check: ids may be the caller's memory, of any value.

    Raises:
        ShapeError: not 1-D. BadIdError: an id that is negative or not below `num_segments`. DTypeError: not integers.
    """
    segment_ids = as_integers(segment_ids, "segment_ids")
    if segment_ids.ndim != 1:
        raise ShapeError(f"segment_ids have shape {segment_ids.shape}; expected one dimension")
    num_segments = None if num_segments is None else whole_number(num_segments, "num_segments")
    if not own and segment_ids.flags.carray:
        return segment_ids, max(int(segment_ids.max(initial=-1)) + 1, 0) if num_segments is None else num_segments
    out, low, high = _copied(segment_ids)
    count = int(high) + 1 if num_segments is None else num_segments
    if low < 0 or high >= count:
        at = int(first_bad_id(out, count))
        why = "negative" if out[at] < 0 else f"outside {count} segments"
        raise BadIdError(f"segment id {out[at]} at position {at} is {why}")
    return out, count


def segments_of(
    n: int, form: str, values: Any, num_segments: int | None = None, *, in_order: bool = False, own: bool = True
) -> tuple[np.ndarray, int, bool]:
    """Check and normalise a description of the segments of n rows.

    Args:
        form: the meaning of `values`: segment_ids, lengths, offsets, or starts (offsets without the last).
        in_order: the caller says that the segment ids are sorted; this is checked.
        own: as for `own_segments`.

    Returns:
        (segments, count, contiguous): segments are (n,) segment ids, or if contiguous, (count + 1,) offsets.
    """
    if form == "segment_ids":
        found, count = own_segments(values, num_segments, own)
        check_one_each(found, n)
        if in_order:
            check_sorted(found)
        return found, count, False
    if form == "lengths":
        lengths = lengths_of(values)
        check_total(lengths, n, "rows")
        bounds = offsets_from(lengths)
    else:
        bounds = check_offsets(values, n, closed=form == "offsets")
        bounds = bounds if form == "offsets" else np.append(bounds, n)
    count = bounds.shape[0] - 1
    if num_segments is not None and num_segments != count:
        raise ShapeError(f"num_segments={num_segments}, but {count} segments are given; leave it out")
    return bounds, count, True


def offsets_from(lengths: Any) -> Any:
    """(n + 1,) offsets from (n,) lengths."""
    return np.concatenate([np.zeros(1, np.int64), lengths.cumsum()])


def segments_in(bounds: np.ndarray) -> np.ndarray:
    """The (n,) segment ids of contiguous segments, from their (count + 1,) offsets."""
    return np.repeat(np.arange(bounds.shape[0] - 1), np.diff(bounds))


def filler_lengths(padded: np.ndarray, filler: Any) -> np.ndarray:
    """The length of each row of (B, T, ...) data in which positions full of `filler` are padding; NaN matches NaN.

    Raises:
        ShapeError: a filler stands before a value; padding must come last.
        DTypeError: the data is float, and the filler is too large for a float.
    """
    try:
        is_filler = padded != padded if filler != filler else padded == filler
    except OverflowError:
        raise DTypeError(f"filler {filler!r:.60} is not a value of {padded.dtype}") from None
    valid = ~is_filler.all(axis=tuple(range(2, padded.ndim)))
    lengths = valid.sum(axis=1)
    wrong = (valid != (np.arange(padded.shape[1]) < lengths[:, None])).any(axis=1)
    if wrong.any():
        raise ShapeError(
            f"row {int(np.argmax(wrong))} has the filler {filler!r} before a value; padding comes last: "
            "give lengths instead of a filler"
        )
    return lengths


def columns_of(ids: Any, num_columns: int | None) -> tuple[np.ndarray, int]:
    """Checked column ids of a sparse matrix, and the number of columns (None: the greatest id plus one)."""
    found = as_ids(ids, "values")
    if found.ndim != 1:
        raise ShapeError(f"values of shape {found.shape}; expected one dimension, the columns' ids")
    bound = int(found.max(initial=-1)) + 1 if num_columns is None else whole_number(num_columns, "num_columns")
    wrong = (found < 0) | (found >= bound)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise BadIdError(f"id {found[at]} at position {at} is not a column in 0..{bound - 1}")
    return found, bound


def read_csr(matrix: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(data, indices, indptr) from a sparse matrix, from such a triple, or from a dense two-dimensional array."""
    if hasattr(matrix, "tocsr"):
        matrix = matrix.tocsr()  # CSC matrices have indptr, too, but by columns
    if hasattr(matrix, "indptr"):
        parts = (matrix.data, matrix.indices, matrix.indptr)
    elif isinstance(matrix, tuple) and len(matrix) == 3:
        parts = matrix
    else:
        dense = np.asarray(matrix)
        if dense.ndim != 2:
            raise ShapeError(
                f"a matrix of shape {dense.shape}; expected a CSR matrix, (data, indices, indptr), "
                "or a dense two-dimensional array"
            )
        rows, columns = np.nonzero(dense)
        return dense[rows, columns], columns, offsets_from(np.bincount(rows, minlength=dense.shape[0]))
    indices = as_ids(parts[1], "column indices")
    data = np.ones(len(indices), np.int64) if parts[0] is None else np.asarray(parts[0])
    if data.shape != indices.shape:
        raise ShapeError(f"{data.shape} entries for {indices.shape} column indices; expected one each")
    return data, indices, check_offsets(parts[2], len(indices))


# Packed rows: the rows of all examples, concatenated.


def noting_lane(lane: int, check: Callable[[], Any]) -> Any:
    """Call `check` and return its result; a note with the example's number is added to its exception."""
    try:
        return check()
    except Exception as error:
        raise note_example(error, lane)  # noqa: B904 - the same error, with its note


def flattened(x: Any, lanes: int, what: str) -> tuple[Packed, tuple[Size, ...]]:
    """The concatenated rows of all examples without padding, and the sizes of a row; `what` names x in errors."""
    if isinstance(x, Packed):
        return x, tuple(shape_of(x.values)[1:])
    if not isinstance(x, Batched):
        if not ndim_of(x):
            raise ShapeError(f"{what} is a single number; expected rows, (n, ...)")
        n, shape = shape_of(x)[0], shape_of(x)[1:]
        tiled = np.concatenate([x] * lanes) if lanes else np.reshape(x, (-1, *shape))[:0]
        return Packed(tiled, np.arange(lanes + 1) * n), tuple(shape)
    if not x.sizes:
        raise ShapeError(f"{what} is a single number; expected rows, (n, ...)")
    if any(isinstance(size, Lengths) for size in x.sizes[1:]):
        x = Batched(fill(x, 0), x.sizes)  # column padding must not cause warnings or reach a weight's gradient
    size, shape = x.sizes[0], shape_of(x.data)
    flat = np.reshape(x.data, (shape[0] * shape[1], *shape[2:]))
    if not isinstance(size, Lengths):
        return Packed(flat, np.arange(shape[0] + 1) * shape[1]), x.sizes[1:]
    return Packed(flat[np.flatnonzero(size.mask(shape[1]))], offsets_from(size.values)), x.sizes[1:]


def check_lane_ids(ids: Packed, num_rows: Any) -> None:
    """`check_ids` for the ids of each example; the error is that of the first failing example and names it.

    Args:
        num_rows: the number of rows of the shared table, or (B,) of each example's own table; None for keys.
    """
    values = ids.values
    if num_rows is None:
        return
    if np.ndim(num_rows) == 0:
        at = int(first_bad_id(values, int(num_rows)))
    else:
        wrong = np.flatnonzero((values < 0) | (values >= np.repeat(num_rows, ids.lengths)))
        at = int(wrong[0]) if wrong.size else -1
    if at >= 0:
        lane = int(np.searchsorted(ids.offsets, at, side="right")) - 1
        own = values[ids.offsets[lane] : ids.offsets[lane + 1]]
        rows = int(num_rows if np.ndim(num_rows) == 0 else num_rows[lane])
        noting_lane(lane, lambda: check_ids(own, rows))


def concatenated_tables(table: Any, ids: Packed) -> tuple[Any, np.ndarray]:
    """One table and checked ids into it: the shared table, or the concatenated rows of the examples' own tables."""
    found = np.array(table_ids(table, np.asarray(ids.values) if is_boxed(ids.values) else ids.values))
    if found.ndim != 1:
        raise ShapeError(f"ids have shape {found.shape[1:]} more; expected one dimension")
    ids = Packed(found, ids.offsets)
    if not isinstance(table, Batched | Packed):
        check_lane_ids(ids, id_bound(table))
        return table, found
    rows, _ = flattened(table, ids.batch_size, "data")
    check_lane_ids(ids, rows.lengths)
    return rows.values, found + np.repeat(rows.offsets[:-1], ids.lengths)


def segments_of_all(
    described: Packed, rows: np.ndarray, form: str, count: Any = None, in_order: bool = False
) -> tuple[np.ndarray, np.ndarray, bool]:
    """`segments_of` for all examples at once; the segments are numbered consecutively over the examples.

    All examples are checked together; if that fails, one by one, so that the error is that of the first that fails.

    Args:
        described: each example's segment ids, lengths, offsets or starts. rows: (B,) number of rows of each example.
        count: the number of segments of every example, or (B,) of each; None: its greatest id plus one.

    Returns:
        (segments, counts, contiguous): segment ids, or offsets if contiguous; counts is (B,) segments per example.
    """
    values = as_ids(np.asarray(described.values), form)
    lanes, offsets = described.batch_size, described.offsets
    counts = np.broadcast_to(-1 if count is None else count, (lanes,))

    def alone(lane: int) -> Any:
        own = None if counts[lane] < 0 else int(counts[lane])
        found = values[offsets[lane] : offsets[lane + 1]]
        return segments_of(int(rows[lane]), form, found, own, in_order=in_order)

    if form == "segment_ids" and values.ndim == 1:
        lane_of = segments_in(offsets)
        last = counts
        if count is None:
            last = np.zeros(lanes, np.int64)
            np.maximum.at(last, lane_of, values + 1)
        steps = (values[1:] < values[:-1]) & (lane_of[1:] == lane_of[:-1]) if in_order else np.zeros(0, bool)
        good = (described.lengths == rows).all() and (last >= 0).all() and not steps.any()
        if good and not ((values < 0) | (values >= last[lane_of])).any():
            return values + offsets_from(last)[:-1][lane_of], last, False
    elif values.ndim == 1:
        lengths, numbers_of = _lengths_of_all(described, values, rows, form)
        if lengths is not None and (counts < 0).all() | (counts == numbers_of).all():
            bounds = offsets_from(lengths)
            ends = offsets_from(numbers_of)
            if (lengths >= 0).all() and (lengths <= rows.sum()).all() and (np.diff(bounds[ends]) == rows).all():
                return bounds, numbers_of, True
    each = [noting_lane(lane, lambda lane=lane: alone(lane)) for lane in range(lanes)]  # type: ignore[misc]
    numbers = np.array([number for _, number, _ in each], np.int64)
    none = np.zeros(0, np.int64)
    if form != "segment_ids":
        return offsets_from(np.concatenate([none, *(np.diff(bounds) for bounds, _, _ in each)])), numbers, True
    first = offsets_from(numbers)
    return np.concatenate([none, *(own + first[lane] for lane, (own, _, _) in enumerate(each))]), numbers, False


def _lengths_of_all(
    described: Packed, values: np.ndarray, rows: np.ndarray, form: str
) -> tuple[np.ndarray | None, np.ndarray]:
    """The segment lengths of all examples (None if an example's offsets do not start at 0), and their (B,) counts."""
    if form == "lengths":
        return values, described.lengths
    starts, count = described.offsets[:-1], described.lengths
    if not count.all() or values[starts].any():
        return None, count
    if form == "starts":  # append each example's row count: starts become offsets
        values = np.insert(values, described.offsets[1:], rows)
        starts, count = starts + np.arange(len(starts)), count + 1
    inside = np.ones(len(values), np.bool_)
    inside[starts] = False
    return np.diff(values, prepend=0)[inside], count - 1
