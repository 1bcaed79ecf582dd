"""`ab.tables.admission`: rules by which new keys get a row: `count(n)` is exact, `bloom(n, ...)` of constant memory.

For the distinct keys of a step that have no row yet, a rule first returns their counts (`seen`), and increments them
only when the step is committed (`count`), so an interrupted step is not counted.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.errors import OptionError
from autobatch.kernels import hash_table as kernels
from autobatch.ops.rules.ragged_checks import whole_option
from autobatch.tables.keyed.growing_arrays import memory_of_machine
from autobatch.tables.keyed.key_index import KeyIndex

__all__ = ["bloom", "count"]
__dir__ = __all__.copy

_SEEN = 255  # the maximum of a Bloom filter's counter


class Admission:
    """The base class of rules that insert a key with its n-th update.

    Args:
        n: the update that inserts a key; it is applied, the earlier ones are not.
    """

    __slots__ = ("n",)

    def __init__(self, n: int) -> None:
        self.n = whole_option(n, "n")

    def seen(self, keys: np.ndarray) -> np.ndarray:
        """The number of updates of each of (m,) distinct keys; also allocates what a following `count` needs."""
        raise TypeError(f"{type(self).__name__} does not define seen(keys)")

    def admits(self, seen: np.ndarray) -> np.ndarray:
        """For each count of earlier updates, True if the next update inserts the key."""
        return seen + 1 >= self.n

    def count(self, keys: np.ndarray, seen: np.ndarray) -> None:
        """Set the count of each key to seen + 1; repeating the call has no effect."""
        raise TypeError(f"{type(self).__name__} does not define count(keys, seen)")

    @property
    def settings(self) -> dict[str, Any]:
        """The rule as JSON, without its counts."""
        return {"kind": type(self).__name__, "n": self.n}

    def arrays(self) -> dict[str, np.ndarray]:
        """The counts, as arrays for saving."""
        return {}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Restore the counts from `arrays()`."""

    def take(self, parts: Sequence[dict[str, np.ndarray]], mine: Callable[[np.ndarray], np.ndarray]) -> None:
        """Take over the counts of several rules (their `arrays()`), for the keys where `mine(keys)` is True."""

    def fresh(self) -> "Admission":
        """A rule with the same settings and no counts."""
        return from_settings(self.settings)

    def __reduce__(self) -> Any:
        return _restored, (self.settings, self.arrays())

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name}={value}" for name, value in self.settings.items() if name != "kind")
        return f"admission.{type(self).__name__}({numbers})"


class count(Admission):  # noqa: N801 - called like a function
    """Count updates exactly, with 16 bytes or a little more for each key that was seen and has no row yet.

    Args:
        n: the update that inserts a key, and is applied to it. Before, the key reads as its initial row.

    >>> users = ab.EmbeddingVariable(2, admission=ab.tables.admission.count(2))
    >>> opt = ab.optim.SGD(lr=1.0)
    >>> state, gradient = opt.init(users), ab.SparseRows([7], np.ones((1, 2), np.float32), None)
    >>> for _ in range(2):
    ...     _, state = opt.update(users, gradient, state)
    ...     print(7 in users)
    False
    True
    """

    __slots__ = ("_index", "_special", "_used")

    def __init__(self, n: int = 2) -> None:
        super().__init__(n)
        self._clear()

    def _clear(self) -> None:
        # The counting index has room for one key for each so many bytes of the machine's memory.
        self._index = KeyIndex(memory_of_machine() // 128)
        self._used = self._special = 0

    def seen(self, keys: np.ndarray) -> np.ndarray:
        """The number of updates of each key."""
        if not self._index.is_enough(self._used + len(keys)):
            if not self._index.is_moving:
                self._used = len(self._entries()[0])
            self._index.make_room(len(keys), self._used + len(keys))
        return np.maximum(self._index.find(keys, self._special)[0], 0)

    def count(self, keys: np.ndarray, seen: np.ndarray) -> None:
        """Set the count of each key to seen + 1."""
        kernels.set_counts(keys, seen + 1, self.n, self._index.array, self._index.form)
        special = seen[keys == kernels.EMPTY_KEY]
        if len(special):
            self._special = int(special[0] + 1) % self.n
        self._used += len(keys)  # an upper bound; `seen` counts again when it reaches the limit

    def _entries(self) -> tuple[np.ndarray, np.ndarray]:
        """The keys in the index, and their counts."""
        slots = -(-(self._index.slots + self._used) // 4) * 4
        return kernels.entries(self._index.array[: 2 * slots])

    def arrays(self) -> dict[str, np.ndarray]:
        """The "keys" that were seen and have no row yet, sorted, and their "counts"."""
        keys, counts = self._entries()
        counts = counts.astype(np.int64)
        if self._special:
            keys, counts = np.append(keys, kernels.EMPTY_KEY), np.append(counts, self._special)
        order = np.argsort(keys)
        return {"keys": keys[order], "counts": counts[order]}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Restore the counts from `arrays()`."""
        self._clear()
        self.count(arrays["keys"], self.seen(arrays["keys"]) + arrays["counts"] - 1)

    def take(self, parts: Sequence[dict[str, np.ndarray]], mine: Callable[[np.ndarray], np.ndarray]) -> None:
        """Take over the counts of several rules, for the keys where `mine(keys)` is True."""
        keys, counts = (np.concatenate([part[name] for part in parts]) for name in ("keys", "counts"))
        own = mine(keys)
        self.restore({"keys": keys[own], "counts": counts[own]})


class bloom(Admission):  # noqa: N801
    """Count updates in a counting Bloom filter: memory is constant, and some keys are inserted too early.

    Args:
        n: the update that inserts a key, at most 255. A removed key is inserted again by its next update.
        capacity: the number of keys it is designed for. error: the share of keys that may be miscounted, below 1.

    Source: Fan et al., "Summary cache" (2000), where only the least counters are raised (Estan and Varghese, 2002);
    DeepRec's `CBFFilter`.

    >>> rule = bloom(3, capacity=1000, error=0.01)
    >>> rule.nbytes
    9586
    """

    __slots__ = ("_counters", "capacity", "error", "hashes")

    def __init__(self, n: int = 2, capacity: int = 1_000_000, error: float = 0.01) -> None:
        super().__init__(n)
        self.capacity = whole_option(capacity, "capacity")
        if self.n > _SEEN or not 0 < error < 1:
            raise OptionError(f"bloom(n={n}, error={error}); expected n at most {_SEEN} and an error between 0 and 1")
        self.error = float(error)
        size = math.ceil(-self.capacity * math.log(self.error) / math.log(2) ** 2)
        self.hashes = max(1, round(size / self.capacity * math.log(2)))
        self._counters = np.zeros(size, np.uint8)

    @property
    def nbytes(self) -> int:
        """The number of bytes of the counters."""
        return self._counters.nbytes

    @property
    def settings(self) -> dict[str, Any]:
        """The rule as JSON, without its counts."""
        return super().settings | {"capacity": self.capacity, "error": self.error}

    def seen(self, keys: np.ndarray) -> np.ndarray:
        """The number of updates of each key; may be too high, never too low."""
        out = np.empty(len(keys), np.int64)
        kernels.least_counter(keys, self._counters, self.hashes, out)
        return out

    def count(self, keys: np.ndarray, seen: np.ndarray) -> None:
        """Raise the counters of each key to seen + 1."""
        kernels.raise_counters(keys, self._counters, self.hashes, seen)

    def arrays(self) -> dict[str, np.ndarray]:
        """The counters."""
        return {"counters": self._counters.copy()}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Restore the counts from `arrays()`."""
        self._counters[...] = arrays["counters"]

    def take(self, parts: Sequence[dict[str, np.ndarray]], mine: Callable[[np.ndarray], np.ndarray]) -> None:
        """Take over the counts of several rules; `mine` is ignored, since the filter does not store keys."""
        self._counters[...] = np.max([part["counters"] for part in parts], axis=0)


def from_settings(settings: dict[str, Any]) -> Admission:
    """Make the rule with these `settings`, without counts."""
    given = dict(settings)
    return {"count": count, "bloom": bloom}[given.pop("kind")](**given)


def _restored(settings: dict[str, Any], arrays: dict[str, np.ndarray]) -> Admission:
    rule = from_settings(settings)
    if arrays:
        rule.restore(arrays)
    return rule
