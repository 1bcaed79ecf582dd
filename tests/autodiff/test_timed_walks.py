"""The walk back over a stretch of a tape is timed by itself, and changes nothing. Broken once: an end taken in."""

import numpy as np

from autobatch.autodiff.tape import Tape


def test_stretches_are_walked_apart():
    tape, seen = Tape(), []
    x = tape.leaf(np.array([1.0, 2.0]))
    y = x * 3.0
    first = len(tape.nodes)
    z = y * y
    tape.timed.append((first, len(tape.nodes), lambda seconds: seen.append(("z", seconds))))
    w = z + x
    first = len(tape.nodes)
    v = w * 2.0
    tape.timed.append((first, len(tape.nodes), lambda seconds: seen.append(("v", seconds))))
    (gradient,) = tape.backward([w], [np.ones(2)], [x._ab_index])  # v comes after it
    np.testing.assert_array_equal(gradient, 18.0 * x._ab_value + 1.0)
    assert [name for name, _ in seen] == ["z"]
    (gradient,) = tape.backward([v], [np.ones(2)], [x._ab_index], free=True)
    np.testing.assert_array_equal(gradient, 36.0 * x._ab_value + 2.0)
    assert [name for name, _ in seen] == ["z", "v", "z"]
    assert all(seconds >= 0.0 for _, seconds in seen)
