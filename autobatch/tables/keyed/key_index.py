"""`KeyIndex`: a hash index from keys to row numbers, in one array that grows in place and incrementally."""

import numpy as np

from autobatch.core.threads import run_parts, split_work
from autobatch.kernels import hash_table as kernels
from autobatch.kernels.simd_rows import LINE
from autobatch.tables.keyed.growing_arrays import Reserved
from autobatch.tables.row_access import read_cost

_FULLEST = 0.7  # maximum load, at which a look-up reads fewer than two cache lines on average
_MOVED = 32  # slots to move for each new key while the index grows
_AT_ONCE = 1 << 13  # slots to move at least, and the most for one kernel call


class KeyIndex:
    """A map from keys to numbers, with the kernels of `kernels/hash_table.py`; a writer must make readers retry.

    Args:
        most: the maximum number of keys; fewer if the address space is too small.

    Attributes:
        array: all reserved elements, two for each slot; slots after `slots` hold keys that were probed past the end.
        form: (slots before the growth, how many of them are still to be moved, slots after), for the kernels.
    """

    def __init__(self, most: int) -> None:
        self._memory = Reserved(3 * most + 128, 2, np.uint64)
        self.array = self._memory.array.reshape(-1)
        self.form = np.array([64, 0, 64])

    @property
    def slots(self) -> int:
        """The number of slots from which the places of keys are computed."""
        return int(self.form[2])

    @property
    def nbytes(self) -> int:
        """The number of bytes of the slots."""
        return self.slots * self._memory.row_bytes

    @property
    def is_moving(self) -> bool:
        """True while some keys are still at their places from before the last growth."""
        return bool(self.form[1])

    def find(self, keys: np.ndarray, special: int) -> tuple[np.ndarray, int]:
        """(number of each key, or -1 if it is missing, (n,); number of missing keys).

        Args:
            special: the number of `EMPTY_KEY`, the one key that cannot be stored in a slot.
        """
        out = np.empty(len(keys), np.int64)
        found: list[int] = []
        run_parts(
            lambda part: found.append(int(kernels.find_rows(keys, self.array, self.form, special, out, *part))),
            split_work(len(keys), read_cost(len(keys), LINE, self.nbytes)),  # a key is in one line
        )
        return out, sum(found)

    def is_enough(self, count: int) -> bool:
        """True if there is room for `count` keys in total, and no growth is in progress."""
        return not self.is_moving and count <= _FULLEST * self.slots

    def make_room(self, more: int, count: int) -> None:
        """Ensure room for `count` keys in total, `more` of them new; during a growth, move some slots for each new key.

        Raises:
            MemoryError: not enough memory.
        """
        self._move(max(_MOVED * more, _AT_ONCE))
        if count <= _FULLEST * self.slots:
            return
        self._move(self.slots)
        # The slots grow by a quarter, so that the load is never much below one half.
        before, after = self.slots, int(1.25 * self.slots)
        if count > _FULLEST * after:
            after = int(count / 0.5) + 1  # load after a growth for many keys at once
        after = -(-after // 4) * 4
        self._memory.ensure(after + count + 4)  # the worst case: all keys are probed past the end
        self.form[:] = (before, before if count > more else 0, after)
        self._move(max(_MOVED * more, _AT_ONCE))

    def expect(self, more: int, count: int) -> None:
        """Like `make_room`, but finish the growth now."""
        if not self.is_enough(count):
            self.make_room(more, count)
            self._move(self.slots)

    def _move(self, slots: int) -> None:
        end = max(int(self.form[1]) - slots, 0)
        while self.form[1] > end:
            kernels.move_slots(self.array, self.form, min(_AT_ONCE, int(self.form[1]) - end))
