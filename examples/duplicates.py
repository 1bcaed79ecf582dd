"""Near-duplicates among sets, by MinHash and banding (Leskovec et al., Mining of Massive Datasets, chapter 3)."""

import zlib
from collections.abc import Iterable, Sequence

import numpy as np

_LARGEST = np.iinfo(np.uint64).max
_ROWS, _BANDS = 3, 32  # two sets 0.6 alike share a band with probability 0.9996


def shingles(sequence: Sequence[object], width: int = 3) -> frozenset[int]:
    """Hashes of every run of `width` elements, the same in every process; of the whole where it is shorter.

    >>> len(shingles("abcd")), len(shingles("ab"))
    (2, 1)
    """
    runs = [sequence[i : i + width] for i in range(max(1, len(sequence) - width + 1))]
    return frozenset(zlib.crc32(repr(run).encode()) for run in runs)


def first_of_each(sets: Iterable[frozenset[int]], alike: float = 0.6) -> list[int]:
    """The positions of the sets that are near-duplicates of no kept set before them.

    Two sets are near-duplicates where the size of their intersection over that of their union is at least `alike`.

    >>> first_of_each([frozenset({1, 2}), frozenset({3}), frozenset({2, 1})])
    [0, 1]
    """
    rng = np.random.default_rng(0)
    slope, shift = rng.integers(1, 1 << 63, (2, _ROWS * _BANDS, 1), np.uint64)
    kept: dict[int, frozenset[int]] = {}
    buckets: dict[tuple[int, bytes], list[int]] = {}
    for position, members in enumerate(sets):
        hashes = np.fromiter(members, np.uint64, len(members))
        signature = (slope * hashes + shift).min(axis=1, initial=_LARGEST)  # modulo 2**64
        bands = [(band, rows.tobytes()) for band, rows in enumerate(signature.reshape(_BANDS, _ROWS))]
        candidates = {other for band in bands for other in buckets.get(band, ())}
        if any(len(members & kept[other]) >= alike * len(members | kept[other]) for other in candidates):
            continue
        kept[position] = members
        for band in bands:
            buckets.setdefault(band, []).append(position)
    return list(kept)
