"""`users.report()`: how a variable stands, to be read by a person."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class VariableReport:
    """How a variable stands.

    Attributes:
        keys: how many are alive. nbytes: what rows, slots, keys and the index take.
        load: how full the index is, from 0 to 1. step: how many steps have been taken.
        oldest: the least version, the step of the update that is longest ago; None without keys.
        hot: the keys of the most updates, with how many, the most first.
        hit_rate: the share of the keys looked up that were there; None before a look-up.
        removed: how many keys were removed, evicted or shrunk away so far.

    >>> users = ab.EmbeddingVariable(2, name="users")
    >>> users.insert([4, 5])
    >>> print(users.report())
    users: 2 keys, step 0
      memory    ... KiB, index 3% full
      versions  from 0 to 0
      hot keys  4 (0 updates), 5 (0 updates)
      hit rate  no look-ups yet
      removed   0 keys so far
    """

    name: str
    keys: int
    nbytes: int
    load: float
    step: int
    oldest: int | None
    newest: int | None
    hot: list[tuple[int, int]]
    hit_rate: float | None
    removed: int

    def __str__(self) -> str:
        versions = "none" if self.oldest is None else f"from {self.oldest} to {self.newest}"
        hot = ", ".join(f"{key} ({count} updates)" for key, count in self.hot) or "none"
        rate = "no look-ups yet" if self.hit_rate is None else f"{self.hit_rate:.1%}"
        return (
            f"{self.name}: {self.keys} keys, step {self.step}\n"
            f"  memory    {_size(self.nbytes)}, index {self.load:.0%} full\n"
            f"  versions  {versions}\n"
            f"  hot keys  {hot}\n"
            f"  hit rate  {rate}\n"
            f"  removed   {self.removed} keys so far"
        )


def hottest(keys: np.ndarray, counts: np.ndarray, most: int) -> list[tuple[int, int]]:
    """The keys of the most updates, of equal ones the least keys first."""
    order = np.lexsort((keys, -counts.astype(np.int64)))[:most]
    return list(zip(keys[order].tolist(), counts[order].tolist(), strict=True))


def _size(nbytes: int) -> str:
    units = ["bytes", "KiB", "MiB", "GiB", "TiB"]
    power = min(max(nbytes.bit_length() - 1, 0) // 10, len(units) - 1)
    return f"{nbytes / 1024**power:.3g} {units[power]}"
