"""A run that is given up has changed nothing: for each way to write into an array, in a map and in lock-step."""

import copy
import itertools
import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch.program.purity import is_pure, may_change
from tests.facts.writers import module_of, writing_statements

INTS, FLOATS = np.array([3, 1, 2]), np.array([2.5, -1.0, np.nan])
WAYS = ("entry", "argument", "attribute", "helper")
MAP = """
def entry_{n}(ex):
    h = ex["ids"]
    {text}
    y = ex["x"] * 2
    y.base
    return y.sum() + h.sum()

def argument_{n}(h, x):
    {text}
    y = x * 2
    y.base
    return y.sum() + h.sum()

def attribute_{n}(node, x):
    h = node.data
    {text}
    y = x * 2
    y.base
    return y.sum() + h.sum()

def write_{n}(h):
    {text}

def helper_{n}(ex):
    write_{n}(ex["ids"])
    y = ex["x"] * 2
    y.base
    return y.sum() + ex["ids"].sum()

def raises_{n}(ex):
    h = ex["ids"]
    {text}
    if ex["x"][0] > 1:
        raise ValueError("too much")
    return h.sum()
"""
LOCKSTEP = """
def write_{n}(h):
    {text}

def own_{n}(x, w):
    h = x * 1
    write_{n}(h)
    len(locals())
    return h

def argument_{n}(x, w):
    write_{n}(x)
    x.base
    return x + 0

def shared_{n}(x, w):
    write_{n}(w)
    y = x + w[0]
    y.base
    return y
"""


class Node:
    def __init__(self, data):
        self.data = data


# Ints are written into as they are, floats are recorded: some of the statements, more for the first; or all of them.
SAMPLES = [
    pytest.param(INTS, 3, id="ints"),
    pytest.param(FLOATS, 9, id="floats"),
    pytest.param(INTS, 1, id="all-ints", marks=pytest.mark.slow),
    pytest.param(FLOATS, 1, id="all-floats", marks=pytest.mark.slow),
]


def programs(template, sample, tmp_path_factory, step=1):
    """(its number, the statement, the functions of a module with it) of each: a file each, for all of it is parsed.

    Args:
        step: how far apart the statements are that are taken.
    """
    for n, text in enumerate(itertools.islice(writing_statements(sample), 0, None, step)):
        source = "import numpy as np\n" + template.format(n=n, text=text)
        yield n, text, module_of(tmp_path_factory, f"writers_{n}", source)


def outcome(call):
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return repr(call())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def examples_for(name, sample):
    xs = [np.arange(3.0) * i for i in range(3)]
    if name in ("entry", "helper", "raises"):
        return [[{"ids": sample.copy(), "x": x} for x in xs]]
    if name == "attribute":
        return [[Node(sample.copy()) for _ in xs], xs]
    return [[sample.copy() for _ in xs], xs]


def state(columns):
    return repr([vars(each) if isinstance(each, Node) else each for column in columns for each in column])


@pytest.mark.parametrize(("sample", "step"), SAMPLES)
def test_a_map_that_is_given_up_leaves_its_examples_as_the_loop_does(sample, step, tmp_path_factory):
    wrong = []
    for n, text, names in programs(MAP, sample, tmp_path_factory, step):
        for name in (WAYS[n % len(WAYS)], "raises") if n % 3 == 0 else (WAYS[n % len(WAYS)],):
            f = names[f"{name}_{n}"]
            mine, theirs = examples_for(name, sample), examples_for(name, sample)
            found = outcome(lambda: ab.map(f, *mine))  # noqa: B023
            expected = outcome(lambda: [f(*each) for each in zip(*theirs, strict=True)])  # noqa: B023
            if found.split("\n")[0] != expected.split("\n")[0] or state(mine) != state(theirs):
                wrong.append((text, name, found, expected))
    assert not wrong
    assert (n + 1) * step > 100


@pytest.mark.parametrize(("sample", "step"), SAMPLES)
def test_a_lockstep_call_that_falls_back_has_written_nothing(sample, step, tmp_path_factory):
    wrong = []
    for n, text, names in programs(LOCKSTEP, sample, tmp_path_factory, step):
        name = ("own", "argument", "shared")[n % 3]
        f = names[f"{name}_{n}"]
        xs = [sample, sample[::-1].copy(), sample + 1]
        mine, theirs = copy.deepcopy(xs), copy.deepcopy(xs)
        my_w, their_w = sample.copy(), sample.copy()
        found = outcome(lambda: ab.examples(ab.batch(f)(ab.MaskedBatch.from_examples(mine), my_w)))  # noqa: B023
        expected = outcome(lambda: [f(x, their_w) for x in theirs])  # noqa: B023
        if found.split("\n")[0] != expected.split("\n")[0] or repr(my_w) != repr(their_w):
            wrong.append((text, name, found, expected))
    assert not wrong


def test_what_writes_is_never_taken_for_local(tmp_path_factory):
    for n, text, names in programs(MAP, INTS, tmp_path_factory):
        assert not is_pure(names[f"write_{n}"]), text
        assert may_change([names[f"helper_{n}"]], []), text
        assert may_change([names[f"entry_{n}"]], []), text
