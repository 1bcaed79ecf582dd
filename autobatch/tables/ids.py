"""Checks of ids and offsets, made once, where the caller's own values still are. Kernels trust what passed here."""

from typing import Any

import numpy as np

from autobatch.errors import BadIdError, DTypeError, ShapeError
from autobatch.kernels.rows import first_bad_id, first_bad_offset

__all__ = ["as_ids", "bad_id_message", "check_ids", "check_offsets", "integer_ids", "is_integer_index"]

_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)


def as_ids(ids: Any, what: str = "ids") -> np.ndarray:
    """Ids of any integer dtype as int64; an empty list is no ids.

    Raises:
        DTypeError: not integers.
        ShapeError: nested lists of different lengths.
    """
    try:
        array = np.asarray(ids)
    except ValueError as error:
        raise ShapeError(f"{what} are nested lists of different lengths; make them one list and offsets") from error
    if array.dtype == _INT64:
        return array
    if not array.size and not hasattr(ids, "dtype"):
        return array.astype(_INT64)
    if array.dtype.kind not in "iu":
        raise DTypeError(f"{what} have dtype {array.dtype}; expected integers: write {what}.astype(np.int64)")
    if array.dtype == np.uint64 and array.size and int(array.max()) > np.iinfo(np.int64).max:
        at = int(np.argmax(array > np.uint64(np.iinfo(np.int64).max)))
        raise BadIdError(f"{what} hold {array.flat[at]}{_place(at, array.shape)}, which is beyond any table")
    return array.astype(_INT64)


def integer_ids(ids: Any, what: str = "ids") -> np.ndarray:
    """As `as_ids`, but 32-bit ids stay as they are, without a copy.

    >>> integer_ids(np.array([1, 2], np.int32)).dtype, integer_ids(np.array([1, 2], np.uint8)).dtype
    (dtype('int32'), dtype('int64'))
    """
    if type(ids) is np.ndarray and ids.dtype == _INT32:
        return ids
    return as_ids(ids, what)


def check_ids(ids: np.ndarray, num_rows: int, offsets: np.ndarray | None = None, what: str = "id") -> None:
    """Every one of the int64 ids names a row of a table of `num_rows`.

    Args:
        offsets: bounds of the bags (B + 1,), for the message.

    Raises:
        BadIdError: names the first bad id, its position, its bag and the table's size.
    """
    flat = ids.reshape(-1)
    at = first_bad_id(flat, num_rows)
    if at < 0:
        return
    place = _place(at, ids.shape)
    if offsets is not None:
        place += f", in bag {int(np.searchsorted(offsets, at, side='right')) - 1}"
    raise BadIdError(bad_id_message(int(flat[at]), place, num_rows, what))


def bad_id_message(bad: int, place: str, num_rows: int, what: str = "id") -> str:
    """What the error of a bad id says; `place` is where it stands, " at position 3", or nothing for one alone."""
    hint = "; a table has no negative ids" if bad < 0 else ""
    return f"{what} {bad}{place} is outside a table of {num_rows} rows{hint}"


def _place(at: int, shape: tuple[int, ...]) -> str:
    """Where an element of an array stands."""
    if not shape:
        return ""
    return f" at position {at if len(shape) == 1 else tuple(map(int, np.unravel_index(at, shape)))}"


def check_offsets(offsets: np.ndarray, total: int, *, closed: bool, what: str = "offsets") -> None:
    """Offsets are 1-D, start at 0, never fall, and end within `total` ids (at `total` where `closed`).

    Raises:
        ShapeError: not 1-D.
        BadIdError: names the first wrong offset.
    """
    if offsets.ndim != 1:
        raise ShapeError(f"{what} have shape {offsets.shape}; expected one dimension")
    if not offsets.size:
        if closed:
            raise BadIdError(f"{what} are empty; with the last offset included they hold at least the 0")
        if total:
            raise BadIdError(f"{what} are empty, and {total} ids are in no bag; {what}=[0] makes them one bag")
        return
    if offsets[0] != 0:
        raise BadIdError(f"{what}[0] is {offsets[0]}; expected 0, where the first bag starts")
    at = first_bad_offset(offsets, total)
    if at >= 0:
        above = offsets[at] > total
        why = f"above the number of ids, {total}" if above else f"below {what}[{at - 1}] = {offsets[at - 1]}"
        raise BadIdError(f"{what}[{at}] is {offsets[at]}, {why}")
    if closed and offsets[-1] != total:
        raise BadIdError(f"the last of the {what} is {offsets[-1]}; with it included it is the number of ids, {total}")


def is_integer_index(index: Any) -> bool:
    """Whether an index is integers only, of any rank: a look-up, where a slice, a mask or a tuple is not."""
    dtype = getattr(index, "dtype", None)
    if dtype is not None:
        return bool(dtype.kind in "iu")
    if isinstance(index, list):
        return not index or np.asarray(index).dtype.kind in "iu"
    return isinstance(index, int) and not isinstance(index, bool)
