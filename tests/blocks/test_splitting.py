"""A program parted into what runs once, ahead and in each step gives what the whole gives."""

import numpy as np
import pytest

from autobatch.api.extend import Batched
from autobatch.blocks.launch import launch
from autobatch.blocks.program import split
from autobatch.blocks.tracing import trace
from autobatch.core.abstract_eval import aval_of
from autobatch.ops.numpy import contractions
from autobatch.testing import inspect

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


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("batch_size", [0, 1, 5])
def test_the_parts_give_what_the_whole_gives(batch_size, blocks):
    with inspect.column_blocks(lambda shape: blocks and shape == (4, 4), unpacked=batch_size * 4 * 2):
        check_parts(batch_size, blocks)


def check_parts(batch_size, blocks):
    program = program_of(cell, *SHAPES)
    x, h, w, u, b = arrays((batch_size, 3), (batch_size, 4), *SHAPES[2:])
    operands = [Batched(x, (3,)), Batched(h, (4,)), w, u, b]
    parts, got = parted(program, [0], [2, 3, 4], operands)
    for one, other in zip(got, launch(program, operands), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    assert set(names(parts.once)) - {"column_blocks"} == {"multiply", "exp"}
    assert "matmul" in names(parts.ahead)
    assert ("blocked_matmul" in names(parts.rest)) == blocks


def test_what_is_carried_is_not_computed_ahead():
    program = program_of(lambda x, h, w: (x + h) @ w, (3,), (3,), (3, 4))
    assert split(program, [0], [2]) is None or split(program, [0], [2]).ahead is None


def test_only_matrices_that_stay_are_laid_out_in_blocks():
    program = program_of(lambda h, m, w: h @ m + h @ w, (4,), (4, 4), (4, 4))
    h, m, w = arrays((3, 4), (3, 4, 4), (4, 4))
    operands = [Batched(h, (4,)), Batched(m, (4, 4)), w]
    with inspect.column_blocks(lambda shape: True):
        parts, (got,) = parted(program, [], [2], operands)
    assert sorted(names(parts.rest)) == ["add", "blocked_matmul", "matmul"]
    np.testing.assert_allclose(got, launch(program, operands)[0], rtol=1e-12)


def test_without_a_product_nothing_is_computed_ahead():
    program = program_of(lambda x, h: np.exp(x) + h, (3,), (3,))
    assert split(program, [0], []) is None


def test_all_of_a_program_may_be_ahead():
    program = program_of(lambda x, w: np.tanh(x @ w), (3,), (3, 4))
    parts = split(program, [0], [1])
    assert not parts.rest.steps
    assert names(parts.ahead) == ["matmul", "tanh"]


def test_blocks_are_for_few_rows_and_wide_matrices():
    assert contractions._width(64, 64) == 0
    assert contractions._width(256, 1024) == 32
    assert contractions._width(256, 1023) in (0, 31)
    assert not contractions.has_blocks((256, 1024), np.dtype(np.int64))


@pytest.mark.parametrize("rows", [0, 1, 3, 64, 200])
def test_a_product_by_blocks_is_the_product(rows):
    x, y = arrays((rows, 256), (256, 512))
    got = contractions.blocked_matmul_p(x, y, contractions.column_blocks_p(y))
    np.testing.assert_allclose(got, x @ y, rtol=1e-10, atol=1e-12)
    assert got.flags.c_contiguous
