"""What is a block, and what a program holds."""

import contextlib

import numpy as np
import pytest

import autobatch as ab
from autobatch.blocks.launch import launch
from autobatch.blocks.tracing import trace
from autobatch.core.abstract_eval import WEAK, aval_of
from tests.law import assert_same, outcome

F4 = np.dtype(np.float32)
VECTOR = aval_of((4,), F4)


def names(program):
    return [step.op.name for step in program.steps]


def test_equal_steps_are_one_and_dead_ones_are_gone():
    def body(x, y):
        np.exp(x)
        return np.tanh(x * y) + np.tanh(x * y)

    assert names(trace(body, [VECTOR, VECTOR])) == ["multiply", "tanh", "add"]


def test_attributes_tell_steps_apart():
    program = trace(lambda x: x.reshape(2, 2).sum(axis=0) + x.reshape(2, 2).sum(axis=1), [VECTOR])
    assert names(program).count("sum") == 2


def test_numbers_of_different_types_are_different_constants():
    program = trace(lambda x: x * 1 + x * 1.0 + x * True, [aval_of((4,), np.dtype(np.int32))])
    assert [out.dtype for out in program.results] == [np.float64]
    assert sorted(map(str, program.constants)) == ["1", "1.0", "True"]


def test_several_outputs_of_any_shape():
    program = trace(lambda x, n: (np.outer(x, x), (x * n).sum(), x > 0), [VECTOR, WEAK[int]])
    assert [(out.shape, out.dtype) for out in program.results] == [
        ((4, 4), np.float32),
        ((), np.float32),
        ((4,), np.bool_),
    ]


def test_writes_into_own_arrays_are_traced():
    def body(x):
        out = x * 2.0
        out[1] = 5.0
        out[2:] += x[2:]
        return out

    program = trace(body, [VECTOR])
    assert program is not None
    assert program.results[0].shape == (4,)


def write(x):
    x += 1.0
    return x * 2.0


def write_a_view(x):
    y = x[:2]
    y *= 2.0
    return x + 1.0


def overlapping(y):
    return y[:3], y[2:]


@pytest.mark.parametrize(
    "body",
    [
        write,
        write_a_view,
        lambda x: x,
        lambda x: x[:2],
        lambda x: x.T,
        lambda x: (x + 1.0,) * 2,
        lambda x: np.split(x, 2),
        lambda x: overlapping(x * 2.0),
        lambda x: x * float(x[0]),
        lambda x: x if x.sum() > 0 else -x,
        lambda x: np.array(x) + x,
        lambda x: np.linalg.eigvals(np.outer(x, x)) * x[0],
        lambda x: x[x > 0],
        lambda x: ab.nn.dropout(x, 0.5),
        lambda x: x.reshape(3),
        lambda x: 3.0,
        lambda x: np.ones(3),
        lambda x: [],
        lambda x: x + "a",
        lambda x: x.nonsense,
        lambda x: [x * 2.0],
        lambda x: (x * 2.0,),
    ],
)
def test_what_is_no_block(body):
    assert trace(body, [VECTOR]) is None


@pytest.mark.parametrize(
    "body",
    [
        lambda x: tuple(np.split(x * 2.0, 2)),
        lambda x: overlapping(x * 2.0)[0],
        lambda x: ((y := x + 1.0)[::2], y[1::2].reshape(2, 1)),
        lambda x: tuple(np.outer(x, x)),
        lambda x: x.sum(keepdims=True)[0],
    ],
)
def test_parts_without_an_element_in_common_may_live_on(body):
    program = trace(body, [VECTOR])
    assert program is not None
    x = np.arange(4, dtype=np.float32)
    want = body(x) if isinstance(body(x), tuple) else [body(x)]
    for got, part in zip(launch(program, [x]), want, strict=True):
        np.testing.assert_array_equal(got, part)


def test_an_error_that_the_body_catches_is_still_none():
    def body(x):
        with contextlib.suppress(Exception):
            float(x[0])
        return x + 1.0

    assert trace(body, [VECTOR]) is None


def test_python_numbers_alone_are_python_s():
    assert trace(lambda x, n: x * (n + 1), [VECTOR, WEAK[int]]) is None


def test_constants_are_as_they_were_when_they_were_used():
    def body(x):
        table = np.zeros(4, np.float32)
        y = x + table
        table += 1.0
        return y + table

    program = trace(body, [VECTOR])
    assert [value.tolist() for value in program.constants] == [[0.0] * 4, [1.0] * 4]


def _index_for_nothing(x):
    y = np.tanh(x)
    _ = (x * 2)[4]
    return y.sum()


def _inverse_for_nothing(x):
    y = np.tanh(x)
    _ = np.linalg.inv(np.outer(y, y))
    return (y * 2).sum()


def _items_for_nothing(x):
    h = np.zeros(3)
    for v in x:
        _ = np.take(h * v, np.array([0, len(x)]))
        h = np.tanh(h * v + 1)
    return h


@pytest.mark.parametrize("way", ["fly", "lockstep"])
@pytest.mark.parametrize("f", [_index_for_nothing, _inverse_for_nothing, _items_for_nothing])
def test_what_nobody_reads_raises_all_the_same(f, way):
    for sizes in ((5, 7), (3, 3, 3), (5, 2, 7), (1,)):
        xs = [np.ones(n) for n in sizes]
        want = outcome(lambda: [f(x) for x in xs])  # noqa: B023
        with ab.options(way=way):
            found = outcome(lambda: ab.map(f, xs))  # noqa: B023
        assert type(found) is type(want)
        if isinstance(want, Exception):
            assert str(found) == str(want)
        else:
            assert_same(found, want)
