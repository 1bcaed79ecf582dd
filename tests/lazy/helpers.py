"""The law on the fly: names of `tests.law`."""

from tests.law import assert_same, loop, normal, vectors
from tests.law import map_equals_loop as check

__all__ = ["assert_same", "check", "loop", "normal", "vectors"]
