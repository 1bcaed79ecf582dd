"""A program parted into what runs once, ahead and in each step gives what the whole gives."""

import numpy as np
import pytest

from autobatch.api.extend import Batched
from autobatch.blocks.launch import launch
from autobatch.blocks.program import split
from autobatch.blocks.tracing import trace
from autobatch.core.abstract_eval import aval_of

RNG = np.random.default_rng(0)
F = np.dtype(np.float64)


def arrays(*shapes):
    return [RNG.normal(size=shape) for shape in shapes]


def program_of(body, *shapes):
    program = trace(body, [aval_of(shape, F) for shape in shapes])
    assert program is not None
    return program


def parted(program, items, fixed, operands):
    """The outputs by way of the parts; operands that are not fixed are `Batched`."""
    parts = split(program, items, fixed)
    once = [] if parts.once is None else launch(parts.once, [operands[i] for i in parts.once_inputs])
    rows = []
    if parts.ahead is not None:
        rows = launch(parts.ahead, [*[operands[i] for i in parts.ahead_inputs], *once])
    ahead = [Batched(x, x.shape[1:]) for x in rows]
    return parts, launch(parts.rest, [*[operands[i] for i in parts.rest_inputs], *once, *ahead])


def names(program):
    return [step.op.name for step in program.steps] if program is not None else []


def cell(x, h, w, u, b):
    return np.tanh(x @ (w * 2.0) + h @ u + np.exp(b)), h * x[:1]


SHAPES = (3,), (4,), (3, 4), (4, 4), (4,)


@pytest.mark.parametrize("batch_size", [0, 1, 5])
def test_the_parts_give_what_the_whole_gives(batch_size):
    program = program_of(cell, *SHAPES)
    x, h, w, u, b = arrays((batch_size, 3), (batch_size, 4), *SHAPES[2:])
    operands = [Batched(x, (3,)), Batched(h, (4,)), w, u, b]
    parts, got = parted(program, [0], [2, 3, 4], operands)
    for one, other in zip(got, launch(program, operands), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    assert set(names(parts.once)) == {"multiply", "exp"}
    assert "matmul" in names(parts.ahead)
    assert names(parts.rest).count("matmul") == 1


def test_what_is_carried_is_not_computed_ahead():
    program = program_of(lambda x, h, w: (x + h) @ w, (3,), (3,), (3, 4))
    assert split(program, [0], [2]) is None or split(program, [0], [2]).ahead is None


def test_without_a_product_nothing_is_computed_ahead():
    program = program_of(lambda x, h: np.exp(x) + h, (3,), (3,))
    assert split(program, [0], []) is None


def test_all_of_a_program_may_be_ahead():
    program = program_of(lambda x, w: np.tanh(x @ w), (3,), (3, 4))
    parts = split(program, [0], [1])
    assert not parts.rest.steps
    assert names(parts.ahead) == ["matmul", "tanh"]
