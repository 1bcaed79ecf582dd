"""Digests of the parts of an array, by which parts that changed are found at the speed of memory.

NH of Black, Halevi, Krawczyk, Krovetz and Rogaway (UMAC, 1999), twice with independent keys: whatever two different
parts hold, their digests are equal with probability at most 2⁻⁶⁴ over the choice of the keys.
"""

import numpy as np

from autobatch.kernels.jit import jit


@jit
def digest_units(x, keys, first, last, out):
    """out[u] = the two digests of unit u, for first <= u < last; x is (units, words) uint32, words even."""
    half = x.shape[1] // 2
    for u in range(first, last):
        a = np.uint64(0)
        b = np.uint64(0)
        for j in range(half):  # words that lie side by side meet in different products: four lanes to an instruction
            p = x[u, j]
            q = x[u, j + half]
            a += np.uint64(np.uint32(p + keys[0, j])) * np.uint64(np.uint32(q + keys[0, j + half]))
            b += np.uint64(np.uint32(p + keys[1, j])) * np.uint64(np.uint32(q + keys[1, j + half]))
        out[u, 0] = a
        out[u, 1] = b
