"""What is one object for some lanes and another for others: doing something with each, in a region of its lanes."""

from collections.abc import Callable
from typing import Any

from autobatch.core.lanes import current_region, set_region
from autobatch.lockstep.joins import meet
from autobatch.lockstep.regions import Subset
from autobatch.lockstep.rows import Choice

__all__ = ["each_object"]


def each_object(choice: Choice, function: Callable[[Any], Any]) -> Any:
    """`function(object)` for each of the objects of the lanes of the current region: one value for all of them."""
    region: Any = current_region()
    found = choice.groups()
    if len(found) == 1:
        return function(found[0][0])
    pieces = []
    try:
        for each, lanes in found:
            part = Subset(region, region.lanes()[lanes])
            set_region(part)
            pieces.append((part, (function(each),)))
        return meet(pieces, region)[1][0]
    finally:
        set_region(region)
