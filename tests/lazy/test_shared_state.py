"""What examples change in common while some of them wait: the order of the loop, or the loop itself."""

import array
import collections
import contextvars
import io
import itertools
import random
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import autobatch as ab
from autobatch import map as batched
from autobatch.errors import FallbackWarning, UnsupportedError
from tests.inspect import forget_warnings

XS = [np.arange(n) + 1.0 for n in (3, 0, 5, 1, 2)]
TOTAL = 0.0


class Model:
    made = 0.0

    def __init__(self):
        self.total = 0.0
        self.weights = np.ones(3)
        self.counts = collections.defaultdict(int)
        self.seen = set()
        self.recent = collections.deque(maxlen=2)
        self.rng = np.random.default_rng(1)
        self.parts = [{"best": 0.0}]

    def state(self):
        return (
            self.total, self.weights.tolist(), dict(self.counts), self.seen, list(self.recent), self.parts,
            self.rng.bit_generator.state["state"],
        )  # fmt: skip


def an_attribute(x, model):
    model.total += float((x * 2).sum())
    return x


def an_array_of_an_object(x, model):
    model.weights[0] += (x * 2).sum()
    return x


def a_container(x, model):
    model.counts["all"] += int((x * 2).sum())
    model.parts[0]["best"] = max(model.parts[0]["best"], float(x.sum()))
    return x


def what_was_seen(x, model):
    if (x * 2).sum() > 5:
        model.seen.add(len(model.seen))
    model.recent.append(len(model.seen))
    return len(model.seen)


def a_generator(x, model):
    if (x * 2).sum() > 5:
        return x * model.rng.normal()
    return x + model.rng.normal()


def an_attribute_of_the_class(x, model):
    Model.made += float((x * 2).sum())
    return x * Model.made


@ab.batch
def counting(x):
    global TOTAL
    TOTAL += float((x * 2).sum())
    return x * TOTAL


def a_helper_with_the_decorator(x, model):
    return counting(x)


def an_error_after_changes(x, model):
    model.total += 1.0
    if (x * 2).sum() > 20:
        raise ValueError("too much")
    return x


def outcome(call):
    try:
        return [np.asarray(each).tolist() for each in call()]
    except ValueError as error:
        return repr(error), error.__notes__


@pytest.mark.parametrize(
    "f",
    [
        an_attribute,
        an_array_of_an_object,
        a_container,
        what_was_seen,
        a_generator,
        an_attribute_of_the_class,
        a_helper_with_the_decorator,
        an_error_after_changes,
    ],
)
def test_changes_are_those_of_the_loop(f):
    global TOTAL
    looped, mapped = Model(), Model()
    Model.made = TOTAL = 0.0

    def loop():
        for index, x in enumerate(XS):
            try:
                yield f(x, looped)
            except ValueError as error:
                error.add_note(f"raised for example {index}")
                raise

    want = outcome(loop)
    outside = Model.made, TOTAL
    Model.made = TOTAL = 0.0
    forget_warnings()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        got = outcome(lambda: batched(f, XS, model=mapped))
    assert got == want
    assert mapped.state() == looped.state()
    assert (Model.made, TOTAL) == outside


def test_globals_and_cells_too():
    count = 0

    def f(x):
        nonlocal count
        global TOTAL
        TOTAL += float((x * 2).sum())
        count += int((x * 3).sum())
        return count

    global TOTAL
    TOTAL = 0.0
    want = [f(x) for x in XS], TOTAL, count
    TOTAL, count = 0.0, 0
    forget_warnings()
    with pytest.warns(FallbackWarning, match="changes what the examples share, and one waits"):
        got = batched(f, XS)
    assert (got, TOTAL, count) == want


def test_changes_without_waiting_stay_together():
    def f(x, model):
        model.total += len(x)
        model.recent.append(len(x))
        return x * model.total

    looped, mapped = Model(), Model()
    want = [f(x, looped) for x in XS]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = batched(f, XS, model=mapped)
    assert [x.tolist() for x in got] == [x.tolist() for x in want]
    assert mapped.state() == looped.state()


def test_waiting_without_changes_stays_together():
    def f(x, model):
        if (x * 2).sum() > 5:
            return x * model.total
        return x

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = batched(f, XS, model=Model())
    assert [x.tolist() for x in got] == [f(x, Model()).tolist() for x in XS]


@ab.batch
def noted(node, p):
    h = np.tanh(node.x @ p["w"])
    node.visits.append(bool(h.sum() > 0))  # waits; the node is this example's own
    return (h * p["u"]).sum()


def test_what_calls_a_map_for_a_gradient_is_not_what_its_examples_share():
    nodes = [SimpleNamespace(x=x, visits=[]) for x in np.random.default_rng(0).normal(size=(4, 3))]
    params = {"w": np.eye(3), "u": np.arange(3.0)}
    step = ab.value_and_grad(lambda p: np.mean(np.stack(ab.map(noted, nodes, p=p))))
    for times in (1, 2):  # as a loop it would warn
        value, _ = step(params)
        expected = [noted(SimpleNamespace(x=node.x, visits=[]), params) for node in nodes]
        np.testing.assert_allclose(value, np.mean(expected))
        assert [len(node.visits) for node in nodes] == [times] * 4


class Shown:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("in")

    def __exit__(self, *_):
        self.log.append("out")

    def show(self, text):
        print(text)


def _bound_print():
    show = print

    def f(x):
        show(len(x))
        if x.sum() > 3:
            show("more")

    return f, None


def _printing_method():
    shown = Shown([])

    def f(x):
        shown.show(len(x))
        if x.sum() > 3:
            shown.show("more")

    return f, None


def _file():
    file = io.StringIO()

    def f(x):
        file.write(str(len(x)))
        if x.sum() > 3:
            file.write("more")

    return f, file.getvalue


def _iterator():
    numbers = itertools.count()

    def f(x):
        return next(numbers) if x.sum() > 3 else next(numbers) + next(numbers)

    return f, None


def _bound_iterator():
    draw = itertools.count().__next__

    def f(x):
        return draw() if x.sum() > 3 else draw() + draw()

    return f, draw


def _bound_append():
    log = []
    note = log.append

    def f(x):
        note(len(x))
        if x.sum() > 3:
            note("more")

    return f, lambda: log


def _own_attribute():
    def f(x):
        f.n += len(x)
        if x.sum() > 3:
            f.n += 1
        return f.n

    f.n = 0
    return f, lambda: f.n


def _default():
    def f(x, log=[]):  # noqa: B006
        log.append(len(x))
        if x.sum() > 3:
            log.append("more")
        return len(log)

    return f, lambda: f.__defaults__


def _python_generator():
    rng = random.Random(3)

    def f(x):
        return rng.gauss(0, 1) if x.sum() > 3 else rng.gauss(0, 1) + rng.gauss(0, 1)

    return f, rng.getstate


def _context_variable():
    depth = contextvars.ContextVar("depth", default=0)

    def f(x):
        depth.set(depth.get() + (2 if x.sum() > 3 else 1))
        return depth.get()

    return f, depth.get


def _array_of_the_standard_library():
    counts = array.array("d", [0.0])

    def f(x):
        counts[0] += 1
        return counts[0] if x.sum() > 3 else -counts[0]

    return f, counts.tolist


def _closure_of_a_method():
    log = []

    class Noted:
        def __enter__(self):
            log.append("in")

        def __exit__(self, *_):
            log.append("out")

    def f(x):
        with Noted():
            return x.sum() > 3 and len(log)

    return f, lambda: log


def _put_back_by_each():
    model = SimpleNamespace(depth=0)

    def f(x):
        model.depth += 1
        try:
            return model.depth if x.sum() > 3 else -model.depth
        finally:
            model.depth -= 1

    return f, lambda: vars(model)


def _put_back_by_the_last():
    best = SimpleNamespace(value=False)

    def f(x):
        best.value = best.value or bool(x.sum() > 3)
        if len(x) == 2:
            best.value = False
        return best.value

    return f, lambda: vars(best)


def _small_array_put_back_by_each():
    model = SimpleNamespace(scratch=np.zeros(1))

    def f(x):
        model.scratch[0] = len(x)
        try:
            return float(model.scratch[0]) if x.sum() > 3 else -float(model.scratch[0])
        finally:
            model.scratch[0] = 0

    return f, lambda: model.scratch.tolist()


@pytest.mark.parametrize(
    "make",
    [
        _bound_print, _printing_method, _file, _iterator, _bound_iterator, _bound_append, _own_attribute, _default,
        _python_generator, _context_variable, _array_of_the_standard_library, _closure_of_a_method, _put_back_by_each,
        _put_back_by_the_last, _small_array_put_back_by_each,
    ],
)  # fmt: skip
def test_the_order_of_the_loop_where_it_shows(make, capsys):
    (looped, looped_state), (mapped, mapped_state) = make(), make()
    for _ in range(2):
        want = [looped(x.copy()) for x in XS]
        shown = capsys.readouterr().out
        with ab.options(warn=False):
            assert batched(mapped, [x.copy() for x in XS]) == want
        assert capsys.readouterr().out == shown
        if looped_state is not None:
            assert mapped_state() == looped_state()


def test_a_generator_that_examples_share():
    def f(rng, x):
        return rng.normal() if x.sum() > 3 else rng.normal() + rng.normal()

    (a, b) = np.random.default_rng(1), np.random.default_rng(1)
    want = [f(a, x) for x in XS]
    with ab.options(warn=False):
        assert batched(f, [b] * len(XS), XS) == want


def test_printing_under_strict_is_refused_before_anything_is_printed(capsys):
    def f(x):
        print(len(x))

    with pytest.raises(UnsupportedError, match="order of the examples"), ab.options(strict=True):
        batched(f, XS)
    assert not capsys.readouterr().out


def test_a_class_that_prints_elsewhere_and_makes_a_generator_stays_together():
    class Layer:
        def __init__(self):
            self.w = np.random.default_rng(1).normal(size=2)
            self.calls = 0

        def fit(self):
            print(self.w)

        def __call__(self, x):
            return x * self.w[0]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer = Layer()
        got = batched(lambda x: layer(x), XS)
    assert [x.tolist() for x in got] == [layer(x).tolist() for x in XS]


def test_what_examples_put_back_in_an_object_that_they_share():
    def f(node):
        node[0]["depth"] += 1
        sign = 1 if node[1].sum() > 3 else -1
        seen = sign * node[0]["depth"]
        node[0]["depth"] -= 1
        return seen

    def nodes(shared):
        return [[shared, x.copy()] for x in XS]

    with ab.options(warn=False):
        assert batched(f, nodes({"depth": 0})) == [f(node) for node in nodes({"depth": 0})]
