"""A few dozen random programs; `python -m tests.lockstep.fuzz` compares as many as wanted."""

import pytest

from tests.lockstep.fuzz import compare, compare_gradients

pytestmark = pytest.mark.fuzz


@pytest.mark.parametrize("first", [0, 10, 20, *(pytest.param(n, marks=pytest.mark.slow) for n in (30, 40, 50))])
def test_random_programs_equal_the_interpreter(first):
    outcomes = [compare(seed) for seed in range(first, first + 10)]
    assert sum(each.in_lock_step for each in outcomes) >= 2  # or this shows nothing
    assert sum(each.parted for each in outcomes) >= 3


@pytest.mark.parametrize("first", [0, pytest.param(10, marks=pytest.mark.slow)])
def test_gradients_of_random_programs_equal_the_loops(first):
    assert sum(compare_gradients(seed) for seed in range(first, first + 10)) >= 4
