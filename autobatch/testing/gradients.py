"""Gradients of one way of running a function, and `check_grads`: `ab.grad` against central differences."""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.autodiff.grad import value_and_grad
from autobatch.core.config import seeded
from autobatch.core.models import flatten
from autobatch.core.pytree import leaves, unflatten
from autobatch.rewrite.taped_forms import per_example_form
from autobatch.testing.compared_ways import PackedArguments, Way, is_float


@dataclasses.dataclass
class Gradients:
    """What one run gave.

    Attributes:
        shared: one gradient per float leaf of the shared arguments.
        examples: for each example, one gradient per float leaf of its own.
    """

    shared: list[Any]
    examples: list[list[Any]]


def fresh(tree: Any) -> Any:
    """A deep copy, so that a function that writes into its arguments starts every run from the same ones."""
    try:
        return copy.deepcopy(tree)
    except (TypeError, RecursionError):  # something that cannot be copied, such as a lock or a very deep tree
        return tree


def cotangents(result: Any, seed: int) -> list[Any]:
    """A random cotangent for each leaf of a result; None for a leaf that is no array of floats.

    >>> cotangents((np.ones(2), 3), seed=0)[1] is None
    True
    """
    random = np.random.default_rng(seed)
    return [random.standard_normal(x.shape).astype(x.dtype) if is_float(x) else None for x in leaves(result)]


def shared_floats(shared: dict[str, Any]) -> tuple[list[Any], Callable[[list[Any]], dict[str, Any]]]:
    """The float arrays and tables among the shared arguments, and how to put others in their place."""
    values, structure = flatten(shared)
    where = [i for i, x in enumerate(values) if is_float(x) or _is_table(x)]

    def rebuild(new: list[Any]) -> dict[str, Any]:
        out = list(values)
        for i, x in zip(where, new, strict=True):
            out[i] = x
        return unflatten(structure, out)

    return [values[i] for i in where], rebuild


def _is_table(leaf: Any) -> bool:
    """Whether a leaf says itself what its gradient is, as an `EmbeddingTable` does."""
    return hasattr(leaf, "_ab_gradient") and leaf.dtype.kind == "f"


def gradients(
    way: Way, f: Callable[..., Any], packed: PackedArguments, shared: dict[str, Any], weights: Sequence[list[Any]]
) -> Gradients:
    """Differentiate the sum over all float outputs of all examples, each times its cotangent in `weights`."""
    shared_leaves, with_shared = shared_floats(shared)

    def loss(values: list[Any]) -> Any:
        own, common = values[: len(packed.floats)], values[len(packed.floats) :]
        results = way.call(f, packed.rebuild(own), with_shared(common))
        total: Any = 0.0
        with np.errstate(all="ignore"):
            for result, cotangent in zip(results, weights, strict=True):
                for leaf, ct in zip(leaves(result), cotangent, strict=True):
                    if ct is not None:
                        total = total + np.sum(leaf * ct)
        return total

    _, grads = value_and_grad(loss)([*packed.floats, *shared_leaves])
    own, common = grads[: len(packed.floats)], grads[len(packed.floats) :]
    return Gradients(list(common), packed.split(own))


_MOST = 64  # elements of one array that are moved, one by one


@seeded()
def check_grads(f: Callable[..., Any], *args: Any, eps: float = 1e-6, rtol: float = 1e-5, seed: int = 0) -> float:
    """Assert that `ab.grad` of `f` agrees with central differences at `args`.

    Float outputs are contracted with random cotangents; every float array among the arguments is moved element by
    element (64 elements of it, drawn at random, where it has more). Use float64: rounding in float32 is larger than
    what is compared.

    Args:
        f: a function of arrays, or of trees of arrays, with float outputs; differentiable near `args`.
        args: its arguments.
        eps: half the step between the two function values of a difference.
        rtol: the largest error allowed, relative to 1 + the largest gradient of the array.
        seed: of the cotangents and the elements.

    Returns:
        The largest error found, so measured.

    Raises:
        AssertionError: names the argument, the element and both values.
        ValueError: there is nothing to check: no float array among the arguments or the outputs.

    >>> check_grads(lambda x: np.tanh(x) * x, np.array([0.5, -1.0])) < 1e-5
    True
    """
    values, structure = flatten(fresh(args))
    where = [i for i, x in enumerate(values) if is_float(x)]
    weights = cotangents(f(*fresh(args)), seed)
    if not where or all(ct is None for ct in weights):
        raise ValueError(f"check_grads needs float arrays among the arguments and outputs; got {len(where)} arguments")

    def loss(floats: list[Any]) -> Any:
        current = list(values)
        for i, x in zip(where, floats, strict=True):
            current[i] = x
        result = per_example_form(f)(*unflatten(structure, current))
        pairs = zip(leaves(result), weights, strict=True)
        return sum(np.sum(leaf * ct) for leaf, ct in pairs if ct is not None)

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
    if size <= _MOST:
        return list(range(size))
    return sorted(random.choice(size, _MOST, replace=False).tolist())


def _central_difference(
    loss: Callable[[list[Any]], Any], floats: list[Any], position: int, index: tuple[Any, ...], eps: float
) -> float:
    sides = []
    for step in (eps, -eps):
        moved = fresh(floats)
        moved[position][index] += step
        sides.append(float(loss(moved)))
    return (sides[0] - sides[1]) / (2 * eps)
