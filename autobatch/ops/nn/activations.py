"""sigmoid, relu and gelu; the normal distribution function.

erf and its kin are rational approximations of W. J. Cody, "Rational Chebyshev approximations for the error function",
Math. Comp. 23 (1969), accurate to a few units in the last place of float64, without SciPy.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autobatch.ops.nn.softmax_and_norms import as_floating, as_numbers
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
    return sigmoid_p(as_numbers(x))


def relu(x: ArrayLike) -> NDArray[Any]:
    """max(x, 0), elementwise; the derivative at 0 is 0.

    Args:
        x: an array of any shape; integers become float64.

    Returns:
        An array of x's shape, of its floating dtype.

    >>> relu(np.array([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    return relu_p(as_numbers(x))


def gelu(x: ArrayLike) -> NDArray[Any]:
    """x Φ(x), with Φ the normal distribution function (exact; Hendrycks and Gimpel 2016), elementwise.

    Args:
        x: an array of any shape; integers become float64.

    Returns:
        An array of x's shape, of its floating dtype.

    >>> gelu(np.array([0.0, 1.0])).round(6).tolist()
    [0.0, 0.841345]
    """
    return gelu_p(as_numbers(x))
