"""The clock by which ways are compared counts the longest part of work that is divided between threads."""

import time

from autobatch.core.current_region import clock
from autobatch.core.threads import run_together


def compute(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_part_that_another_thread_computes_longer_is_counted_as_long():
    for order in ([0.0, 0.03], [0.03, 0.0], [0.0, 0.01, 0.03]):
        begun = clock()
        run_together([lambda seconds=seconds: compute(seconds) for seconds in order])
        assert clock() - begun >= 0.03, order
