"""The kernel that finds keys in an ascending array: what `np.searchsorted` says, for every size and place."""

import numpy as np

from autobatch.kernels.hash_table import find_sorted


def test_every_key_of_every_small_array():
    for size in range(20):
        known = np.arange(size, dtype=np.int64) * 3 - 7
        keys = np.arange(-12, 3 * size + 3, dtype=np.int64)
        out = np.full(len(keys), 99, np.int64)
        find_sorted(keys, known, out, 1, len(keys) - 1)
        expected = [int(np.searchsorted(known, key)) if key in known else -1 for key in keys]
        assert out[1:-1].tolist() == expected[1:-1]
        assert out[0] == out[-1] == 99  # not asked for
