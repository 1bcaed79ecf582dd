"""The register of test programs: a function of one example, examples that make its lanes diverge, shared arguments."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Program:
    """A function of one example and what to run it on.

    Attributes:
        f: the function, undecorated.
        examples: one list per positional argument, all of one length.
        shared: keyword arguments, the same for every example.
        grad: whether it is differentiable in its float inputs.
    """

    f: Callable[..., Any]
    examples: tuple[list[Any], ...]
    shared: dict[str, Any]
    grad: bool


PROGRAMS: dict[str, Program] = {}


def program(*examples: list[Any], grad: bool = False, **shared: Any) -> Callable[[Callable[..., Any]], Any]:
    """Register the decorated function with its examples."""

    def register(f: Callable[..., Any]) -> Callable[..., Any]:
        assert f.__name__ not in PROGRAMS, f.__name__
        assert len({len(column) for column in examples}) == 1, f.__name__
        PROGRAMS[f.__name__] = Program(f, examples, shared, grad)
        return f

    return register


def vectors(*lengths: int, seed: int = 0, width: int | None = None, dtype: Any = np.float32) -> list[np.ndarray]:
    """Random examples of these lengths: (T,), or (T, width)."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(n,) if width is None else (n, width)).astype(dtype) for n in lengths]


def weights(seed: int = 0, scale: float = 0.4, dtype: Any = np.float32, **shapes: tuple[int, ...]) -> dict[str, Any]:
    """Named random parameter arrays."""
    rng = np.random.default_rng(seed)
    return {name: (scale * rng.normal(size=shape)).astype(dtype) for name, shape in shapes.items()}
