"""Gradients of one way of running a function, along random cotangents of all its float outputs."""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.autodiff.grad import value_and_grad
from autobatch.core.pytree import flatten, leaves, unflatten
from autobatch.testing.ways import Packed, Way, is_float

__all__ = ["Gradients", "cotangents", "fresh", "gradients", "shared_floats"]


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
    way: Way, f: Callable[..., Any], packed: Packed, shared: dict[str, Any], weights: Sequence[list[Any]]
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
