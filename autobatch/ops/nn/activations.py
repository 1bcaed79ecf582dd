"""Activation functions (sigmoid, relu, gelu), and the normal distribution function."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.core.diagnostics import hiding_frames
from autobatch.core.formatting import ArrayLike
from autobatch.ops.nn.softmax_and_norms import as_floating, as_numbers
from autobatch.ops.rules.dispatch import source
from autobatch.ops.rules.op_kinds import elementwise
from autobatch.ops.rules.padding import where_or_zero

_SQRT_HALF = math.sqrt(0.5)


def normal_cdf(x: Any) -> np.ndarray:
    """The probability that a standard normal variable is at most x; in x's dtype.

    NumPy has no error function; calling math.erfc per element is as fast as an approximation by NumPy calls.
    """
    x = np.asarray(x)
    dtype = x.dtype if x.dtype.kind == "f" else np.dtype(np.float64)
    tails = [math.erfc(each) for each in (-_SQRT_HALF * x.astype(np.float64)).ravel().tolist()]
    with np.errstate(under="ignore"):
        return (0.5 * np.array(tails, np.float64)).reshape(x.shape).astype(dtype)


_INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)


def _sigmoid(x: Any) -> Any:
    x = as_floating(x)
    with np.errstate(over="ignore"):  # exp(-x) = inf gives 0, the limit
        out = np.exp(np.negative(x))
    out += 1
    return np.reciprocal(out)


def _gelu(x: Any) -> Any:
    x = as_floating(x)
    below = x == -np.inf  # the limit is 0, where the product is inf * 0
    return np.where(below, np.zeros((), x.dtype), np.where(below, np.zeros((), x.dtype), x) * normal_cdf(x))[()]


def _density(x: Any) -> Any:
    return _INV_SQRT_2PI * np.exp(-0.5 * x * x)


_QUIET: dict[str, Any] = {"keeps": False, "quiet": True}
_BELOW_ONE: dict[str, Any] = {**_QUIET, "exact": False, "bound": lambda x: 1.0}

# fmt: off
sigmoid_p    = elementwise(_sigmoid,   lambda ct, out, x: ct * out * (1 - out), name="sigmoid",
                           fused={"text": "sigmoid({0})", **_BELOW_ONE})
relu_p       = elementwise(lambda x: np.maximum(x, 0),      lambda ct, out, x: where_or_zero(x > 0, ct), name="relu",
                           fused={"text": "greater({0}, fill({lanes}, 0.0))", **_QUIET, "bound": abs})
normal_cdf_p = elementwise(normal_cdf, lambda ct, out, x: ct * _density(x), name="normal_cdf", pad=0.0,
                           fused={"text": "normal_cdf({0})", **_BELOW_ONE})
gelu_p       = elementwise(_gelu, lambda ct, out, x: ct * (normal_cdf_p(x) + x * _density(x)), name="gelu", pad=0.0,
                           fused={"text": "multiply({0}, normal_cdf({0}))", "exact": False, "bound": abs})
# fmt: on


@hiding_frames
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


@source(sigmoid)
def _sigmoid_of_one(x):
    y = np.asarray(x) if np.ndim(x) else np.multiply(x, 1.0)
    return 1 / (np.exp(-(y if y.dtype.kind == "f" else y * 1.0)) + 1)


@hiding_frames
def relu(x: ArrayLike) -> NDArray[Any]:
    """max(x, 0), elementwise; the derivative at 0 is 0.

    Args:
        x: an array of any shape.

    Returns:
        An array of x's shape, of the dtype of `np.maximum(x, 0)`: integers stay integers.

    >>> relu(np.array([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    return relu_p(as_numbers(x))


@source(relu)
def _relu_of_one(x):
    if np.ndim(x) == 0:
        return np.abs(x + 0) if x > 0 else np.abs(0 * x)  # of NaN it is NaN, of -1.0 it is 0.0
    y = np.asarray(x)
    return np.where(y > 0, y, np.abs(0 * y))


@hiding_frames
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


@source(gelu, sums=True)
def _gelu_of_one(x):
    if np.ndim(x) == 0:
        return np.multiply(x, 1.0) * (0.5 * math.erfc(-_SQRT_HALF * float(x)))
    y = np.asarray(x) * 1.0
    shares = [0.5 * math.erfc(-_SQRT_HALF * float(each)) for each in y.ravel()]
    return y * np.array(shares).reshape(y.shape).astype(y.dtype)
