"""Random numbers that depend on (key, place in the example) only, so a batch draws what the loop draws, bit for bit.

An element's number is a hash of its example's key and of its C-order index within the example: a counter run through
the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import shape_of
from autobatch.core.batched import Batched, Lengths, Size
from autobatch.core.op import Op

__all__ = ["random_uniform"]


def _hash(key: Any, index: Any) -> np.ndarray:
    """Uniform float64 in [0, 1), 53 bits, of uint64 keys and indices."""
    with np.errstate(over="ignore"):
        z = np.asarray(key).astype(np.uint64) + (index.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _uniform(key: Any, x: Any) -> np.ndarray:
    shape = np.shape(x)
    return _hash(key, np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape))


def _index(sizes: Sequence[Size], extents: Sequence[int], batch_size: int) -> np.ndarray:
    """The C-order index of every element within its example: (B, *extents)."""
    rank = len(sizes)
    index = np.zeros((batch_size,) + (1,) * rank, np.int64)
    for axis, (size, extent) in enumerate(zip(sizes, extents, strict=True)):
        stride = size.values.reshape((-1,) + (1,) * rank) if isinstance(size, Lengths) else size
        index = index * stride + np.arange(extent).reshape((extent,) + (1,) * (rank - axis - 1))
    return index


def _rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    key, x = operands
    keys = key.data if isinstance(key, Batched) else np.asarray(key)
    if isinstance(x, Batched):
        sizes, extents, batch_size = x.sizes, x.data.shape[1:], x.batch_size
    else:
        sizes, extents, batch_size = shape_of(x), shape_of(x), key.batch_size
    index = _index(sizes, extents, batch_size)
    keys = keys.reshape((-1,) + (1,) * len(sizes)) if keys.ndim else keys
    return Batched(np.broadcast_to(_hash(keys, index), (batch_size, *extents)), sizes)


# random_uniform(key, x): uniform float64 in [0, 1) of the shape of x; key is a uint64 for each example.
random_uniform = Op("random_uniform", _uniform, rule=_rule, kind="random")
