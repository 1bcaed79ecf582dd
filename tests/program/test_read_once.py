"""A code object's source is found once, and its effects are read once, whatever runs it."""

import linecache

import numpy as np
import pytest

import autobatch as ab
from autobatch.program import purity, source
from autobatch.program.purity import is_pure
from tests.inspect import watched

IDS = [np.array([0, 1, 2]), np.array([3, 1]), np.array([2, 2, 0, 1])]
PARAMS = {"emb": np.eye(4), "w": np.eye(4), "u": np.eye(4), "out": np.ones((4, 2))}


def recurrent():
    """The same function each time, of a code object of its own."""
    names = {"np": np}
    text = """
def rnn(words, params):
    h = np.zeros(params["u"].shape[0])
    for x in params["emb"][words]:
        h = np.tanh(x @ params["w"] + h @ params["u"])
    return h @ params["out"]
"""
    linecache.cache["<rnn>"] = len(text), None, text.splitlines(keepends=True), "<rnn>"
    exec(compile(text, "<rnn>", "exec"), names)
    return names["rnn"]


def run_in_every_mode(f):
    batch = ab.MaskedBatch.from_examples(IDS)
    for way in ("lockstep", "fly", "compiled", "loop"):
        with ab.options(way=way, warn=False):
            ab.batch(f)(batch, PARAMS)
            ab.map(f, IDS, params=PARAMS)
            ab.grad(lambda params: sum(each.sum() for each in ab.map(f, IDS, params=params)))(PARAMS)
    ab.map(f, IDS, params=PARAMS)
    ab.testing.forms(f, IDS, params=PARAMS)
    str(ab.explain(f, IDS, params=PARAMS))


def test_the_source_is_found_once():
    f = recurrent()
    with (
        watched(source, "_search", before=lambda function, code: code) as searched,
        watched(purity, "_read_function", before=lambda function, of_new: function) as read,
    ):
        run_in_every_mode(f)
    assert sum(code is f.__code__ for code in searched) == 1
    assert read.count(f) == 1


@pytest.mark.parametrize(("amount", "readings"), [(1, 1), (2, 2)])
def test_effects_are_read_once_for_each_meaning_of_the_names(amount, readings):
    helpers = [lambda x: x + 1, lambda x: x + 2]

    def made(helper):
        return lambda x: helper(x) * 2.0

    functions = [made(helpers[at % amount]) for at in range(6)]
    with watched(purity, "_read_function", before=lambda function, of_new: function.__code__) as read:
        assert all(map(is_pure, functions))
    assert read.count(functions[0].__code__) == readings
