"""Calls by whichever way: the results have one form, effects come once and in order, and `way` says what runs."""

import dataclasses
import itertools
import pathlib
import sys
import threading
import types
from concurrent import futures

import numpy as np
import pytest

import autobatch as ab
from autobatch.api import batch as batch_functions
from autobatch.api import call_ways, measured_costs
from autobatch.api.chooser import Portion
from autobatch.api.run_record import NAMES
from autobatch.core import current_region
from autobatch.errors import FallbackWarning, OverTime, ShapeError, UnsupportedError
from autobatch.kernels import jit
from tests import inspect, law

WAYS = ["lockstep", "loop", "fly"]
RAGGED = [np.arange(3.0), np.arange(1.0), np.zeros(0), np.arange(5.0)]
EVEN = [np.arange(4.0), -np.arange(4.0), np.ones(4)]


@dataclasses.dataclass
class Pair:
    first: object
    second: object


@pytest.fixture(autouse=True)
def _nothing_is_known():
    inspect.forget_costs()


def doubled(x):
    return x * 2.0


def scaled(x, w):
    return x * w


def last_of(x):
    return x[-1] if len(x) else -1.0


def counted(x):
    return len(x)


def tail(x):
    return x[1:]


def a_row_each(x):
    return np.stack([x, x + 1.0])


def sorted_down(x):
    return -np.sort(-x)


def much(x):
    return {"sum": x.sum(), "twice": (x + x, 3), "text": "a", "none": None, "same": np.ones(2), "flag": len(x) > 2}


def of_a_class(x):
    return Pair(x * x, x.mean() if len(x) else np.float64(0))


def same_for_all(x):
    return 7


def words_only(x):
    return "no number", None


def lists(x):
    out = []
    for v in x:
        out.append(v * 2)
    return out


def positive(x):
    return x[x > 1]


def shape_of(tree):
    """What a caller sees of the form of a result: classes, shapes of data, dimensions, lengths."""
    if isinstance(tree, ab.MaskedBatch):
        return "masked", tree.data.shape, tree.data.dtype, tree.dims, tree.lengths.tolist(), tree.scalar
    if isinstance(tree, ab.PackedBatch):
        return "packed", tree.values.shape, tree.values.dtype, tree.offsets.tolist()
    if isinstance(tree, dict):
        return {key: shape_of(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree), [shape_of(value) for value in tree]
    if isinstance(tree, Pair):
        return Pair, shape_of(tree.first), shape_of(tree.second)
    return type(tree)


def batches():
    wide = np.full((4, 9), np.nan)
    for row, x in zip(wide, RAGGED, strict=True):
        row[: len(x)] = x
    yield "ragged", lambda: ab.MaskedBatch.from_examples(RAGGED)
    yield "wide", lambda: ab.MaskedBatch(wide.copy(), lengths=[len(x) for x in RAGGED])
    yield "even", lambda: ab.MaskedBatch.from_examples(EVEN)
    yield "even, of a varying dimension", lambda: ab.MaskedBatch.from_examples(EVEN, dims=[True])
    yield "even and wide", lambda: ab.MaskedBatch(np.ones((2, 6)), lengths=[4, 4])
    yield "one", lambda: ab.MaskedBatch.from_examples(RAGGED[:1])
    yield "one, of a varying dimension", lambda: ab.MaskedBatch(np.ones((1, 5)), lengths=[3])
    yield "packed", lambda: ab.PackedBatch.from_examples(RAGGED)
    yield "one, packed", lambda: ab.PackedBatch.from_examples(RAGGED[:1])


MAKERS = [pytest.param(make, id=name) for name, make in batches()]
SEVERAL = [each for each in MAKERS if not each.id.startswith("one")]
FUNCTIONS = [
    doubled, last_of, counted, tail, a_row_each, sorted_down, much, of_a_class, same_for_all, words_only, lists,
    positive,
]  # fmt: skip


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning")
def test_a_result_has_one_form_whichever_way_ran(function, make):
    found = {}
    for way in WAYS:
        with ab.options(way=way):
            out = ab.batch(function)(make())
        law.assert_same(ab.examples(out), [function(x) for x in make().examples()])
        found[way] = shape_of(out)
    assert found["loop"] == found["lockstep"]
    assert found["fly"] == found["lockstep"]


class Script:
    """In place of the rule: so many examples by each way, in this order; a limit of 0 stops a way at once.

    Attributes:
        log: (way, what became of it).
    """

    def __init__(self, *portions):
        self.portions = list(portions)
        self.log = []

    def next(self):
        return self.portions.pop(0)

    def ran(self, way, count, seconds, cold):
        self.log.append((way, count))

    def stopped(self, way, seconds, reason=""):
        self.log.append((way, "stopped"))

    def refused(self, way, seconds, reason):
        self.log.append((way, "refused"))


@pytest.fixture
def scripted(monkeypatch):
    """Have the portions given run, whatever is known."""

    def have(*portions):
        script = Script(*(Portion(*each) for each in portions))
        monkeypatch.setattr(measured_costs.History, "turn", lambda history, count: script)
        monkeypatch.setattr(batch_functions, "spent_on", lambda function: None)
        return script

    with ab.options(way="auto"):
        yield have


def steps(x, log):
    h = 0.0
    for v in x:
        log.append(1)
        h = np.tanh(h + v)
    return h


@pytest.mark.parametrize("first", ["loop", "lockstep"])
@pytest.mark.parametrize("second", ["loop", "lockstep"])
@pytest.mark.parametrize("make", SEVERAL)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning")
def test_a_call_may_be_shared_out_between_ways(function, make, first, second, scripted):
    size = make().batch_size
    if "lockstep" in (first, second) and function is positive:
        pytest.skip("it has no lock-step form")
    script = scripted((first, 1), (second, size - 1))
    out = ab.batch(function)(make())
    assert script.log == [(first, 1), (second, size - 1)]
    law.assert_same(ab.examples(out), [function(x) for x in make().examples()])
    with ab.options(way="lockstep"):
        assert shape_of(out) == shape_of(ab.batch(function)(make()))


@pytest.mark.parametrize("stopped", ["lockstep", "fly"])
def test_what_is_stopped_leaves_nothing_behind(stopped, scripted):
    script = scripted(("loop", 1), (stopped, 3, 0.0), ("loop", 3))
    log = []
    batch = ab.MaskedBatch.from_examples(RAGGED)
    out = ab.batch(steps)(batch, log) if stopped == "lockstep" else ab.map(steps, RAGGED, log=log)
    assert (stopped, "stopped") in script.log
    expected = []
    law.assert_same(ab.examples(out) if stopped == "lockstep" else out, [steps(x, expected) for x in RAGGED])
    assert log == expected


def test_a_while_loop_and_recursion_are_stopped_too(scripted):
    def halves(x):
        n = x.sum()
        while n > 0.1:
            n = n / 2.0
        return n

    def below(x):
        return x.sum() if len(x) < 2 else below(x[1:]) + 1.0

    for function in (halves, below):
        script = scripted(("lockstep", 4, 0.0), ("loop", 4))
        out = ab.batch(function)(ab.MaskedBatch.from_examples(RAGGED))
        assert script.log == [("lockstep", "stopped"), ("loop", 4)]
        law.assert_same(ab.examples(out), [function(x) for x in RAGGED])


def test_nobody_catches_that_a_way_is_stopped():
    assert not issubclass(OverTime, Exception)


def test_what_other_processes_take_stops_no_way(monkeypatch):
    passed, computed = [0.0], [0.0]
    monkeypatch.setattr(current_region, "time", types.SimpleNamespace(perf_counter=lambda: passed[0]))
    monkeypatch.setattr(current_region, "clock", lambda: computed[0])
    with current_region.with_deadline(1.0):
        passed[0] = 100.0
        current_region.check_time()
        computed[0] = 1.1
        with pytest.raises(OverTime, match=r"^$"):
            current_region.check_time()


def test_what_is_compiled_is_no_time_of_the_calling_thread():
    threads = []

    def ask():
        jit.uninterrupted(lambda: threads.append(threading.get_ident()))
        threads.append(threading.get_ident())

    ask()
    other = threading.Thread(target=ask)
    other.start()
    other.join()
    assert len(threads) == 4
    assert threads[0] != threads[1]
    assert threads[2] != threads[3]


def fails(x):
    if x.sum() > 5:
        raise ValueError(f"too much: {x.sum()}")
    return x.sum()


@pytest.mark.parametrize(
    "portions", [[("loop", 4)], [("loop", 1), ("lockstep", 3), ("loop", 3)], [("loop", 2), ("fly", 2)]]
)
def test_an_error_names_its_example(portions, scripted):
    scripted(*portions)
    with pytest.raises(ValueError, match=r"too much: 10\.0") as caught:
        ab.batch(fails)(ab.MaskedBatch.from_examples(RAGGED))
    assert "raised for example 3" in caught.value.__notes__


@pytest.mark.parametrize("portions", [[("loop", 4)], [("loop", 3), ("fly", 1)]])
def test_an_error_in_a_map_names_its_example(portions, scripted):
    scripted(*portions)
    with pytest.raises(ValueError, match=r"too much: 10\.0") as caught:
        ab.map(fails, RAGGED)
    assert "raised for example 3" in caught.value.__notes__


def drops(x):
    return ab.nn.dropout(ab.nn.dropout(x, 0.5), 0.1)


@pytest.mark.parametrize("portions", [[("loop", 4)], [("loop", 1), ("lockstep", 3)], [("loop", 2), ("fly", 2)]])
def test_random_numbers_are_those_of_the_example(portions, scripted):
    examples = [np.ones(40) * i for i in range(1, 5)]
    with ab.options(seed=3, way="lockstep"):
        expected = ab.batch(drops)(ab.MaskedBatch.from_examples(examples))
    scripted(*portions)
    with ab.options(seed=3):
        law.assert_same(ab.examples(ab.batch(drops)(ab.MaskedBatch.from_examples(examples))), ab.examples(expected))
    with ab.options(seed=3):
        scripted(*(each for each in portions if each[0] != "lockstep"), ("loop", 3))
        law.assert_same(ab.map(drops, examples), ab.examples(expected))


def test_gradients_flow_through_parts(scripted):
    def loss(w, run):
        out = run(w)
        return sum((each * each).sum() for each in ab.examples(out))

    def f(x, w):
        return np.tanh(x * w)

    def call(w):
        return ab.batch(f)(ab.MaskedBatch.from_examples(RAGGED), w)

    with ab.options(way="lockstep"):
        expected = ab.grad(loss)(np.float64(0.3), call)
    script = scripted(("loop", 1), ("loop", 2), ("lockstep", 2))  # the first is the gradient's own call
    np.testing.assert_allclose(ab.grad(loss)(np.float64(0.3), call), expected)
    assert script.log == [("loop", 2), ("lockstep", 2), ("loop", 1)]


def moved(x, w):
    h = np.zeros(2)
    for v in x:
        h = np.tanh(v * w + h)
    return h, h.sum(), len(x)


def given_back(x, w):
    return x


def part_given_back(x, w):
    return x[1:]


def noted(x, w):
    w.append(x.sum())
    return x * 2.0


MIXED = [np.ones(2), np.ones(3, np.float32)]


def test_a_map_may_run_in_lock_step(scripted):
    script = scripted(("lockstep", 3), ("loop", 1))
    weights = np.array([0.5, -1.0])
    out = ab.map(moved, RAGGED, ab.shared(weights))
    assert script.log == [("lockstep", 3), ("loop", 1)]
    law.assert_same(out, [moved(x, weights) for x in RAGGED])
    scripted(("lockstep", 4))
    law.assert_same(ab.map(moved, RAGGED, w=weights), out)


class Squashed:
    """A model of two layers; counts its calls if asked to."""

    def __init__(self, counts):
        self.inner, self.counts, self.calls = np.arange(6.0).reshape(3, 2), counts, 0

    @ab.batch
    def __call__(self, rows):
        if self.counts:
            self.calls += 1
        return ab.nn.softmax(ab.nn.sigmoid(rows @ self.inner))


LAYERS = [ab.nn.Linear(3, 2, seed=0), ab.nn.LayerNorm(3), ab.nn.Conv1d(3, 2, 2, seed=0), ab.nn.GRU(3, 4, seed=0)]
LAYERS += [ab.nn.LSTM(3, 4, seed=0), ab.nn.MultiHeadAttention(3, 1, seed=0)]
ROWS = [np.random.default_rng(n).normal(size=(n, 3)).astype(np.float32) for n in (3, 1, 5)]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_a_map_of_a_layer_may_run_in_lock_step(layer, scripted):
    script = scripted(("lockstep", 3))
    out = ab.map(layer, ROWS)
    assert script.log == [("lockstep", 3)]
    law.assert_same(out, [layer(x) for x in ROWS])


def test_a_map_of_an_object_runs_in_lock_step_unless_it_changes(scripted):
    model = Squashed(counts=True)
    script = scripted(("lockstep", 3), ("loop", 3))
    out = ab.map(model, ROWS)
    assert script.log == [("lockstep", "refused"), ("loop", 3)]
    assert model.calls == 3
    law.assert_same(out, [model(x) for x in ROWS])
    script = scripted(("lockstep", 3), ("loop", 3))
    ab.map(ab.nn.Dropout(), ROWS)
    assert script.log == [("lockstep", "refused"), ("loop", 3)]


class Deep:
    """A model of layers: in attributes, in a list, called by a method."""

    def __init__(self, *layers):
        self.first, self.layers = ab.nn.GRU(3, 3, seed=0), layers

    def __call__(self, rows):
        return self.summed(self.first(rows)[0])

    def summed(self, rows):
        for layer in self.layers:
            rows = layer(rows)
        return rows.sum(0)


def of_a_model(rows, model):
    return model(rows) * 2


def by_a_method(rows, model):
    return model.summed(rows)


HELD = Deep(ab.nn.Linear(3, 3, seed=1), ab.nn.LayerNorm(3))
LOG = []


@pytest.mark.parametrize("f", [HELD, HELD.summed, lambda rows: HELD(rows) + 1], ids=["object", "method", "global"])
def test_a_map_of_a_model_of_layers_may_run_in_lock_step(f, scripted):
    script = scripted(("lockstep", 3))
    law.assert_same(ab.map(f, ROWS), [f(x) for x in ROWS])
    assert script.log == [("lockstep", 3)]


@pytest.mark.parametrize("f", [of_a_model, by_a_method])
def test_so_may_one_that_is_given_the_model(f, scripted):
    script = scripted(("lockstep", 3), ("lockstep", 3))
    law.assert_same(ab.map(f, ROWS, model=HELD), [f(x, HELD) for x in ROWS])
    assert script.log == [("lockstep", 3)]


@pytest.mark.parametrize(
    "layer",
    [Squashed(counts=True), ab.nn.Dropout(), lambda rows: LOG.append(1) or rows],
    ids=["counts", "draws", "logs"],
)
@pytest.mark.parametrize("f", [of_a_model, by_a_method])
def test_one_layer_that_does_more_than_compute_is_enough_not_to(f, layer, scripted):
    model = Deep(ab.nn.Linear(3, 3, seed=1), layer)
    script = scripted(("lockstep", 3), ("loop", 3))
    with ab.options(seed=0):
        ab.map(f, ROWS, model=model)
    assert script.log == [("lockstep", "refused"), ("loop", 3)]


@pytest.mark.parametrize(
    ("function", "examples"),
    [(given_back, RAGGED), (part_given_back, EVEN), (noted, RAGGED), (moved, MIXED), (given_back, [(1,), (2,)])],
)
def test_a_map_is_not_for_lock_step_where_it_would_show(function, examples, scripted):
    count = len(examples)
    script = scripted(("lockstep", count), ("loop", count))
    log, expected = [], []
    out = ab.map(function, examples, ab.shared(log if function is noted else np.ones(2)))
    assert script.log == [("lockstep", "refused"), ("loop", count)]
    law.assert_same(out, [function(x, expected if function is noted else np.ones(2)) for x in examples])
    assert log == expected
    if function is given_back:
        assert all(a is b for a, b in zip(out, examples, strict=True))
    if function is part_given_back:
        assert all(np.may_share_memory(a, b) for a, b in zip(out, examples, strict=True))


def test_random_numbers_of_a_map_in_lock_step_are_those_of_the_example(scripted):
    with ab.options(seed=3):
        scripted(("loop", len(EVEN)))
        expected = ab.map(drops, EVEN)
    with ab.options(seed=3):
        script = scripted(("loop", 1), ("lockstep", len(EVEN) - 1), ("loop", len(EVEN) - 1))
        law.assert_same(ab.map(drops, EVEN), expected)
    assert script.log[0] == ("loop", 1)


def test_gradients_flow_through_a_map_in_lock_step(scripted):
    weights = np.array([0.5, -1.0])

    def loss(w):
        return np.mean([h for _, h, _ in ab.map(moved, RAGGED, w=w)])

    scripted(("loop", 1), ("loop", 4))  # the gradient is a call of one example
    expected = ab.grad(loss)(weights)
    scripted(("loop", 1), ("lockstep", 4))
    np.testing.assert_allclose(ab.grad(loss)(weights), expected, rtol=1e-12)


def changes_its_argument(x):
    x[:1] += 10.0
    return x.sum()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning")
def test_what_is_written_into_an_argument_is_in_the_batch(way, make):
    batch, alone = make(), [x.copy() for x in make().examples()]
    with ab.options(way=way):
        law.assert_same(ab.examples(ab.batch(changes_its_argument)(batch)), [changes_its_argument(x) for x in alone])
    law.assert_same([np.array(x) for x in batch.examples()], alone)


def writes_in_a_branch(x):
    if x.sum() > 3:
        x[0] = -1.0
    return x.sum()


def writes_in_a_loop(x, y):
    for v in x:
        y[0] += v
        if v > 1:
            y[1] *= 2.0
    return y * 1.0


def writes_through_a_view(x):
    part = x[1:]
    part += 1.0
    return x.sum()


def writes_under_another_name(x, y):
    z = x
    z *= 3.0
    return y + z


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", [writes_in_a_branch, writes_in_a_loop, writes_through_a_view])
@pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning")
def test_what_is_written_somewhere_in_a_call_is_in_the_batch(way, function):
    columns = [[x.copy() + 0.5 for x in RAGGED], [np.ones(2), np.zeros(2), -np.ones(2), np.arange(2.0)]]
    columns = columns[: function.__code__.co_argcount]
    batches = [ab.MaskedBatch.from_examples(column) for column in columns]
    with ab.options(way=way):
        out = ab.batch(function)(*batches)
    law.assert_same(ab.examples(out), [function(*values) for values in zip(*columns, strict=True)])
    for batch, column in zip(batches, columns, strict=True):
        law.assert_same([np.array(x) for x in batch.examples()], column)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning")
def test_a_batch_that_is_given_twice_is_one_array(way):
    alone, batch = [x.copy() for x in EVEN], ab.MaskedBatch.from_examples(EVEN)
    with ab.options(way=way):
        out = ab.batch(writes_under_another_name)(batch, batch)
    law.assert_same(ab.examples(out), [writes_under_another_name(x, x) for x in alone])
    law.assert_same([np.array(x) for x in batch.examples()], alone)


@pytest.mark.chosen
@pytest.mark.parametrize("mapped", [False, True])
def test_every_example_runs_once_while_the_ways_are_tried(mapped):
    log = []
    f = ab.batch(steps)
    for _ in range(40):
        examples = [np.arange(float(n % 5)) for n in range(30)]
        out = (
            ab.map(steps, examples, log=log) if mapped else ab.examples(f(ab.MaskedBatch.from_examples(examples), log))
        )
        law.assert_same(out, [steps(x, []) for x in examples])
    assert len(log) == 40 * sum(n % 5 for n in range(30))


ERRORS = [StopIteration, StopAsyncIteration, KeyError, OSError, OverflowError, RecursionError, LookupError, Exception]


def fails_from(error, least):
    def f(n):
        if n > least:
            raise error(f"no {n}")
        return n * 2

    return f


@pytest.mark.chosen
@pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning")
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("way", ["auto", "compiled", *WAYS])
def test_an_exception_of_any_kind_ends_the_call(error, way):
    numbers = [2, 0, 7, 1, 9]
    for f, at in ((fails_from(error, 3), 2), (fails_from(error, 7), 4)):
        for mapped in (False, True):
            with ab.options(way=way), pytest.raises(error, match="no ") as found:
                ab.map(f, numbers) if mapped else ab.batch(f)(ab.collate(numbers))
            assert found.value.args == (f"no {numbers[at]}",)
            assert any(str(at) in note for note in found.value.__notes__)


@pytest.mark.parametrize("way", ["compiled", *WAYS])
@pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning")
def test_classes_and_functions_made_inside_have_their_names(way):
    def f(n):
        class Inner:
            def method(self):
                return n

        return Inner.__qualname__, Inner.method.__qualname__, (lambda: n).__qualname__

    with ab.options(way=way):
        assert ab.map(f, [1, 2]) == [f(1), f(2)]
        assert ab.examples(ab.batch(f)(ab.collate([1, 2]))) == [f(1), f(2)]


@pytest.mark.chosen
def test_nothing_is_known_of_other_sizes(monkeypatch):
    monkeypatch.setattr(batch_functions, "spent_on", lambda function: None)  # no call is small
    f = ab.batch(doubled)
    for size in (1, 2, 4, 8):
        for length in (1, 8, 100):  # the first two are of one kind: few numbers
            f(ab.MaskedBatch.from_examples([np.ones(length)] * size))
            f(ab.MaskedBatch.from_examples([np.ones(length, np.float32)] * size))
    assert len(measured_costs.functions[id(doubled.__code__)].kinds) == 16


@pytest.mark.chosen
def test_what_is_known_is_bounded():
    for number in range(200):
        measured_costs.history_of(doubled, (number,), measured_costs.WAYS)
    assert len(measured_costs.functions[id(doubled.__code__)].kinds) <= 64
    for number in range(600):
        namespace = {}
        exec(f"def made(x):\n    return x + {number}", namespace)
        ab.map(namespace["made"], [1.0])
    assert len(measured_costs.functions) <= 512


def test_strict_stays_in_lock_step():
    with ab.options(way="auto"):
        with pytest.raises(UnsupportedError, match="strict=True"):
            ab.batch(positive_by_python, strict=True)(ab.MaskedBatch.from_examples(RAGGED))
        with inspect.op_calls() as ops:
            ab.batch(doubled, strict=True)(ab.MaskedBatch.from_examples(EVEN))
        assert ops


def positive_by_python(x):
    return sorted({float(v) for v in x})


@pytest.mark.parametrize("way", ["loop", "fly"])
def test_a_pinned_way_runs(way):
    with ab.options(way=way), inspect.op_calls() as ops:
        ab.batch(scaled)(ab.MaskedBatch.from_examples(EVEN), w=np.full(4, 2.0))
        ab.map(scaled, EVEN, w=np.full(4, 2.0))
    assert bool(ops) == (way == "fly")


def test_an_unknown_way_is_an_error():
    with pytest.raises(UnsupportedError, match="one of auto, loop, lockstep, fly, compiled"), ab.options(way="quick"):
        pass


def test_sizes_that_differ_are_an_error_in_each_way():
    two, three = ab.MaskedBatch.from_examples([[1.0]] * 2), ab.MaskedBatch.from_examples([[1.0]] * 3)
    for way in ("auto", *WAYS):
        with ab.options(way=way), pytest.raises(ShapeError, match="x has 2, y has 3 examples"):
            ab.batch(lambda x, y: x + y)(two, three)


def test_no_examples_are_as_in_lock_step():
    for way in ("auto", *WAYS):
        with ab.options(way=way):
            out = ab.batch(doubled)(ab.MaskedBatch(np.zeros((0, 3)), lengths=[]))
            assert out.data.shape == (0, 3)
            assert ab.map(doubled, []) == []


@pytest.mark.chosen
def test_a_refusal_is_said_once_and_another_way_taken(scripted):
    script = scripted(("lockstep", 4, 1.0), ("loop", 4))
    with pytest.warns(FallbackWarning, match="it runs as a loop over the examples"):
        out = ab.batch(positive_by_python)(ab.MaskedBatch.from_examples(RAGGED))
    assert script.log == [("lockstep", "refused"), ("loop", 4)]
    law.assert_same(ab.examples(out), [positive_by_python(x) for x in RAGGED])


@pytest.mark.chosen
@pytest.mark.parametrize("mapped", [False, True])
def test_explain_shows_the_way_that_the_call_names_until_costs_are_known(mapped, monkeypatch):
    # The calls of a warm-up would be costs.
    monkeypatch.setattr("autobatch.report.explain._Explained._warm_up", lambda *_: ([], [], lambda: None))
    given = EVEN if mapped else ab.MaskedBatch.from_examples(EVEN)
    call = (lambda: ab.map(doubled, given)) if mapped else (lambda: ab.batch(doubled)(given))
    named = "tracing" if mapped else "lock-step"
    for _ in range(3):
        assert ab.explain(doubled, given).way == named
    for _ in range(40):
        call()
    (known,) = measured_costs.functions[id(doubled.__code__)].kinds.values()
    own = "fly" if mapped else "lockstep"
    for cheap, dear, way in (("loop", own, "the loop"), (own, "loop", named)):
        for each, seconds in ((cheap, 1e-6), (dear, 1.0)):
            for _ in range(5):
                known.costs[each].add(1, seconds)
        report = ab.explain(doubled, given)
        assert report.way == way
        assert report.why == "the fastest so far"
        assert set(report.costs) == {"the loop", named}
        assert report.modes()[0] == (NAMES[cheap], "1.0 µs an example; chosen: the fastest so far")
        assert (NAMES[dear], "1,000,000.0 µs an example") in report.modes()


@pytest.mark.chosen
def test_explain_says_why_a_way_is_not_possible():
    batch = ab.MaskedBatch.from_examples(RAGGED)
    with ab.options(way="lockstep"):
        report = ab.explain(positive_by_python, batch)
    assert report.way != "lock-step"
    assert "test_ways.py" in next(iter(report.fallbacks))


@pytest.mark.chosen
def test_threads_share_what_is_known():
    results = {}

    def work(number):
        with ab.options(warn=False):
            examples = [np.arange(float(number + n)) for n in range(20)]
            for _ in range(30):
                batch = ab.MaskedBatch.from_examples(examples)
                results[number] = ab.examples(ab.batch(much)(batch)), ab.map(much, examples), examples

    with futures.ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert len(results) == 6
    for called, mapped, examples in results.values():
        expected = [much(x) for x in examples]
        law.assert_same(called, expected)
        law.assert_same(mapped, expected)


@pytest.mark.chosen
def test_a_small_call_that_is_the_loop_takes_few_steps(monkeypatch):
    monkeypatch.setattr(call_ways, "clock", lambda: 0.0)  # however busy it is
    for library in ("torch", "jax"):
        monkeypatch.delitem(sys.modules, library, raising=False)  # whose arrays are looked for once it is imported

    def own(x, w):  # whose time no other test has taken
        return len(x)

    batch, weights = ab.MaskedBatch.from_examples(RAGGED), np.ones(2)
    f = ab.batch(own)
    assert inspect.python_calls(lambda: ab.map(own, RAGGED[:2], ab.shared(weights))) <= 46  # the first of all
    for call, most in (
        (lambda: f(batch, weights), 34),
        (lambda: f(batch, w=weights), 37),
        (lambda: ab.map(own, RAGGED, ab.shared(weights)), 29),
    ):
        assert min(inspect.python_calls(call) for _ in range(8)) <= most  # once it is known what the call takes


@pytest.mark.chosen
def test_a_small_warm_call_passes_few_files(monkeypatch):
    monkeypatch.setattr(call_ways, "clock", lambda: 0.0)  # however busy it is
    monkeypatch.delitem(sys.modules, "torch", raising=False)  # whose tensors are looked for once it is imported

    @ab.batch
    def sentiment(words, params):
        h = np.zeros(params["u"].shape[0], np.float32)
        for x in params["emb"][words]:
            h = np.tanh(x @ params["w"] + h @ params["u"])
        return h @ params["out"]

    rng = np.random.default_rng(0)
    shapes = {"emb": (100, 8), "w": (8, 16), "u": (16, 16), "out": (16, 2)}
    params = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    batch = ab.MaskedBatch.from_examples([rng.integers(0, 100, n) for n in (5, 2, 0, 9)])
    calls = [inspect.called_files(lambda: sentiment(batch, params)) for _ in range(8)]
    package = str(pathlib.Path(ab.__file__).parent)
    assert min(sum(file.startswith(package) for file in files) for files in calls[1:]) <= 16


@pytest.mark.chosen
def test_most_calls_that_are_the_loop_ask_no_clock(monkeypatch):
    asked = itertools.count()
    monkeypatch.setattr(call_ways, "clock", lambda: 1e-6 * next(asked))
    batch, weights = ab.MaskedBatch.from_examples(RAGGED), np.ones(2)
    for call in (lambda: ab.batch(total)(batch, weights), lambda: ab.map(total, RAGGED, ab.shared(weights))):
        before = next(asked)
        for _ in range(100):
            call()
        assert next(asked) - before <= 24


def total(x, w):
    return len(x)
