"""The loop over the examples, for what has no batching rule: right, slow, and said so."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.batches.results import per_lane, stack_results
from autobatch.core.abstract_eval import is_non_c_order
from autobatch.core.diagnostics import fell_back
from autobatch.core.pytree import leaves
from autobatch.ops.inplace import set_order, unclear_view

__all__ = ["loop_over_examples"]


def loop_over_examples(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], reason: str) -> Any:
    """Call `function` on each example's values and stack the results.

    Warns once per source line, and raises under `strict`. An error of an example carries a note that names it.
    """
    fell_back(reason)
    viewed: list[Any] = []
    bent: set[int] = set()

    def call(*values: Any, **named: Any) -> Any:
        out = function(*values, **named)
        viewed[:] = viewed or _viewed(out, (args, kwargs), (values, named))
        bent.update(place for place, part in enumerate(leaves(out)) if is_non_c_order(part))
        return out

    out = stack_results(per_lane(call, args, kwargs))
    for place, part in enumerate(leaves(out)):
        if place in bent:
            set_order(part, True)
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
