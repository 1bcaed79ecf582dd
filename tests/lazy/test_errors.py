"""Bad input and bad luck: the loop's exception, the example's index, nothing left behind."""

import gc
import inspect
import queue
import re
import threading
import warnings
import weakref

import greenlet
import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import FallbackWarning, ForcedValueError, ShapeError, UnsupportedError
from tests.law import assert_same, garbage_of, loop, normal, vectors

W = normal(4, 4)


def raises_like_the_loop(f, *columns, index, **shared):
    with pytest.raises(Exception, match=r"\w") as wanted:  # whatever the loop raises
        loop(f, *columns, **shared)
    with pytest.raises(type(wanted.value), match=re.escape(str(wanted.value))) as found:
        ab.map(f, *columns, **shared)
    assert str(found.value) == str(wanted.value)
    assert found.value.__notes__ == [f"raised for example {index}"]


def test_the_first_failing_example_is_raised():
    def f(x, k):
        if k == 1 and x.sum() < 1e9:  # parks first, so the one after it raises earlier in time
            raise KeyError("second")
        if k == 2:
            raise ValueError("third")
        return x

    raises_like_the_loop(f, vectors(4, 4), range(4), index=1)


def test_wrong_shapes_are_found_at_the_users_line():
    raises_like_the_loop(lambda x, w: x @ w, [normal(4), normal(4), normal(3)], w=W, index=2)
    raises_like_the_loop(lambda x: x.reshape(3), [normal(3), normal(4)], index=1)


def test_errors_that_depend_on_values():
    raises_like_the_loop(lambda ids, table: table[ids] @ table[0], [np.array([1]), np.array([7])], table=W, index=1)
    raises_like_the_loop(lambda ids, table: table[ids].sum(0), [np.array([1]), np.array([0, 4])], table=W, index=1)
    table = ab.EmbeddingTable(W)
    raises_like_the_loop(lambda ids, table: table[ids].sum(0), [np.array([1]), np.array([0, 4])], table=table, index=1)
    raises_like_the_loop(lambda x: x.max(), [normal(3), normal(0)], index=1)


def test_an_error_that_the_example_handles():
    def f(x, w):
        try:
            return x @ w
        except ValueError:
            return x

    assert_same(ab.map(f, [normal(4), normal(3)], w=W), loop(f, [normal(4), normal(3)], w=W))


def test_sequences_of_different_lengths():
    with pytest.raises(ShapeError, match=r"lengths \[3, 2\]; expected one length, and .* by keyword"):
        ab.map(lambda x, y: x, [1, 2, 3], [1, 2])


def test_what_is_no_sequence():
    with pytest.raises(UnsupportedError, match="takes sequences of examples by position; got int"):
        ab.map(lambda x: x, 3)
    with pytest.raises(UnsupportedError, match=r"got dict: give .* by keyword, ab\.map\(f, examples, params=params\)"):
        ab.map(lambda x, params: x, [1, 2], {"w": W, "b": W})
    with pytest.raises(UnsupportedError, match="got no sequence"):
        ab.map(lambda: 3)


def test_no_examples():
    assert ab.map(lambda x: 1 / 0, []) == []


def test_fibers_end_and_run_their_finally_blocks():
    class Token:
        pass

    notes, seen = queue.SimpleQueue(), []  # what examples after the failing one change in a list, say, is put back

    def f(x, k):
        token = Token()
        notes.put((k, weakref.ref(token)))
        try:
            if k == 0:
                float(x.sum())
                raise RuntimeError("first")
            while True:
                float(x.sum())
                x = x + 1
        finally:
            notes.put((k, None))
            seen.append(k)

    with pytest.raises(RuntimeError, match="first"):
        ab.map(f, vectors(3, 4), range(3))
    put = [notes.get() for _ in range(notes.qsize())]
    assert {k for k, ref in put if ref is None} == {0, 1, 2}
    assert seen == [0]  # as the loop leaves it
    gc.collect()
    assert all(ref() is None for _, ref in put if ref is not None)


def test_an_example_that_will_not_end_is_ended():
    def f(x, k):
        if k == 0:
            float(x.sum())
            raise RuntimeError("first")
        for _ in range(5):
            try:
                float((x + 1).sum())
            except BaseException:
                continue
        return x

    with pytest.raises(RuntimeError, match="first"):
        ab.map(f, vectors(3, 4), range(3))


@pytest.mark.parametrize("when", ["at once", "after a wait"])
def test_keyboard_interrupt(when):
    main = greenlet.getcurrent()
    runs = []

    def f(x, k):
        runs.append(k)
        if when == "after a wait":
            float(x.sum())
        if k == 2:
            raise KeyboardInterrupt
        return x * 2

    assert gc.isenabled()
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        ab.map(f, vectors(4, 4), range(4))
    assert gc.isenabled()
    assert greenlet.getcurrent() is main
    assert len(runs) in (3, 4)
    assert_same(ab.map(lambda x: x * 2, vectors(4, 4)), [x * 2 for x in vectors(4, 4)])


def test_the_collector_runs_again_after_an_error():
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        ab.map(lambda x: 1 / 0, [1])
    assert gc.isenabled()


def test_two_threads_at_once():
    def f(x, w):
        while np.abs(x).sum() > 0.1:
            x = np.tanh(x @ w) * 0.5
        return x

    xs = vectors(30, 4)
    wanted, found = loop(f, xs, w=W), {}

    def run(name):
        for _ in range(5):
            found[name] = ab.map(f, xs, w=W)

    threads = [threading.Thread(target=run, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in range(3):
        assert_same(found[name], wanted)
    assert gc.isenabled()


def test_values_that_carry_a_gradient_are_not_forced():
    def loss(w):
        return sum(ab.map(lambda x, w: np.float64((x @ w).sum().tolist()), vectors(2, 4), w=w))

    with pytest.raises(ForcedValueError, match="carries a gradient") as caught:
        ab.grad(loss)(W)
    assert caught.value.__notes__ == ["raised for example 0"]


def test_writing_into_a_shared_array_runs_as_a_loop():
    def f(x, w):
        w[0] = x
        return w.sum()

    with pytest.warns(FallbackWarning, match="writes into a shared array"):
        found = ab.map(f, vectors(3, 4), w=W.copy())
    assert_same(found, loop(f, vectors(3, 4), w=W.copy()))


def test_what_numpy_function_has_no_rule_runs_example_by_example():
    def f(x, w):
        return np.linalg.matrix_rank(np.outer(x, x) + w), np.tanh(x)

    with pytest.warns(FallbackWarning, match="has no batching rule"):
        found = ab.map(f, vectors(3, 4), w=W)
    assert_same(found, loop(f, vectors(3, 4), w=W))


def test_strict_forbids_the_loop():
    def f(x, w):
        w[0] = x
        return w.sum()

    with ab.options(strict=True), pytest.raises(UnsupportedError, match="strict=True allows no loop"):
        ab.map(f, vectors(3, 4), w=W.copy())


def test_floating_point_errors_follow_the_examples_errstate():
    def f(x):
        with np.errstate(invalid="ignore"):
            return np.log(x)

    assert_same(ab.map(f, [-np.ones(2), np.ones(2)]), [np.full(2, np.nan), np.zeros(2)])


def test_a_map_leaves_no_garbage():
    def f(x, w, ids):
        y = np.tanh(x @ (w * 2) + w[ids].sum(0))
        return y * 2 if y.sum() > 0 else y[1:]

    arguments = (vectors(10, 4), [W] * 10, [np.array([0, 1])] * 10)

    def maps():
        ab.map(f, *arguments)
        ab.map(lambda x, w: f(x, w, np.array([0])), arguments[0], w=W)

    assert garbage_of(maps) == 0


def test_a_value_that_is_kept_lets_go_of_its_segment():
    def f(x, w):
        y = x @ w
        first = float(y.sum())
        second = float((y + x).sum())
        assert x.segment is None  # a segment holds the buffers of everything that was launched with it
        assert y.segment is None
        return first, second

    ab.map(f, vectors(2, 4), w=W)


class Count:
    n = 0.0


def waits_for_a_value(x, count):
    y = np.tanh(x) + 1
    count.n += float(y.sum())  # THE LINE
    return y * count.n


def has_a_rule_for_no_such_call(x, count):
    y = np.tanh(x)
    z = y * 2 + 1
    u = np.unwrap(z) * 2  # THE LINE
    v = np.exp(u)
    return v + y


def writes_where_it_may_not(x, count):
    y = np.tanh(x)
    v = np.asarray(x.copy(), order="F").reshape(-1)
    v[0] = y[0]  # THE LINE
    return v + y


@pytest.mark.parametrize("f", [waits_for_a_value, has_a_rule_for_no_such_call, writes_where_it_may_not])
def test_a_fallback_names_the_line_of_the_model(f):
    lines, first = inspect.getsourcelines(f)
    line = first + next(i for i, each in enumerate(lines) if "THE LINE" in each)
    xs = [*vectors(2, 4), *vectors(2, 5)]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        results = ab.map(f, xs, count=Count())
    assert_same(results, loop(f, xs, count=Count()))
    assert {(each.filename, each.lineno) for each in said} <= {(__file__, line)}
    assert said or f is writes_where_it_may_not
