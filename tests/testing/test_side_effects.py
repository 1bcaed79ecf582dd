"""What a call leaves in the shared arguments belongs to the law: the loop over the examples leaves it there, too."""

import copy

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
