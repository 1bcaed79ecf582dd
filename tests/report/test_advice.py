"""What a report says first: mode, time, what takes it, and what to do; and what it costs to say so."""

import dataclasses
import re
import sys
import types

import numpy as np
import pytest

import autobatch as ab
from autobatch.report import explain, line_profile, source_lines
from autobatch.report.advice import Facts, general_advice, overhead
from autobatch.report.line_profile import LIBRARY, Figures, LineProfile
from tests.law import normal, vectors

W = normal(4, 4)
SEQUENCES = [normal(n, 4) for n in (5, 2, 7, 3)]
TREES = [((0, 1), 2), (1, (0, (2, 3))), 3]


def recurrent(x, w):
    h = np.zeros(4, np.float32)
    for row in x:
        h = np.tanh(row @ w + h)
    return h.sum()


def folded(tree, w):
    if isinstance(tree, int):
        return w[tree]
    return np.tanh(folded(tree[0], w) @ w + folded(tree[1], w))


def looked_up(x, w):
    known, h = {1: 2.0}, np.zeros(4, np.float32)
    for row in x:
        h = np.tanh(row @ w + h) * known.get(int(row[0] > 0), 1.0)
    return h.sum()


def step_mapped(w):
    return sum(ab.map(recurrent, SEQUENCES, w=w))


def step_batched(w):
    return ab.batch(recurrent)(ab.collate(SEQUENCES), w).data.sum()


def step_trees(w):
    return sum(each.sum() for each in ab.map(folded, TREES, w=w))


def step_looped(w):
    return sum(recurrent(x, w) for x in SEQUENCES)


CALLS = {
    "map": (recurrent, (SEQUENCES,), {"w": W}),
    "batch": (recurrent, (ab.collate(SEQUENCES), W), {}),
    "trees": (folded, (TREES,), {"w": W}),
    "dict": (looked_up, (ab.collate(SEQUENCES), W), {}),
    "step mapped": (ab.value_and_grad(step_mapped), (W,), {}),
    "step batched": (ab.value_and_grad(step_batched), (W,), {}),
    "step trees": (ab.value_and_grad(step_trees), (W,), {}),
    "step looped": (ab.value_and_grad(step_looped), (W,), {}),
}


@pytest.mark.parametrize("way", ["auto", "loop", "fly", "lockstep"])
@pytest.mark.parametrize("name", CALLS)
def test_the_largest_share_has_a_reason_and_no_advice_is_empty_or_refused(name, way, monkeypatch):
    monkeypatch.setattr(explain, "_WORTH", 0.0)  # whatever share of the time the lines take on a busy machine
    function, args, shared = CALLS[name]
    with ab.options(way=way):
        report = ab.explain(function, *args, **shared)
    assert report.shares[0].reason
    said = [each.remedy for each in (*report.lines, *report.overheads)]
    refused = {way for way, says in report.modes() if says.startswith("not possible")}
    for remedy in said:
        assert not any(mode in remedy for mode in refused), (remedy, refused)
        assert report.way not in re.findall("lock-step|compiled", remedy)
        if "step" in name:
            assert "more examples to one call" not in remedy or report.way == "lock-step"
        if "trees" in name:
            assert "collate" not in remedy
    text = str(report)
    assert "0 examples" not in text
    assert not re.search(r"on the fly|\blanes?\b|no form|mend |beside", text)
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("way", ["tracing", "lock-step", "compiled", "the loop"])
@pytest.mark.parametrize("mapped", [False, True])
def test_every_kind_of_share_has_a_reason(way, mapped):
    facts = Facts(way, 0, {"lock-step": "no", "compiled": "no"}, untried=("lock-step", "compiled"), mapped=mapped)
    found = [overhead("library", facts), overhead("backward", facts), general_advice(Figures(runs=3), facts)]
    assert all(reason for reason, _ in found)
    assert not any(mode in remedy for _, remedy in found for mode in ("lock-step", "compiled"))


def test_a_line_that_cannot_run_batched_is_said_with_what_to_write():
    with ab.options(way="lockstep"):
        report = ab.explain(looked_up, ab.collate(SEQUENCES), W)
    line = looked_up.__code__.co_firstlineno + 3
    assert report.why == "lock-step does not support it"
    assert any(each.remedy.startswith(f"line {line} cannot run batched: ") for each in report.shares)


def test_a_call_is_warmed_up_and_the_first_one_is_told_apart():
    times = []
    report = ab.explain(recurrent, SEQUENCES, w=W)
    assert report.warm <= report.seconds
    assert report.warm > 0
    assert " a call after warm-up, " in report.head()
    assert sum(each.share for each in report.lines) <= 1 + 1e-9

    def keeps(x):
        times.append(1)
        return x.sum()

    assert ab.explain(keeps, vectors(2, 3)).warm > 0  # what the calls before have changed is undone
    assert times == [1, 1]


@pytest.mark.parametrize(
    ("way", "seconds", "calls", "watched"),
    [
        ("auto", [1e-3] * 20, 5, 1),
        ("auto", [1e-3] * 20, 2, 3),
        ("auto", [0.01] * 20, 3, 1),
        ("auto", [1.5] * 20, 2, 1),
        ("auto", [0.3] + [0.1] * 20, 4, 1),
        ("auto", [1.0] + [0.01] * 20, 5, 1),
        ("fly", [1e-3] * 20, 2, 3),
        ("fly", [0.01] * 20, 2, 1),
        ("fly", [0.3] + [0.1] * 20, 4, 1),
    ],
)
def test_a_report_of_a_warm_call_takes_few_calls_and_waits_no_longer_than_some(
    way, seconds, calls, watched, monkeypatch
):
    """By a clock of its own: what is warm is called twice, what is cold until it has run nearly as long again.

    A short call is watched several times, since whatever else the machine does would be a large share of it, but all
    takes no more than six times what a call takes, before the report is written. Of a mode that is pinned, and has
    been set up, two calls are enough.
    """
    clock, waited = [0.0], []

    def called(*args, **shared):
        clock[0] += seconds.pop(0)
        return [], None

    def waits(most):
        waited.append(most)
        clock[0] += most

    first = seconds[0]
    monkeypatch.setattr(explain, "time", types.SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(explain, "clock", lambda: clock[0] - sum(waited))
    monkeypatch.setattr(explain, "map_with_stats", called)
    monkeypatch.setattr(explain, "wait_for_kernels", waits)
    left = len(seconds)
    if watched > 1:  # it has been called before
        monkeypatch.setattr(explain, "_WARM_CALLS", calls)
    with ab.options(way=way):
        ab.explain(recurrent, SEQUENCES, w=W)
    assert left - len(seconds) == calls + watched
    assert 0 < sum(waited) <= min(4 * first, 2.0) + 1e-9


@pytest.mark.chosen
def test_what_was_called_often_is_called_twice_before_it_is_watched(monkeypatch):
    """Its mode has been chosen; of a new function the mode is first looked for."""
    warmed = []
    monkeypatch.setattr(explain, "wait_for_kernels", warmed.append)
    monkeypatch.setattr(explain, "_WARM", 1e3)  # seconds: no call is long

    def scored(x, w):
        return np.tanh(x @ w).sum()

    step = ab.value_and_grad(lambda w: sum(ab.map(scored, SEQUENCES, w=w)))
    ab.explain(step, W)
    assert len(warmed) == 5
    ab.explain(step, W)
    assert len(warmed) == 7


def test_of_a_loop_that_takes_long_the_first_examples_are_watched(monkeypatch):
    """Then all lines are of these; a gradient is watched to its end."""
    monkeypatch.setattr(explain, "_SHORT", 0.0)
    monkeypatch.setattr(explain, "_TIMES", 0)
    with ab.options(way="loop"):
        report = ab.explain(recurrent, SEQUENCES, w=W)
        gradient = ab.explain(ab.grad(step_mapped), W)
        tracer = sys.gettrace()
    assert (report.examples, report.watched, gradient.watched) == (4, 1, 0)
    assert "the first 1 example watched" in report.head()
    assert [line.times for line in report.lines if line.text.strip().startswith(("h = np.tanh", "return"))] == [5, 1]
    assert 0.99 < sum(each.share for each in [*report.lines, *report.overheads]) <= 1 + 1e-9
    assert gradient.backward > 0
    assert sys.gettrace() is tracer


@dataclasses.dataclass
class Node:
    label: int
    children: list


def test_trees_are_not_advised_to_be_a_batch():
    """Their lists of records would become a record of lists, which the function does not take."""

    def total(node, w):
        return w[node.label] + sum([total(each, w) for each in node.children])

    trees = [Node(0, [Node(1, []), Node(2, [Node(3, [])])]) for _ in range(3)]
    with ab.options(way="loop"):
        text = str(ab.explain(total, trees, w=W))
    assert "collate" not in text


@pytest.mark.parametrize("way", ["loop", "lockstep"])
def test_numeric_code_is_advised_to_be_compiled(way, monkeypatch):
    """Lock-step would be slower than the loop: a step on one number costs as much as one on an array."""
    monkeypatch.setattr(explain, "_WORTH", 0.0)

    def filled(a):
        cost = np.zeros(len(a) + 1)
        for i in range(len(a)):
            cost[i + 1] = min(a[i] + cost[i], 3 * cost[i])
        return cost[-1]

    xs = [normal(n) for n in range(9, 40)]
    with ab.options(way=way, blocks=False):
        report = ab.explain(filled, *([xs] if way == "loop" else [ab.collate(xs)]))
    assert not re.search("give a batch|for all steps at once", str(report))
    if way == "lockstep":
        assert 'try ab.options(way="compiled")' in report.shares[0].remedy


def test_overhead_of_the_loop_is_what_its_lines_leave_of_an_unwatched_call():
    """Watching slows the library's own Python code, not the user's lines."""
    profile = LineProfile()
    profile.lines[(__file__, 1)].seconds, profile.lines[LIBRARY].seconds = 7e-3, 9e-3
    profile.seconds = 16e-3
    watched = explain.WatchedCalls([], [], profile)
    watched.times = [20e-3, 8e-3, 9e-3]
    report = watched.report(lambda x: x)
    assert report.library == pytest.approx(1e-3)
    assert report.seconds == pytest.approx(8e-3)


def test_each_mode_is_listed_once():
    """Also one that was stopped before it had run to an end."""
    costs = {
        "loop": types.SimpleNamespace(seconds=1e-3, runs=1, refused=""),
        "fly": types.SimpleNamespace(seconds=None, runs=0, refused=""),
        "compiled": types.SimpleNamespace(seconds=2e-3, runs=0, refused=""),
        "lockstep": types.SimpleNamespace(seconds=None, runs=0, refused="a generator"),
    }
    ran = explain.Ran("loop", "", recurrent, explain.Stats(), costs)
    watched = explain.WatchedCalls([ran], [], LineProfile())
    assert [mode for mode, _ in watched.report().modes()] == ["the loop", "compiled", "lock-step", "tracing"]


@pytest.mark.parametrize("way", ["loop", "fly", "lockstep"])
def test_the_backward_pass_is_timed_and_not_watched(way, monkeypatch):
    tape = line_profile.Tape
    tracers, method = [], tape.backward

    def backward(*args, **kwargs):
        tracers.append(sys.gettrace())
        return method(*args, **kwargs)

    monkeypatch.setattr(tape, "backward", backward)
    with ab.options(way=way):
        report = ab.explain(ab.value_and_grad(step_mapped), W)
    assert tracers[-1] is None
    assert report.backward > 0
    assert tape.backward is backward


@pytest.mark.parametrize("columns", [60, 80, 132])
def test_a_report_is_as_wide_as_the_terminal(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    with ab.options(way="fly"):
        text = str(ab.explain(looked_up, SEQUENCES, w=W)).splitlines()
    assert max(map(len, text)) <= columns
    assert any(len(line) > 0.8 * min(columns, 100) for line in text)


def counted(n):
    total = 0.0
    for k in range(10):
        total += np.sin(n * k)
    return total


@pytest.mark.chosen
@pytest.mark.parametrize(
    ("cheap", "says"), [(1.0, "would cost more than it saves"), (0.0, 'try ab.options(way="compiled")')]
)
def test_advice_follows_what_an_example_costs(cheap, says, monkeypatch):
    """Of a cheap one nothing is gained; steps on single numbers are compiled, not collated."""
    monkeypatch.setattr(explain, "_CHEAP", cheap)  # seconds
    report = ab.explain(counted, [float(n) for n in range(20)])
    text = " ".join(str(report).split())
    assert report.way == "the loop"
    assert says in text
    assert "collate" not in text


@pytest.mark.chosen
def test_what_cannot_be_compiled_is_not_advised_to_be(monkeypatch):
    monkeypatch.setattr(explain, "_CHEAP", 1e-9)

    def sums(x):
        return [float(total) for total in (row.sum() for row in x)]

    report = ab.explain(sums, [np.ones((3, 2)) for _ in range(20)])
    assert "a generator" in report.refusals["compiled"]
    assert "way=" not in str(report)
    assert "make a list of it" in str(report)


@pytest.mark.chosen
def test_what_prints_is_advised_to_print_later():
    def shown(x):
        if x.sum() < 0:
            print(x)
        return x.sum()

    report = ab.explain(shown, [np.ones(3)] * 20)
    assert set(report.refusals.values()) == {report.why}
    assert report.untried == ()
    text = " ".join(str(report).split())
    assert "→ print after the call, and draw or read before it" in text
    assert "collate" not in text
    assert "way=" not in text


def test_a_lambda_within_a_longer_statement_has_its_time():
    step = (
        ab.value_and_grad(
            lambda w: sum(recurrent(x, w) for x in SEQUENCES),
        ),
        1,
    )[0]
    report = ab.explain(step, W)
    (line,) = (line for line in report.lines if line.function == "<lambda>")
    assert line.times > 0
    assert 0.99 < sum(each.share for each in [*report.lines, *report.overheads]) <= 1 + 1e-9


def test_only_statements_are_read_for_a_report():
    """Most of a file's syntax is expressions; a lambda is looked for in the statement at its line."""
    lines = [f"x{at} = [a.b(c, d[e + {at}]) for a in f(g, {at})]\n" for at in range(40)]
    text = ["def outer(xs):\n", *(f"    {line}" for line in lines), "    return map(\n", "        lambda x: (\n"]
    source = source_lines.Source("<a page>", [*text, "            x + 1\n", "        ), xs\n", "    )\n"])
    section = source.section(43, "<lambda>")
    assert (section.first, section.last) == (43, 45)
    assert source.start(44) == 42
    assert source.section(1, "outer").last == 46
    assert len(source._parents) < 3 * len(lines)
