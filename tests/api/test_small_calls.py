"""Small calls, which run as the loop before anything else is looked at, and functions of cells that run again."""

import functools
import gc
import itertools
import linecache
import sys
import weakref

import numpy as np
import pytest

import autobatch as ab
from autobatch.api import batch as batch_functions
from autobatch.api import call_ways, measured_costs
from autobatch.blocks import kernel_cache, program
from autobatch.program.bounded_caches import MOST_FUNCTIONS, BoundedDict
from tests import law

RAGGED = [np.arange(3.0), np.arange(1.0), np.zeros(0), np.arange(5.0)]


@pytest.mark.chosen
@pytest.mark.parametrize("way", ["auto", "loop", "lockstep", "fly", pytest.param("compiled", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["values", "gradients", "gradients in order"])
def test_what_is_known_of_a_cell_that_ran_again_is_dropped(way, kind, monkeypatch):
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("autobatch.")]
    found = [each for module in modules for each in vars(module).values()]
    for each in found:  # the caches of functions
        if type(each) is BoundedDict and each.most <= 2 * MOST_FUNCTIONS:
            monkeypatch.setattr(each, "most", 3)
    text = """
def helper(a, b):
    return a * {0} + b

def f(x, w):
    s = 0.0
    {1}
    for v in x:
        s = helper(s, v) if v > 0 else s - v * w[0]
    return s + (x * w[0] * {0}).sum()
"""
    examples, w, codes = [np.arange(1.0, 3.0 + n) for n in range(3)], np.ones(2), []
    kernels, before = [], len(program._interned)
    for number in range(12):
        name, namespace = f"<cell {number}>", {}
        lines = text.format(number / 7, "print(end='')" if "order" in kind else "").splitlines(True)
        monkeypatch.setitem(linecache.cache, name, (0, None, lines, name))
        exec(compile("".join(lines), name, "exec"), namespace)
        f = namespace["f"]
        codes.append(weakref.ref(f.__code__))
        with ab.options(way=way, warn=False):
            if kind != "values":
                ab.grad(lambda w, f=f: sum(ab.map(f, examples, w=w)))(w)
                ab.grad(f, 1)(examples[0], w)
            else:
                ab.map(f, examples, w=w)
                ab.batch(f)(ab.MaskedBatch.from_examples(examples), w)
        namespace = f = None
        gc.collect()
        kernels.append(len(kernel_cache._known))
    for each in found:
        if isinstance(each, functools._lru_cache_wrapper) and each.cache_parameters()["maxsize"] == MOST_FUNCTIONS:
            each.cache_clear()  # bounded, too
    gc.collect()
    assert sum(code() is not None for code in codes) <= 8
    assert kernels[-1] <= kernels[5] + 1
    assert len(program._interned) <= before + 36  # of six of twelve cells


@pytest.mark.chosen
def test_a_small_call_is_left_to_the_loop_and_nothing_else_is_looked_at(monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(batch_functions, "perf_counter", lambda: 1e-5 * next(ticks))
    monkeypatch.setattr(measured_costs, "history_of", None)

    def tripled(x, y):
        return x * y

    batch, weights = ab.MaskedBatch.from_examples(RAGGED), np.ones(1)
    expected = [tripled(x, weights) for x in RAGGED]
    for _ in range(5):
        law.assert_same(ab.map(tripled, RAGGED, ab.shared(weights)), expected)
        law.assert_same(ab.map(tripled, RAGGED, y=weights), expected)
        law.assert_same(ab.map(tripled, RAGGED, [weights] * len(RAGGED)), expected)
        law.assert_same(ab.examples(ab.batch(tripled)(batch, weights)), expected)
        law.assert_same(ab.examples(ab.batch(tripled)(batch, y=weights)), expected)
    assert id(tripled.__code__) not in measured_costs.functions


@pytest.mark.chosen
@pytest.mark.parametrize("seconds", [1e-4, 1.0])
def test_no_example_of_a_call_that_turns_out_to_be_large_runs_twice(monkeypatch, seconds):
    ticks, ran = itertools.count(), []
    for clock in ("perf_counter", "thread_clock"):
        monkeypatch.setattr(batch_functions, clock, lambda: seconds * next(ticks))

    def noting(x):
        ran.append(len(x))
        return x.sum()

    lengths = list(range(1, 65))
    examples = [np.ones(length) for length in lengths]
    for call in (lambda: ab.map(noting, examples), lambda: ab.batch(noting)(ab.MaskedBatch.from_examples(examples))):
        ran.clear()
        call()
        assert ran == lengths
    with pytest.raises(ZeroDivisionError, match="division by zero") as raised:
        ab.map(lambda x: 1 / x, [1, 2, 0, 4])
    assert raised.value.__notes__ == ["raised for example 2"]


@pytest.mark.chosen
def test_a_call_that_other_processes_interrupt_is_no_large_one(monkeypatch):
    ticks, own = itertools.count(), itertools.count()
    monkeypatch.setattr(batch_functions, "perf_counter", lambda: float(next(ticks)))
    monkeypatch.setattr(batch_functions, "thread_clock", lambda: 1e-6 * next(own))

    def halved(x):
        return x / 2

    assert ab.map(halved, list(range(64))) == [x / 2 for x in range(64)]
    assert id(halved.__code__) not in measured_costs.functions


@pytest.mark.chosen
def test_what_a_call_that_is_the_loop_takes_is_counted(monkeypatch):
    ticks, noted = itertools.count(), []
    monkeypatch.setattr(call_ways, "clock", lambda: float(next(ticks)))
    monkeypatch.setattr(batch_functions, "perf_counter", lambda: 1e-6 * next(ticks))
    monkeypatch.setattr(batch_functions.Spent, "add", lambda self, count, seconds: noted.append((count, seconds)))

    def tripled(x):
        return x * 3.0

    batch = ab.MaskedBatch.from_examples(RAGGED[:2])
    law.assert_same(ab.examples(ab.batch(tripled)(batch)), [tripled(x) for x in RAGGED[:2]])
    law.assert_same(ab.map(tripled, RAGGED[:2]), [tripled(x) for x in RAGGED[:2]])
    assert [count for count, _ in noted] == [2, 2]
    assert [seconds for _, seconds in noted] == pytest.approx([1e-6, 1e-6])


def test_the_price_of_a_set_up_is_learned_once_for_a_function(monkeypatch):
    rates = {way: type(rates)([1e-5], maxlen=9) for way, rates in measured_costs._rates.items()}
    monkeypatch.setattr(measured_costs, "_rates", rates)
    known = measured_costs.FunctionCosts(tripled_rows.__code__, tripled_rows)
    before = measured_costs._expected(known, False, "compiled").price
    for seconds in (7.0, *[1e-6] * 20):  # for inputs of other kinds, all is there
        measured_costs.learned(known, "compiled", seconds, False)
    assert max(rates["compiled"]) == pytest.approx(7.0 / (measured_costs.EACH + known.size))
    assert min(rates["compiled"]) > 1e-6
    assert measured_costs._expected(known, False, "compiled").price > before


def tripled_rows(x):
    return x * 3.0


@pytest.mark.chosen
def test_a_batch_that_is_given_twice_is_one_object_for_each_example():
    @ab.batch
    def is_same(x, y):
        return float(x is y)

    batch = ab.MaskedBatch.from_examples([np.ones(2), np.ones(3)])
    assert is_same(batch, batch).examples() == [1.0, 1.0]
    assert is_same(batch, batch + 0.0).examples() == [0.0, 0.0]
