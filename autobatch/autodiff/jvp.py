"""`jvp`: the derivative of a function along a direction, by differentiating its gradient.

The gradient of <u, f(x)> is linear in u, and what it is multiplied with is the Jacobian of f: so the gradient of
<that, v> by u is the Jacobian times v. All that is needed is that a gradient can itself be differentiated, which every
vjp can, being written in ops.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.autodiff.grad import grad
from autobatch.core import models, pytree
from autobatch.core.abstract_eval import dtype_of, shape_of
from autobatch.core.cotangent import SparseCotangent
from autobatch.core.op import BATCH_RANK, rank_of
from autobatch.errors import DTypeError, ShapeError, UnsupportedError


def jvp(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """What `ab.jvp` says, but for arrays that `f` makes."""
    if not isinstance(primals, tuple | list) or not isinstance(tangents, tuple | list) or len(primals) != len(tangents):
        raise UnsupportedError(
            "primals and tangents are a tuple each, with as many tangents as arguments: write ab.jvp(f, (x,), (v,))"
        )
    directions = [_directions(f"tangents[{i}]", x, v) for i, (x, v) in enumerate(zip(primals, tangents, strict=True))]
    moved = [i for i, own in enumerate(directions) if any(v is not None for v in own)]
    value = f(*primals)
    outputs, structure = pytree.flatten(value)
    wanted = [i for i, out in enumerate(outputs) if _is_float(out)]
    if any(rank_of(out) == BATCH_RANK for out in outputs):
        raise UnsupportedError(
            "the function returned a batch; reduce it (`ab.sum(out)`), or take each example's derivative in ab.map"
        )
    results: list[Any] = [None] * len(outputs)

    def along(cotangents: list[Any]) -> Any:
        def weighted(*args: Any) -> Any:
            found = pytree.leaves(f(*args))
            return sum(np.sum(found[i] * ct) for i, ct in zip(wanted, cotangents, strict=True))

        total: Any = 0.0
        for i, gradient in zip(moved, grad(weighted, argnums=moved)(*primals), strict=True):
            for g, v in zip(_leaves_like(primals[i], gradient), directions[i], strict=True):
                total = total if g is None or v is None else total + _inner(g, v)
        return total

    zeros = [np.zeros(shape_of(outputs[i]), dtype_of(outputs[i])) for i in wanted]
    for i, tangent in zip(wanted, grad(along)(zeros) if moved and wanted else zeros, strict=True):
        results[i] = _as(outputs[i], tangent)
    return value, pytree.unflatten(structure, results)


def _directions(where: str, primal: Any, tangent: Any) -> list[Any]:
    """The tangent of each parameter of an argument, checked; None of what has none."""
    values, structure = models.flatten(primal)
    if tangent is None:
        return [None] * len(values)
    parts = models.like_leaves(structure, tangent, where)
    out: list[Any] = []
    for path, value, part in zip(pytree.paths(structure), values, parts, strict=True):
        if part is None or not _is_float(value):
            out.append(None)
            continue
        if shape_of(part) != shape_of(value):
            raise ShapeError(
                f"{where}{path} has shape {shape_of(part)}; expected that of the argument, {shape_of(value)}"
            )
        if dtype_of(part).kind not in "fiu":
            raise DTypeError(f"{where}{path} is of {dtype_of(part)}; expected floats")
        out.append(part)
    return out


def _leaves_like(given: Any, gradient: Any) -> list[Any]:
    structure = models.flatten(given)[1]
    return list(models.like_leaves(structure, gradient, "gradient"))


def _inner(gradient: Any, direction: Any) -> Any:
    """Their inner product; of a table's gradient that of the rows that were read."""
    if isinstance(gradient, SparseCotangent) or hasattr(gradient, "rows"):
        return (gradient.rows * np.asarray(direction)[gradient.ids]).sum()
    return np.sum(gradient * direction)


def _is_float(value: Any) -> bool:
    return isinstance(value, float) or (models.is_array_like(value) and dtype_of(value).kind == "f")


def _as(output: Any, tangent: Any) -> Any:
    """The tangent of an output, a Python number or NumPy scalar where the output is."""
    if type(output) is float:
        return float(tangent)
    return dtype_of(output).type(tangent) if isinstance(output, np.generic) else tangent
