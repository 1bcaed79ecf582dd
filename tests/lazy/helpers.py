"""What the tests of the on-the-fly engine share: the law, as a function."""

import numpy as np

import autobatch as ab
from autobatch.api.transforms import map_with_stats


def assert_same(found, expected):
    """Equal in type, structure, dtype, shape and, up to rounding, value."""
    assert type(found) is type(expected), (type(found), type(expected))
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        assert_same(list(found.values()), list(expected.values()))
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for x, y in zip(found, expected, strict=True):
            assert_same(x, y)
    elif isinstance(expected, np.ndarray | np.generic):
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    elif isinstance(expected, float):
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    elif hasattr(expected, "__dict__"):
        assert_same(vars(found), vars(expected))
    else:
        assert found == expected


def loop(f, *columns, **shared):
    return [f(*row, **shared) for row in zip(*columns, strict=True)]


def check(f, *columns, **shared):
    """`ab.map` equals the loop, with blocks and op by op; returns what was launched op by op."""
    expected = loop(f, *columns, **shared)
    assert_same(map_with_stats(f, *columns, **shared)[0], expected)
    with ab.options(blocks=False):
        results, stats = map_with_stats(f, *columns, **shared)
    assert_same(results, expected)
    return stats


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def vectors(count, *shape, seed=0, dtype=np.float32):
    return list(normal(count, *shape, seed=seed, dtype=dtype))
