"""The loop over the examples, for what has no batching rule: right, slow, and said so."""

from collections.abc import Callable, Sequence
from typing import Any

from autobatch.batches.results import per_lane, stack_results
from autobatch.core.fallback import fell_back

__all__ = ["loop_over_examples"]


def loop_over_examples(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], reason: str) -> Any:
    """Call `function` on each example's values and stack the results.

    Warns once per source line, and raises under `strict`. An error of an example carries a note that names it.
    """
    fell_back(reason)
    return stack_results(per_lane(function, args, kwargs))
