"""`ab.explain`: the report is what happened."""

import inspect
import itertools
import sys

import numpy as np
import pytest

import autobatch as ab
from autobatch.api import measured_costs
from autobatch.report import explain
from autobatch.report.report import Launch, Report
from tests.inspect import forget_costs
from tests.law import normal, vectors


def branches(x, w):
    y = x @ w
    if y.sum() > 0:
        return np.tanh(y)
    return np.linalg.eigvals(y * w)


def test_the_report_counts():
    xs, w = vectors(20, 4), normal(4, 4)
    positive = sum((x @ w).sum() > 0 for x in xs)
    report = ab.explain(branches, xs, w=w)
    rows = {row.op: row for row in report.rows}
    assert (rows["matmul"].calls, rows["matmul"].launches, rows["matmul"].mean_group) == (20, 1, 20.0)
    assert (rows["tanh"].calls, rows["tanh"].launches) == (positive, 1)
    assert rows["matmul"].signature == "float32[4], float32[4, 4]s"
    assert report.calls == sum(row.calls for row in report.rows)
    first_line = inspect.getsourcelines(branches)[1]
    assert [(forced.line, forced.times) for forced in report.forced] == [
        (first_line + 2, 20),
        (first_line + 4, 20 - positive),
    ]
    assert list(report.fallbacks.values()) == [20 - positive]


def test_the_report_prints_as_an_aligned_table():
    text = str(ab.explain(branches, vectors(20, 4), w=normal(4, 4)))
    lines = text.splitlines()
    assert lines[0].startswith("20 examples: tracing; ")
    head = next(at for at, line in enumerate(lines) if line.startswith("op "))
    assert lines[head].split() == ["op", "signature", "calls", "launches", "group", "ms"]
    table = lines[head : lines.index("", head)]
    assert len({line.rindex(" ") for line in table if line.endswith(("0", "1"))}) <= 2
    assert any(line.startswith("matmul") and " 20.0 " in line for line in lines)
    assert "not batched:" in lines
    assert "test_explain.py:" in text


def test_an_index_is_shown_as_it_is_written():
    def f(x, w, table):
        return np.einsum("i,ij->j", x, w) + x[1:, None].sum() + table[np.array([0, 2])].max() + (x * x)[-1]

    with ab.options(blocks=False):
        report = ab.explain(f, vectors(3, 4), w=normal(4, 4), table=normal(5, 4))
    signatures = {row.op: row.signature for row in report.rows}
    assert signatures["einsum"] == "float32[4], float32[4, 4]s, spec='i,ij->j'"
    assert {row.signature for row in report.rows if row.op == "getitem"} == {
        "float32[4], [1:, None]",
        "float32[4], int64[], [int]",
        "float32[5, 4]s, int64[2], [array, :]",
    }


def test_sizes_of_examples_are_one_row_with_their_range():
    def f(x, w):
        return (x @ w).sum(0) @ w.T @ w

    with ab.options(blocks=False):
        report = ab.explain(f, [np.ones((n, 4), np.float32) for n in (3, 1, 3, 8)], w=normal(4, 5))
    assert len([row for row in report.rows if row.signature.endswith("float32[4, 5]s")]) == 2
    shown = [line.split()[-4:-1] for line in str(report).splitlines() if "float32[1..8, 4], float32[4, 5]s" in line]
    assert shown == [["4", "1", "4.0"]]
    assert str(report).count("float32[4, 5]s") == 2


def test_a_long_table_is_cut_and_says_so():
    rows = tuple(Launch(f"op{n}", "float32[4]", calls=2, launches=1, seconds=0.001) for n in range(33))
    shown = str(Report(examples=2, rounds=1, rows=rows, forced=(), fallbacks={})).splitlines()
    assert len(shown) == 3 + 30 + 1
    assert max(map(len, shown)) <= 80
    assert shown[-1] == "and 3 more, 3.00 ms"


def test_nothing_to_report():
    report = ab.explain(lambda x: x, [])
    assert (report.examples, report.launches, report.calls) == (0, 0, 0)
    assert "0 examples" in str(report)


class Counts:
    """A function of one example that counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        print(len(x))
        return x * 2.0


def test_the_call_is_made_once_with_its_effects(capsys):
    counts = Counts()
    with ab.options(way="loop"):
        ab.explain(counts, vectors(3, 4))
    assert counts.calls == 3
    assert capsys.readouterr().out == "4\n4\n4\n"


def refuses(x):
    if len(x) == 2:
        raise KeyError("no", 2) from ValueError("cause")
    return x.sum()


@pytest.mark.parametrize("way", ["loop", "lockstep", "fly", "compiled"])
@pytest.mark.parametrize("batched", [False, True])
def test_it_raises_what_the_call_raises(way, batched):
    xs = [np.ones(3), np.ones(2), np.ones(1)]
    given = ab.MaskedBatch.from_examples(xs) if batched else xs
    with ab.options(way=way, warn=False), pytest.raises(KeyError, match="no") as caught:
        ab.explain(refuses, given)
    assert caught.value.args == ("no", 2)
    assert caught.value.__notes__ == ["raised for example 1"]
    assert (type(caught.value.__cause__), caught.value.__cause__.args) == (ValueError, ("cause",))
    assert caught.value.__context__ is None
    assert sys.gettrace() is None or "line_profile" not in repr(sys.gettrace())


def test_the_tracer_before_is_back_afterwards():
    def tracer(frame, event, argument):
        return None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        ab.explain(lambda x: x + 1.0, vectors(2, 3))
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)


def total(x):
    s = 0.0
    for i in range(len(x)):
        s += x[i] * 2.0
    return s


@pytest.mark.chosen
@pytest.mark.parametrize("batched", [False, True])
def test_it_shows_the_way_that_calls_take_and_costs_are_as_before(batched, monkeypatch):
    """Nothing that was watched counts as a cost, and the loop that calls have settled on is what is shown."""
    forget_costs()
    xs = [np.arange(3.0)] * 2
    given = ab.MaskedBatch.from_examples(xs) if batched else xs
    monkeypatch.setattr(explain._Explained, "_warm_up", lambda *_: ([], [], None))  # calls as others, which count
    assert ab.explain(total, given).costs == {}
    for _ in range(3):
        ab.batch(total)(given) if batched else ab.map(total, xs)
    (kind,) = measured_costs.functions[id(total.__code__)].kinds.values()
    before = {way: (list(cost.recent), cost.runs) for way, cost in kind.costs.items()}, kind.calls, kind.work
    report = ab.explain(total, given)
    assert repr(report).startswith("<Report of total: 2 examples: the loop; ")
    assert (report.way, kind.last) == ("the loop", "loop")
    assert list(report.costs) == ["the loop"]
    assert before == ({way: (list(cost.recent), cost.runs) for way, cost in kind.costs.items()}, kind.calls, kind.work)


@pytest.mark.parametrize("batched", [True, False])
def test_the_stages_are_the_life_of_the_function(batched):
    w, xs = normal(4, 4), [normal(n, 4) for n in (3, 1, 4, 2, 5, 2)]

    def best_state(x, w):
        h = np.zeros(4)
        for row in x:
            h = np.tanh(row @ w + h)
            if h.sum() > 0:
                h = h * 0.5
        return h

    args, shared = ((ab.collate(xs), w), {}) if batched else ((xs,), {"w": w})
    report = ab.explain(best_state, *args, **shared, stages=True)
    stages = report.stages
    assert list(stages) == ["normal form", "blocks", "lock-step", "tracing", "recorder", "compiled"]
    assert "if h.sum() > 0:                                 # h, w" in stages["normal form"]
    assert "block            h = np.tanh(row @ w + h)" in stages["blocks"]
    assert "_ab_if(" in stages["lock-step"]
    assert "_ab_record" in stages["tracing"]
    assert "def _ab_f0_best_state(x):" in stages["recorder"]
    assert "def kernel(" in stages["compiled"]
    assert str(report).endswith(stages["compiled"].rstrip())
    assert ab.explain(best_state, *args, **shared).stages == {}


def test_a_stage_that_there_is_none_of_says_why():
    def prints(x):
        print(x.sum())
        return x * 2.0

    stages = ab.explain(prints, vectors(3, 4), stages=True).stages
    assert "print(x.sum())" in stages["normal form"]
    assert stages["recorder"] == "none: no example was recorded"
    assert stages["compiled"].startswith("none: ")
    assert "print" in stages["compiled"]


def test_the_stages_of_a_gradient_are_those_of_what_is_differentiated():
    def loss(w, xs):
        return sum(ab.map(lambda x, w: np.tanh(x @ w).sum(), xs, w=w))

    stages = ab.explain(ab.grad(loss), normal(4, 3), vectors(3, 4), stages=True).stages
    assert stages["normal form"].startswith("def loss(w, xs):")


def test_what_calls_for_the_stages_change_is_undone():
    def counts(x, seen):
        seen.append(len(seen))
        return x * len(seen)

    seen = []
    ab.explain(counts, vectors(3, 4), seen=seen, stages=True)
    without = []
    ab.explain(counts, vectors(3, 4), seen=without)
    assert seen == without


def test_spans_follow_each_other_and_say_who_ran():
    def f(x):
        total = 0.0
        for v in x:
            if v > 0:
                total = total + np.tanh(v * x).sum()
        return total

    for way in ("lockstep", "fly", "loop"):
        with ab.options(way=way):
            spans = ab.explain(f, vectors(5, 4)).spans
        assert {span.kind for span in spans} == {"library", "python"} | ({"launch"} if way != "loop" else set())
        assert all((span.kind == "python") <= (span.place[0] == __file__) for span in spans)
        assert all(a.start + a.seconds <= b.start + 1e-7 for a, b in itertools.pairwise(spans))


def test_a_gradient_is_explained_by_the_calls_in_it():
    def loss(w, xs):
        return sum(ab.map(lambda x, w: np.tanh(x @ w).sum(), xs, w=w))

    report = ab.explain(ab.value_and_grad(loss), normal(4, 3), vectors(5, 4))
    assert report.way == "tracing"
    assert any(span.name == "backward" for span in report.spans)
    assert 0 < report.backward < report.seconds
    assert str(report).startswith("1 call by tracing; ")
    assert any("np.tanh(x @ w)" in line.text and line.how == "block" for line in report.lines)
