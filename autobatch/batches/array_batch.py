"""`ArrayBatch`: what padded and packed batches of arrays share; where one Python value cannot speak for all lanes."""

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.batches.forms import FORMS, Batch, narrowed, refuse
from autobatch.batches.loop import loop_over_examples
from autobatch.batches.results import name_lane, per_lane, stack_results
from autobatch.core.lanes import current_region
from autobatch.ops.face import ArrayFace
from autobatch.ops.rules.aliasing import CROOKED
from autobatch.ops.rules.dispatch import no_rule

__all__ = ["ArrayBatch"]


class ArrayBatch(ArrayFace, Batch):
    """A batch whose examples are arrays or Python numbers: an array's face, with the loop behind what has no rule.

    A batch is always outermost: its data may be on a tape, but no tape or trace holds a batch, so where the two meet
    in an op it is the batch that acts.
    """

    __slots__ = ()

    @property
    def _ab_crooked(self) -> bool:
        return getattr(getattr(self, "_view", None), "crooked", False)

    def _ab_lay(self, crooked: bool) -> None:
        self._view = CROOKED if crooked else None  # type: ignore[misc]  # a slot of each form

    def _ab_unsupported(self, function: Any, args: Any, kwargs: Any, reason: str = "") -> Any:
        return loop_over_examples(function, args, kwargs, no_rule(function, reason))

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if FORMS["objects"] in types:
            return loop_over_examples(func, args, kwargs, "the examples differ in structure, rank or dtype")
        return super().__array_function__(func, types, args, kwargs)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise refuse(
            "a batch is not one array; .examples() gives one array per example, .data (.values of a PackedBatch) the "
            "array that holds them all, and NumPy functions take the batch as it is",
            "a plain array is needed of a value that differs by example (write np.stack([...]) where a NumPy function "
            "is given a list of such values)",
        )

    @property
    def size(self) -> Any:
        """The example's number of elements: an int where all examples agree, else an int per example."""
        return math.prod(self.shape)  # type: ignore[attr-defined]  # each form has one

    def item(self, *index: Any) -> Any:
        """The one element of each example, or the one at `index`, as a Python scalar per lane."""
        return stack_results(per_lane(_item, (self, *index), {}))

    def tolist(self) -> Any:
        """Each example as nested lists of Python scalars."""
        return stack_results(per_lane(_tolist, (self,), {}))

    def __bool__(self) -> bool:
        return self._unanimous(bool)

    def __int__(self) -> int:
        return self._unanimous(int)

    def __float__(self) -> float:
        return self._unanimous(float)

    def __complex__(self) -> complex:
        return self._unanimous(complex)

    def __index__(self) -> int:
        return self._unanimous(operator.index)

    def _unanimous(self, function: Callable[[Any], Any]) -> Any:
        """One Python value for all lanes, where they agree."""
        values = []
        for i, value in enumerate(narrowed(self).examples()):
            try:
                values.append(function(value))
            except Exception as error:
                name_lane(error, i)
                raise
        if not values or any(value != values[0] for value in values[1:]):
            raise refuse(
                f"{function.__name__}() of a batch whose examples differ; "
                "in converted code (@ab.batch) it is one value per example",
                f"{function.__name__}() of a value that differs by example",
            )
        return values[0]

    def __hash__(self) -> int:  # type: ignore[override]
        raise refuse("a batch is not hashable: its examples may differ")

    def __format__(self, spec: str) -> str:
        if current_region() is not None:
            raise refuse("formatting a value that differs by example")
        return format(repr(self), spec)


def _item(x: Any, *index: Any) -> Any:
    return x if type(x) in (bool, int, float, complex) else x.item(*index)


def _tolist(x: Any) -> Any:
    return x.tolist()
