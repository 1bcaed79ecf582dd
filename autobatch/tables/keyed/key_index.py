"""`KeyIndex`: where keys are, in one array that grows where it is, a part at a time."""

import numpy as np

from autobatch.core.growing_arrays import Reserved
from autobatch.core.threads import run_parts, split_work
from autobatch.kernels import hash_table as kernels
from autobatch.tables.row_access import work_of

_FULLEST = 0.7  # of an index, which is looked into for fewer than two lines of the cache
_GROWTH = 1.25  # of its slots, so that it is never much less than half full
_AT_FIRST = 0.5  # how full it is where many keys come at once
_MOVED = 32  # slots that are moved for each key that comes while it grows
_AT_ONCE = 1 << 13  # slots that are moved without a second thought
_KEY_BYTES = 64  # read from memory to find a key: a line of the cache


class KeyIndex:
    """Numbers of keys, by the kernels of `kernels/hash_table.py`. Whoever changes it tells readers to read again.

    Args:
        most: how many keys there may be; less where there are no addresses for so many.

    Attributes:
        array: all elements that could be, two to a slot; the slots after `slots` have the keys that were probed past
            the end.
        form: (3,) how many slots the places of keys are computed from, as the kernels know it.
    """

    def __init__(self, most: int) -> None:
        self._memory = Reserved(3 * most + 128, 2, np.uint64)
        self.array = self._memory.array.reshape(-1)
        self.form = np.array([64, 0, 64])

    @property
    def slots(self) -> int:
        """How many slots there are for keys."""
        return int(self.form[2])

    @property
    def nbytes(self) -> int:
        """The bytes of the slots."""
        return self.slots * self._memory.row_bytes

    @property
    def is_moving(self) -> bool:
        """Whether some keys are still where an index of fewer slots had them."""
        return bool(self.form[1])

    def find(self, keys: np.ndarray, special: int) -> tuple[np.ndarray, int]:
        """The number of each of (n,) keys, -1 where there is none, and how many those are.

        Args:
            special: the number of the one key that has no slot.
        """
        out = np.empty(len(keys), np.int64)
        found: list[int] = []
        run_parts(
            lambda part: found.append(int(kernels.find_rows(keys, self.array, self.form, special, out, *part))),
            split_work(len(keys), work_of(len(keys), _KEY_BYTES, self.nbytes)),
        )
        return out, sum(found)

    def is_enough(self, count: int) -> bool:
        """Whether there is room for so many keys, and nothing is being moved."""
        return not self.is_moving and count <= _FULLEST * self.slots

    def make_room(self, more: int, count: int) -> None:
        """Room for `count` keys, of which `more` are about to come; where it grows, some slots for each of them move.

        Raises:
            MemoryError: there is none.
        """
        self._move(max(_MOVED * more, _AT_ONCE))
        if count <= _FULLEST * self.slots:
            return
        self._move(self.slots)
        before, after = self.slots, int(_GROWTH * self.slots)
        if count > _FULLEST * after:
            after = int(count / _AT_FIRST) + 1
        after = -(-after // 4) * 4
        self._memory.ensure(after + count + 4)  # in the worst case all of them are probed past the end
        self.form[:] = (before, before if count > more else 0, after)
        self._move(max(_MOVED * more, _AT_ONCE))

    def expect(self, more: int, count: int) -> None:
        """Room for `count` keys at once, of which `more` are about to come."""
        if not self.is_enough(count):
            self.make_room(more, count)
            self._move(self.slots)

    def _move(self, slots: int) -> None:
        end = max(int(self.form[1]) - slots, 0)
        while self.form[1] > end:
            kernels.move_slots(self.array, self.form, min(_AT_ONCE, int(self.form[1]) - end))
