"""What lock-step has no form for runs on the fly, with the batch's examples: right, and said truthfully."""

import dataclasses

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import FallbackWarning, UnsupportedError
from tests.inspect import forget_warnings
from tests.law import assert_same, batch_of, equals_loop, ragged

XS = ragged(3, 1, 0, 4)


@pytest.fixture(autouse=True)
def _fresh_warnings():
    forget_warnings()


def grows(x, w, k=1.0):
    y = np.tanh(x * w)
    return len(locals()) * k * y.sum()


def test_the_examples_run_on_the_fly():
    report = ab.explain(grows, batch_of(XS), 0.5)
    assert report.way == "tracing"
    assert 0 < report.launches < report.calls
    (why,) = report.fallbacks
    assert "a call of locals" in why
    assert "test_next_way.py" in why


def test_lock_step_says_that_it_is_lock_step():
    report = ab.explain(lambda x: np.tanh(x), batch_of(XS))
    assert (report.way, report.fallbacks, report.examples) == ("lock-step", {}, 4)
    assert report.head().startswith("4 examples: lock-step; ")
    assert " the first call; 1 launch; " in report.head()


def test_a_batch_by_position_by_keyword_and_inside_of_a_tree():
    def f(x, tree, *, k):
        locals()
        return {"y": tree["x"] @ tree["p"]["w"] * k + x.sum(), "same": tree["x"] is x}

    xs = ragged(2, 1, 3, width=3)
    batch, w, ks = batch_of(xs), np.ones((3, 2)), [1.0, 2.0, 3.0]
    with pytest.warns(FallbackWarning, match="traced"):
        got = ab.examples(ab.batch(f)(batch, {"x": batch, "p": {"w": w}}, k=batch_of(ks)))
    assert_same(got, [f(x, {"x": x, "p": {"w": w}}, k=k) for x, k in zip(xs, ks, strict=True)])


@dataclasses.dataclass
class Cell:
    h: np.ndarray
    size: int


def test_state_of_a_dataclass_that_holds_a_batch():
    def f(cell):
        locals()
        cell.h = cell.h * cell.size
        return cell

    batch = batch_of(XS)
    with pytest.warns(FallbackWarning, match="traced"):
        got = ab.examples(ab.batch(f)(Cell(batch, 2)))
    assert_same(got, [f(Cell(x, 2)) for x in XS])


def test_recordings_of_other_arguments_are_not_mixed_up():
    def f(x, y):
        locals()
        return x - 2 * y

    x, y = batch_of(ragged(2, 3)), 1.5
    for _ in range(3):
        with ab.options(warn=False):
            first, second, third = (ab.examples(ab.batch(f)(*given)) for given in ((x, y), (y, x), (x, x)))
        assert_same(first, [f(each, y) for each in x.examples()])
        assert_same(second, [f(y, each) for each in x.examples()])
        assert_same(third, [f(each, each) for each in x.examples()])


def test_writes_reach_the_batch_of_the_caller():
    def f(x):
        locals()
        x[0] += 5.0
        return x.sum()

    for xs in (ragged(3, 1, 4), [np.ones((2, 3)), np.ones((1, 2))]):
        batch, alone = batch_of(xs), [x.copy() for x in xs]
        with ab.options(warn=False):
            got = ab.examples(ab.batch(f)(batch))
        assert_same(got, [f(x) for x in alone])
        assert_same([np.array(x) for x in batch.examples()], alone)


def test_gradients_flow():
    xs = ragged(3, 1, 4)
    batch = batch_of(xs)

    with ab.options(warn=False):
        got = ab.grad(lambda w: ab.sum(ab.batch(grows)(batch, w)))(0.7)
    want = ab.grad(lambda w: sum(grows(x, w) for x in xs))(0.7)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_random_numbers_are_those_of_the_example():
    def f(x):
        locals()
        return ab.nn.dropout(x, 0.5, seed=3)

    equals_loop_of_examples(f, ragged(30, 10, 40))


def equals_loop_of_examples(f, xs):
    want = ab.map(f, xs)
    with ab.options(warn=False):
        got = ab.examples(ab.batch(f)(batch_of(xs)))
    assert_same(got, want)


def test_an_error_names_its_example():
    def f(x):
        locals()
        return x[2]

    with pytest.raises(IndexError, match="out of bounds") as caught, pytest.warns(FallbackWarning, match="traced"):
        ab.batch(f)(batch_of(ragged(3, 4, 1, 0)))
    assert caught.value.__notes__ == ["raised for example 2"]


def test_strict_allows_lock_step_only():
    with pytest.raises(UnsupportedError, match=r"a call of locals; strict=True allows lock-step only"):
        ab.batch(grows, strict=True)(batch_of(XS), 0.5)


def prints(x):
    locals()
    total = float(x.sum())
    print(len(x), total)
    return total


def test_what_is_printed_comes_in_the_order_of_the_examples(capsys):
    want = [prints(x) for x in XS]
    shown = capsys.readouterr().out
    with pytest.warns(FallbackWarning, match="as a loop over the examples"):
        got = ab.examples(ab.batch(prints)(batch_of(XS)))
    assert_same(got, want)
    assert capsys.readouterr().out == shown
    with ab.options(warn=False):
        assert ab.explain(prints, batch_of(XS)).way == "the loop"


def test_an_iterator_from_outside_is_read_in_the_order_of_the_examples():
    def f(x, numbers):
        locals()
        scale = next(numbers) if x.sum() > 0 else -1.0
        return scale * next(numbers)

    want_it, got_it = iter(range(100)), iter(range(100))
    want = [f(x, want_it) for x in XS]
    with ab.options(warn=False):
        got = ab.examples(ab.batch(f)(batch_of(XS), got_it))
    assert_same(got, want)


def test_what_the_examples_share_changes_as_in_the_loop():
    class Model:
        def __init__(self):
            self.seen, self.total = None, 0.0

        def __call__(self, x):
            locals()
            self.seen = x
            if self.total < 2.0:
                self.total += float(x.sum())
            return self.total

    want, got = Model(), Model()
    expected = [want(x) for x in XS]
    with ab.options(warn=False):
        assert_same(ab.examples(ab.batch(lambda x, model: model(x))(batch_of(XS), got)), expected)
    assert_same(vars(got), vars(want))


def test_in_the_loop_it_equals_it():
    equals_loop(grows, XS, falls_back=True, w=0.5)


def test_masked_arrays_keep_their_masks():
    def f(x):
        return np.ma.masked_less(x, 0).sum()

    with ab.options(warn=False):
        got = ab.examples(ab.batch(f)(batch_of([np.array([1.0, -2.0]), np.array([3.0, 4.0, -1.0])])))
    assert_same(got, [np.float64(1.0), np.float64(7.0)])
