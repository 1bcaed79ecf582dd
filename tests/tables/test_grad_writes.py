"""What is written into an array after an op has read it does not reach the op's gradient."""

import numpy as np
import pytest

import autobatch as ab
from autobatch.testing import check_grads

X = np.array([0.5, -1.5, 2.0])
LARGE = np.random.default_rng(0).standard_normal((40, 40))


def buffer_filled_anew(x):
    buffer, total = np.zeros(3), 0.0
    for i in range(3):
        buffer[:] = i
        total = total + (buffer * x).sum()
    return total


def buffer_as_out(x):
    buffer, total = np.zeros(3), 0.0
    for i in range(3):
        np.add(buffer, i, out=buffer)
        total = total + np.dot(buffer, x * x)
    return total


def ids_exchanged(x):
    ids, total = np.array([0, 1]), 0.0
    for i in range(2):
        ids[:] = i, i + 1
        total = total + (x[ids] ** 2 * (i + 1)).sum()
    return total


def view_of_a_written_array(x):
    buffer = np.arange(6.0)
    view = buffer[::2]
    view.flags.writeable = False
    out = x * view
    buffer[:] = 7.0
    return out.sum()


def large_and_changed_between_uses(x):
    matrix = LARGE.copy()
    first = matrix @ np.tile(x, 40)[:40]
    matrix[3] *= -2.0
    second = matrix @ first
    matrix[:] = np.nan
    return (first * second).sum()


def bag_of_a_buffer(x):
    ids, weights, total = np.array([0, 1, 1]), np.ones(3), 0.0
    for i in range(2):
        ids[:2] = i
        weights[:] = i + 1.0
        rows = ab.embedding_bag(ids, x[:, None] * np.ones(2), np.array([0, 2]), mode="sum", per_sample_weights=weights)
        total = total + (rows * rows).sum()
    return total


PROGRAMS = [
    buffer_filled_anew,
    buffer_as_out,
    ids_exchanged,
    view_of_a_written_array,
    large_and_changed_between_uses,
    bag_of_a_buffer,
]


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_a_plain_array_that_is_written_after_its_use(f):
    check_grads(f, X)


def test_an_outer_value_that_is_written_after_its_use():
    def outer(x):
        x = x * 1.0

        def inner(y):
            out = (x * y).sum() ** 2
            x[0] = 50.0
            return out

        return ab.grad(inner)(np.array([1.0, 2.0, 3.0])).sum()

    check_grads(outer, X)


def test_a_recorded_value_that_is_written_after_its_use():
    def f(x):
        x = x * 1.0

        def inner(y):
            out = (x * y * y).sum()
            x[0] = 50.0
            return out

        return ab.grad(inner)(np.array([1.0, 2.0, 3.0]))

    for got, x in zip(ab.map(f, [X, -X]), [X, -X], strict=True):
        np.testing.assert_array_equal(got, 2 * x * [1.0, 2.0, 3.0])


def test_an_array_that_does_not_change_is_copied_once():
    matrix = LARGE.copy()

    def f(x):
        for _ in range(5):
            x = np.tanh(matrix @ x)
        held = {id(node[2][0]) for node in x._ab_tape.nodes if node is not None and node[0].name == "matmul"}
        assert len(held) == 1
        assert id(matrix) not in held
        return x.sum()

    ab.grad(f)(np.ones(40))
