"""Generators of random numbers that a function of one example makes for itself, from a seed: one for each lane.

Their streams are NumPy's own, so each lane draws from its own generator; what is done with what they draw is done for
all lanes together.
"""

from collections.abc import Callable
from types import MethodType
from typing import Any

import numpy as np

from autobatch.batches.any_batch import Batch
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.stacking import map_lanes
from autobatch.core.config import config
from autobatch.core.current_region import current_region
from autobatch.core.diagnostics import warn_fallback
from autobatch.core.pytree import leaves
from autobatch.errors import NeedsLoop
from autobatch.facts.call_effects import Effect, method_effect


class LaneGenerators(ObjectBatch):
    """A `np.random.Generator` per lane."""

    __slots__ = ()

    def _take(self, index: Any, memo: dict[Any, Any]) -> "LaneGenerators":
        return LaneGenerators(super()._take(index, memo).values)

    def _prefix(self, count: int, memo: dict[Any, Any]) -> "LaneGenerators":
        return LaneGenerators(self.values[:count])

    def __getattr__(self, name: str) -> Any:
        if name[0] == "_" or not hasattr(np.random.Generator, name):
            return super().__getattr__(name)
        effect = method_effect(np.random.Generator, name)
        if effect is None or effect.section != "draws" or name == "spawn":
            raise NeedsLoop(f".{name} of a random generator")
        return MethodType(_draw(name, effect), self)


def _draw(name: str, effect: Effect) -> Callable[..., Any]:
    def draw(generators: LaneGenerators, *args: Any, **kwargs: Any) -> Any:
        """`generator.name(*args, **kwargs)` in each lane."""
        if list(effect.written((generators, *args), kwargs)):
            raise NeedsLoop(f".{name}() of a random generator into an array")
        return map_lanes(lambda own, *rest, **named: getattr(own, name)(*rest, **named), generators, *args, **kwargs)

    draw.__name__ = name
    return draw


def default_rng(seed: Any = None) -> Any:
    """`np.random.default_rng(seed)` in lock-step: lanes never share a stream, also where they share the seed."""
    region: Any = current_region()
    if region is None:
        return np.random.default_rng(seed)
    if not leaves(seed) or not all(isinstance(each, int | np.integer | Batch) for each in leaves(seed)):
        raise NeedsLoop("a random generator without a seed of its own")
    if config.strict:
        warn_fallback("a generator of each example's own, from which the examples draw one after the other")
    lanes = ObjectBatch([None] * region.count)
    return LaneGenerators(map_lanes(lambda _, own: np.random.default_rng(own), lanes, seed).values)
