"""Streams in compiled code are those of NumPy's generators, to the bit."""

import numpy as np
import pytest

from autobatch.compiled import random_streams as streams


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1, 2**32, 2**40 + 3, 2**62])
def test_a_stream(seed):
    ours, numpys = streams.new_stream(seed), np.random.default_rng(seed)
    for k in range(400):
        got, expected = [
            lambda: (streams.next_float(ours), numpys.random()),
            lambda: (streams.next_normal(ours), numpys.standard_normal()),
            lambda: (streams.next_exponential(ours), numpys.standard_exponential()),
            lambda k=k: (streams.next_whole(ours, 3, k), numpys.integers(3, 4 + k)),
        ][k % 4]()
        assert got == expected
    for size in (0, 1, 9):
        np.testing.assert_array_equal(streams.shuffle_places(ours, size), numpys.permutation(size))
