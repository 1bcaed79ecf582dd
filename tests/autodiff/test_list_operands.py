"""Lists and tuples of numbers as operands: NumPy takes them as arrays, so do gradients, as they are at that moment."""

import numpy as np
import pytest

import autobatch as ab
from tests.law import every_way_equals_loop

FUNCTIONS = {
    "list @": lambda x, w: [1.0, 2.0, 3.0] @ (x * w),
    "@ list": lambda x, w: (x * w) @ [1.0, 2.0, 3.0],
    "rows @": lambda x, w: ([[1.0, 2.0, 3.0], [0.0, 1.0, 1.0]] @ (x * w)).sum(),
    "@ columns": lambda x, w: ((x * w) @ [[1.0], [2.0], [3.0]]).sum(),
    "tuple @": lambda x, w: (1.0, 2.0, 3.0) @ (x * w),
    "dot": lambda x, w: np.dot([1.0, 2.0, 3.0], x * w),
    "times": lambda x, w: ([1.0, 2.0, 3.0] * (x * w)).sum(),
    "power": lambda x, w: ((x * w) ** [1.0, 2.0, 3.0]).sum(),
    "integers": lambda x, w: (x * w) @ [1, 2, 3],
    "vdot": lambda x, w: np.vdot([1.0, 2.0, 3.0], x * w),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_they_are_arrays_to_gradients(name):
    f, xs, w = FUNCTIONS[name], [np.array([0.5, 1.0, 2.0]), np.array([1.5, 0.25, 1.0])], np.array([1.0, 2.0, 0.5])
    every_way_equals_loop(f, xs, w=w)
    assert ab.testing.check_grads(lambda w: f(xs[0], w), w) < 1e-6


def test_what_is_written_into_a_list_later_is_not_seen():
    def f(w):
        factors = [1.0, 2.0, 3.0]
        y = factors * w
        factors[0] = 100.0
        return y.sum()

    assert ab.grad(f)(np.ones(3)).tolist() == [1.0, 2.0, 3.0]
    assert ab.grad(lambda w: ab.map(lambda x, w: f(w) * x, [2.0], w=w)[0])(np.ones(3)).tolist() == [2.0, 4.0, 6.0]


def test_arrays_of_several_shapes_in_one_operand_are_numpys_error():
    def f(x, w):
        return np.tanh((x * w, np.outer(x, w))).sum()

    with pytest.raises(ValueError, match="inhomogeneous") as plain:
        f(np.ones(3), np.ones(3))
    for way in ("loop", "fly", "lockstep"):
        with ab.options(way=way, warn=False), pytest.raises(ValueError, match="inhomogeneous") as differentiated:
            ab.grad(lambda w: np.sum(ab.map(f, [np.ones(3)] * 2, w=w)))(np.ones(3))
        assert str(differentiated.value) == str(plain.value)
