"""What the tests of repeated maps share."""

import numpy as np

import autobatch as ab
from autobatch.core import pytree
from tests.inspect import map_with_stats
from tests.law import assert_same, loop, normal

TREES = [((1, 2), 3), 4, ((5, (6, 7)), 8), (0, 0)]


def params(seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=(9, 4) if name == "emb" else (4, 4)).astype(dtype) for name in ("emb", "w", "u")}


def check(f, *columns, **shared):
    """One map beside the loop."""
    results, stats = map_with_stats(f, *columns, **shared)
    assert_same(results, loop(f, *columns, **shared))
    assert not stats.fallbacks


def again(f, *columns, times=4, **shared):
    """Several maps beside the loop."""
    for _ in range(times):
        check(f, *columns, **shared)


@ab.batch
def encode(tree, params):
    if isinstance(tree, int):
        return params["emb"][tree]
    left, right = (encode(part, params) for part in tree)
    return np.tanh(left @ params["w"] + right @ params["u"])


def tables(seed=0, size=4, rows=5, dtype=np.float32):
    return {
        "emb": ab.EmbeddingTable(normal(rows, size, seed=seed, dtype=dtype)),
        "w": normal(2 * size, size, seed=seed + 1, dtype=dtype),
        "out": normal(size, 3, seed=seed + 2, dtype=dtype),
    }


def same_as_loop(f, *columns, **shared):
    sizes = [leaf.dtype.itemsize for leaf in pytree.leaves(shared) if getattr(leaf, "dtype", np.dtype(int)).kind == "f"]
    assert_same(ab.map(f, *columns, **shared), loop(f, *columns, **shared), precision=min(sizes, default=8))
