"""What a call leaves in the shared arguments belongs to the law: the loop over the examples leaves it there, too."""

import copy
import itertools
import random

import numpy as np
import pytest

from autobatch.testing import assert_equivalent
from autobatch.testing.equivalence import check_equivalence
from tests.testing.test_planted_faults import EXAMPLES, Right


class LostWrites(Right):
    """Runs on a copy of the shared arguments."""

    def call(self, f, args, shared):
        return super().call(f, args, copy.deepcopy(shared))


class AnotherWrite(Right):
    """Writes into a shared argument that the function only reads."""

    def call(self, f, args, shared):
        out = super().call(f, args, shared)
        shared["total"][:] = 7
        return out


class Counter:
    def __init__(self):
        self.seen = 0


def summed(x, total):
    total += x.sum()
    return len(x)


def counted(x, counter):
    counter.seen += 1
    return len(x)


def read(x, total):
    return x.sum() + total


class Slots:
    __slots__ = ("seen",)

    def __init__(self):
        self.seen = 0


def drawn(x, rng):
    return rng.random() * len(x)


def numbered(x, numbers):
    return next(numbers) + len(x)


# What has neither attributes nor `==`, and is changed by use.
STATES = [
    (drawn, lambda: {"rng": np.random.default_rng(3)}),
    (drawn, lambda: {"rng": np.random.RandomState(3)}),
    (drawn, lambda: {"rng": random.Random(3)}),
    (numbered, lambda: {"numbers": itertools.count()}),
    (numbered, lambda: {"numbers": iter(range(100))}),
    (counted, lambda: {"counter": Slots()}),
]


@pytest.mark.parametrize(("f", "shared"), STATES)
def test_the_state_of_an_object_without_attributes_is_a_shared_argument_too(f, shared):
    """The reference goes on from example to example, and a way that leaves another state is found."""
    assert_equivalent(f, EXAMPLES, **shared())
    with pytest.raises(AssertionError, match="shared arguments after the call"):
        check_equivalence(f, [EXAMPLES], shared(), ways=[LostWrites()])


@pytest.mark.parametrize(
    ("way", "f", "shared", "path"),
    [
        (LostWrites(), summed, {"total": np.zeros(1)}, r"\['total'\]\[0\]: value is"),
        (LostWrites(), counted, {"counter": Counter()}, r"\['counter'\]: value is"),
        (AnotherWrite(), read, {"total": np.zeros(1)}, r"\['total'\]\[0\]: value is"),
    ],
)
def test_a_difference_in_the_shared_arguments_is_reported(way, f, shared, path):
    with pytest.raises(AssertionError, match=r"all examples together:\n *shared arguments after the call" + path):
        check_equivalence(f, [EXAMPLES], shared, ways=[way])


@pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning")
def test_every_way_of_the_library_leaves_what_the_loop_leaves():
    assert assert_equivalent(summed, EXAMPLES, total=np.zeros(1)).ways
    assert assert_equivalent(counted, EXAMPLES, counter=Counter()).ways
