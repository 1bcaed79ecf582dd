"""`ab.nn`: the functions of neural networks, of one example as of a batch; plain NumPy on plain arrays.

Floating dtypes are kept (float16 accumulates in float32 where a mean is taken); integers become float64.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from autobatch.core.aval import dtype_of, ndim_of, shape_of
from autobatch.core.config import config
from autobatch.core.lanes import current_example
from autobatch.errors import DTypeError
from autobatch.ops.nn_activations import gelu_p, relu_p, sigmoid_p
from autobatch.ops.nn_loss import causal_mask_p, cross_entropy_p, one_hot_p
from autobatch.ops.nn_norm import layer_norm_p
from autobatch.ops.nn_softmax import as_floating, log_softmax_p, logsumexp_p, softmax_p
from autobatch.ops.random import random_uniform
from autobatch.ops.reductions import normal_axes

__all__ = [
    "causal_mask",
    "cross_entropy",
    "dropout",
    "gelu",
    "layer_norm",
    "log_softmax",
    "logsumexp",
    "one_hot",
    "relu",
    "sigmoid",
    "softmax",
]


def _array(x: Any) -> Any:
    return x if hasattr(x, "shape") else np.asarray(x)


def _axis(x: Any, axis: Any) -> int:
    return int(np.lib.array_utils.normalize_axis_index(axis, ndim_of(x)))


def softmax(x: ArrayLike, axis: int = -1) -> NDArray[Any]:
    """exp(x) / sum(exp(x)) along an axis, computed from x less its maximum.

    Raises:
        AxisError: x has no such axis.

    >>> softmax(np.array([0.0, np.log(3.0)])).round(6).tolist()
    [0.25, 0.75]
    """
    x = _array(x)
    return softmax_p(x, axis=_axis(x, axis))


def log_softmax(x: ArrayLike, axis: int = -1) -> NDArray[Any]:
    """log(softmax(x)) along an axis, without leaving the logarithm.

    Raises:
        AxisError: x has no such axis.

    >>> log_softmax(np.array([0.0, 0.0])).round(6).tolist()
    [-0.693147, -0.693147]
    """
    x = _array(x)
    return log_softmax_p(x, axis=_axis(x, axis))


def logsumexp(x: ArrayLike, axis: int | tuple[int, ...] | None = -1, keepdims: bool = False) -> NDArray[Any]:
    """log(sum(exp(x))) over axes; -inf where there is nothing to sum, as `torch.logsumexp`.

    Raises:
        AxisError: x has no such axis.

    >>> float(logsumexp(np.array([1000.0, 1000.0])).round(6))
    1000.693147
    """
    x = _array(x)
    return logsumexp_p(x, axis=normal_axes(axis, ndim_of(x)), keepdims=bool(keepdims))


def sigmoid(x: ArrayLike) -> NDArray[Any]:
    """1 / (1 + exp(-x)), elementwise.

    >>> sigmoid(np.array([0.0, -1000.0])).tolist()
    [0.5, 0.0]
    """
    return sigmoid_p(_array(x))


def relu(x: ArrayLike) -> NDArray[Any]:
    """max(x, 0), elementwise; the derivative at 0 is 0.

    >>> relu(np.array([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    return relu_p(_array(x))


def gelu(x: ArrayLike) -> NDArray[Any]:
    """x Φ(x), with Φ the normal distribution function (exact; Hendrycks and Gimpel 2016), elementwise.

    >>> gelu(np.array([0.0, 1.0])).round(6).tolist()
    [0.0, 0.841345]
    """
    return gelu_p(_array(x))


def layer_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    axis: int | tuple[int, ...] = -1,
    eps: float = 1e-5,
) -> NDArray[Any]:
    """(x - mean) / sqrt(var + eps) over an axis or several, times `weight` plus `bias` (which broadcast against x).

    Raises:
        AxisError: x has no such axis.

    >>> layer_norm(np.array([1.0, 3.0]), eps=0.0).tolist()
    [-1.0, 1.0]
    """
    x = _array(x)
    affine = [_array(a) for a in (weight, bias) if a is not None]
    axes = normal_axes(axis, ndim_of(x))
    return layer_norm_p(x, *affine, axis=axes, eps=float(eps), weight=weight is not None, bias=bias is not None)


def dropout(x: NDArray[Any], rate: float = 0.5, *, seed: int | None = None, training: bool = True) -> NDArray[Any]:
    """x with a fraction `rate` of its elements set to 0 and the others divided by 1 - rate.

    Which elements is a function of the seed (default `config.seed`), the example, the number of random calls that it
    made before and the element's place in the example: a batch drops what the loop over its examples drops. Another
    training step is another seed: with `seed=step`, or `with ab.options(seed=step)` around the step, it drops others.

    Raises:
        ValueError: the rate is not in 0 <= rate < 1.

    >>> dropout(np.ones(4), 0.0).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    if not 0 <= rate < 1:
        raise ValueError(f"dropout: rate={rate!r}; expected 0 <= rate < 1")
    x = as_floating(_array(x))
    if not training:
        return x
    key = current_example().next_key(config.seed if seed is None else seed)
    kept = random_uniform(key, x) >= rate
    return np.where(kept, x / (1.0 - rate), np.zeros((), dtype_of(x)))


def one_hot(ids: ArrayLike, num_classes: int, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """1 at each id, 0 elsewhere: shape ids.shape + (num_classes,).

    Raises:
        DTypeError: the ids are not integers.
        BadIdError: an id outside 0 .. num_classes - 1.

    >>> one_hot([0, 2], 3).tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    ids = _array(ids)
    if dtype_of(ids).kind not in "iu":
        raise DTypeError(f"one_hot: ids of dtype {dtype_of(ids)}; expected integers")
    return one_hot_p(ids, classes=int(num_classes), dtype=np.dtype(dtype))


def cross_entropy(logits: ArrayLike, label: ArrayLike) -> NDArray[Any]:
    """Minus the log-probability, under softmax(logits), of the label; over several rows their mean.

    Args:
        logits: (..., C), of any real dtype.
        label: class ids of shape (...), or probabilities of the shape of the logits.

    Raises:
        BadIdError: a class id outside 0 .. C - 1.
        ValueError: shapes that do not fit.

    >>> float(cross_entropy(np.array([0.0, 0.0]), 1).round(6))
    0.693147
    """
    logits, label = _array(logits), _array(label)
    if ndim_of(logits) == 0:
        raise ValueError("cross_entropy: logits need a dimension of classes")
    if dtype_of(label).kind in "iu":
        return cross_entropy_p(logits, label)
    if ndim_of(label) != ndim_of(logits):
        raise ValueError(
            f"cross_entropy: label of dtype {dtype_of(label)} and shape {shape_of(label)} for logits of shape "
            f"{shape_of(logits)}; expected integer class ids, or probabilities of the shape of the logits"
        )
    rows = -np.sum(label * log_softmax(logits), axis=-1)
    return np.mean(rows) if ndim_of(rows) else rows


def causal_mask(scores: ArrayLike, fill: float = -np.inf) -> NDArray[Any]:
    """Scores (..., query, key) with `fill` where the key comes after the query.

    Raises:
        ValueError: the scores have fewer than two dimensions.

    >>> causal_mask(np.zeros((2, 2)), fill=-1.0).tolist()
    [[0.0, -1.0], [0.0, 0.0]]
    """
    scores = _array(scores)
    if ndim_of(scores) < 2:
        raise ValueError(f"causal_mask: scores of shape {shape_of(scores)}; expected at least two dimensions")
    return causal_mask_p(scores, fill=float(fill))
