"""Launching programs: kinds of operands, kinds of steps, gradients inside of gradients, and what NumPy warns of."""

import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch.api.extend import Batched
from autobatch.blocks.launch import form_of, launch
from autobatch.core.cotangent import Product
from tests.blocks.forms import boxed, calls, close, differentiate, loop, steps, traced, uncompiled_kernels
from tests.inspect import Tape

pytestmark = pytest.mark.usefixtures("compiled_at_once")

RNG = np.random.default_rng(5)


def floats(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def check(body, operands, batched, size, *, compiled=True, gradient=True):
    """Every form gives what the loop gives, and the same gradients; returns the program."""
    program = traced(body, operands, batched)
    assert program is not None
    want = loop(body, operands, batched, size) if size else None
    cts = [floats(size, *out.shape).astype(out.dtype) for out in program.results]
    with uncompiled_kernels():
        values, slopes = differentiate(steps, program, operands, batched, cts)
        if want is not None:
            close(values, want, "steps")
        for run in (calls, launch):
            close(run(program, boxed(operands, batched)), values, run.__name__)
            if gradient:
                outs, found = differentiate(run, program, operands, batched, cts)
                close(outs, values, run.__name__)
                close(found, slopes, f"gradient of {run.__name__}")
    if compiled:
        assert form_of(program, tuple(batched), ()) is not None
    return program


@pytest.mark.parametrize("size", [0, 1, 5])
def test_integers_and_masks(size):
    def body(n, m, x):
        k = n * 2 + m % 3
        return k, (k > 4) & (m != 0), np.where(k > 4, x, k), -n // 2, x.astype(np.float64) * k

    operands = [RNG.integers(-9, 9, (size, 6)), RNG.integers(0, 9, 6), floats(size, 6)]
    check(body, operands, [True, False, True], size)


@pytest.mark.parametrize("size", [0, 1, 4])
def test_zero_width(size):
    def body(x, w):
        return np.tanh(x) * 2.0, x @ w, np.concatenate([x, x]).sum()

    check(body, [floats(size, 0), floats(0, 3)], [True, False], size)


@pytest.mark.parametrize("shape", [(3, 5), (1, 5), (3, 1), (5,), (1,), ()])
def test_shared_operands_broadcast(shape):
    check(lambda x, y: (np.tanh(x * y) + x / (y * y + 1.0), np.maximum(x, y)), [floats(4, 3, 5), floats(*shape)],
          [True, False], 4)  # fmt: skip


@pytest.mark.parametrize("shape", [(3, 5), (1, 5), (3, 1), (5,), (1,), ()])
def test_operands_of_each_example_broadcast(shape):
    check(lambda x, y: np.tanh(x * y) + x / (y * y + 1.0), [floats(4, 3, 5), floats(4, *shape)], [True, True], 4)


def test_columns_of_rows():
    def body(x, y):
        return np.tanh(x * y[0:1] + x[3:4]) * np.exp(-np.square(x - x.mean(keepdims=True)))

    check(body, [floats(4, 8), floats(4, 8)], [True, True], 4)


@pytest.mark.parametrize("number", [2, 0.5, True])
def test_weak_numbers(number):
    check(lambda x, s: (x * s + s, np.where(x > s, x, s)), [floats(4, 8), number], [True, False], 4)


def test_weak_numbers_of_each_example():
    program = traced(lambda x, s: x * s + 1, [floats(3, 8), 0.5], [True, False])
    x, s = floats(3, 8), np.array([1.0, 2.0, 3.0])
    (got,) = launch(program, [Batched(x, (8,)), Batched(s, (), float)])
    close([got], [np.stack([x[i] * float(s[i]) + 1 for i in range(3)])], "weak lanes")


def test_a_scalar_output_and_one_that_all_examples_share():
    def body(x, w):
        return (x * w).sum(), np.tanh(w) * 2.0

    check(body, [floats(4, 8), floats(8)], [True, False], 4)


def test_no_operand_of_each_example():
    program = traced(lambda w: np.tanh(w) * 2.0, [floats(8)], [True])
    w = floats(8)
    (got,) = launch(program, [w])
    np.testing.assert_array_equal(got, np.tanh(w) * 2.0)


@pytest.mark.parametrize("size", [0, 1, 3])
def test_products_of_matrices_of_each_example(size):
    def body(a, b, x, w):
        return a @ b @ x, np.outer(x, x @ w), np.tanh(b.T @ a.T) * 0.5

    operands = [floats(size, 4, 6), floats(size, 6, 5), floats(size, 5), floats(5, 7)]
    check(body, operands, [True, True, True, False], size)


def test_attention_and_normalisation():
    def body(q, k, v, gain, bias):
        scores = ab.nn.softmax(q @ k.T / np.sqrt(8.0).astype(np.float32), axis=-1)
        return ab.nn.layer_norm(scores @ v, gain, bias), ab.nn.gelu(scores).max(axis=0)

    check(body, [floats(3, 4, 8), floats(3, 6, 8), floats(3, 6, 8), floats(8), floats(8)], [True] * 3 + [False] * 2, 3)


def test_ranges_that_overlap_and_ranges_of_ranges():
    def body(x, y):
        z = x * y + 1.0
        inner = z[2:18][3:]
        rows = (x * 0.5).reshape(4, 5)
        return np.tanh(z[:12]) * z[8:], inner[4:10] * np.tanh(inner[:6]), np.tanh(rows[1:3]) * rows[2:] + x[3:8]

    check(body, [floats(3, 20), floats(3, 20)], [True, True], 3)


def test_gates_of_two_products():
    def body(left, right, w, u, b, c):
        i, f, o, g = np.split(left @ w + right @ u + b, 4)
        c = ab.nn.sigmoid(i) * np.tanh(g) + ab.nn.sigmoid(f) * c
        return ab.nn.sigmoid(o) * np.tanh(c), c

    operands = [floats(6, 19), floats(6, 19), floats(19, 76), floats(19, 76), floats(76), floats(6, 19)]
    batched = [True, True, False, False, False, True]
    program = traced(body, operands, batched)
    with uncompiled_kernels() as made:
        launch(program, boxed(operands, batched))
    assert len(made) == 2, "the sum of the products is one kernel, gates and state are another"
    check(body, operands, batched, 6)


def test_a_kernel_writes_an_op_of_ones_own_as_it_declares():
    half = ab.extend.elementwise(
        lambda x: x * np.float32(0.5), lambda ct, out, x: ct * np.float32(0.5), name="half",
        fused={"text": "multiply({0}, fill({lanes}, 0.5))", "bound": lambda x: x / 2},
    )  # fmt: skip
    operands = [floats(3, 8), floats(3, 8)]
    with uncompiled_kernels() as made:
        launch(traced(lambda x, y: half(x + y) * y, operands, [True, True]), boxed(operands, [True, True]))
    assert len(made) == 1
    assert "fill(tail, 0.5))" in made[0]
    check(lambda x, y: half(x + y) * y, operands, [True, True], 3, compiled=False)


def test_an_array_that_the_body_makes_is_an_operand_of_a_kernel():
    def body(x, y):
        return np.tanh(x + np.arange(8, dtype=np.float32)) * y - np.full(8, 0.5, np.float32)

    operands = [floats(3, 8), floats(3, 8)]
    with uncompiled_kernels() as made:
        launch(traced(body, operands, [True, True]), boxed(operands, [True, True]))
    assert made
    check(body, operands, [True, True], 3)


@pytest.mark.parametrize("size", [0, 1, 4])
def test_look_ups(size):
    def body(table, i, ids):
        return np.tanh(table[i]) + table[ids].sum(axis=0), table[-1] * 2.0

    operands = [floats(7, 5), RNG.integers(-7, 7, size), RNG.integers(0, 7, (size, 3))]
    check(body, operands, [False, True, True], size, compiled=False)


def test_an_id_out_of_range_names_its_example():
    program = traced(lambda table, i: np.tanh(table[i]), [floats(7, 5), np.zeros(2, np.int64)], [False, True])
    with pytest.raises(IndexError, match="9 is out of bounds for axis 0 with size 7"):
        launch(program, boxed([floats(7, 5), np.array([1, 9])], [False, True]))


def test_steps_without_a_traceable_rule():
    def body(x, y, t):
        return np.sort(x) * y, np.cumsum(x), ab.nn.cross_entropy(x, t), np.argsort(y)

    check(body, [floats(4, 5), floats(4, 5), RNG.integers(0, 5, 4)], [True] * 3, 4, compiled=False)


def test_gradients_leave_products_for_later():
    def body(x, w):
        return np.tanh(x @ w + (x * 2.0) @ w)

    operands = [floats(3, 5), floats(5, 5)]
    program = check(body, operands, [True, False], 3)
    form = form_of(program, (True, False), (1,))
    outs = form.forward(operands)
    (weight,) = form.backward(operands, [np.ones((3, 5), np.float32)], outs[form.outputs :])
    assert [type(part) for part in weight] == [Product, Product]


def test_matrices_on_the_left():
    def body(w, u, x, h, b):
        i, f, g = np.split(w @ x + u @ h + b, 3)
        return np.tanh(g) * ab.nn.sigmoid(i) + h * ab.nn.sigmoid(f), np.einsum("ij,i->j", w, b)

    operands = [floats(24, 6), floats(24, 8), floats(5, 6), floats(5, 8), floats(24)]
    batched = [False, False, True, True, False]
    program = check(body, operands, batched, 5)
    form = form_of(program, tuple(batched), (0, 1))
    outs = form.forward(operands)
    ct = [np.ones((5, 8), np.float32), np.zeros(6, np.float32)]
    gradients = form.backward(operands, ct, outs[form.outputs :])
    assert any(type(part) is Product for part in gradients[0])
    assert type(gradients[1]) is Product


def test_gradients_of_gradients():
    def body(x, w):
        return np.tanh(x @ w) * x, (x * x).sum()

    operands = [floats(3, 4, dtype=np.float64), floats(4, 4, dtype=np.float64)]
    program = traced(body, operands, [True, False])

    def run(way):
        def total(x, w):
            h, s = way(program, [Batched(x, (4,)), w])
            return (h * h).sum() + s.sum()

        def slope(x, w):
            gx, gw = ab.grad(total, argnums=(0, 1))(x, w)
            return (gx * gx).sum() + np.tanh(gw).sum()

        return ab.grad(slope, argnums=(0, 1))(*operands)

    close(list(run(launch)), list(run(steps)), "second derivatives")


def test_an_output_that_nothing_depends_on():
    program = traced(lambda x, y: (np.tanh(x), x * y), [floats(3, 4)] * 2, [True, True])
    x, y = floats(3, 4), floats(3, 4)
    tape = Tape()
    a, b = tape.leaf(x), tape.leaf(y)
    first, _ = launch(program, [Batched(a, (4,)), Batched(b, (4,))])
    dx, dy = tape.backward([first], [np.ones((3, 4), np.float32)], [a._ab_index, b._ab_index])
    np.testing.assert_allclose(dx, 1 - np.tanh(x) ** 2, rtol=1e-6)
    np.testing.assert_array_equal(dy, np.zeros((3, 4), np.float32))


WARNS = [
    (lambda x, y: np.tanh(x * y + 1.0), 1e30, 1e30, "overflow"),
    (lambda x, y: ab.nn.sigmoid(x / y) + 1.0, 1.0, 0.0, "divide by zero"),
    (lambda x, y: np.tanh(np.sqrt(x) * y), -1.0, 1.0, "invalid value"),
    (lambda x, y: 1.0 / (1.0 + np.exp(x * y)), 1e3, 1.0, "overflow"),
]


@pytest.mark.parametrize(("body", "x", "y", "what"), WARNS)
def test_warnings_are_numpy_s(body, x, y, what):
    operands = [np.full((3, 8), x, np.float32), np.full((3, 8), y, np.float32)]
    program = traced(body, operands, [True, True])
    with uncompiled_kernels() as made:
        with pytest.warns(RuntimeWarning, match=what):
            launch(program, boxed(operands, [True, True]))
        with np.errstate(all="raise"), pytest.raises(FloatingPointError, match=what):
            launch(program, boxed(operands, [True, True]))
        with np.errstate(all="ignore"):
            close(launch(program, boxed(operands, [True, True])), [body(*operands)], "ignored")
    assert made


def test_infinities_that_are_meant_warn_of_nothing():
    def body(x, m):
        return ab.nn.sigmoid(np.where(m > 0, x, -np.inf)) + np.maximum(x, -np.inf), np.minimum(x * 2.0, m)

    operands = [floats(3, 8), np.where(floats(3, 8) > 0, np.float32(np.inf), np.float32(-1.0))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(body, operands, [True, True], 3, gradient=False)


def test_kernels_do_not_read_past_the_end():
    program = traced(lambda x, y: np.tanh(x * y) + x, [floats(3, 8), floats(3, 8)], [True, True])
    with uncompiled_kernels() as made, pytest.raises(ValueError, match="broadcast"):
        launch(program, [Batched(floats(3, 8), (8,)), Batched(floats(3, 5), (5,))])
    assert made


def test_results_that_are_often_infinite_are_numpy_s_at_once():
    program = traced(lambda x: np.tanh(x + 1.0) * (x + 2.0), [floats(3, 8)], [True])
    x = np.full((3, 8), np.inf, np.float32)
    with uncompiled_kernels():
        for _ in range(20):
            launch(program, boxed([x], [True]))
    form = form_of(program, (True,), ())
    assert form.steps.run is form.steps._plain
