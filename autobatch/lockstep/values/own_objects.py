"""What a lock-step call made itself. Only that may change, and only in the region that it was made in: a change of
anything else would be seen outside, where the loop over the examples makes it once per example and in another order.
"""

from typing import Any

from autobatch.batches.any_batch import Batch
from autobatch.core.current import current_region, is_changing, let_go
from autobatch.errors import NeedsLoop
from autobatch.lockstep.regions.region import current_root, lanes_within

__all__ = [
    "OutsideError",
    "freeze",
    "home_of",
    "is_changeable",
    "is_made",
    "let_go",
    "picked",
    "remember",
    "require_own",
    "require_whole",
]


class OutsideError(NeedsLoop):
    """A change of what the call did not make: it can be watched, and made in the order of the examples."""


def remember(value: Any, region: Any = None) -> Any:
    """Note an object as made in this call, in this region. Returns it."""
    root = current_root()
    if root is not None:
        root.made[id(value)] = (value, region or current_region())
    return value


def is_made(value: Any) -> bool:
    """Whether this call made the object; outside of a call everything counts as its own."""
    root = current_root()
    return root is None or id(value) in root.made


def is_changeable(value: Any) -> bool:
    """Whether an object is one that this call made and may change: each of its names must see the change."""
    return is_changing(value)


def home_of(value: Any, what: str) -> Any:
    """The region that an object of this call was made in, for a change of it by lanes of that region.

    Raises:
        NeedsLoop: the call did not make it.
    """
    root = current_root()
    assert root is not None
    entry = root.made.get(id(value))
    if entry is None:
        raise OutsideError(f"{what} of a {type(value).__name__} that the call did not make")
    return entry[1]


def require_own(value: Any, what: str) -> None:
    """Raise NeedsLoop unless this call made the object, in the region that is current."""
    root = current_root()
    if root is None:
        return
    entry = root.made.get(id(value))
    if entry is None:
        raise OutsideError(f"{what} of a {type(value).__name__} that the call did not make")
    if entry[1] is not current_region():
        raise NeedsLoop(f"{what} of a {type(value).__name__} by some of its examples")


def freeze(batch: Any, part: Any = None) -> Any:
    """Note a batch as one of several that stand for the same array: none of them may be written into. Returns it.

    Args:
        part: the other one, where it is the only one: without it, the batch is the only one again.
    """
    region: Any = current_region()
    if region is not None:
        region.root.freeze(batch, part)
    return batch


def picked(value: Any) -> Any:
    """Note what was read lane by lane, and is a copy of what each lane has: no write may go into it. Returns it."""
    root = current_root()
    if root is not None:
        if isinstance(value, list | tuple | dict | set):
            root.picked[id(value)] = value
            for each in value.values() if isinstance(value, dict) else value:
                picked(each)
        elif isinstance(value, Batch):
            root.freeze(value)
    return value


def require_whole(batch: Any) -> None:
    """Raise NeedsLoop if a write into this batch, or into what it is a view of, would not be seen by all its names."""
    root, region = current_root(), current_region()
    if root is None:
        return
    if batch.region is not region and (batch.region is None or lanes_within(region, batch.region) is None):
        raise NeedsLoop("a write into an array of other examples")
    while batch is not None:
        if root.is_frozen(batch, region):
            raise NeedsLoop(
                "a write into an array that is known by another name, or in a list, to other examples as well"
            )
        batch = getattr(getattr(batch, "_view", None), "base", None)
