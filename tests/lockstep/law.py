"""The law for lock-step: names of `tests.law`."""

from tests.law import agrees, assert_same, batch_of, equals_loop, ragged, run_again
from tests.law import every_way_equals_loop as gradients_equal_loops

__all__ = ["agrees", "assert_same", "batch_of", "equals_loop", "gradients_equal_loops", "ragged", "run_again"]
