"""Random straight-line programs: step by step, compiled and with kernels, forward and backward, against the loop.

A soak run: `python -m tests.blocks.test_property --seed 5000 --count 500`.
"""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autobatch as ab
from tests.blocks.forms import (
    boxed,
    calls,
    close,
    differentiate,
    launch,
    loop,
    steps,
    traced,
    uncompiled_kernels,
)
from tests.fuzz import by_strategy, main
from tests.inspect import compiled_at_once

pytestmark = [pytest.mark.usefixtures("compiled_at_once"), pytest.mark.fuzz]

SMOOTH = {
    "tanh": np.tanh,
    "sigmoid": lambda x: ab.nn.sigmoid(x),
    "exp": lambda x: np.exp(-x * x),
    "negative": np.negative,
    "square": lambda x: np.square(x),
    "sqrt": lambda x: np.sqrt(x * x + 1.0),
    "scaled": lambda x: x * 0.5 - 1,
    "gelu": lambda x: ab.nn.gelu(x),
    "relu": lambda x: ab.nn.relu(x + 0.25),
    "softmax": lambda x: ab.nn.softmax(x, axis=-1),
    "mean": lambda x: x - x.mean(axis=-1, keepdims=True),
    "where": lambda x: np.where(x > 0.125, x, 0.1 * x),
    "absolute": lambda x: np.abs(x + 0.375),
    "flipped": lambda x: x[..., ::-1],
    "mask": lambda x: np.where(~((x < -0.5) | (x >= 0.75)), x * x, -x),
}
BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": lambda x, y: x / (y * y + 1.0),
    "maximum": np.maximum,
    "minimum": np.minimum,
    "where": lambda x, y: np.where(x <= y, x, y * 2.0),
}


@st.composite
def programs(draw):
    """Commands for `body_of`, the values it returns, the dtype and the width."""
    width = draw(st.sampled_from([1, 2, 5, 8, 16, 19]))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    commands = []
    count = 2  # vectors of this width
    for _ in range(draw(st.integers(1, 9))):
        kind = draw(
            st.sampled_from(
                [
                    "unary",
                    "unary",
                    "binary",
                    "binary",
                    "binary",
                    "gates",
                    "matmul",
                    "example",
                    "join",
                    "stack",
                    "number",
                ]
            )
        )
        first, second = draw(st.integers(0, count - 1)), draw(st.integers(0, count - 1))
        if kind == "unary":
            commands.append((kind, draw(st.sampled_from(sorted(SMOOTH))), first, 0))
        elif kind == "binary":
            commands.append((kind, draw(st.sampled_from(sorted(BINARY))), first, second))
        else:
            commands.append((kind, "", first, second))
        count += 1
    chosen = draw(st.lists(st.integers(2, count - 1), min_size=1, max_size=3, unique=True))
    return commands, chosen, dtype, width


def body_of(commands, chosen):
    def body(x, y, m, n, w, wide, b, s):
        values = [x, y]
        width = x.shape[0]
        for kind, name, i, j in commands:
            p, q = values[i], values[j]
            if kind == "unary":
                out = SMOOTH[name](p)
            elif kind == "binary":
                out = BINARY[name](p, q)
            elif kind == "gates":
                z = p @ wide + b
                u, v, t = np.split(z, 3)
                out = np.tanh(u) * ab.nn.sigmoid(v) + t * q
            elif kind == "matmul":
                out = p @ w
            elif kind == "example":
                out = (m @ n) @ p * 0.25
            elif kind == "join":
                out = np.concatenate([p[: width // 2], q[width // 2 :]])
            elif kind == "stack":
                out = np.stack([p, q, x]).sum(axis=0) * 0.5
            else:
                out = p * s + q.sum() * 0.125
            values.append(out)
        outputs = tuple(values[k] * 1.0 for k in chosen)
        return (*outputs, (values[chosen[0]] > 0.0).sum())

    return body


def check_forms(program, size, seed, shared_y):
    commands, chosen, dtype, h = program
    body = body_of(commands, chosen)
    rng = np.random.default_rng(seed)
    make = lambda *shape: (rng.standard_normal(shape) * 0.5).astype(dtype)
    y = make(h) if shared_y else make(size, h)
    operands = [make(size, h), y, make(size, h, 3), make(size, 3, h), make(h, h), make(h, 3 * h), make(3 * h), 0.5]
    batched = [True, not shared_y, True, True, False, False, False, False]
    traced_program = traced(body, operands, batched)
    assert traced_program is not None
    want = loop(body, operands, batched, size) if size else None
    before = [np.copy(x) for x in operands]
    cts = [make(size, h) for _ in chosen] + [np.zeros(size, np.int64)]
    with uncompiled_kernels():
        by_steps, slopes = differentiate(steps, traced_program, operands, batched, cts)
        if want is not None:
            close(by_steps, want, "step by step")
        for run in (calls, launch):
            close(run(traced_program, boxed(operands, batched)), by_steps, run.__name__)
            values, found = differentiate(run, traced_program, operands, batched, cts)
            close(values, by_steps, f"{run.__name__} on a tape")
            close(found, slopes, f"gradients of {run.__name__}")
    close(operands[:-1], before[:-1], "operands afterwards")
    assert any(form is not None for form in traced_program.forms.values()), "nothing was compiled"


PROBLEMS = programs(), st.sampled_from([0, 1, 3, 6]), st.integers(0, 2**31), st.booleans()


@settings(max_examples=120, deadline=None, report_multiple_bugs=False)
@given(*PROBLEMS)
def test_every_form_is_the_loop(program, size, seed, shared_y):
    check_forms(program, size, seed, shared_y)


def check_gradients(program, seed):
    commands, chosen, _, h = program
    body = body_of(commands, chosen)
    rng = np.random.default_rng(seed)
    make = lambda *shape: rng.standard_normal(shape) * 0.5
    size = 3
    operands = [make(size, h), make(size, h), make(size, h, 3), make(size, 3, h), make(h, h), make(h, 3 * h),
                make(3 * h), 0.5]  # fmt: skip
    batched = [True, True, True, True, False, False, False, False]
    cts = [make(size, h) for _ in chosen] + [np.zeros(size, np.int64)]
    _, found = differentiate(launch, traced(body, operands, batched), operands, batched, cts)
    want = [np.zeros_like(x) for x in operands[:-1]]
    for i in range(size):

        def scalar(*arrays, i=i):
            outputs = body(*arrays, 0.5)
            return sum((out * ct[i]).sum() for out, ct in zip(outputs[:-1], cts, strict=False))

        arrays = [x[i] if own else x for x, own in zip(operands[:-1], batched, strict=False)]
        for k, part in enumerate(ab.grad(scalar, argnums=tuple(range(7)))(*arrays)):
            if batched[k]:
                want[k][i] += part
            else:
                want[k] += part
    close(found, want, "gradients")


@settings(max_examples=15, deadline=None)
@given(programs(), st.integers(0, 2**31))
def test_gradients_are_those_of_each_example(program, seed):
    check_gradients(program, seed)


def test_the_comparison_can_fail():
    with pytest.raises(AssertionError, match="what"):
        close([np.ones(2)], [np.zeros(2)], "what")


def at_once(check):
    """`check` with programs compiled from their first run on."""

    def checked(*values):
        with compiled_at_once():
            check(*values)

    return checked


FUZZERS = {
    "forms": by_strategy(at_once(check_forms), *PROBLEMS),
    "block-gradients": by_strategy(at_once(check_gradients), programs(), st.integers(0, 2**31)),
}

if __name__ == "__main__":
    sys.exit(main(FUZZERS))
