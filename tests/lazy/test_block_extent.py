"""How far blocks reach: over computed keys, past an `if`, up to what is appended, and over lists within.

Found red by breaking once each: in `Key.suits`, `return True`; in `blocks.block_inputs`, no `_scalar` around items; in
`preparing._lists`, every name that is ever bound to a list; in `FoundBlock._add`, lists that are not `copied`; in
`BlockForm._is_zip`, any name `zip`.
"""

import builtins
import dataclasses
import subprocess
import sys

import numpy as np
import pytest

import autobatch as ab
from tests.inspect import map_with_stats
from tests.law import assert_same, loop, map_equals_loop, normal, vectors

SIZE = 3
WEIGHTS = {f"u_{kind}": normal(SIZE, SIZE, seed=kind) for kind in range(3)} | {"w": normal(SIZE, SIZE, seed=9)}
NAMES = ["u_2", "u_0", "u_1"]


@dataclasses.dataclass
class Node:
    kind: object


def by_a_key_of_an_attribute(x, kind, p):
    node = Node(kind)
    gate = np.tanh(x @ p["w"])
    return gate * (x @ p[f"u_{node.kind}"])


def by_an_item_of_a_list(x, kind, p):
    gate = np.tanh(x @ p["w"])
    return gate * (x @ p[NAMES[kind]]) if kind < 0 else gate * (x @ p[choices(kind)[kind - 1]])


def choices(kind):
    return list(NAMES)


def by_arithmetic(x, kind, p):
    names = NAMES
    gate = np.tanh(x @ p["w"])
    return gate * (x @ p[names[(kind + 1) % 3]]) + p[f"u_{kind * 1}"][0]


def table_rows(x, kind, p):
    ids = [2, 0, 1]
    h = np.tanh(x @ p["w"])
    h = h * p["w"][ids[kind]] + p["w"][ids[kind - 1]]
    return h * 2.0


def after_arms(x, kind, p):
    h, out = x * 1.0, []
    for _ in range(2):
        if kind == 0:
            h = h @ p["w"] + x
        elif kind == 1:
            h = h * 2.0
            if h.shape[0] > 5:
                break
        else:
            out.append(h)
            h = x - h
            continue
        h = np.tanh(h @ p["u_0"])
        out.append(np.tanh(h) * x)
    return out, h


def lists_within(x, kind, p):
    parts = [x * (k + 1.0) for k in range(kind)]
    shares = [np.exp(part @ p["w"]) for part in parts]
    own = np.exp(x)
    return (own * x + sum(s * part for s, part in zip(shares, parts, strict=True))) / (own + sum(shares))


def lists_that_are_returned(x, kind, p):
    parts = [x * (k + 1.0) for k in range(kind)]
    shares = [np.exp(part @ p["w"]) for part in parts]
    total = np.exp(x) + sum(shares)
    return total * 2.0, shares


def parts_of_different_lists(x, kind, p):
    parts = [x * (k + 1.0) for k in range(kind)]
    shares = [np.exp(part @ p["w"]) for part in parts]
    return x + sum(s * part for s, part in zip(shares, [*parts, x], strict=False))


PROGRAMS = [
    by_a_key_of_an_attribute,
    by_an_item_of_a_list,
    by_arithmetic,
    table_rows,
    after_arms,
    lists_within,
    lists_that_are_returned,
    parts_of_different_lists,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_the_law(program):
    xs, kinds = vectors(7, SIZE, seed=3), [0, 2, 1, 1, 0, 2, 2]
    for _ in range(4):  # compiled later
        map_equals_loop(program, xs, kinds, p=WEIGHTS)
    ab.testing.assert_equivalent(program, xs[:5], kinds[:5], p=WEIGHTS)


@pytest.mark.parametrize(
    ("program", "launches"),
    [(by_a_key_of_an_attribute, 3), (by_arithmetic, 3), (table_rows, 1), (lists_within, 5)],
    ids=lambda f: getattr(f, "__name__", ""),
)
def test_it_is_one_block(program, launches):
    xs, kinds = vectors(6, SIZE), [0, 1, 2] * 2
    results, stats = map_with_stats(program, xs, kinds, p=WEIGHTS)
    assert_same(results, loop(program, xs, kinds, p=WEIGHTS))
    assert sum(row[1] for (name, _), row in stats.by_signature.items() if name.startswith("block")) <= launches
    assert stats.launches <= launches + 2  # the parts of the lists


class Spelled:
    """What runs code where a key is made of it."""

    def __init__(self, log):
        self.log = log

    def __format__(self, spec):
        self.log.append("format")
        return "0"

    def __repr__(self):
        self.log.append("repr")
        return "0"


@pytest.mark.parametrize("kinds", ["kind", "[kind][0]"])
def test_a_key_that_runs_code_is_computed_once(kinds):
    def of_a_name(x, log, p):
        kind = Spelled(log)
        gate = np.tanh(x * 2.0)
        return gate * p[f"u_{kind}"][0, 0], log

    def of_an_item(x, log, p):
        spelled, i = [Spelled(log)], 0
        gate = np.tanh(x * 2.0)
        return gate * p[f"u_{spelled[i]}"][0, 0], log

    f = of_a_name if kinds == "kind" else of_an_item
    for xs in (vectors(3, SIZE), [0.5, 1.5]):  # of numbers alone there is no block, and all is run by the user's code
        assert_same(ab.map(f, xs, [[] for _ in xs], p=WEIGHTS), loop(f, xs, [[] for _ in xs], p=WEIGHTS))


class Doubling:
    """No list: reading its `append` changes an array."""

    def __init__(self, array):
        self.array = array
        self.items = []

    @property
    def append(self):
        self.array *= 2.0
        return self.items.append


def test_append_of_what_is_no_list_is_read_first():
    def f(x, p):
        out = []
        z = x @ p["w"]
        out = Doubling(z)
        out.append(np.tanh(z))
        return out.items

    xs = vectors(3, SIZE)
    assert_same(ab.map(f, xs, p=WEIGHTS), loop(f, xs, p=WEIGHTS))


def test_another_zip(monkeypatch):
    xs, kinds = vectors(6, SIZE), [0, 1, 2] * 2
    map_equals_loop(lists_within, xs, kinds, p=WEIGHTS)
    monkeypatch.setitem(globals(), "zip", lambda a, b, strict: [(y, y) for y in b])
    found = ab.map(lists_within, xs, kinds, p=WEIGHTS)
    expected = [lists_within(x, kind, WEIGHTS) for x, kind in builtins.zip(xs, kinds, strict=True)]
    assert_same(found, expected)


def test_an_error_of_a_key_is_the_users():
    def f(x, kind, p):
        gate = np.tanh(x @ p["w"])
        return gate * (x @ p[f"u_{kind}"])

    for wrong, error in ((7, KeyError), (None, KeyError)):
        with pytest.raises(error, match="u_") as caught:
            ab.map(f, vectors(3, SIZE), [0, wrong, 1], p=WEIGHTS)
        assert any("example 1" in note for note in caught.value.__notes__)


class Cell:
    def __init__(self, w):
        self.w = w

    def _step(self, x):
        y = np.tanh(x @ self.w)
        z = y * 2 + 1
        return np.exp(-z * z)

    update = copy = index = count = join = add = format = insert = _step

    def __call__(self, x):
        return self._step(x)


METHODS_OF_CONTAINERS = ("update", "copy", "index", "count", "join", "add", "format", "insert", "_step")


@pytest.mark.parametrize("name", METHODS_OF_CONTAINERS)
def test_a_function_without_a_block_of_its_own_calls_the_blocks_of_others(name):
    programs = {
        "update": lambda x, cell: cell.update(x), "copy": lambda x, cell: cell.copy(x),
        "index": lambda x, cell: cell.index(x), "count": lambda x, cell: cell.count(x),
        "join": lambda x, cell: cell.join(x), "add": lambda x, cell: cell.add(x),
        "format": lambda x, cell: cell.format(x), "insert": lambda x, cell: cell.insert(x),
        "_step": lambda x, cell: cell(x),
    }  # fmt: skip
    cell, xs = Cell(normal(3, 3)), vectors(4, 3)
    results, stats = map_with_stats(programs[name], xs, cell=cell)
    assert stats.launches == 1
    assert_same(results, [cell(x) for x in xs])


def test_a_zip_of_lists_whose_lengths_differ_by_example_is_recorded():
    def paired(pair, w):
        a, b = pair
        state = w[0]
        for x, y in zip(a, b):  # noqa: B905  (the shorter one ends it)
            state = np.tanh(state + x * y)
        rows = [np.tanh(x @ w) + y for x, y in zip(a, b)]  # noqa: B905
        return state, rows, sum(x @ y for i, (x, y) in enumerate(zip(a, b)))  # noqa: B905

    pairs = [(vectors(n, 3), vectors(m, 3, seed=1)) for n, m in ((2, 3), (3, 3), (0, 2), (4, 1), (1, 0))]
    w = normal(3, 3)
    for _ in range(3):
        results, stats = map_with_stats(paired, pairs, w=w)
        assert stats.looped is None
        assert not stats.fallbacks
        assert_same(results, [paired(pair, w) for pair in pairs])


def test_the_first_function_of_a_process_has_the_librarys_own_in_its_blocks():
    """`ab.nn` is among the package's names before anybody has asked for it: nothing is imported to read code."""
    code = "import autobatch as ab; ab.batch; assert callable(vars(vars(ab)['nn'])['sigmoid'])"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
