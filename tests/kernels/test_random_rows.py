"""Random rows by key: the bits are SplitMix64's, and normal numbers the inverse distribution of them."""

import statistics

import numpy as np
import pytest

from autobatch.kernels.random_rows import normal_rows, uniform_rows

KEYS = np.array([0, 1, 0x9E3779B97F4A7C15, 2**64 - 1, 123456789], np.uint64)


def bits(key, count):
    """The top 53 bits of SplitMix64's first numbers (Steele, Lea and Flood, 2014), in Python's own integers."""
    found, most = [], 2**64
    for j in range(count):
        z = (int(key) + (j + 1) * 0x9E3779B97F4A7C15) % most
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % most
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % most
        found.append((z ^ (z >> 31)) >> 11)
    return found


@pytest.mark.parametrize("count", [0, 1, 7, 40])
def test_uniform(count):
    out = np.full((len(KEYS), count), np.nan)
    uniform_rows(KEYS, -1.0, 3.0, out)
    np.testing.assert_array_equal(out, [[-1.0 + 4.0 * (each * 2.0**-53) for each in bits(key, count)] for key in KEYS])


@pytest.mark.parametrize("count", [0, 1, 7, 400])
def test_normal(count):
    out = np.full((len(KEYS), count), np.nan)
    normal_rows(KEYS, 2.0, 0.5, out)
    inverse = statistics.NormalDist(2.0, 0.5).inv_cdf
    want = [[inverse((each + 0.5) * 2.0**-53) for each in bits(key, count)] for key in KEYS]
    np.testing.assert_allclose(out, np.reshape(want, out.shape), rtol=1e-14, atol=1e-14)
