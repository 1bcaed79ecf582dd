"""What changed in an array since it was saved: digests of its units are compared, and the units that differ are stored.

Anyone may write into an array, so nothing that is told of writes would be sure to know of all; the array is read once,
at the speed of memory, and no write is missed (`kernels/hash_functions.py`). A unit is some elements in a row:
whole rows of a table where they are short, at least 256 bytes. The last unit may be in part beyond the end: zeros.
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

_LEAST = 1 << 14  # bytes of an array for which finding its changes pays
_SHORT_ROW = 1 << 12  # bytes of a row that is not cut
_UNIT = 256  # bytes


def is_tracked(array: np.ndarray) -> bool:
    """Whether changes of an array are stored alone: it is of a good size and lies in memory as it is stored."""
    return array.nbytes >= _LEAST and array.flags.c_contiguous and array.dtype == stored_dtype(array.dtype)


def unit_of(array: np.ndarray) -> int:
    """The number of elements in one unit, which are stored together.

    >>> unit_of(np.zeros((1000, 16), np.float32)), unit_of(np.zeros((100, 100), np.float32)), unit_of(np.zeros(5))
    (64, 100, 32)
    """
    size = array.itemsize
    step = 8 // math.gcd(size, 8)  # words are read in twos
    row = math.prod(array.shape[1:]) if array.ndim > 1 else 1
    if 0 < row * size <= _SHORT_ROW:
        step = math.lcm(step, row)
    return step * -(-_UNIT // (step * size))


class Digester:
    """Digests by keys that are drawn when it is made, so that no data can be made to collide."""

    def __init__(self) -> None:
        self._random = np.random.default_rng()
        self._keys: dict[int, np.ndarray] = {}

    def __call__(self, array: np.ndarray) -> np.ndarray:
        """(units, 2) uint64 of an array for which `is_tracked` holds."""
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
    """The whole units of an array, a view; and the last one where it is not whole, a copy with zeros at its end."""
    flat = array.reshape(-1)
    whole = flat.size // unit
    body, rest = flat[: whole * unit].reshape(whole, unit), flat[whole * unit :]
    tail = np.zeros((1 if rest.size else 0, unit), array.dtype)
    if rest.size:
        tail[0, : rest.size] = rest
    return body, tail


def changes_stream(name: str, array: np.ndarray, changed: np.ndarray) -> tuple[Stream, dict[str, Any]]:
    """The units of an array that changed, and what says where they are.

    Args:
        changed: (n,) their numbers, in order.
    """
    unit = unit_of(array)
    index, units = f"{name}#index", f"{name}#units"
    tensors = [
        Tensor(index, np.dtype(np.int64), (len(changed),)),
        Tensor(units, array.dtype, (len(changed), unit)),
    ]

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

    said = {"index": index, "units": units, "unit": unit, "count": len(changed)}
    return Stream(tensors, stream, copied=True), said


def apply_units(out: np.ndarray, reader: TensorReader, said: dict[str, Any], first: int, last: int) -> None:
    """Write those stored units that lie among the units [first, last) of an array into them.

    Args:
        out: flat: the elements of these units, fewer at the array's end.
        said: what `changes_stream` gave.
    """
    index, unit = reader.read(said["index"]), said["unit"]
    lo, hi = np.searchsorted(index, [first, last])
    whole = len(out) // unit
    body, rest = out[: whole * unit].reshape(whole, unit), out[whole * unit :]
    step = max(1, 4 * BLOCK // (unit * out.itemsize))
    for start in range(int(lo), int(hi), step):
        end = min(start + step, int(hi))
        rows, places = reader.rows(said["units"], start, end), index[start:end] - first
        inside = int(np.searchsorted(places, whole))
        body[places[:inside]] = rows[:inside]
        if inside < len(places):
            if not len(rest) or places[-1] != whole:
                raise CheckpointError(f"{reader.path} is damaged: {said['index']!r} is beyond the end of its array")
            rest[:] = rows[-1, : len(rest)]
