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


@seeded()
def gradients(
    way: Way, f: Callable[..., Any], packed: PackedArguments, shared: dict[str, Any], weights: Sequence[list[Any]]
) -> Gradients:
    """Differentiate the sum over all float outputs of all examples, each times its cotangent in `weights`."""
    shared_leaves, with_shared = shared_floats(shared)

    def loss(values: list[Any]) -> Any:
        own, common = values[: len(packed.floats)], values[len(packed.floats) :]
        results = way.call(f, packed.rebuild(own), with_shared(common))
        with np.errstate(all="ignore"):
            return _weighted_sum(results, weights)

    _, grads = value_and_grad(loss)([*packed.floats, *shared_leaves])
    own, common = grads[: len(packed.floats)], grads[len(packed.floats) :]
    return Gradients(list(common), packed.split(own))


_MOST = 64  # elements of one array that are perturbed, one by one


@seeded()
def check_grads(f: Callable[..., Any], *args: object, eps: float = 1e-6, rtol: float = 1e-5, seed: int = 0) -> float:
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
    point = _Point(f, [fresh(example) for example in examples[:4]], fresh(shared))
    if not point.floats:
        return 0
    try:
        stop = mock.patch.object(derivatives, "_stop_leaf", wraps=derivatives._stop_leaf)
        with np.errstate(all="ignore"), stop as stopped:
            value, analytic = point.value(point.floats), point.gradients()
    except Exception:  # of the user's function, which may not run in float64
        return 0
    if stopped.called or not np.isfinite(value):
        return 0
    groups = [[i] for i in range(len(point.floats))]
    if len(groups) > _MOST_ALONE:
        groups = [*groups[: _MOST_ALONE - 1], list(range(_MOST_ALONE - 1, len(groups)))]
    random = np.random.default_rng(0)
    compared = 0
    for group in groups:
        direction = [random.standard_normal(np.shape(x)) if i in group else None for i, x in enumerate(point.floats)]
        slope = sum(float(np.sum(g * v)) for g, v in zip(analytic, direction, strict=True) if v is not None)
        # The larger steps are for functions that compute in float32 internally.
        found = [point.slope(value, direction, step) for step in (1e-5, 3e-4, 1e-3)]
        reliable = [x for x in found if x is not None]
        agree = any(_close(one[0], two[0], max(one[1], two[1])) for one, two in itertools.pairwise(reliable))
        if not agree or not np.isfinite(slope):  # a kink, a step or a pole; the square root of 0
            continue
        compared += 1
        if not any(_close(slope, numeric, noise) for numeric, noise in reliable):
            names = ", ".join(point.names[i] for i in group[:3]) + (", ..." if len(group) > 3 else "")
            raise AssertionError(
                f"the gradient of {names} is wrong: along a random direction ab.grad gives {slope:.6g}, central "
                f"differences of the function itself give {reliable[0][0]:.6g}; every mode shares this gradient, so "
                "look at the vjp of an operation in it (ab.testing.check_grads compares element by element)"
            )
    return compared


def _close(slope: float, numeric: float, noise: float) -> bool:
    return abs(slope - numeric) <= 5e-3 * max(abs(slope), abs(numeric)) + noise  # relative to the larger derivative


@dataclasses.dataclass
class _Point:
    """A function and its arguments in float64, as a function of a list of float arrays.

    Attributes:
        floats: the float arrays of the examples, then the shared ones; names: their names in messages.
    """

    f: Callable[..., Any]
    examples: list[tuple[Any, ...]]
    shared: dict[str, Any]
    floats: list[np.ndarray] = dataclasses.field(default_factory=list)
    names: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.examples = [map_tree(_as_float64, example) for example in self.examples]
        values, self._with_shared = shared_floats(self.shared)
        self._values = [_as_float64(x) for x in values]
        for i, example in enumerate(self.examples):
            own = [x for x in leaves(example) if is_float(x)]
            self.floats += own
            self.names += [f"float {j} of example {i}" for j in range(len(own))]
        self._own = len(self.floats)
        moved = [np.asarray(x) for x in self._values if _moves(x)]
        self.floats += moved
        self.names += [f"float {j} of the shared arguments" for j in range(len(moved))]
        self._weights: list[list[Any]] = []

    def _arguments(self, floats: Sequence[Any]) -> tuple[list[tuple[Any, ...]], dict[str, Any]]:
        new = iter(floats)
        examples = [map_tree(lambda x: next(new) if is_float(x) else x, fresh(example)) for example in self.examples]
        shared = [
            EmbeddingTable(next(new)) if type(x) is EmbeddingTable else next(new) if is_float(x) else x
            for x in self._values
        ]
        return examples, self._with_shared(shared)

    def value(self, floats: Sequence[Any]) -> float:
        """The sum over all float outputs, each times its cotangent."""
        examples, shared = self._arguments([np.array(x) if isinstance(x, np.ndarray) else x for x in floats])
        loop = ReferenceLoop()
        results = loop.call(self.f, loop.pack(examples).args, shared)
        if not self._weights:
            self._weights = [cotangents(result, i) for i, result in enumerate(results)]
        return float(_weighted_sum(map_tree(_as_float64, results), self._weights))

    def gradients(self) -> list[np.ndarray]:
        """Gradients of `floats`, given cotangents of `value`."""
        loop = ReferenceLoop()
        examples, shared = self._arguments(self.floats)
        found = gradients(loop, self.f, loop.pack(examples), shared, self._weights)
        own = [g for each in found.examples for g in each]
        common = [g for x, g in zip(self._values, found.shared, strict=True) if _moves(x)]
        return [np.asarray(g.to_dense() if hasattr(g, "to_dense") else g, np.float64) for g in [*own, *common]]

    def slope(self, value: float, direction: Sequence[Any], step: float) -> tuple[float, float] | None:
        """(slope of the value along a direction, its rounding error); None if the one-sided slopes disagree."""
        try:
            with np.errstate(all="ignore"):
                sides = [
                    self.value([x if v is None else x + s * v for x, v in zip(self.floats, direction, strict=True)])
                    for s in (step, -step)
                ]
        except Exception:  # outside the function's domain
            return None
        ahead, behind = (sides[0] - value) / step, (value - sides[1]) / step
        noise = 1e-13 * max(abs(value), *map(abs, sides)) / step
        if not np.isfinite(ahead + behind) or abs(ahead - behind) > 0.1 * max(abs(ahead), abs(behind)) + noise:
            return None
        return (ahead + behind) / 2, noise


def _moves(x: object) -> bool:
    """True for a shared argument that directions move."""
    return is_float(x) or type(x) is EmbeddingTable


def _as_float64(x: Any) -> Any:
    if type(x) is EmbeddingTable:
        return EmbeddingTable(np.asarray(x).astype(np.float64))
    return x.astype(np.float64) if is_float(x) else x
