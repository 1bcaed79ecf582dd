"""The reference: what the loop over the examples gives, with gradients, each computed once."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.api.batch import BatchFunction
from autobatch.core.pytree import leaves
from autobatch.errors import ForcedValueError, UnsupportedError
from autobatch.testing.compare import coarsest, compare
from autobatch.testing.gradients import Gradients, cotangents, fresh, gradients, shared_floats
from autobatch.testing.ways import Loop, is_float

__all__ = ["Outcome", "Reference", "undecorated"]


@dataclasses.dataclass
class Outcome:
    """What a function did for one example: a value, or an exception."""

    value: Any = None
    error: Exception | None = None


def undecorated(f: Callable[..., Any]) -> Callable[..., Any]:
    """The function that the person wrote, without `ab.batch`."""
    while isinstance(f, BatchFunction):
        f = f.__wrapped__
    return f


class Reference:
    """The undecorated function on plain arrays, one example at a time.

    An example's result depends on its place in the batch only if it draws random numbers, so results are kept by
    example, and by place too where random numbers were drawn. It depends on the examples before it only if the function
    writes into a shared argument: such a function is run anew for each order, and gradients are not compared.

    Attributes:
        shared_after: the shared arguments as the examples last asked for leave them.
    """

    def __init__(self, f: Callable[..., Any], examples: Sequence[tuple[Any, ...]], shared: dict[str, Any]) -> None:
        self._f = undecorated(f)
        self.examples = list(examples)
        self._shared = shared
        self.precision = coarsest([*leaves(shared), *leaves(self.examples)])
        self._outcomes: dict[tuple[int, int], Outcome] = {}
        self._gradients: dict[tuple[int, int], Gradients] = {}
        self._random: set[int] = set()
        self._writes = False
        self.shared_after = shared

    def __len__(self) -> int:
        return len(self.examples)

    def outcome(self, index: int, place: int = 0) -> Outcome:
        """What example `index` gives at this place of a batch."""
        key = self._key(index, place)
        if key not in self._outcomes:
            shared = fresh(self._shared)
            outcome = self._run(index, place, shared)
            self._writes = self._writes or bool(compare(self._shared, shared))
            self._outcomes[self._key(index, place)] = outcome
        return self._outcomes[self._key(index, place)]

    def outcomes(self, order: Sequence[int]) -> list[Outcome]:
        """What the loop over these examples gives, in this order."""
        out = [] if self._writes else [self.outcome(index, place) for place, index in enumerate(order)]
        self.shared_after = self._shared
        if self._writes:
            self.shared_after = fresh(self._shared)
            out = [self._run(index, place, self.shared_after) for place, index in enumerate(order)]
        return out

    def repeats(self, index: int, place: int) -> bool:
        """Whether the function, called with this example again, gives what it gave at first."""
        first, again = self.outcome(index, place), self._run(index, place, fresh(self._shared))
        if first.error is not None or again.error is not None:
            return type(first.error) is type(again.error)
        return not compare(first.value, again.value)

    def _run(self, index: int, place: int, shared: dict[str, Any]) -> Outcome:
        loop = Loop(place)
        args = loop.pack([fresh(self.examples[index])]).args
        try:
            return Outcome(value=loop.call(self._f, args, shared)[0])
        except Exception as error:
            return Outcome(error=error)
        finally:
            if loop.random:
                self._random.add(index)

    def _key(self, index: int, place: int) -> tuple[int, int]:
        return (index, place if index in self._random else -1)

    def weights(self, order: Sequence[int]) -> list[list[Any]]:
        """The cotangents of each example's result, in this order."""
        return [cotangents(self.outcome(index, place).value, index) for place, index in enumerate(order)]

    def no_gradient(self) -> str | None:
        """Why gradients cannot be compared; None where they can."""
        values = [outcome.value for outcome in self.outcomes(range(len(self)))]
        if self._writes:
            return "the function writes into its shared arguments"
        if not any(is_float(leaf) for value in values for leaf in leaves(value)):
            return "no float outputs"
        if not shared_floats(self._shared)[0] and not any(Loop().pack([x]).floats for x in self.examples):
            return "no float inputs"
        try:
            self.gradients(range(len(self)))
        except Exception as error:
            if not _is_refusal(error):
                raise
            return f"the function cannot be differentiated: {error}"
        return None

    def gradients(self, order: Sequence[int]) -> Gradients:
        """Of the shared arguments, summed over the examples in this order; and of each example's own floats."""
        parts = [self._gradient(index, place) for place, index in enumerate(order)]
        shared = [_sum(column) for column in zip(*(part.shared for part in parts), strict=True)]
        return Gradients(shared, [part.examples[0] for part in parts])

    def _gradient(self, index: int, place: int) -> Gradients:
        key = self._key(index, place)
        if key not in self._gradients:
            loop = Loop(place)
            packed = loop.pack([fresh(self.examples[index])])
            weights = [cotangents(self.outcome(index, place).value, index)]
            self._gradients[key] = gradients(loop, self._f, packed, fresh(self._shared), weights)
        return self._gradients[key]


def _is_refusal(error: BaseException | None) -> bool:
    """Whether it says that there is no gradient; NumPy puts errors of its own in front of ours."""
    while error is not None:
        if isinstance(error, ForcedValueError | UnsupportedError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _sum(parts: Sequence[Any]) -> Any:
    """The sum of dense or sparse gradients, in float64, in their own dtype."""
    dense = [part.to_dense() if hasattr(part, "to_dense") else part for part in parts]
    if not is_float(dense[0]):
        return sum(dense)
    return np.sum(np.stack(dense), axis=0, dtype=np.float64).astype(dense[0].dtype)
