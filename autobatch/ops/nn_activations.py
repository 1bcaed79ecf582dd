"""sigmoid, relu and gelu: elementwise ops of one node each."""

from typing import Any

import numpy as np

from autobatch.ops.nn_softmax import as_floating
from autobatch.ops.normal import normal_cdf
from autobatch.ops.rules.kinds import elementwise
from autobatch.ops.rules.padding import kept

__all__ = ["gelu_p", "normal_cdf_p", "relu_p", "sigmoid_p"]

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
