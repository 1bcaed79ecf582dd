"""`ab.admission`: which keys come to life. `count(n)` counts exactly; `bloom(n, ...)` in a memory that does not grow.

A rule answers for the distinct keys of a step that have no row yet (`seen`), and takes note of them when the step is
made (`count`): what is left early has counted nothing.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.growing_arrays import memory_of_machine
from autobatch.errors import OptionError
from autobatch.kernels import hash_table as kernels
from autobatch.ops.rules.ragged_checks import whole_option
from autobatch.tables.keyed.key_index import KeyIndex

__all__ = ["bloom", "count"]

_SEEN = 255  # updates that a counter of a Bloom filter holds
_KEY_BYTES = 128  # of memory for each key that is counted, at least


class Admission:
    """A rule that lets keys in with their n-th update.

    Args:
        n: at which of its updates a key comes to life; that one is applied.
    """

    __slots__ = ("n",)

    def __init__(self, n: int) -> None:
        self.n = whole_option(n, "n")

    def seen(self, keys: np.ndarray) -> np.ndarray:
        """How many updates each of (m,) distinct keys has had; what it takes to count them is there afterwards."""
        raise TypeError(f"{type(self).__name__} does not say how often it has seen a key")

    def admits(self, seen: np.ndarray) -> np.ndarray:
        """Whether each key with so many updates comes to life with the next one."""
        return seen + 1 >= self.n

    def count(self, keys: np.ndarray, seen: np.ndarray) -> None:
        """Note an update of each key, beside those seen before; the same if it is done again."""
        raise TypeError(f"{type(self).__name__} does not say how it counts")

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
        """Have counted what several rules have, of the keys for which `mine(keys)` is true."""

    def fresh(self) -> "Admission":
        """The same rule, which has counted nothing."""
        return from_settings(self.settings)

    def __reduce__(self) -> Any:
        return _restored, (self.settings, self.arrays())

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name}={value}" for name, value in self.settings.items() if name != "kind")
        return f"admission.{type(self).__name__}({numbers})"


class count(Admission):  # noqa: N801 - called like a function
    """Count exactly: 16 bytes or a little more for each key that was seen and is not alive yet.

    Args:
        n: at which of its updates a key comes to life; that one is applied. Before, it reads as the initialiser.

    >>> users = ab.EmbeddingVariable(2, admission=ab.admission.count(2))
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
        self._index = KeyIndex(memory_of_machine() // _KEY_BYTES)
        self._used = self._special = 0

    def seen(self, keys: np.ndarray) -> np.ndarray:
        """How many updates each key has had."""
        if not self._index.is_enough(self._used + len(keys)):
            if not self._index.is_moving:
                self._used = len(self._entries()[0])
            self._index.make_room(len(keys), self._used + len(keys))
        return np.maximum(self._index.find(keys, self._special)[0], 0)

    def count(self, keys: np.ndarray, seen: np.ndarray) -> None:
        """Note an update of each key."""
        kernels.set_counts(keys, seen + 1, self.n, self._index.array, self._index.form)
        special = seen[keys == kernels.EMPTY_KEY]
        if len(special):
            self._special = int(special[0] + 1) % self.n
        self._used += len(keys)  # at most; counted when it matters

    def _entries(self) -> tuple[np.ndarray, np.ndarray]:
        """The keys in the index, and their counts."""
        slots = -(-(self._index.slots + self._used) // 4) * 4
        return kernels.entries(self._index.array[: 2 * slots])

    def arrays(self) -> dict[str, np.ndarray]:
        """The keys that were seen and are not alive, and how often."""
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
        """Have counted what several rules have, of the keys for which `mine(keys)` is true."""
        keys, counts = (np.concatenate([part[name] for part in parts]) for name in ("keys", "counts"))
        own = mine(keys)
        self.restore({"keys": keys[own], "counts": counts[own]})


class bloom(Admission):  # noqa: N801
    """Count in a counting Bloom filter: its memory stays as it is, and some keys come to life sooner than they should.

    Args:
        n: at which of its updates a key comes to life, at most 255; one that was removed, at its next.
        capacity: for how many keys it is made. error: the share of them that may be taken for others, below 1.

    Source: Fan et al., "Summary cache" (2000), with the counters that are least raised only (Estan and Varghese, 2002);
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
        """The bytes of the counters."""
        return self._counters.nbytes

    @property
    def settings(self) -> dict[str, Any]:
        """The rule as JSON, without its counts."""
        return super().settings | {"capacity": self.capacity, "error": self.error}

    def seen(self, keys: np.ndarray) -> np.ndarray:
        """How many updates each key has had, or a little more."""
        out = np.empty(len(keys), np.int64)
        kernels.least_counter(keys, self._counters, self.hashes, out)
        return out

    def count(self, keys: np.ndarray, seen: np.ndarray) -> None:
        """Note an update of each key."""
        kernels.raise_counters(keys, self._counters, self.hashes, seen)

    def arrays(self) -> dict[str, np.ndarray]:
        """The counters."""
        return {"counters": self._counters.copy()}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Restore the counts from `arrays()`."""
        self._counters[...] = arrays["counters"]

    def take(self, parts: Sequence[dict[str, np.ndarray]], mine: Callable[[np.ndarray], np.ndarray]) -> None:
        """Have counted what several rules have; whose keys that were is not known any more."""
        self._counters[...] = np.max([part["counters"] for part in parts], axis=0)


def from_settings(settings: dict[str, Any]) -> Admission:
    """The rule of these `settings`, which has counted nothing."""
    given = dict(settings)
    return {"count": count, "bloom": bloom}[given.pop("kind")](**given)


def _restored(settings: dict[str, Any], arrays: dict[str, np.ndarray]) -> Admission:
    rule = from_settings(settings)
    if arrays:
        rule.restore(arrays)
    return rule
