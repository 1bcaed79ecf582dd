"""`log.append(x)`, `count[key] += x`, `stats.n += x` and `print` in a batched call: as the loop makes them."""

import builtins
import collections
import functools
import types
import weakref

import numpy as np
import pytest

import autobatch as ab
from autobatch import batch, examples
from autobatch.errors import FallbackWarning
from tests.inspect import forget_warnings
from tests.law import assert_same, batch_of, ragged

XS = ragged(3, 1, 0, 4, 2)
WAYS = [
    lambda f, xs: examples(batch(f)(batch_of(xs))),
    lambda f, xs: examples(batch(f)(ab.PackedBatch.from_examples(xs))),
    lambda f, xs: ab.map(f, xs),
    lambda f, xs: [each for part in (xs[:2], xs[2:]) for each in examples(batch(f)(batch_of(part)))],
]


def outside():
    """What functions change, anew."""
    return {
        "log": [], "counts": collections.Counter(a=1), "sums": np.zeros(5), "scores": [0.5, 1, 2],
        "plain": {"n": 1, 0: 2.5}, "firsts": collections.defaultdict(float),
        "stats": types.SimpleNamespace(n=3, total=0.0),
    }  # fmt: skip


def made(program):
    """A function whose globals are its own; and those, all that it may change."""
    names = outside()
    around = {"__builtins__": builtins, "__name__": __name__, "np": np}
    return types.FunctionType(program.__code__, around | names, program.__name__), names


def state(names):
    return [vars(value) if name == "stats" else value for name, value in names.items()]


def by_loops_and_branches(x):
    for row in x:
        if row > 0:
            log.append(row)  # noqa: F821
            continue
        counts["low"] += 1  # noqa: F821
        print("low", row, x, sep="|")
        if row < -1:
            break
    else:
        log.append((len(x), "whole"))  # noqa: F821
    stats.n += len(x)  # noqa: F821
    return x.sum()


def by_early_returns(x):
    n = 0
    while n < len(x):
        n += 2
        sums[n % 5] += x.sum()  # noqa: F821
        sums[-1] -= n  # noqa: F821
        if n > 2:
            print("long", n, end="")
            return n
    firsts[len(x)] += 1.5  # noqa: F821
    firsts["all"] += len(x)  # noqa: F821
    plain["n"] *= 2  # noqa: F821
    plain[0] -= n  # noqa: F821
    return n


def by_helpers(x):
    def note(value, *, times=1):
        for _ in range(times):
            log.append(value)  # noqa: F821
        scores[-1] += times  # noqa: F821
        return value * 2

    stats.total += note(len(x), times=len(x))  # noqa: F821
    return [note(row) for row in x if row > 0]


def without_values(x):
    for i in range(2):
        log.append(i)  # noqa: F821
        print(i, "of", 2, None, True, 0.5, (1, "a"))
    return x * 2


EFFECTS = [by_loops_and_branches, by_early_returns, by_helpers, without_values]


@pytest.mark.parametrize("program", EFFECTS, ids=[f.__name__ for f in EFFECTS])
@pytest.mark.parametrize("way", range(len(WAYS)))
def test_effects_are_those_of_the_loop(program, way, capsys):
    for xs in (XS, XS[:1], XS[2:3]):
        (loop, want_outside), (f, got_outside) = made(program), made(program)
        want = [loop(x) for x in xs]
        printed = capsys.readouterr().out
        with ab.options(warn=False):
            assert_same(WAYS[way](f, xs), want)
        assert capsys.readouterr().out == printed
        assert_same(state(got_outside), state(want_outside))
        types_of = [type(each) for each in want_outside["log"]]
        assert [type(each) for each in got_outside["log"]] == types_of


@pytest.mark.chosen
def test_whichever_way_is_chosen_effects_are_made_once(capsys):
    for program in EFFECTS:
        (loop, want_outside), (f, got_outside) = made(program), made(program)
        f = batch(f)
        for _ in range(6):
            want = [loop(x) for x in XS]
            printed = capsys.readouterr().out
            with ab.options(warn=False):
                assert_same(examples(f(batch_of(XS))), want)
            assert capsys.readouterr().out == printed
            assert_same(state(got_outside), state(want_outside))


def test_no_examples_have_no_effects(capsys):
    for program in EFFECTS:
        f, names = made(program)
        assert examples(batch(f)(ab.MaskedBatch(np.zeros((0, 3)), lengths=np.zeros(0, int)))) == []
        assert_same(state(names), state(outside()))
    assert capsys.readouterr().out == ""


def test_under_gradients(capsys):
    def program(x, w):
        loss = np.tanh(x * w).sum()
        log.append(loss)  # noqa: F821
        plain["n"] += loss  # noqa: F821
        counts[len(x)] += 1  # noqa: F821
        print(loss)
        return loss

    (loop, want_outside), (f, got_outside) = made(program), made(program)
    want = ab.value_and_grad(lambda w: sum(loop(x, w) for x in XS))(0.5)
    printed = capsys.readouterr().out
    f = batch(f)
    with ab.options(warn=False):
        got = ab.value_and_grad(lambda w: ab.sum(f(batch_of(XS), w)))(0.5)
    np.testing.assert_allclose(got, want)
    np.testing.assert_allclose(*[[float(str(x)) for x in each["log"]] for each in (got_outside, want_outside)])
    assert float(str(got_outside["plain"]["n"])) == pytest.approx(float(str(want_outside["plain"]["n"])))
    assert got_outside["counts"] == want_outside["counts"]
    assert len(capsys.readouterr().out.split()) == len(printed.split()) == len(XS)


def raises_late(x):
    log.append(len(x))  # noqa: F821
    print("before", len(x))
    sums[len(x) + 1] += 1  # noqa: F821
    if len(x) == 2:
        raise ValueError("two")
    return x


def raises_in_the_effect(x):
    log.append(len(x))  # noqa: F821
    scores[len(x)] += 1  # noqa: F821
    return x


def has_no_key(x):
    log.append(len(x))  # noqa: F821
    plain[len(x) * 0 if len(x) < 4 else "four"] += 1  # noqa: F821
    return x


@pytest.mark.parametrize("program", [raises_late, raises_in_the_effect, has_no_key])
def test_an_example_that_raises_leaves_the_effects_of_those_before_it(program, capsys):
    (loop, want_outside), (f, got_outside) = made(program), made(program)
    with pytest.raises((ValueError, LookupError)) as want:
        [loop(x) for x in XS]
    printed = capsys.readouterr().out
    with ab.options(warn=False), pytest.raises(want.type, match=str(want.value)):
        batch(f)(batch_of(XS))
    assert capsys.readouterr().out == printed
    assert_same(state(got_outside), state(want_outside))


def test_output_that_nobody_reads_ends_where_the_loop_ends(monkeypatch):
    class Closing:
        def __init__(self):
            self.text = ""

        def write(self, text):
            if "2" in text:
                raise BrokenPipeError("closed")
            self.text += text

    def program(x):
        log.append(len(x))  # noqa: F821
        print(len(x))
        log.append("shown")  # noqa: F821
        return x

    found = []
    for way in (lambda f: [f(x) for x in XS], lambda f: batch(f)(batch_of(XS))):
        f, names = made(program)
        stream = Closing()
        monkeypatch.setattr("sys.stdout", stream)
        with ab.options(warn=False), pytest.raises(BrokenPipeError, match="closed"):
            way(f)
        monkeypatch.undo()
        found.append((stream.text.split(), names["log"]))
    assert found[0] == found[1]


# What is read, whichever way leads to it, is not for lock-step. A case: a function, and what it changes.


def _by_its_name():
    log = []

    def f(x):
        log.append(len(x))
        return len(log)

    return f, log


def _by_another_name():
    log = []
    known = {"inside": [log]}

    def f(x):
        log.append(len(x))
        return len(known["inside"][0])

    return f, log


def _by_an_argument():
    log = []

    def f(x, given=log):
        log.append(len(x))
        return len(given)

    return f, log


def _by_a_helper():
    log = []

    def size():
        return len(log)

    def f(x):
        log.append(len(x))
        return size()

    return f, log


def _by_a_method():
    class Reader:
        def size(self):
            return len(self.log)

    reader, log = Reader(), []
    reader.log = log

    def f(x):
        log.append(len(x))
        return reader.size()

    return f, log


def _by_a_bound_method():
    log = []
    size = log.__len__

    def f(x):
        log.append(len(x))
        return size()

    return f, log


def _by_what_a_library_calls():
    log = []
    size = np.frompyfunc(lambda x: len(log), 1, 1)
    cached = functools.cache(lambda n: len(log))

    def f(x):
        log.append(len(x))
        return cached(len(x)), size(x.sum())

    return f, log


def _by_a_view():
    sums = np.zeros(5)
    part = sums[:3]

    def f(x):
        sums[0] += x.sum()
        return part * 2

    return f, sums


def _by_the_dict_of_an_object():
    stats = types.SimpleNamespace(n=0)
    inside = vars(stats)

    def f(x):
        stats.n += len(x)
        return inside["n"] * 1.5

    return f, inside


def _by_a_weak_reference():
    class Stats:
        n = 0

    stats = Stats()
    stats.n = 1
    known = weakref.ref(stats)

    def f(x):
        stats.n += len(x)
        return known().n

    return f, vars(stats)


def _by_a_property():
    class Stats:
        seen = ()

        @property
        def n(self):
            return len(self.seen)

        @n.setter
        def n(self, value):
            self.seen = (*self.seen, value)

    stats = Stats()

    def f(x):
        stats.n += len(x)
        return x

    return f, vars(stats)


def _an_array_that_is_written_later():
    log = []

    def f(x):
        y = x * 2
        log.append(y)
        y[:1] = 7.0
        return len(x)

    return f, log


def _a_list_of_an_item():
    parts = {0: [], 1: []}

    def f(x):
        parts[len(x) % 2] += [len(x)]
        return len(x)

    return f, parts


def _the_last_of_a_list():
    log = [7]

    def f(x):
        log.append(len(x))
        log[-1] += 1
        return len(x)

    return f, log


def _one_of_the_call():
    kept = []

    def f(x):
        found = {"n": 0}
        for _ in x:
            found["n"] += 1
        kept.append(found["n"])
        return found["n"]

    return f, kept


_ROWS = [np.ones(2), np.full(2, 2.0)]  # what a map in the function is of, the same for all examples


def _by_what_a_map_calls():
    log = []

    def counted(row, scale=1.0):
        log.append(row)
        return row.sum() * scale * len(log)

    def f(x):
        return x.sum() + sum(ab.map(counted, _ROWS, scale=2.0))

    return f, log


def _by_a_method_that_a_map_calls():
    class Counter:
        def __init__(self):
            self.n = 0

        def step(self):
            self.n += 1

        def __call__(self, row):
            self.step()
            return row * self.n

    counter = Counter()

    def f(x):
        return x.sum() + sum(ab.map(counter, _ROWS)) + ab.map(ab.batch(counter.__call__), _ROWS)[0]

    return f, vars(counter)


def _by_a_map_that_writes():
    rows = [row.copy() for row in _ROWS]

    def double(row):
        row[0] *= 2
        return row.sum()

    def f(x):
        return x.sum() + ab.map(double, rows)[1]

    return f, rows


def _by_a_map_that_draws():
    rng = np.random.default_rng(0)

    def f(x):
        return x.sum() + sum(ab.map(lambda row: row * rng.random(), _ROWS))

    return f, []


def _by_a_direction():
    log = []

    def square(x):
        log.append(len(log))
        return (x * x).sum() + len(log)

    def f(x):
        return x.sum() + ab.jvp(square, (_ROWS[0],), (_ROWS[1],))[0]

    return f, log


@pytest.mark.parametrize(
    "make",
    [
        _by_its_name, _by_another_name, _by_an_argument, _by_a_helper, _by_a_method, _by_a_bound_method,
        _by_what_a_library_calls, _by_a_view, _by_the_dict_of_an_object, _by_a_weak_reference, _by_a_property,
        _an_array_that_is_written_later, _a_list_of_an_item, _the_last_of_a_list,
        _one_of_the_call, _by_what_a_map_calls, _by_a_method_that_a_map_calls, _by_a_map_that_writes,
        _by_a_map_that_draws, _by_a_direction,
    ],
)  # fmt: skip
def test_what_may_be_read_leaves_lock_step(make):
    (loop, want_state), (f, got_state) = make(), make()
    forget_warnings()
    with ab.options(warn=False):
        want = [loop(x) for x in XS]
    with pytest.warns(FallbackWarning, match="example by example|as a loop"):
        assert_same(examples(batch(f)(batch_of(XS))), want)
    assert_same(got_state, want_state)
    with ab.options(warn=False):
        want = [loop(x) for x in XS]
        assert_same(ab.map(f, XS), want)
    assert_same(got_state, want_state)
