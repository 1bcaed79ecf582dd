"""What lanes cannot do together: the loop, its warning, its errors, and that nothing outside happens twice."""

import collections
import contextlib
import heapq
import math
import random
import statistics
import types
import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch import MaskedBatch, batch, examples
from autobatch.errors import FallbackWarning, UnsupportedError
from tests.inspect import forget_warnings
from tests.law import assert_same, batch_of, equals_loop, ragged

XS = ragged(3, 1, 0, 4)


@pytest.fixture(autouse=True)
def _fresh_warnings():
    forget_warnings()


def evaluates(x):
    y = -x
    return y + eval("1")


def test_what_has_no_lock_step_form_runs_as_a_loop():
    equals_loop(evaluates, XS, falls_back=True)


def test_the_warning_names_the_line():
    with pytest.warns(FallbackWarning, match="a call of eval") as caught:
        batch(evaluates)(batch_of(XS))
    assert caught[0].filename == __file__
    assert caught[0].lineno == evaluates.__code__.co_firstlineno + 2


def test_strict_raises_instead():
    with pytest.raises(UnsupportedError, match=r"test_fallback.py:\d+: .*strict=True"):
        batch(evaluates, strict=True)(batch_of(XS))


def test_an_examples_own_error_is_raised_with_its_index():
    def f(xs):
        total = 0.0
        for x in xs:
            total = total + math.sqrt(x)
        return total

    xs = [np.array([1.0, 4.0]), np.array([9.0, -1.0, -2.0]), np.array([-1.0])]
    with pytest.raises(ValueError, match="math domain error") as caught:
        batch(f)(batch_of(xs))
    assert caught.value.__notes__ == ["raised for example 1"]
    assert caught.traceback[-1].path.name == "test_fallback.py"
    assert caught.value.__context__ is None


def test_the_first_failing_example_wins():
    def f(x, i):
        y = [1, 2, 3][i]
        if y == 2:
            raise KeyError("two")
        return x

    with pytest.raises(IndexError, match="list index") as caught:
        batch(f)(batch_of(XS), batch_of([0, 7, 1, 2]))
    assert caught.value.__notes__ == ["raised for example 1"]


class Counter:
    def __init__(self):
        self.calls = 0
        self.seen = {}

    def add(self, n):
        self.calls += n


OUTSIDE = [
    (lambda x, box, d, a: setattr(box, "calls", box.calls + 1), "setattr"),
    (lambda x, box, d, a: d.update(n=d.get("n", 0) + 1), "update"),
    (lambda x, box, d, a: d.setdefault("k", []).append(len(x)), "setdefault"),
    (lambda x, box, d, a: np.add(a, 1, out=a), "out="),
    (lambda x, box, d, a: a.sort(), "sort"),
    (lambda x, box, d, a: np.fill_diagonal(a[None], 3), "fill_diagonal"),
]


@pytest.mark.parametrize(("act", "word"), OUTSIDE, ids=[word for _, word in OUTSIDE])
def test_what_is_outside_changes_once_per_example(act, word):
    def f(x, box, d, a):
        act(x, box, d, a)
        return x * 2

    def fresh():
        return Counter(), {}, np.array([3.0, 1.0, 2.0])

    want, got = fresh(), fresh()
    for x in XS:
        f(x, *want)
    with pytest.warns(FallbackWarning, match=word):
        batch(f)(batch_of(XS), *got)
    assert got[0].calls == want[0].calls
    assert got[1] == want[1]
    assert_same(got[2], want[2])


def test_item_and_augmented_stores_into_outer_objects():
    def f(x, table, total):
        table["n"] = table.get("n", 0) + len(x)
        total += 1
        total[0] += len(x)
        return x

    table, total = {}, np.zeros(2)
    with pytest.warns(FallbackWarning, match="a write into an item of a dict"):
        batch(f)(batch_of(XS), table, total)
    assert table == {"n": 8}
    assert total.tolist() == [12.0, 4.0]


def test_dicts_made_inside_may_change():
    def f(xs):
        cache = {}
        for key in ("a", "b"):
            cache[key] = xs.sum() + len(cache)
        cache.update(c=len(cache))
        return cache

    equals_loop(f, XS)


@pytest.mark.parametrize("draw", [lambda r: r.normal(), lambda r: np.random.rand(), lambda r: random.random()])
def test_random_numbers_are_drawn_example_by_example(draw):
    def f(x, rng):
        return x + draw(rng)

    def run(call):
        np.random.seed(0)
        random.seed(0)
        return call(np.random.default_rng(0))

    want = run(lambda rng: [f(x, rng) for x in XS])
    with pytest.warns(FallbackWarning, match="a random generator is drawn from"):
        got = run(lambda rng: examples(batch(f)(batch_of(XS), rng)))
    assert_same(got, want)


def test_an_iterator_from_outside_is_consumed_example_by_example():
    def f(x, it):
        return x + next(it), [v for _, v in zip(range(2), it, strict=False)]

    want_it, got_it = iter(range(100)), iter(range(100))
    want = [f(x, want_it) for x in XS]
    with pytest.warns(FallbackWarning, match="a call of next"):
        got = examples(batch(f)(batch_of(XS), got_it))
    assert_same(got, want)


def test_a_generator_passed_in():
    def f(x, numbers):
        for n in numbers:
            x = x + n
        return x

    want_it, got_it = iter([1.0, 2.0]), iter([1.0, 2.0])
    want = [f(x, want_it) for x in XS]
    with pytest.warns(FallbackWarning, match="iterator"):
        got = examples(batch(f)(batch_of(XS), got_it))
    assert_same(got, want)


def test_library_functions_run_per_lane():
    def f(x):
        return statistics.fmean(x) + 1

    equals_loop(f, ragged(3, 1, 4), falls_back=True)


_OF_A_LIBRARY = """
log = []
total = 0.0

def note(*args):
    log.append(args)

class Counter:
    count = 0

    def add(self, step=1):
        self.count += step
        return self.count

    __call__ = add

counter = Counter()
"""


def _programs(library):
    def notes_in_a_branch(x):
        if len(x) > 1:
            library.note("long")
        library.note("all", 1)
        return x.sum()

    def notes_values(x):
        library.note(x.sum())
        library.note(x.max())
        return x * 2

    def counts(x):
        return x.sum() + library.counter.add() * library.counter()

    def sums(x):
        library.total += x.sum()
        library.note(library.total)
        return x - library.total

    return notes_in_a_branch, notes_values, counts, sums


@pytest.mark.parametrize("program", range(4))
@pytest.mark.parametrize("of", ["a package", "no source", "a module"])
@pytest.mark.parametrize("way", ["lockstep", "fly", "compiled", "auto"])
def test_what_a_library_does_outside_is_done_for_each_example(program, of, way, tmp_path):
    """Nothing is known of a package's own functions in Python: they may act, whatever they are given."""
    library = types.ModuleType("effects")
    if of != "no source":
        folder = tmp_path / "site-packages" if of == "a package" else tmp_path
        folder.mkdir(exist_ok=True)
        library.__file__ = str(folder / "effects.py")
        (folder / "effects.py").write_text(_OF_A_LIBRARY)
    exec(compile(_OF_A_LIBRARY, getattr(library, "__file__", "<made>"), "exec"), vars(library))
    xs = ragged(3, 1, 4, 2)

    def run(call):
        library.log.clear()
        library.counter.count, library.total = 0, 0.0
        return call(), list(library.log), library.counter.count, library.total

    f = _programs(library)[program]
    want = run(lambda: [f(x) for x in xs])
    with ab.options(way=way, warn=False):
        assert_same(run(lambda: examples(batch(f)(batch_of(xs)))), want)
        assert_same(run(lambda: examples(batch(f)(ab.PackedBatch.from_examples(xs)))), want)
        assert_same(run(lambda: ab.map(f, xs)), want)


def test_prints_come_example_by_example(capsys):
    def f(xs, name):
        for i, x in enumerate(xs):
            print(name, i, float(x))
        print("end", len(xs), sep="-")
        return xs

    for x in XS:
        f(x, "v")
    want = capsys.readouterr().out
    with ab.options(warn=False):
        batch(f)(batch_of(XS), "v")
    assert capsys.readouterr().out == want


def test_formatting_is_per_example():
    def f(x):
        n = len(x)
        return f"{n} items of {'many':>6}: {n!r:>{n + 2}}"

    equals_loop(f, XS)
    equals_loop(lambda x: ("%d" % len(x), "{}".format(len(x))), XS, falls_back=True)  # noqa: UP031, UP032


def test_builtins_per_lane():
    def f(x, n):
        return (
            isinstance(x, np.ndarray), isinstance(n, int), isinstance(len(x), int), type(n) is int, int(x.sum()),
            float(n), bool(n), min(n, 2), max(n, len(x)), abs(-n), round(x.sum() / 3, 2), sorted(x), list(x), n // 2,
            math.exp(n), divmod(n, 2), [n, n + 1], (n,), n in (1, 2), x is None, sum(x), str(n),
        )  # fmt: skip

    equals_loop(f, ragged(3, 1, 4), [1, 2, 5])


def test_a_branch_on_a_captured_batch_is_not_mixed_up():
    other = MaskedBatch.from_examples([[1.0], [2.0]])
    with pytest.warns(FallbackWarning, match="not an argument"):
        got = batch(lambda x: x + other)(MaskedBatch.from_examples([[1.0], [5.0]]))
    assert_same(got.examples()[1].examples(), [np.array([6.0]), np.array([7.0])])


@pytest.mark.parametrize("f", [lambda x: x * 2, lambda x: [v + 0 for v in x], lambda x: 1, evaluates])
def test_no_examples(f):
    assert examples(batch(f)(MaskedBatch(np.zeros((0, 3)), lengths=np.zeros(0, int)))) == []


def test_constant_results_are_one_per_example():
    for value in (1, None, "text", np.ones(2), (), [], {"a": 1}, (1, None)):
        got = examples(batch(lambda x, value=value: value)(batch_of(XS)))
        assert_same(got, [value] * len(XS))


def test_gradients_per_lane():
    def f(x, w):
        return ab.grad(lambda w, x: (w * x).sum() ** 2)(w, x)

    equals_loop(f, ragged(3, 1, 4), falls_back=True, w=2.0)


def test_gradients_with_a_captured_batch():
    def f(x, w):
        return ab.grad(lambda w: (w * x).sum() ** 2)(w)

    equals_loop(f, ragged(3, 1, 4), falls_back=True, w=2.0)


TOTAL = 0


def counts_globally(x):
    global TOTAL
    TOTAL += len(x)
    return TOTAL


def looks_at_its_frame(x):
    y = x + 1
    return sorted(locals()), y


class Entered:
    def __enter__(self):
        self.times = getattr(self, "times", 0) + 1

    def __exit__(self, *_):
        pass


ENTERED = Entered()


def enters(x):
    with ENTERED:
        return x + 0


def runs_later(x):
    async def later():
        return x

    later().close()
    return x


@pytest.mark.parametrize("f", [looks_at_its_frame, enters, runs_later])
def test_syntax_without_a_lock_step_form_runs_as_a_loop(f):
    equals_loop(f, XS, falls_back=True)


def test_a_librarys_context_manager_is_entered_once():
    def f(x):
        with np.errstate(all="ignore"), contextlib.suppress(KeyError):
            return np.log(x)

    equals_loop(f, ragged(3, 1, 0), falls_back=True)

    def g(x):
        with np.errstate(all="ignore"):
            return np.log(x)

    equals_loop(g, ragged(3, 1, 0))


def test_containers_of_the_standard_library_change_for_each_example():
    def last_two(xs):
        recent, heap, kept = collections.deque(maxlen=2), [], []
        for x in xs:
            recent.append(x)
        for i in range(3):
            heapq.heappush(heap, (i * len(xs), -i))
            list.append(kept, i)
        return list(recent), heapq.heappop(heap), kept

    equals_loop(last_two, XS, falls_back=True)

    def alike(x):
        recent, kept = collections.deque(maxlen=2), []
        for i in range(3):
            recent.append(x * i)
            list.append(kept, i)
        return list(recent), kept

    equals_loop(alike, XS, falls_back=True)


def test_a_container_of_the_users_own():
    class Table:
        def __init__(self, rows):
            self.rows = rows

        def __getitem__(self, ids):
            return self.rows[ids] if isinstance(ids, np.ndarray) else None

    equals_loop(
        lambda ids, table: table[ids].sum(0), [np.array([1, 2]), np.array([0])], falls_back=True, table=Table(np.eye(3))
    )


def test_globals_are_assigned_once_per_example():
    global TOTAL
    TOTAL = 0
    with pytest.warns(FallbackWarning, match="an assignment to a global name"):
        got = examples(batch(counts_globally)(batch_of(XS)))
    assert got == [3, 4, 4, 8]
    assert TOTAL == 8


def test_keyboard_interrupt_passes_through():
    def f(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        batch(f)(batch_of(XS))
    equals_loop(lambda x: x + 1, XS)


def test_a_warning_can_be_seen_again_where_always_is_asked_for():
    def f(x):
        return np.unwrap(np.tanh(x) + 1)

    b = MaskedBatch.from_examples([np.ones(2), np.ones(3)])
    xs = b.examples()

    def said(action, *calls):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter(action)
            for call in calls:
                call()
        assert all("np.unwrap has no batching rule" in str(each.message) for each in found)
        return len(found)

    for call in (lambda: batch(f)(b), lambda: ab.map(f, xs)):
        forget_warnings()
        assert said("always", call, call) == 1, "once per line"
        assert said("default", call) == 0
        assert said("always", call) == 1
        assert said("ignore", call) == 0
        assert said("always", call) == 1
