"""Every test program by the library's choice, called again and again: the loop's results by whichever ways it takes.

The rule is the real one but for what it picks: its turns go round the ways, so that each runs whole calls and shares of
them, is refused, or waits for what is compiled behind the work: the second call finds that. No time decides anything.
"""

import copy
import functools
import itertools

import numpy as np
import pytest

import autobatch as ab
from autobatch.api import batch as batch_functions
from autobatch.api import chooser
from autobatch.api.chooser import Portion
from autobatch.blocks.kernel_cache import wait_for_kernels
from autobatch.core.pytree import leaves
from tests import law
from tests.inspect import forget_costs
from tests.programs.registry import PROGRAMS
from tests.test_programs import RAISES

pytestmark = [pytest.mark.chosen, pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning")]
FLOATS = np.float32, np.float64


class Rounds(chooser.Turn):
    """A turn that begins with another way in each call: all of the examples by it, or some and the rest by the next."""

    __slots__ = ("_size",)

    def __init__(self, kind, count):
        super().__init__(kind, count)
        self._size = count

    def next(self):
        call, begins = self._kind.calls, self.left == self._size
        usable = [way for way in reversed(self._kind.costs) if way not in self._failed]
        usable = [way for way in usable if not self._kind.costs[way].refused]
        way = usable[(max(call - 2, 0) + (not begins)) % len(usable)]
        return Portion(way, max(1, self.left // 2) if begins and call % 3 == 1 else self.left)


@pytest.fixture(autouse=True)
def taken(monkeypatch):
    """The ways that ran examples."""
    ways = set()

    def turn(history, count):
        history.calls += 1
        return Rounds(history, count)

    def ran(rounds, way, count, seconds, cold):
        ways.add(way)
        chooser.Turn.ran(rounds, way, count, 0.01 * count)

    monkeypatch.setattr(chooser.History, "turn", turn)
    monkeypatch.setattr(batch_functions, "spent_on", lambda function: None)  # no call is small
    monkeypatch.setattr(Rounds, "ran", ran)
    forget_costs()
    return ways


def outcome(call, *given):
    """What a call gives or raises, and what its arguments are then."""
    try:
        out = call()
    except Exception as error:
        out = type(error), str(error)
    return out, given


def looped(program):
    columns, shared = copy.deepcopy((program.examples, program.shared))
    return outcome(lambda: law.loop(program.f, *columns, **shared), columns, shared)


def mapped(program):
    columns, shared = copy.deepcopy((program.examples, program.shared))
    return outcome(lambda: ab.map(program.f, *columns, **shared), columns, shared)


def called(program):
    columns, shared = copy.deepcopy((program.examples, program.shared))
    batches = [law.batch_of(column) for column in columns]
    return outcome(lambda: ab.examples(ab.batch(program.f)(*batches, **shared)), None, shared)


def slope(program, run):
    """The gradient of the sum of all that the examples give, in what they share."""
    columns, shared = copy.deepcopy((program.examples, program.shared))

    numbers = {name: shared.pop(name) for name in list(shared) if isinstance(shared[name], int)}

    def total(shared):
        results = leaves(run(*columns, **shared, **numbers))
        return sum(leaf.sum() for leaf in results if getattr(leaf, "dtype", np.intp) in FLOATS)

    return ab.grad(total)(shared)


FEW = list(zip(PROGRAMS, itertools.cycle([mapped, called]), itertools.repeat(4)))
MANY = [pytest.param(name, run, 12, marks=pytest.mark.slow) for name in PROGRAMS for run in (mapped, called)]


@pytest.mark.parametrize(("name", "run", "calls"), FEW + MANY)
def test_each_program_by_ways_in_turn(name, run, calls, taken):
    program = PROGRAMS[name]
    expected, (columns, shared) = looped(program)
    for number in range(calls):
        found, (columns_then, shared_then) = run(program)
        law.assert_same(found, expected, f"call {number}")
        law.assert_same(shared_then, shared, f"call {number}, shared")
        if columns_then is not None:
            law.assert_same(columns_then, columns, f"call {number}, arguments")
        if number == 0:
            wait_for_kernels()
    assert len(taken) > 1 or name in RAISES, taken


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["map", "batch"])
@pytest.mark.parametrize("name", [name for name in PROGRAMS if PROGRAMS[name].grad and PROGRAMS[name].shared])
def test_gradients_by_ways_in_turn(name, kind, taken):
    program = PROGRAMS[name]

    def run(*columns, **shared):
        if kind == "map":
            return ab.map(program.f, *columns, **shared)
        return ab.examples(ab.batch(program.f)(*map(law.batch_of, columns), **shared))

    expected = slope(program, functools.partial(law.loop, program.f))
    for number in range(12):
        law.assert_same(slope(program, run), expected, f"call {number}", precision=4)
        if number == 0:
            wait_for_kernels()
    assert len(taken) > 1, taken
