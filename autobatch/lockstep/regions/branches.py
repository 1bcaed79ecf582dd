"""Control flow where lanes diverge: the functions that rewritten `if`, `while`, `return`, `and` … call.

Diverging lanes run as separate regions, one path after the other, and meet again where the paths do: at the end of an
`if`, at a loop's head, after a loop, at the end of the function. Each such place collects pieces: a region, with the
values of the variables that are read later. A path that no lane takes is not entered. If all lanes agree, nothing is
copied and the region stays.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from autobatch.batches.any_batch import Batch, narrowed, per_lane
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.batches.stacking import weak_lanes
from autobatch.core.current_region import current_region, set_region
from autobatch.errors import NeedsLoop
from autobatch.lockstep.lanes.region import Subset, subset_where
from autobatch.lockstep.regions.joins import Piece, join_pieces, narrowed_values
from autobatch.lockstep.values.lane_operators import refuse_hooks
from autobatch.lockstep.values.lists import LaneList
from autobatch.lockstep.values.sequences import LaneSequence


def truth(test: Any) -> Any:
    """`bool(test)`: a bool if all lanes of the region agree, else a bool array with one value per lane."""
    if isinstance(test, bool):
        return test
    if isinstance(test, LaneList):
        test = test.count_here()
    if isinstance(test, LaneSequence):
        raise NeedsLoop("the truth of items that differ by example")
    region: Any = current_region()
    refuse_hooks(test, "__bool__", "__len__")
    if not isinstance(test, Batch) or region is None:
        return bool(test)
    batch = narrowed(test)
    data: Any = batch.data if type(batch) is MaskedBatch else None
    while hasattr(data, "_ab_value"):
        data = data._ab_value
    if type(batch) is MaskedBatch and not batch.sizes and type(data) is np.ndarray:
        values = data if data.dtype == np.bool_ else data != 0
    else:
        values = np.array(per_lane(bool, (batch,), {}), np.bool_)
    if not len(values):
        raise NeedsLoop("a decision of no example")
    if values.all():
        return True
    return values if values.any() else False


def truth_value(value: Any) -> Any:
    """`bool(value)`: a bool if all lanes agree, else a batch of bools."""
    decided = truth(value)
    return decided if isinstance(decided, bool) else weak_lanes(decided, bool)


def split_region(values: np.ndarray) -> tuple[Subset, Subset]:
    """Two subsets of the current region: the lanes where `values` is true, and the others."""
    region = current_region()
    return subset_where(region, values, region), subset_where(region, ~values, region)


class _UniformBranch:
    """An `if` where all lanes take the same arm and none leaves it early."""

    __slots__ = ("arms",)
    changed = split = False

    def __init__(self, arm: bool) -> None:
        self.arms = (arm,)

    def __iter__(self) -> Iterator[bool]:
        return iter(self.arms)


_UNIFORM_BRANCHES = (_UniformBranch(False), _UniformBranch(True))


class Branches:
    """An `if` whose arms run one after the other, each in a region of its lanes.

    Attributes:
        changed: True if the code must reload the variables from `values`.
        split: True if lanes took both arms; the values after the `if` then come from `join`.
        is_empty: True if no lane reached the end of the `if`.
    """

    __slots__ = ("base", "changed", "has_else", "own", "pieces", "split", "truth", "values")

    def __init__(self, values_of: Any, values: tuple[Any, ...], has_else: bool, own: tuple[int, ...]) -> None:
        self.base = current_region()
        self.truth = values_of
        self.values = values
        self.has_else = has_else
        self.own = own
        self.changed = self.split = False
        self.pieces: list[Piece] = []

    def __iter__(self) -> Iterator[bool]:
        if isinstance(self.truth, bool):
            yield self.truth
            return
        self.split = True
        before = self.values
        yes, no = split_region(self.truth)
        if self.own:
            self.changed, self.values = True, self._at_start(before, yes)
        set_region(yes)
        yield True
        if not self.has_else:
            self.pieces.append((no, before))
            return
        self.changed, self.values = True, self._at_start(before, no)
        set_region(no)
        yield False

    def _at_start(self, values: tuple[Any, ...], region: Any) -> tuple[Any, ...]:
        if not self.own:
            return values
        mine = narrowed_values(tuple(values[place] for place in self.own), region, range(len(self.own)))
        named = dict(zip(self.own, mine, strict=True))
        return tuple(named.get(place, value) for place, value in enumerate(values))

    def end(self, values: tuple[Any, ...]) -> None:
        """Record that the current region's lanes reached the end of an arm with these values."""
        self.pieces.append((current_region(), values))

    @property
    def is_empty(self) -> bool:
        return not self.pieces

    def join(self) -> tuple[Any, ...]:
        """The values after the branch; the lanes that reached its end become the current region."""
        pieces, self.pieces, self.values = self.pieces, [], ()  # what nobody else holds must not forbid writes
        return join_pieces(pieces, self.base, self.own)[1]


def branches(test: Any, values: tuple[Any, ...], has_else: bool, leaves: bool, own: tuple[int, ...] = ()) -> Any:
    """The object that an `if` statement iterates over. `leaves`: an arm may be left by return, break or continue."""
    decided = truth(test)
    if isinstance(decided, bool) and not leaves:
        return _UNIFORM_BRANCHES[decided]
    return Branches(decided, values, has_else, own)


class Returns:
    """Collects the values that lanes return from a function at different `return` statements."""

    __slots__ = ("base", "pieces")

    def __init__(self) -> None:
        self.base: Any = current_region()
        self.pieces: list[Piece] = []

    def give(self, value: Any) -> None:
        """The current region's lanes return `value`."""
        self.pieces.append((current_region(), (value,)))

    def result(self) -> Any:
        """One return value for all lanes, once all have returned."""
        if self.base is None:
            return self.pieces[0][1][0]
        (value,) = join_pieces(self.pieces, self.base)[1]
        set_region(self.base)
        return value


def _run_both_ways(values: np.ndarray, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    base = current_region()
    pieces = []
    for region, way in zip(split_region(values), (yes, no), strict=True):
        set_region(region)
        pieces.append((region, (way(),)))
    (out,) = join_pieces(pieces, base)[1]
    return out


def conditional(test: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """`yes if test else no`."""
    decided = truth(test)
    if isinstance(decided, bool):
        return yes() if decided else no()
    return _run_both_ways(decided, yes, no)


def logical_and(value: Any, *rest: Callable[[], Any]) -> Any:
    """`value and ...`: for each lane, the first false operand or else the last."""
    return _first_decisive(False, value, rest)


def logical_or(value: Any, *rest: Callable[[], Any]) -> Any:
    """`value or ...`: for each lane, the first true operand or else the last."""
    return _first_decisive(True, value, rest)


def _first_decisive(decisive: bool, value: Any, rest: Sequence[Callable[[], Any]]) -> Any:
    """For each lane, the first operand whose truth is `decisive`, or else the last; later ones are not evaluated."""
    for place, operand in enumerate(rest, 1):
        decided = truth(value)
        if not isinstance(decided, bool):
            seen = value
            ends = decided if decisive else ~decided
            go_on = lambda: _first_decisive(decisive, operand(), rest[place:])  # noqa: B023
            return _run_both_ways(ends, lambda: seen, go_on)  # noqa: B023
        if decided is decisive:
            return value
        value = operand()
    return value


def logical_not(value: Any) -> Any:
    """`not value`."""
    decided = truth(value)
    return not decided if isinstance(decided, bool) else weak_lanes(~decided, bool)


def chained_comparison(left: Any, compare: tuple[Any, ...], *rest: Callable[[], Any]) -> Any:
    """`left < b < c`: each operand is evaluated once, for the lanes where all earlier comparisons were true."""
    right = rest[0]()
    value = compare[0](left, right)
    return value if len(rest) == 1 else logical_and(value, lambda: chained_comparison(right, compare[1:], *rest[1:]))


def raised_exception(error: Callable[[], Any]) -> Any:
    """The exception of a `raise`. In lock-step a placeholder: the next mode finds out which example raises what."""
    return error() if current_region() is None else Exception("an exception is raised")


def assert_condition(test: Any) -> bool:
    """The condition of an `assert`: True if it holds for every lane."""
    decided = truth(test)
    return decided if isinstance(decided, bool) else False
