"""What surrounds a call on the fly: errstate, warnings, types, printing, interrupts, and who may handle an error."""

import copy
import functools
import random
import threading
import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch.core.diagnostics import silence
from autobatch.errors import FallbackWarning
from autobatch.lazy import trace as traces
from tests import inspect
from tests.inspect import map_with_stats, noted_fallbacks
from tests.law import assert_same, loop, normal, vectors


def quiet_check(f, *columns, falls_back=False, **shared):
    with warnings.catch_warnings(), noted_fallbacks() as notes:
        warnings.simplefilter("ignore")
        expected = loop(f, *columns, **shared)
        assert_same(ab.map(f, *columns, **shared), expected)
    assert bool(notes) == falls_back, notes


def test_errstate_belongs_to_the_call_not_to_the_first_of_its_kind():
    def raises_second(x):
        first = np.log(x * 0)
        with np.errstate(all="raise"):
            try:
                second = np.log(x * 0)
            except FloatingPointError as error:
                second = str(error)
        return first, second

    quiet_check(raises_second, vectors(3, 4), falls_back=True)


def test_a_warning_outside_of_an_errstate_that_silenced_its_first_kind():
    def silent_first(x):
        with np.errstate(all="ignore"):
            first, top = np.log(x * 0), np.log(x.max(0) * 0)
        return first, top, np.log(x * 0), np.log(x.max(0) * 0)

    for run in (loop, ab.map):
        with pytest.warns(RuntimeWarning, match="divide by zero encountered in log"):
            run(silent_first, vectors(3, 4))


def test_calls_under_one_errstate_are_launched_together():
    def f(x):
        with np.errstate(divide="ignore"):
            return np.log(np.abs(x) * 2)

    xs = vectors(64, 4)
    assert map_with_stats(f, xs)[1].launches == map_with_stats(f, xs[:1])[1].launches


def test_an_example_that_catches_warnings():
    def error(x):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                return np.log(x * 0)
            except RuntimeWarning as warning:
                return str(warning)

    def counted(x):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            y = np.log(x * 0)
            if y.sum() < 0:
                y = y * 0
        return y.shape, len(caught) > 0

    def silenced(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = np.log(np.abs(x))
            return y * 2 if y.sum() < 0 else y

    before = warnings.filters
    for f in (error, counted):
        with noted_fallbacks() as notes:
            assert_same(ab.map(f, vectors(3, 4)), loop(f, vectors(3, 4)))
        assert notes
    with noted_fallbacks():
        assert_same(ab.map(silenced, vectors(3, 4)), loop(silenced, vectors(3, 4)))
    assert warnings.filters is before


@functools.singledispatch
def describe(value):
    return "something else"


@describe.register
def _(value: np.ndarray):
    return value.sum()


def kinds(x, w):
    return (
        isinstance(x, np.ndarray),
        isinstance(x[0], np.floating),
        isinstance(x[0], np.ndarray),
        isinstance(x.sum(), np.generic),
        isinstance(w, np.ndarray),
        isinstance(x, list),
        describe(x),
        x.flags.c_contiguous,
        x.strides,
    )


def test_isinstance_sees_an_array():
    quiet_check(kinds, vectors(3, 4), w=normal(4, 4))


def test_isinstance_sees_an_array_under_a_gradient():
    def loss(p):
        return (p["w"] ** 2).sum() if isinstance(p["w"], np.ndarray) else p["w"] * 0

    params = {"w": normal(3, dtype=np.float64)}
    assert_same(ab.grad(loss)(params), {"w": 2 * params["w"]})
    mapped = ab.map(lambda x, p: ab.grad(lambda q: loss(q) * x[0])(p), vectors(2, 4, dtype=np.float64), p=params)
    assert_same(mapped, [{"w": 2 * x[0] * params["w"]} for x in vectors(2, 4, dtype=np.float64)])


def test_printing_shows_what_numpy_shows():
    def f(x):
        return f"{x!r} {x[0]!r} {[x[0], x.sum()]}", repr({"x": x}), str(x), f"{x[1]:.3f}"

    quiet_check(f, vectors(3, 4))


def test_a_failed_launch_is_not_for_an_example_to_handle():
    def f(x, k):
        matrix = np.zeros((4, 4), np.float32) * x if k == 2 else np.outer(x, x) + 9 * np.eye(4, dtype=np.float32)
        try:
            inverse = np.linalg.inv(matrix)
            return float(inverse.sum()) > 0
        except np.linalg.LinAlgError:
            return "singular"

    quiet_check(f, vectors(4, 4), range(4), falls_back=True)


def test_an_interrupt_inside_a_kernel_stays_an_interrupt():
    def interrupted(*args):
        inner, outer = SystemError("returned a result with an exception set"), SystemError("and once more")
        inner.__cause__ = KeyboardInterrupt()
        raise outer from inner

    with inspect.replaced(traces, launch_segment=interrupted), pytest.raises(KeyboardInterrupt, match=r"^$"):
        ab.map(lambda x: x * 2, vectors(3, 4))


def test_a_map_inside_lock_step():
    xs, w = vectors(3, 5, 4), normal(4, 4)

    @ab.batch
    def rows(x, w):
        return ab.map(lambda row, w: np.tanh(row @ w), x, w=w)

    with noted_fallbacks():
        found = ab.examples(rows(ab.MaskedBatch.from_examples(xs), w))
    assert_same(found, [rows.__wrapped__(x, w) for x in xs])


@pytest.mark.parametrize("leaf", [2.0, np.float64(2.0), np.array(2.0)])
def test_the_gradient_of_a_number_is_of_its_kind_in_every_example(leaf):
    def f(x, p):
        return ab.grad(lambda q: q["s"] ** 2 * x.sum())(p)

    def twice(x, p):
        return ab.grad(lambda q: (ab.grad(lambda r: (r["s"] ** 3 * x).sum())(q)["s"] * x).sum())(p)

    for function in (f, twice):
        assert_same(ab.map(function, vectors(3, 4), p={"s": leaf}), loop(function, vectors(3, 4), p={"s": leaf}))


def test_a_deep_copy_carries_the_gradient():
    x = normal(3, dtype=np.float64)
    assert_same(ab.grad(lambda p: (copy.deepcopy(p)["w"] ** 2).sum())({"w": x}), {"w": 2 * x})


def test_another_thread_that_is_silent_does_not_look_like_an_example_that_catches_warnings():
    over = threading.Event()

    def quiet():
        while not over.is_set():
            with silence():
                pass

    other = threading.Thread(target=quiet)
    other.start()
    try:
        for n in range(1, 40):
            xs = [np.ones(n), np.zeros(n)]
            assert_same(ab.map(lambda x, n=n: np.tanh(x + n) * n, xs), [np.tanh(x + n) * n for x in xs])
    finally:
        over.set()
        other.join()


def test_a_function_without_source_runs_as_the_loop():
    space = {"np": np, "drawn": np.random.default_rng(3)}
    for text in ("lambda x: np.tanh(x) + 1", "lambda x: x * __import__('random').random()"):
        with pytest.warns(FallbackWarning, match="<lambda> has no source that says what it does"):
            _, stats = map_with_stats(eval(text, space), vectors(3, 2))
        assert "no source" in stats.looped


def imports_a_module(x):
    import heapq  # noqa: PLC0415

    return np.tanh(x) + heapq.nsmallest(1, [2.0, 1.0])[0]


def imports_what_draws(x):
    from random import gauss  # noqa: PLC0415

    return np.tanh(x) + gauss(0.0, 0.0)


def draws_from_its_own(x):
    return np.tanh(x) + random.Random(3).random()


def keeps_the_order_by_name(x, random):
    return np.tanh(x) + random


@pytest.mark.parametrize(
    ("f", "shows", "shared"),
    [
        (imports_a_module, False, {}),
        (imports_what_draws, True, {}),
        (draws_from_its_own, True, {}),
        (keeps_the_order_by_name, False, {"random": 1.0}),
    ],
)
def test_what_shows_the_order_is_read_from_the_normal_form(f, shows, shared):
    quiet_check(f, vectors(3, 2), falls_back=shows, **shared)
