"""sigmoid, relu, gelu and dropout; the normal distribution function and the random numbers that they need.

erf and its kin are rational approximations of W. J. Cody, "Rational Chebyshev approximations for the error function",
Math. Comp. 23 (1969), accurate to a few units in the last place of float64, without SciPy.

Random numbers depend on (key, place in the example) only, so a batch draws what the loop draws, bit for bit: a hash of
the example's key and of an element's C-order index within it, a counter run through the finaliser of SplitMix64
(Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autobatch.core.abstract_eval import dtype_of, shape_of
from autobatch.core.batched import Batched, Lengths, Size
from autobatch.core.config import config
from autobatch.core.current import current_example
from autobatch.core.op import Op, is_boxed
from autobatch.errors import UnsupportedError
from autobatch.ops.nn.normalisation import as_floating
from autobatch.ops.rules.dispatch import as_array
from autobatch.ops.rules.op_kinds import elementwise
from autobatch.ops.rules.padding import kept

_A = (1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2, 3.77485237685302021e2, 3.20937758913846947e3)
_B = (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3)
_C = (
    2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1, 2.98635138197400131e2,
    8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3, 1.23033935479799725e3,
)  # fmt: skip
_D = (
    1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
    3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3,
)  # fmt: skip
_P = (
    1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1,
    1.60837851487422766e-2, 6.58749161529837803e-4,
)  # fmt: skip
_Q = (
    1.0, 2.56852019228982242, 1.87295284992346725, 5.27905102951428412e-1, 6.05183413124413191e-2,
    2.33520497626869185e-3,
)  # fmt: skip
_SQRT_HALF = 0.7071067811865476
_INV_SQRT_PI = 0.5641895835477563


def _ratio(x: np.ndarray, above: tuple[float, ...], below: tuple[float, ...]) -> np.ndarray:
    return np.polyval(above, x) / np.polyval(below, x)


def _small(x: np.ndarray) -> np.ndarray:
    """erf for |x| <= 0.46875."""
    return x * _ratio(x * x, _A, _B)


def _scaled(y: np.ndarray) -> np.ndarray:
    """exp(-y²), without the rounding of y² (Cody's splitting)."""
    coarse = np.trunc(y * 16) / 16
    return np.exp(-coarse * coarse) * np.exp(-(y - coarse) * (y + coarse))


def _tail(y: np.ndarray) -> np.ndarray:
    """erfc for y > 0.46875."""
    y = np.minimum(y, 30.0)  # erfc is 0 in float64 beyond 27
    middle = _ratio(np.minimum(y, 4.0), _C, _D)
    inverse = 1 / (y * y)
    far = (_INV_SQRT_PI - inverse * _ratio(inverse, _P, _Q)) / y
    return _scaled(y) * np.where(y <= 4, middle, far)


def _by_size(x: Any, near: Callable[[Any], Any], far: Callable[[Any, Any], Any]) -> np.ndarray:
    """`near(erf(x))` where |x| <= 0.46875, else `far(x, erfc(|x|))`."""
    x = np.asarray(x, np.float64)
    y = np.abs(x)
    with np.errstate(under="ignore"):
        large = far(x, _tail(np.where(y > 0.46875, y, 1.0)))
        small = near(_small(np.where(y > 0.46875, 0.0, x)))
    return np.where(np.isnan(x), x, np.where(y > 0.46875, large, small))


def erf(x: Any) -> np.ndarray:
    """The error function, in float64.

    >>> erf(np.array([0.0, 1.0, -5.0])).round(6).tolist()
    [0.0, 0.842701, -1.0]
    """
    return _by_size(x, lambda small: small, lambda x, tail: np.copysign(1 - tail, x))


def erfc(x: Any) -> np.ndarray:
    """1 - erf(x), in float64, accurate where that is tiny."""
    return _by_size(x, lambda small: 1 - small, lambda x, tail: np.where(x > 0, tail, 2 - tail))


def normal_cdf(x: Any) -> np.ndarray:
    """The probability that a standard normal variable is at most x; of x's dtype."""
    x = np.asarray(x)
    dtype = x.dtype if x.dtype.kind == "f" else np.dtype(np.float64)
    with np.errstate(under="ignore"):
        return (0.5 * erfc(-_SQRT_HALF * x.astype(np.float64))).astype(dtype)


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


_INV_SQRT_2PI = 0.3989422804014327


def _sigmoid(x: Any) -> Any:
    x = as_floating(x)
    with np.errstate(over="ignore"):  # exp(-x) = inf gives 0, the limit
        out = np.exp(np.negative(x))
    out += 1
    return np.reciprocal(out)


def _relu(x: Any) -> Any:
    return np.maximum(x, 0)


def _gelu(x: Any) -> Any:
    x = as_floating(x)
    below = x == -np.inf  # the limit is 0, where the product is inf * 0
    return np.where(below, np.zeros((), x.dtype), np.where(below, np.zeros((), x.dtype), x) * normal_cdf(x))[()]


def _density(x: Any) -> Any:
    return _INV_SQRT_2PI * np.exp(-0.5 * x * x)


# fmt: off
sigmoid_p    = elementwise(_sigmoid,   lambda ct, out, x: ct * out * (1 - out), name="sigmoid")
relu_p       = elementwise(_relu,      lambda ct, out, x: kept(x > 0, ct), name="relu")
normal_cdf_p = elementwise(normal_cdf, lambda ct, out, x: ct * _density(x), name="normal_cdf", pad=0.0)
gelu_p       = elementwise(_gelu, lambda ct, out, x: ct * (normal_cdf_p(x) + x * _density(x)), name="gelu", pad=0.0)
# fmt: on


def sigmoid(x: ArrayLike) -> NDArray[Any]:
    """1 / (1 + exp(-x)), elementwise.

    Args:
        x: an array of any shape; integers become float64.

    Returns:
        An array of x's shape, of its floating dtype.

    >>> sigmoid(np.array([0.0, -1000.0])).tolist()
    [0.5, 0.0]
    """
    return sigmoid_p(as_array(x))


def relu(x: ArrayLike) -> NDArray[Any]:
    """max(x, 0), elementwise; the derivative at 0 is 0.

    Args:
        x: an array of any shape; integers become float64.

    Returns:
        An array of x's shape, of its floating dtype.

    >>> relu(np.array([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    return relu_p(as_array(x))


def gelu(x: ArrayLike) -> NDArray[Any]:
    """x Φ(x), with Φ the normal distribution function (exact; Hendrycks and Gimpel 2016), elementwise.

    Args:
        x: an array of any shape; integers become float64.

    Returns:
        An array of x's shape, of its floating dtype.

    >>> gelu(np.array([0.0, 1.0])).round(6).tolist()
    [0.0, 0.841345]
    """
    return gelu_p(as_array(x))


def dropout(x: NDArray[Any], rate: float = 0.5, *, seed: int | None = None, training: bool = True) -> NDArray[Any]:
    """x with a fraction `rate` of its elements set to 0 and the others divided by 1 - rate.

    Which elements is a function of the seed, the example's place in its batch, the number of random calls that it made
    before and the element's place in the example. So a training step is seeded with `seed=step`, or all of its calls by
    `with ab.options(seed=step):` around it; then a batch in lock-step, `ab.map` and the loop that fallbacks run drop
    the same elements, and the step can be repeated. Plain code, outside of any run, is example 0, and each of its calls
    is the first one: give each another seed, or make the step an `ab.batch` function, whose plain call counts them.
    Without a seed every run (a batched call, an `ab.map`, a plain call) drops others, so two steps differ.

    Args:
        x: an array of any shape; integers become float64.
        rate: the share that is dropped, at least 0 and below 1.
        seed: an integer; None: `config.seed`, and where that is None, too, a new one for each run.
        training: False: nothing is dropped.

    Returns:
        An array of x's shape, of its floating dtype.

    Raises:
        ValueError: the rate is not in 0 <= rate < 1. UnsupportedError: the seed is no integer.

    >>> dropout(np.ones(4), 0.0).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    if not 0 <= rate < 1:
        raise ValueError(f"dropout: rate={rate!r}; expected 0 <= rate < 1")
    x = as_floating(as_array(x))
    if not training:
        return x
    if not (seed is None or is_boxed(seed) or hasattr(seed, "__index__")):
        raise UnsupportedError(f"dropout: seed={seed!r}; expected an integer, or None")
    key = current_example().next_key(config.seed if seed is None else seed)
    kept = random_uniform(key, x) >= rate
    return np.where(kept, x / (1.0 - rate), np.zeros((), dtype_of(x)))
