"""A way of running a function over a batch is one object: how it packs examples, and how it runs them.

A way takes a list of examples (each a tuple, one entry per positional argument) and gives one plain result per
example. `Packed` also says which of the packed arrays are floats, so that they can be differentiated in place and
their gradients handed back example by example.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.lanes import Example, example
from autobatch.core.pytree import flatten, unflatten
from autobatch.rewrite.taped_forms import per_example_form

__all__ = ["Loop", "Packed", "Unfit", "Way", "is_float"]


class Unfit(Exception):  # noqa: N818 - not an error: this way cannot take these examples
    """Why these examples cannot be run this way."""


@dataclasses.dataclass
class Packed:
    """Examples, packed into the arguments of one call.

    Attributes:
        args: the positional arguments.
        floats: the float arrays in them.
        rebuild: the arguments with other arrays (on a tape, say) in the place of `floats`.
        split: arrays shaped like `floats` to one list per example, in the order of the example's own float leaves.
    """

    args: tuple[Any, ...]
    floats: list[Any]
    rebuild: Callable[[list[Any]], tuple[Any, ...]]
    split: Callable[[list[Any]], list[list[Any]]]


class Way:
    """One way of running a function over examples."""

    name: str = "way"

    def pack(self, examples: Sequence[tuple[Any, ...]]) -> Packed:
        """The examples as the arguments of one call.

        Raises:
            Unfit: this way cannot take them.
        """
        return _columns(examples)

    def call(self, f: Callable[..., Any], args: tuple[Any, ...], shared: dict[str, Any]) -> list[Any]:
        """One result per example."""
        raise TypeError(f"{type(self).__name__} does not say how it runs a function")


class Loop(Way):
    """The reference: the undecorated function, one example at a time.

    Args:
        place: the place of the first example in its batch, which keys its random numbers.
    """

    name = "the loop over the examples"

    def __init__(self, place: int = 0) -> None:
        self.place = place
        self.random = False  # whether the last call drew random numbers

    def call(self, f: Callable[..., Any], args: tuple[Any, ...], shared: dict[str, Any]) -> list[Any]:
        out = []
        f = per_example_form(f)
        self.random = False
        for place, values in enumerate(zip(*args, strict=True), self.place):
            running = Example(place)
            try:
                with example(running):
                    out.append(f(*values, **shared))
            finally:
                self.random = self.random or running.calls > 0
        return out


def is_float(leaf: Any) -> bool:
    """Whether a leaf is a NumPy array or scalar of floats."""
    return isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind == "f"


def _columns(examples: Sequence[tuple[Any, ...]]) -> Packed:
    """Examples as one list per argument, unchanged; every float leaf of every example is differentiable."""
    flat = [flatten(x) for x in examples]
    counts = [sum(map(is_float, values)) for values, _ in flat]

    def rebuild(floats: list[Any]) -> tuple[Any, ...]:
        new = iter(floats)
        built = [unflatten(tree, [next(new) if is_float(x) else x for x in values]) for values, tree in flat]
        return tuple(list(column) for column in zip(*built, strict=True))

    def split(arrays: list[Any]) -> list[list[Any]]:
        new = iter(arrays)
        return [[next(new) for _ in range(count)] for count in counts]

    floats = [x for values, _ in flat for x in values if is_float(x)]
    return Packed(tuple(list(column) for column in zip(*examples, strict=True)), floats, rebuild, split)
