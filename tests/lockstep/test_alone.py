"""What lanes cannot do together: a foreign call is a loop of its own, anything else sends all on the fly."""

import statistics
import warnings

import numpy as np
import pytest

from autobatch import batch, examples, nn
from autobatch.errors import FallbackWarning, UnsupportedError
from autobatch.lockstep import lockstep_call
from autobatch.program.purity import is_pure
from tests import inspect
from tests.inspect import forget_warnings, noted_fallbacks
from tests.law import assert_same, batch_of, every_way_equals_loop, ragged

XS = ragged(3, 1, 0, 4)


@pytest.fixture(autouse=True)
def _fresh_warnings():
    forget_warnings()


CALLS = []


def counted(x):
    CALLS.append(type(x).__name__)
    return x * 2


def looks_around(x):
    y = x + 1
    return len(locals()) * y.sum()


def appends(seen, x):
    seen.append(x.sum())
    return len(locals())


def helper_of_its_own(x):
    a = np.tanh(x)
    b = looks_around(a)
    return a + b


def c_extension(x):
    return statistics.fmean(x) if len(x) else 0.0


def test_only_a_foreign_call_runs_as_a_loop():
    with noted_fallbacks() as found, inspect.watched(lockstep_call, "fallback") as whole_calls:
        got = examples(batch(c_extension)(batch_of(XS)))
    assert not whole_calls
    assert len(found) == 1
    assert found[0].placed.startswith("test_alone.py:")
    assert_same(got, [c_extension(x) for x in XS])
    with pytest.raises(UnsupportedError, match=r"test_alone.py:\d+: .*strict=True allows no loop"):
        batch(c_extension, strict=True)(batch_of(XS))


def test_what_a_helper_cannot_do_runs_on_the_fly_and_the_warning_names_its_line():
    with pytest.warns(FallbackWarning, match="a call of locals; it runs example by example, traced") as caught:
        got = examples(batch(helper_of_its_own)(batch_of(XS)))
    assert_same(got, [helper_of_its_own(x) for x in XS])
    assert (caught[0].filename, caught[0].lineno) == (__file__, looks_around.__code__.co_firstlineno + 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch(helper_of_its_own)(batch_of(XS))  # said once
    with pytest.raises(UnsupportedError, match=r"test_alone.py:\d+: .*strict=True allows lock-step only"):
        batch(helper_of_its_own, strict=True)(batch_of(XS))


def test_under_a_branch_only_its_lanes_run():
    def f(x):
        return looks_around(x) if len(x) > 2 else x.sum()

    with noted_fallbacks() as found:
        got = examples(batch(f)(batch_of(XS)))
    assert len(found) == 1
    assert_same(got, [f(x) for x in XS])


def test_gradients_pass_through_a_call_that_runs_alone():
    def f(x, w):
        return looks_around(x * w) * w

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        every_way_equals_loop(f, XS, w=0.7)


def looks_around_and_divides(n):
    return len(locals()) * 6 // n


def test_an_error_inside_is_the_first_examples():
    def f(n):
        return looks_around_and_divides(n) + 1

    with noted_fallbacks(), pytest.raises(ZeroDivisionError, match="by zero") as caught:
        batch(f)(batch_of([2, 0, 0]))
    assert caught.value.__notes__ == ["raised for example 1"]


def test_what_may_change_something_runs_as_a_whole():
    def f(x):
        seen = []
        n = appends(seen, x)
        return seen, n

    with pytest.warns(FallbackWarning, match="a call of locals"):
        got = examples(batch(f)(batch_of(XS)))
    assert_same(got, [f(x) for x in XS])


def pure(x, k=2):
    out = np.zeros(3)
    kept = [v * k for v in x]
    for i in range(2):
        out[i] = kept[i]
        kept.append(np.tanh(out).sum())
    return out, kept, sorted(kept), pure(x[1:]) if len(x) > 3 else max(kept)


BOX = {}


def writes_outside(x):
    BOX["x"] = x


def writes_its_argument(x):
    x[0] = 1


def updates_its_argument(x):
    x += 1
    return x


def calls_one_that_writes(x):
    return writes_its_argument(x)


def draws(x):
    return x + np.random.rand()


def prints(x):
    print(x)


def squashes(x):
    return nn.softmax(nn.sigmoid(x))


def drops(x):
    return nn.dropout(nn.relu(x), 0.5)


class Counting:
    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return x


def calls_its_argument(f):
    return f(1)


@pytest.mark.parametrize(
    ("code", "local"),
    [
        (pure, True), (looks_around, True), (writes_outside, False), (writes_its_argument, False), (draws, False),
        (updates_its_argument, False), (calls_one_that_writes, False), (prints, False), (calls_its_argument, False),
        (counted, False), (np.mean, False), (statistics.fmean, False), (squashes, True), (drops, False),
        (nn.GRU(2, 2, seed=0), True), (nn.Linear(2, 2, seed=0).__call__, True), (nn.Dropout(), False),
        (Counting(), False),
    ],
)  # fmt: skip
def test_what_is_known_to_change_nothing(code, local):
    assert is_pure(code) == local
