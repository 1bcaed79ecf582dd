"""Ops that run NumPy's function for one example after the other inside their rule: sets, searches, counts.

Their results are positions and counts, which carry no gradient; values are read at those positions by ops that do.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.batched import Batched, Lengths, Size
from autobatch.core.op import Op
from autobatch.errors import UnsupportedError
from autobatch.ops.rules.sizes import lanes_of

__all__ = ["lanewise", "values_of"]

_detach_p = Op("values", lambda x: x)  # no vjp: what it gives carries no gradient


def values_of(x: Any) -> np.ndarray:
    """The plain values of an array that may carry a gradient, where none flows back."""
    return np.asarray(_detach_p(x))


def lanewise(name: str, impl: Callable[..., Any], *, dynamic: bool = True) -> Op:
    """An op whose rule is a loop over the examples; the sizes of the results may differ.

    Args:
        dynamic: the shape of the result depends on values, so a lazy call needs them first.
    """
    return Op(name, impl, rule=_rule, vjp=_no_gradient, data_dependent=dynamic, kind="lanewise")


def _no_gradient(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    raise UnsupportedError("this function has no gradient here")


def _rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    lanes = lanes_of(operands)
    columns = [_examples(x) if isinstance(x, Batched) else [values_of(x)] * lanes for x in operands]
    results = [np.asarray(op.impl(*row, **params)) for row in zip(*columns, strict=True)]
    if not results:
        dummies = [np.zeros(x.data.shape[1:], x.data.dtype) if isinstance(x, Batched) else x for x in operands]
        empty = np.asarray(op.impl(*dummies, **params))
        ragged = [Lengths([]) if op.data_dependent else size for size in empty.shape]
        return Batched(np.zeros((0, *empty.shape), empty.dtype), ragged)
    shapes = np.array([result.shape for result in results], np.int64).reshape(lanes, results[0].ndim)
    sizes: list[Size] = [
        Lengths(column) if op.data_dependent or (column != column[0]).any() else int(column[0]) for column in shapes.T
    ]
    data = np.zeros((lanes, *shapes.max(axis=0, initial=0)), results[0].dtype)
    for lane, result in enumerate(results):
        place: Any = (lane, *map(slice, result.shape))
        data[place] = result
    return Batched(data, sizes)


def _examples(x: Batched) -> list[np.ndarray]:
    data = values_of(x.data)
    corners = [size.values if isinstance(size, Lengths) else np.full(len(data), size) for size in x.sizes]
    places: list[Any] = [(lane, *(slice(int(corner[lane])) for corner in corners)) for lane in range(len(data))]
    return [data[place] for place in places]
