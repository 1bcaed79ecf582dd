"""Changes of an array since the last save: digests of its units are compared, and the units that differ are stored.

Any code may write into an array, so a record of writes could not be trusted to be complete. Instead each save reads the
whole array, at memory speed, and misses no write (`kernels/hash_functions.py`). A unit is a run of elements of at least
256 bytes, whole rows if rows are short. The last unit may extend beyond the array's end; it is padded with zeros.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from autobatch.checkpoint.streams import Piece, Stream
from autobatch.checkpoint.tensor_files import BLOCK, Tensor, TensorReader, stored_dtype
from autobatch.core.threads import run_parts, split_work
from autobatch.errors import CheckpointError
from autobatch.kernels.hash_functions import digest_units

_LEAST = 1 << 14  # bytes: smaller arrays are stored whole each time


def is_tracked(array: np.ndarray) -> bool:
    """True if only an array's changes are stored: it is large enough, C-contiguous, and in the dtype of the file."""
    return array.nbytes >= _LEAST and array.flags.c_contiguous and array.dtype == stored_dtype(array.dtype)


def unit_of(array: np.ndarray) -> int:
    """The number of elements in one unit of an array; a unit is digested and stored as a whole.

    >>> unit_of(np.zeros((1000, 16), np.float32)), unit_of(np.zeros((100, 100), np.float32)), unit_of(np.zeros(5))
    (64, 100, 32)
    """
    size = array.itemsize
    step = 8 // math.gcd(size, 8)  # the digest reads pairs of 4-byte words
    row = math.prod(array.shape[1:]) if array.ndim > 1 else 1
    if 0 < row * size <= 1 << 12:  # bytes: rows up to this size are not split between units
        step = math.lcm(step, row)
    return step * -(-256 // (step * size))  # bytes of a unit, at least


class Digester:
    """Computes digests with random keys, drawn at construction, so that nobody can craft data that collides."""

    def __init__(self) -> None:
        self._random = np.random.default_rng()
        self._keys: dict[int, np.ndarray] = {}

    def __call__(self, array: np.ndarray) -> np.ndarray:
        """(units, 2) uint64: the digests of an array for which `is_tracked` holds."""
        unit = unit_of(array)
        words = unit * array.itemsize // 4
        if words not in self._keys:
            self._keys[words] = self._random.integers(0, 1 << 32, (2, words), np.uint32)
        body, tail = _units(array, unit)
        out = np.empty((len(body) + len(tail), 2), np.uint64)
        keys, parts = self._keys[words], split_work(len(body), array.nbytes)
        view = body.view(np.uint32)
        run_parts(lambda part: digest_units(view, keys, *part, out), parts)
        if len(tail):
            digest_units(tail.view(np.uint32), keys, 0, 1, out[len(body) :])
        return out


def _units(array: np.ndarray, unit: int) -> tuple[np.ndarray, np.ndarray]:
    """The complete units of an array as a view, and an incomplete last unit, if any, as a copy padded with zeros."""
    flat = array.reshape(-1)
    whole = flat.size // unit
    body, rest = flat[: whole * unit].reshape(whole, unit), flat[whole * unit :]
    tail = np.zeros((1 if rest.size else 0, unit), array.dtype)
    if rest.size:
        tail[0, : rest.size] = rest
    return body, tail


def changes_stream(name: str, array: np.ndarray, changed: np.ndarray) -> tuple[Stream, dict[str, Any]]:
    """A stream of an array's changed units, and the manifest's description of this part.

    Args:
        changed: (n,) the numbers of the changed units, ascending.
    """
    unit = unit_of(array)
    index, units = f"{name}#index", f"{name}#units"
    tensors = [Tensor(index, np.dtype(np.int64), (len(changed),)), Tensor(units, array.dtype, (len(changed), unit))]

    def stream() -> Iterator[Piece]:
        yield index, changed.astype(np.int64)
        body, tail = _units(array, unit)
        step = max(1, BLOCK // (unit * array.itemsize))
        for first in range(0, len(changed), step):
            named = changed[first : first + step]
            inside = named[: np.searchsorted(named, len(body))]
            yield units, body[inside]
            if len(inside) < len(named):
                yield units, tail

    entry = {"index": index, "units": units, "unit": unit, "count": len(changed)}
    return Stream(tensors, stream, copied=True), entry


def apply_units(out: np.ndarray, reader: TensorReader, entry: dict[str, Any], first: int, last: int) -> None:
    """Write the stored units whose numbers are in [first, last) into `out`.

    Args:
        out: flat: the elements of the array's units [first, last), fewer at the array's end.
        entry: the description from `changes_stream`.
    """
    index, unit = reader.read(entry["index"]), entry["unit"]
    if len(index) and (index[0] < 0 or (np.diff(index) <= 0).any()):
        raise CheckpointError(f"{reader.path} is damaged: {entry['index']!r} is not ascending")
    lo, hi = np.searchsorted(index, [first, last])
    whole = len(out) // unit
    body, rest = out[: whole * unit].reshape(whole, unit), out[whole * unit :]
    step = max(1, 4 * BLOCK // (unit * out.itemsize))
    for start in range(int(lo), int(hi), step):
        end = min(start + step, int(hi))
        rows, places = reader.rows(entry["units"], start, end), index[start:end] - first
        inside = int(np.searchsorted(places, whole))
        body[places[:inside]] = rows[:inside]
        if inside < len(places):
            if not len(rest) or places[-1] != whole:
                raise CheckpointError(f"{reader.path} is damaged: {entry['index']!r} is beyond the end of its array")
            rest[:] = rows[-1, : len(rest)]
