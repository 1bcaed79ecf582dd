"""A few dozen random programs; `python -m tests.lockstep.fuzz N` compares as many as wanted."""

import pytest

from tests.lockstep.fuzz import compare


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_random_programs_equal_the_interpreter(first):
    alone = [not compare(seed) for seed in range(first, first + 10)]
    assert sum(alone) >= 4  # most run in lock-step, or this shows nothing
