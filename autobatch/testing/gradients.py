"""Computes gradients of a function in one mode, and compares gradients with central differences.

Comparing modes with each other cannot find a wrong vjp, since all modes share it.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np

from autobatch.autodiff import grad as derivatives
from autobatch.autodiff.grad import value_and_grad
from autobatch.core import parameter_trees
from autobatch.core.config import seeded
from autobatch.core.pytree import leaves, map_tree, unflatten
from autobatch.errors import OptionError
from autobatch.lazy.taped_forms import per_example_form
from autobatch.tables.table import EmbeddingTable
from autobatch.testing.compared_ways import PackedArguments, ReferenceLoop, Way, fresh, is_float


@dataclasses.dataclass
class Gradients:
    """The gradients of one run.

    Attributes:
        shared: one gradient per float leaf of the shared arguments.
        examples: for each example, one gradient per float leaf of its own.
    """

    shared: list[Any]
    examples: list[list[Any]]


def cotangents(result: object, seed: int) -> list[Any]:
    """A random cotangent for each leaf of a result; None for a leaf that is not a float array.

    >>> cotangents((np.ones(2), 3), seed=0)[1] is None
    True
    """
    random = np.random.default_rng(seed)
    return [random.standard_normal(x.shape).astype(x.dtype) if is_float(x) else None for x in leaves(result)]


def _weighted_sum(results: Sequence[Any], weights: Sequence[list[Any]]) -> Any:
    """The sum over the float leaves of all results, each times its cotangent."""
    total: Any = 0.0
    for result, cotangent in zip(results, weights, strict=True):
        for leaf, ct in zip(leaves(result), cotangent, strict=True):
            if ct is not None:
                total = total + np.sum(leaf * ct)
    return total


def shared_floats(shared: dict[str, Any]) -> tuple[list[Any], Callable[[list[Any]], dict[str, Any]]]:
    """(float arrays and tables among the shared arguments, function that replaces them by others)."""
    values, structure = parameter_trees.flatten(shared)
    where = [i for i, x in enumerate(values) if is_float(x) or (hasattr(x, "_ab_gradient") and x.dtype.kind == "f")]

    def rebuild(new: list[Any]) -> dict[str, Any]:
        out = list(values)
        for i, x in zip(where, new, strict=True):
            out[i] = x
        return unflatten(structure, out)

    return [values[i] for i in where], rebuild


def _loss_of(
    way: Way, f: Callable[..., Any], packed: PackedArguments, shared: dict[str, Any], weights: Sequence[list[Any]]
) -> tuple[Callable[[list[Any]], Any], list[Any]]:
    """The sum over all float outputs, each times its cotangent, as a function of float arrays; and these arrays."""
    shared_leaves, with_shared = shared_floats(shared)
    count = len(packed.floats)

    @seeded()
    def loss(values: list[Any]) -> Any:
        results = way.call(f, packed.rebuild(values[:count]), with_shared(values[count:]))
        with np.errstate(all="ignore"):
            return _weighted_sum(results, weights)

    return loss, [*packed.floats, *shared_leaves]


def gradients(
    way: Way, f: Callable[..., Any], packed: PackedArguments, shared: dict[str, Any], weights: Sequence[list[Any]]
) -> Gradients:
    """Differentiate the sum over all float outputs of all examples, each times its cotangent in `weights`."""
    loss, floats = _loss_of(way, f, packed, shared, weights)
    _, grads = value_and_grad(loss)(floats)
    count = len(packed.floats)
    return Gradients(list(grads[count:]), packed.split(grads[:count]))


_MOST = 64  # elements of one array that are perturbed, one by one


@seeded()
def check_grads(f: Callable[..., Any], *args: object, eps: float = 1e-6, rtol: float = 1e-5, seed: int = 0) -> float:
    """Assert that `ab.grad` of `f` agrees with central differences at `args`.

    Float outputs are contracted with random cotangents; every float array among the arguments is changed element by
    element (a random 64 of them, if it has more). Use float64: the rounding of float32 is larger than the differences.

    Args:
        f: a function of arrays, or of trees of arrays, with float outputs; differentiable near `args`.
        args: its arguments.
        eps: half the step between the two function values of a difference.
        rtol: the largest error allowed, relative to 1 + the largest gradient of the array.
        seed: of the cotangents and the elements.

    Returns:
        The largest error found, on that scale.

    Raises:
        AssertionError: names the argument, the element and both values.
        ValueError: there is nothing to check: no float array among the arguments or the outputs.
        OptionError: a step that is not between 0 and 1.

    >>> check_grads(lambda x: np.tanh(x) * x, np.array([0.5, -1.0])) < 1e-5
    True
    """
    if not 0 < eps < 1:
        raise OptionError(f"eps={eps!r:.60}; expected a small step, between 0 and 1")
    values, structure = parameter_trees.flatten(fresh(args))
    where = [i for i, x in enumerate(values) if is_float(x)]
    weights = cotangents(f(*fresh(args)), seed)
    if not where or all(ct is None for ct in weights):
        raise ValueError(f"check_grads needs float arrays among the arguments and outputs; got {len(where)} arguments")

    @seeded()
    def loss(floats: list[Any]) -> Any:
        current = list(values)
        for i, x in zip(where, floats, strict=True):
            current[i] = x
        return _weighted_sum([per_example_form(f)(*unflatten(structure, current))], [weights])

    floats = [np.array(values[i]) for i in where]
    _, analytic = value_and_grad(loss)(fresh(floats))
    random = np.random.default_rng(seed)
    worst = 0.0
    for position, gradient in enumerate(analytic):
        array = floats[position]
        scale = 1.0 + float(np.abs(gradient).max(initial=0.0))
        for flat in _elements(array.size, random):
            index = np.unravel_index(flat, array.shape)
            numeric = _central_difference(loss, floats, position, index, eps)
            error = abs(numeric - float(np.asarray(gradient)[index])) / scale
            if not error <= rtol:
                element = f"[{', '.join(map(str, map(int, index)))}]" if index else ""
                raise AssertionError(
                    f"gradient of float argument {position}{element}: ab.grad gives {np.asarray(gradient)[index]}, "
                    f"central differences give {numeric} (relative error {error:.1e}, allowed {rtol:.1e})"
                )
            worst = max(worst, error)
    return worst


def _elements(size: int, random: np.random.Generator) -> list[int]:
    return list(range(size)) if size <= _MOST else sorted(random.choice(size, _MOST, replace=False).tolist())


def _central_difference(
    loss: Callable[[list[Any]], Any], floats: list[Any], position: int, index: tuple[Any, ...], eps: float
) -> float:
    sides = []
    for step in (eps, -eps):
        moved = fresh(floats)
        moved[position][index] += step
        sides.append(float(loss(moved)))
    return (sides[0] - sides[1]) / (2 * eps)


_MOST_ALONE = 6  # arrays with a direction of their own; all others share one


def check_directions(f: Callable[..., Any], examples: Sequence[tuple[Any, ...]], shared: dict[str, Any]) -> int:
    """Assert that the gradient of an undecorated function agrees with central differences along random directions.

    Args:
        f: the function of one example; examples: the first few are used; shared: its keyword arguments.

    Returns:
        The number of directions that were compared. Not compared are directions without a slope (a kink, a step, or
        rounding inside), and functions that fail in float64 or stop gradients on purpose.

    Raises:
        AssertionError: names the arrays, and both derivatives.

    >>> check_directions(lambda x, w: np.tanh(x * w).sum(), [(np.array([0.5, 1.0]),)], {"w": np.float64(2)})
    2
    """
    # Each direction runs the examples six times.
    values, with_shared = shared_floats(fresh(shared))
    shared = with_shared([_as_float64(x) for x in values])
    loop, examples = ReferenceLoop(), [map_tree(_as_float64, fresh(example)) for example in examples[:4]]
    packed = loop.pack(examples)
    try:
        stop = mock.patch.object(derivatives, "_stop_leaf", wraps=derivatives._stop_leaf)
        with np.errstate(all="ignore"), stop as stopped:
            results = loop.call(f, loop.pack(fresh(examples)).args, fresh(shared))
            weights = [map_tree(_as_float64, cotangents(result, i)) for i, result in enumerate(results)]
            loss, floats = _loss_of(loop, f, packed, shared, weights)
            analytic = value_and_grad(loss)(_copies(floats))[1]
            value = float(loss(_copies(floats)))
    except Exception:  # of the user's function, which may not run in float64
        return 0
    if stopped.called or not np.isfinite(value):
        return 0
    names = [f"float {j} of example {i}" for i, own in enumerate(packed.split(floats)) for j in range(len(own))]
    names += [f"float {j} of the shared arguments" for j in range(len(floats) - len(names))]
    groups = [[i] for i, x in enumerate(floats) if is_float(x) or type(x) is EmbeddingTable]
    if len(groups) > _MOST_ALONE:
        groups = [*groups[: _MOST_ALONE - 1], [i for group in groups[_MOST_ALONE - 1 :] for i in group]]
    random = np.random.default_rng(0)
    compared = 0
    for group in groups:
        direction = {i: random.standard_normal(np.shape(floats[i])) for i in group}
        slope = sum(float(np.sum(_dense(analytic[i]) * v)) for i, v in direction.items())
        # The larger steps are for functions that compute in float32 internally.
        found = [_slope(loss, floats, value, direction, step) for step in (1e-5, 3e-4, 1e-3)]
        reliable = [x for x in found if x is not None]
        agree = any(_close(one[0], two[0], max(one[1], two[1])) for one, two in itertools.pairwise(reliable))
        if not agree or not np.isfinite(slope):  # a kink, a step or a pole; the square root of 0
            continue
        compared += 1
        if not any(_close(slope, numeric, noise) for numeric, noise in reliable):
            text = ", ".join(names[i] for i in group[:3]) + (", ..." if len(group) > 3 else "")
            raise AssertionError(
                f"the gradient of {text} is wrong: along a random direction ab.grad gives {slope:.6g}, central "
                f"differences of the function itself give {reliable[0][0]:.6g}; every mode shares this gradient, so "
                "look at the vjp of an operation in it (ab.testing.check_grads compares element by element)"
            )
    return compared


def _close(slope: float, numeric: float, noise: float) -> bool:
    return abs(slope - numeric) <= 5e-3 * max(abs(slope), abs(numeric)) + noise  # relative to the larger derivative


def _slope(
    loss: Callable[[list[Any]], Any], floats: Sequence[Any], value: float, direction: dict[int, Any], step: float
) -> tuple[float, float] | None:
    """(slope of the loss along a direction, its rounding error); None if the one-sided slopes disagree."""
    sides = []
    try:
        with np.errstate(all="ignore"):
            for s in (step, -step):
                moved = _copies(floats)
                for i, v in direction.items():
                    x = np.asarray(moved[i]) + s * v
                    moved[i] = EmbeddingTable(x) if type(moved[i]) is EmbeddingTable else x
                sides.append(float(loss(moved)))
    except Exception:  # outside the function's domain
        return None
    ahead, behind = (sides[0] - value) / step, (value - sides[1]) / step
    noise = 1e-13 * max(abs(value), *map(abs, sides)) / step
    if not np.isfinite(ahead + behind) or abs(ahead - behind) > 0.1 * max(abs(ahead), abs(behind)) + noise:
        return None
    return (ahead + behind) / 2, noise


def _copies(floats: Sequence[Any]) -> list[Any]:
    """For a function that writes into its arguments."""
    return [np.array(x) if isinstance(x, np.ndarray) else x for x in floats]


def _dense(gradient: object) -> np.ndarray:
    return np.asarray(gradient.to_dense() if hasattr(gradient, "to_dense") else gradient, np.float64)


def _as_float64(x: Any) -> Any:
    if type(x) is EmbeddingTable:
        return EmbeddingTable(np.asarray(x).astype(np.float64))
    return x.astype(np.float64) if is_float(x) else x
