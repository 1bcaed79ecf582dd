"""The decorator object: what kinds of functions it takes, what survives it, and where their code comes from."""

import functools
import inspect
import linecache
import pickle
import re
import textwrap

import numpy as np
import pytest

from autobatch import MaskedBatch, batch, examples
from autobatch.errors import FallbackWarning, ShapeError, UnsupportedError
from autobatch.lockstep import lockstep_forms
from tests.inspect import forget_warnings, watched
from tests.law import assert_same, batch_of, equals_loop, ragged

XS = ragged(3, 1, 0, 4)
SCALE = 2.0


@pytest.fixture(autouse=True)
def _fresh_warnings():
    forget_warnings()


@batch
def scaled_sum(xs, start=0.0, *, power=1):
    """The sum."""
    total = np.float64(start)
    for x in xs:
        total = total + SCALE * x**power
    return total


def check(f, plain, *columns):
    got = examples(f(*map(batch_of, columns)))
    assert_same(got, [plain(*row) for row in zip(*columns, strict=True)])


def test_plain_values_run_the_function_itself():
    assert scaled_sum(XS[0]) == scaled_sum.__wrapped__(XS[0])


def test_identity_survives():
    assert scaled_sum.__name__ == "scaled_sum"
    assert scaled_sum.__doc__ == "The sum."
    assert list(inspect.signature(scaled_sum).parameters) == ["xs", "start", "power"]
    assert pickle.loads(pickle.dumps(scaled_sum)) is scaled_sum
    assert type(batch(strict=True)(len)) is type(batch(len))


def test_globals_and_defaults_are_the_live_ones(monkeypatch):
    check(scaled_sum, scaled_sum.__wrapped__, XS)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    check(scaled_sum, scaled_sum.__wrapped__, XS)
    monkeypatch.setattr(scaled_sum.__wrapped__, "__defaults__", (1.0,))
    check(scaled_sum, scaled_sum.__wrapped__, XS)
    monkeypatch.setattr(scaled_sum.__wrapped__, "__kwdefaults__", {"power": 2})
    check(scaled_sum, scaled_sum.__wrapped__, XS)


def test_closures_are_the_live_ones():
    scale = 2.0

    @batch
    def f(xs):
        total = np.float64(0)
        for x in xs:
            total = total + scale * x
        return total

    check(f, f.__wrapped__, XS)
    scale = 5.0
    check(f, f.__wrapped__, XS)


class Model:
    unit = 0.5

    def __init__(self, width):
        self.__w = np.ones((1, width))
        self.width = width

    @batch
    def run(self, xs):
        h = np.zeros(self.width)
        for x in xs:
            h = self.step(h, x)
        return h

    def step(self, h, x):
        return np.tanh(h + self.__w[0] * x) * self.unit

    @batch
    @classmethod
    def of_class(cls, xs):
        return xs * cls.unit

    @staticmethod
    @batch
    def of_static(xs):
        return xs * 2

    @batch
    def __call__(self, xs):
        return self.run(xs) + 1


class Deeper(Model):
    @batch
    def run(self, xs):
        return super().run(xs) * 2


@pytest.mark.parametrize("kind", [Model, Deeper])
def test_methods(kind):
    model = kind(3)
    check(model.run, lambda xs: kind.run.__wrapped__(model, xs), XS)
    check(model, lambda xs: kind.__call__.__wrapped__(model, xs), XS)
    check(Model.of_class, lambda xs: xs * 0.5, XS)
    check(model.of_static, lambda xs: xs * 2, XS)


def test_helpers_are_converted_on_first_call():
    def cell(h, row):
        for x in row:
            h = h + x
        return h

    class Twice:
        def __init__(self, by):
            self.by = by

        def __call__(self, x):
            return sum([x for _ in range(self.by)])

    twice = Twice(2)
    shift = functools.partial(cell, np.float64(1))

    def f(xss):
        h = np.float64(0)
        for row in xss:
            h = cell(h, row) + shift(row)
        return twice(h), (lambda y: [v + 0 for v in y])(xss[:, 0])

    equals_loop(f, ragged(3, 1, 0, 4, width=2))


def test_lambdas_two_on_a_line():
    f, g = (lambda xs: [x + 1 for x in xs], lambda xs: [x * 3 for x in xs])
    equals_loop(f, XS)
    equals_loop(g, XS)


def test_lambdas_in_a_lambda_on_one_line():
    outer = lambda k: (lambda xs: [x + k for x in xs], lambda xs: (lambda y: [x * k for x in y])(xs))
    for f in outer(2.0):
        equals_loop(f, XS)


def _from_source(text, filename, register=True):
    text = textwrap.dedent(text)
    if register:
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    namespace = {"np": np}
    exec(compile(text, filename, "exec"), namespace)
    return namespace["f"]


SUM = """
    def f(xs):
        total = np.float64(0)
        for x in xs:
            total = total + x
        return total
"""


def test_a_notebook_cell():
    equals_loop(_from_source(SUM, "<ipython-input-1-abc>"), XS)


def test_a_function_without_source_runs_as_a_loop():
    f = _from_source(SUM, "<string>", register=False)
    equals_loop(f, XS, falls_back=True)
    with pytest.raises(UnsupportedError, match="has no source"):
        batch(f, strict=True)(batch_of(XS))


def test_a_file_that_changed_since_import_is_not_run(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(textwrap.dedent(SUM))
    f = _from_source(SUM, str(path), register=False)
    path.write_text(textwrap.dedent(SUM).replace("total + x", "total - x"))
    with pytest.warns(FallbackWarning, match="changed since it was imported"):
        out = batch(f)(batch_of(XS))
    assert_same(examples(out), [f(x) for x in XS])


def test_builtins_with_a_form_in_lock_step_and_without():
    equals_loop(sorted, XS)
    equals_loop(tuple, XS, falls_back=True)


def test_a_function_under_another_decorator():
    def doubled(f):
        @functools.wraps(f)
        def wrapper(*args, **kwargs):
            return 2 * f(*args, **kwargs)

        return wrapper

    @batch
    @doubled
    def f(xs):
        total = np.float64(0)
        for x in xs:
            total = total + x
        return total

    check(f, f.__wrapped__, XS)


def test_arguments_of_any_shape():
    def f(pair, *rest, table, **named):
        return pair["x"] + rest[0] + table, named["scale"] * rest[0]

    xs = ragged(3, 1, 2)
    got = batch(f)({"x": batch_of(xs)}, batch_of(xs), table=1.0, scale=3)
    assert_same(examples(got), [f({"x": x}, x, table=1.0, scale=3) for x in xs])


def test_batch_sizes_must_agree():
    with pytest.raises(ShapeError, match="xs has 4, start has 2"):
        scaled_sum(batch_of(XS), start=batch_of([1.0, 2.0]))


def test_a_wrong_call_raises_as_the_function_does():
    with pytest.raises(TypeError, match="unexpected keyword argument 'wrong'"):
        scaled_sum(batch_of(XS), wrong=1)


def test_nothing_is_rewritten_before_the_first_batched_call():
    with watched(lockstep_forms, "normal_form") as found:

        @batch
        def f(x):
            return x + 1

        assert f(1) == 2
    assert not found


def test_writes_reach_the_callers_batch_and_leave_its_padding():
    def f(x):
        x[0] = 9.0
        x += 1
        return x

    data = np.ones((2, 3))
    xs = MaskedBatch(data, lengths=[3, 1])
    got = examples(batch(f)(xs))
    assert_same(got, [np.array([10.0, 2.0, 2.0]), np.array([10.0])])
    assert_same(data, np.array([[10.0, 2.0, 2.0], [10.0, 1.0, 1.0]]))


LISTS = {
    "a method": lambda x: x.sum(),
    "an operator": lambda x: x * 2.0,
    "NumPy": lambda x: np.tanh(x),
    "an index": lambda x: x["name"],
}


@pytest.mark.parametrize("kind", LISTS)
def test_of_a_list_of_arrays_an_error_says_that_it_is_one_example(kind):
    f = LISTS[kind]
    arrays = [np.ones(2), np.ones(3)]
    with pytest.raises(Exception) as plain:  # noqa: PT011  (whatever Python says)
        f(arrays)
    for call in (lambda: batch(f)(arrays), lambda: batch(lambda x: batch(f)(x))(arrays)):
        with pytest.raises(plain.type, match=re.escape(str(plain.value))) as raised:
            call()
        assert [note for note in raised.value.__notes__ if "ab.collate(arrays)" in note]
        assert len(raised.value.__notes__) == 1
    with pytest.raises((TypeError, AttributeError)) as raised:
        batch(f)([1, "two"])
    assert not hasattr(raised.value, "__notes__")


def test_a_list_that_a_function_takes_is_no_error():
    assert batch(lambda xs: len(xs))([np.ones(2), np.ones(3)]) == 2
