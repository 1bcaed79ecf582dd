"""`ab.nn.dropout`, with its per-example random number generator, and `ab.nn.causal_mask`.

A random number depends only on the example's key and the element's C-order index in the example, so a batch draws the
same numbers as the loop, bit for bit. It is a counter-based generator: a hash of both by the finaliser of SplitMix64
(Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.core.abstract_eval import dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths, Size
from autobatch.core.config import config
from autobatch.core.cotangent import unbroadcast
from autobatch.core.current_region import current_example
from autobatch.core.diagnostics import hiding_frames
from autobatch.core.formatting import ArrayLike
from autobatch.core.op import Op, is_boxed
from autobatch.errors import UnsupportedError
from autobatch.ops.nn.softmax_and_norms import as_floating, as_numbers
from autobatch.ops.rules.dispatch import source


def _hash(key: Any, index: Any) -> np.ndarray:
    """Uniform float64 in [0, 1) with 53 random bits, hashed from uint64 keys and indices."""
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


# random_uniform(key, x): uniform float64 in [0, 1) in the shape of x; each example has a uint64 key.
random_uniform = Op("random_uniform", _uniform, rule=_rule, kind="random")


@hiding_frames
def dropout(x: NDArray[Any], rate: float = 0.5, *, seed: int | None = None, training: bool = True) -> NDArray[Any]:
    """x with a fraction `rate` of its elements set to 0 and the others divided by 1 - rate.

    Which elements are dropped depends on the seed, the example's position among those that run in one block
    `with ab.options(seed=step):`, the number of its earlier random calls, and the element's position. So a batch, a map
    and the plain list of examples drop the same elements. Calls in one block continue the stream, and another block
    with the same seed repeats it. Outside of such a block, plain code draws with `seed` as the first call of example 0.
    Without a seed, every run (a batched call, an `ab.map`, a plain call) drops different elements.

    Args:
        x: an array of any shape; integers become float64.
        rate: the fraction to drop, at least 0 and below 1.
        seed: an integer; None: `config.seed`, or, if that is also None, a new seed for each run.
        training: if False, nothing is dropped.

    Returns:
        An array of x's shape, of its floating dtype.

    Raises:
        ValueError: the rate is not in 0 <= rate < 1. UnsupportedError: the seed is not an integer.

    >>> dropout(np.ones(4), 0.0).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    if not 0 <= rate < 1:
        raise ValueError(f"dropout: rate={rate!r}; expected 0 <= rate < 1")
    x = as_floating(as_numbers(x))
    if not training:
        return x
    if not (seed is None or is_boxed(seed) or hasattr(seed, "__index__")):
        raise UnsupportedError(f"dropout: seed={seed!r}; expected an integer, or None")
    key = current_example(config.numbering).next_key(config.seed if seed is None else seed)
    kept = random_uniform(key, x) >= rate
    return np.where(kept, x / (1.0 - rate), np.zeros((), dtype_of(x)))


def _below(shape: tuple[int, ...]) -> np.ndarray:
    return np.tri(shape[-2], shape[-1], dtype=bool)


_kept = lambda ct: np.where(_below(shape_of(ct)), ct, np.zeros((), dtype_of(ct)))
# The last two dimensions are (query, key), and padding comes last in both, so the rule needs no padding mask.
causal_mask_p = Op(
    "causal_mask", lambda scores, *, fill: np.where(_below(np.shape(scores)), scores, fill),
    rule=lambda op, operands, params: Batched(op(operands[0].data, **params), operands[0].sizes),
    vjp=lambda position, ct, out, args, params: unbroadcast(_kept(ct), args[0]), kind="masking",
)  # fmt: skip


@hiding_frames
def causal_mask(scores: ArrayLike, fill: float = -np.inf) -> NDArray[Any]:
    """Scores (..., query, key) with `fill` where the key comes after the query.

    Args:
        scores: (..., query, key), any real dtype.
        fill: the value where the key comes after its query.

    Returns:
        An array of the scores' shape and dtype.

    Raises:
        ValueError: the scores have fewer than two dimensions.

    >>> causal_mask(np.zeros((2, 2)), fill=-1.0).tolist()
    [[0.0, -1.0], [0.0, 0.0]]
    """
    scores = as_numbers(scores)
    if ndim_of(scores) < 2:
        raise ValueError(f"causal_mask: scores of shape {shape_of(scores)}; expected at least two dimensions")
    return causal_mask_p(scores, fill=float(fill))


@source(causal_mask, of=(2,))
def _causal_mask_of_one(scores, fill=-np.inf):
    out = scores.copy()
    for i in range(out.shape[0]):
        for j in range(i + 1, out.shape[1]):
            out[i, j] = fill
    return out
