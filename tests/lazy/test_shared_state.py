"""What examples change in common while some of them wait: the order of the loop, or the loop itself."""

import collections
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import autobatch as ab
from autobatch import map as batched
from autobatch.errors import FallbackWarning
from autobatch.testing.inspect import forget_warnings

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
