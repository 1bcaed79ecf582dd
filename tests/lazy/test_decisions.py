"""What waiting for a value costs: comparisons of what the code may change, Python calls, and launches on a tape."""

import collections
import linecache
import sys
import types

import numpy as np
import pytest

import autobatch as ab
from autobatch.core import snapshot
from tests.inspect import map_with_stats

RNG = np.random.default_rng(3)
WORDS = [RNG.integers(0, 20, n) for n in (3, 7, 1, 5, 6, 4, 2, 8)]
PARAMS = {
    "table": RNG.normal(size=(20, 4)).astype(np.float32),
    "w": RNG.normal(size=(4, 4)).astype(np.float32),
    "out": RNG.normal(size=(4, 3)).astype(np.float32),
}


class State:
    def __init__(self, words):
        self.left = len(words)
        self.stack = []
        self.at = 0

    def shift(self):
        self.stack.append(self.at)
        self.at += 1
        self.left -= 1

    def reduce(self):
        self.stack.pop()


class Layers:
    def __init__(self, others):
        self.layers = {name: Layer(weight) for name, weight in others.items()}


class Layer:
    def __init__(self, weight):
        self.weight = weight


def parse(words, params):
    """Follows its own choices; each is a wait."""
    state, rows = State(words), params["table"][words]
    loss = np.float32(0)
    while state.left or len(state.stack) > 1:
        top = rows[state.stack[-1]] if state.stack else rows[0]
        scores = np.tanh(top @ params["w"]) @ params["out"]
        loss = loss + ab.nn.cross_entropy(scores, state.at % 3)
        if state.left and (len(state.stack) < 2 or int(np.argmax(scores)) < 2):
            state.shift()
        else:
            state.reduce()
    return loss


def a_toggle(words, params):
    """Undoes its change of a shared list, but others see it in between."""
    rows = params["table"][words]
    params["seen"].append(1)
    more = 1.0 if rows.sum() > 0 else 2.0
    count = len(params["seen"])
    params["seen"].pop()
    return rows.sum() * more * count


def step(function, words, params, way):
    with ab.options(way=way):
        return ab.value_and_grad(lambda p: sum(ab.map(function, words, params=p)))(params)


def calls_in(run):
    """The calls, of Python's functions and of others, that a run makes."""
    count = 0

    def note(frame, event, _):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("of_object", [False, True])
def test_only_what_the_code_can_change_is_compared_at_each_wait(monkeypatch, of_object):
    compared = []
    for unrelated in (0, 200):
        others = {f"other{i}": np.zeros(2, np.float32) for i in range(unrelated)}
        params = {**PARAMS, **({"layers": Layers(others)} if of_object else others)}
        entries = []
        same = snapshot._same
        monkeypatch.setattr(
            snapshot, "_same", lambda now, was, same=same, n=entries: n.append(len(was)) or same(now, was)
        )
        with ab.options(way="fly"):
            out, stats = map_with_stats(parse, WORDS, params=params)
        monkeypatch.undo()
        assert stats.looped is None
        assert sum(stats.forced.values()) > 20
        np.testing.assert_allclose(out, [parse(words, params) for words in WORDS], rtol=1e-5)
        compared.append(sum(entries))
    assert compared[1] - compared[0] <= 10 * 200  # once or twice a map, not at each wait


def test_a_change_that_is_undone_is_seen():
    params = {**PARAMS, "seen": []}
    with ab.options(way="fly", warn=False):
        out = ab.map(a_toggle, WORDS, params=params)
    np.testing.assert_allclose(out, [a_toggle(words, params) for words in WORDS], rtol=1e-5)
    assert params["seen"] == []


CHANGES = {
    "list": ("seen.append(1)", "len(seen)", "seen.pop()"),
    "set": ("marks |= {0}", "1 + len(marks)", "marks -= {0}"),
    "deque": ("queue.appendleft(1)", "len(queue)", "del queue[0]"),
    "dict": ("counts['n'] += 1", "counts['n']", "counts['n'] -= 1"),
    "attribute": ("box.n += 1", "box.n", "box.n -= 1"),
    "attribute that is deleted": ("box.m = 2", "box.m", "del box.m"),
    "module": ("module.n += 1", "module.n", "module.n -= 1"),
    "global": ("global n; n += 1", "n", "n -= 1"),
    "nonlocal": ("nonlocal m; m += 1", "m", "m -= 1"),
    "a method's": ("box.add(1)", "box.n", "box.add(-1)"),
    "an imported function's": ("import heapq; heapq.heappush(seen, 1)", "len(seen)", "heapq.heappop(seen)"),
    "a class's": ("class Box: seen.append(1)", "len(seen)", "class Box: seen.pop()"),
}


class Box:
    n = 1

    def add(self, n):
        self.n += n


def toggling(change, read, undo, has_source):
    """A function that undoes its change of what it names, with a wait in between."""
    lines = ["def f(words, params, seen, marks, queue, counts, box):", "    rows = params['table'][words]"]
    lines += [
        "    " + change,
        "    more = 1.0 if rows.sum() > 0 else 2.0",
        "    out = rows.sum() * more * (" + read + ")",
    ]
    lines = ["def make(m):", *["    " + line for line in (*lines, "    " + undo, "    return out", "return f")]]
    name = f"<{change}, {has_source}>.py"
    if has_source:
        linecache.cache[name] = 1, None, [line + "\n" for line in lines], name
    module = types.ModuleType("a_module_of_the_users")
    module.n = 1
    names = {"__name__": "users", "module": module, "n": 1}
    exec(compile("\n".join(lines) + "\n", name, "exec"), names)
    return names["make"](1)


@pytest.mark.parametrize("has_source", [True, False])
@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_of_any_kind_that_is_undone_is_seen(kind, has_source):
    f = toggling(*CHANGES[kind], has_source)
    shared = {"seen": [], "marks": set(), "queue": collections.deque(), "counts": {"n": 1}, "box": Box()}
    with ab.options(way="fly", warn=False):
        out = ab.map(f, WORDS, params=PARAMS, **shared)
    np.testing.assert_allclose(out, [f(words, PARAMS, **shared) for words in WORDS], rtol=1e-5)


def test_what_decides_is_computed_apart_from_the_tape():
    value, slopes = step(parse, WORDS, PARAMS, "fly")
    expected, wanted = step(parse, WORDS, PARAMS, "loop")
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for name, slope in wanted.items():
        np.testing.assert_allclose(slopes[name], slope, rtol=1e-3, atol=1e-5)


def test_a_training_step_takes_few_python_calls_a_move():
    words = WORDS * 2
    for _ in range(3):
        step(parse, words, PARAMS, "fly")
    moves = sum(2 * len(each) - 1 for each in words)
    assert calls_in(lambda: step(parse, words, PARAMS, "fly")) < 400 * moves


def scaled(x, big, params):
    """Writes into a large array of its own between its waits."""
    total = np.float32(0)
    for at in range(4):
        y = np.tanh(x @ params["w"]) * big[at : at + 4]
        total = total + y.sum() + (big * x[0]).mean()
        if y.sum() > 0:
            big[:] = at
    return total


def test_arrays_may_be_written_into_between_waits():
    xs = [RNG.normal(size=4).astype(np.float32) for _ in range(4)]

    def own(x, params):
        return scaled(x, np.ones(4096, np.float32), params)

    value, slopes = step(own, xs, PARAMS, "fly")
    expected, wanted = step(own, xs, PARAMS, "loop")
    np.testing.assert_allclose(value, expected, rtol=1e-4)
    np.testing.assert_allclose(slopes["w"], wanted["w"], rtol=1e-3, atol=1e-5)


def test_an_error_state_of_the_users_holds_for_what_decides():
    def guarded(x, params):
        with np.errstate(divide="raise"):
            if (np.log(np.abs(x @ params["w"])) / x[0]).sum() > 0:
                return (x @ params["w"]).sum()
        return (x @ params["w"]).sum() * 2

    xs = [np.ones(4, np.float32), np.zeros(4, np.float32)]
    for way in ("loop", "fly"):
        with pytest.raises(FloatingPointError, match="divide by zero") as raised:
            step(guarded, xs, PARAMS, way)
        assert way == "loop" or "example 1" in "".join(raised.value.__notes__)


def decided(x, params):
    """Waits at each of its steps, for a value that its losses do not read."""
    h, loss, at = x, np.float32(0), 0
    for _ in range(6):
        h = np.tanh(params["table"][at] @ params["w"] + h)
        scores = h @ params["out"]
        at = int(np.argmax(scores))
        loss = loss + ab.nn.cross_entropy(scores, (at + 1) % 3)
    return loss


def by_parts(x, params):
    """Makes several values before it waits for each of them."""
    parts = [part * 2 for part in x @ params["out"]]
    return sorted(float(part) for part in parts)


@pytest.mark.parametrize("taped", [False, True])
def test_what_no_example_waits_for_is_launched_with_what_others_record_later(taped):
    xs = [RNG.normal(size=4).astype(np.float32) for _ in range(8)]
    counts = []

    def total(params):
        out, stats = map_with_stats(decided, xs, params=params)
        counts.append(stats)
        return sum(out)

    with ab.options(way="fly"):
        for _ in range(2):
            found = ab.grad(total)(PARAMS)["out"] if taped else total(PARAMS)
    stats = counts[-1]
    assert stats.looped is None
    assert stats.rounds == 6 + 1
    assert stats.launches == 6 + 2, "for each round the choice; all losses, and their sums"
    expected = step(decided, xs, PARAMS, "loop")
    np.testing.assert_allclose(found, expected[1]["out"] if taped else expected[0], rtol=1e-3, atol=1e-5)


def test_values_that_are_asked_for_in_turn_take_one_round():
    xs = [RNG.normal(size=4).astype(np.float32) for _ in range(8)]
    with ab.options(way="fly"):
        out, stats = map_with_stats(by_parts, xs, params=PARAMS)
    np.testing.assert_allclose(out, [by_parts(x, PARAMS) for x in xs], rtol=1e-5)
    assert stats.looped is None
    assert stats.rounds <= 2, "the first value shows which calls are asked for"
