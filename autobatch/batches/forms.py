"""What every batch class has in common, and the registry by which they make one another.

A padded batch whose lanes come to differ in rank becomes a batch of objects, a batch of objects whose lanes agree
becomes padded: each class makes the others, so none can import them all. They meet in `FORMS`, filled at import.
"""

from typing import Any, ClassVar

import numpy as np

from autobatch.core.lanes import current_region
from autobatch.core.op import BATCH_RANK
from autobatch.errors import NeedsLoop, ShapeError, UnsupportedError

__all__ = ["FORMS", "Batch", "agreed_size", "form", "is_batched", "narrowed", "refuse"]

FORMS: dict[str, Any] = {}


class Batch:
    """A value per example. Abstract: `MaskedBatch`, `PackedBatch` and `ObjectBatch` are its forms.

    Attributes:
        region: the region of the lock-step run that it was made in, None outside; its lanes are that region's.
        batch_size: the number of lanes.
    """

    __slots__ = ()
    _ab_rank: ClassVar[int] = BATCH_RANK

    region: Any

    @property
    def batch_size(self) -> int:
        raise TypeError(f"{type(self).__name__} does not say its batch size")

    def examples(self) -> list[Any]:
        """One plain value per example."""
        return [self._lane(i) for i in range(self.batch_size)]

    def _lane(self, index: int) -> Any:
        """The value of one example; an array is a view."""
        raise TypeError(f"{type(self).__name__} does not say what a lane is")

    def _take(self, index: Any, memo: dict[Any, Any]) -> Any:
        """The lanes named by `index`, in that order, as a batch of the current region."""
        raise TypeError(f"{type(self).__name__} does not say how lanes are taken")

    def _prefix(self, count: int, memo: dict[Any, Any]) -> Any:
        """The first `count` lanes, as a view, as a batch of the current region."""
        raise TypeError(f"{type(self).__name__} does not say how lanes are taken")

    def _between(self, start: int, stop: int) -> Any:
        """The lanes from `start` up to `stop`, which do not keep the others alive."""
        return self._take(np.arange(start, stop), {})


def form(name: str) -> Any:
    """Register a class as the form of this name."""

    def register(cls: type) -> type:
        FORMS[name] = cls
        return cls

    return register


def is_batched(leaf: Any) -> bool:
    """Whether a leaf is per example (a batch of any form) rather than shared by all examples."""
    return isinstance(leaf, Batch)


def narrowed(leaf: Any) -> Any:
    """A batch restricted to the lanes of the current region; anything else as it is."""
    if isinstance(leaf, Batch):
        region = current_region()
        if region is not None and leaf.region is not region:
            return region.narrow(leaf)
    return leaf


def agreed_size(batches: Any) -> int:
    """The batch size that all of these batches have.

    Raises:
        ShapeError: two of them differ.
    """
    size = -1
    for batch in batches:
        if size >= 0 and batch.batch_size != size:
            raise ShapeError(
                f"batches of {size} and {batch.batch_size} examples were used together; "
                "every batch in one call needs the same examples, in the same order"
            )
        size = batch.batch_size
    return size


def refuse(message: str, inside: str | None = None) -> UnsupportedError:
    """The error for what one Python value cannot say about all lanes: in lock-step it asks for the loop.

    `inside` is what it says in lock-step, where `message` has advice for code outside of `@ab.batch`.
    """
    return UnsupportedError(message) if current_region() is None else NeedsLoop(inside or message)
