"""The loop over the examples, for what has no batching rule: right, slow, and said so."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.batches.results import per_lane, stack_results
from autobatch.core.fallback import fell_back
from autobatch.core.lanes import current_region
from autobatch.core.layout import is_crooked
from autobatch.core.pytree import leaves
from autobatch.errors import NeedsLoop
from autobatch.facts.calls import effect_of
from autobatch.ops.inplace import lay, unclear_view

__all__ = ["loop_over_examples"]


def loop_over_examples(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], reason: str) -> Any:
    """Call `function` on each example's values and stack the results.

    Warns once per source line, and raises under `strict`. An error of an example carries a note that names it.

    Raises:
        NeedsLoop: in a lock-step call, where `function` writes into an argument: if all of the call runs again later,
            it has to find its arguments as they were.
    """
    effect = effect_of(function)
    if current_region() is not None and effect is not None and effect.written(args, kwargs):
        raise NeedsLoop(reason)
    fell_back(reason)
    viewed: list[Any] = []
    bent: set[int] = set()

    def call(*values: Any, **named: Any) -> Any:
        out = function(*values, **named)
        viewed[:] = viewed or _viewed(out, (args, kwargs), (values, named))
        bent.update(place for place, part in enumerate(leaves(out)) if is_crooked(part))
        return out

    out = stack_results(per_lane(call, args, kwargs))
    for place, part in enumerate(leaves(out)):
        if place in bent:
            lay(part, True)
        for base in viewed:
            unclear_view(part, base)
    return out


def _viewed(out: Any, batches: Any, values: Any) -> list[Any]:
    """The batches whose example's array shares memory with a result."""
    results = [x for x in leaves(out) if isinstance(x, np.ndarray)]
    return [
        batch
        for batch, value in zip(leaves(batches), leaves(values), strict=True)
        if isinstance(value, np.ndarray) and any(np.may_share_memory(x, value) for x in results)
    ][:1]
