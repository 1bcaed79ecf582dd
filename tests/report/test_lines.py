"""`Report.lines`: what became of each line of the user's, why, and what to write instead."""

import ast
import inspect

import numpy as np
import pytest

import autobatch as ab
from autobatch.report import explain, source_lines
from autobatch.report.advice import Facts, advice
from autobatch.report.line_profile import Figures
from autobatch.report.source_lines import Source
from tests.law import normal, ragged, vectors
from tests.report import tagger

FIRST_SCREEN = 24  # lines of a terminal


def hows(report, function):
    """{line of the function, from 0: what became of it}, of the lines that say it."""
    first = inspect.getsourcelines(function)[1]
    return {line.line - first: line.how for line in report.lines if line.function == function.__name__ and line.how}


def recurrent(x, w, u):
    h = np.zeros(4, np.float32)
    for row in x:
        a = row @ w + h @ u
        h = np.tanh(a)
    if h.sum() > 0:
        h = h * 2.0
    return h


GIVEN = {"w": normal(4, 4), "u": normal(4, 4)}


def matrices(*lengths):
    return [normal(n, 4) for n in lengths]


def test_lines_in_lock_step():
    report = ab.explain(recurrent, ab.MaskedBatch.from_examples(matrices(3, 1, 2)), **GIVEN)
    report = ab.explain(recurrent, ab.MaskedBatch.from_examples(matrices(3, 1, 2)), **GIVEN)
    found = hows(report, recurrent)
    assert found[1] == found[2] == "all examples"
    assert found[3] == "block"
    assert found[7] == "all examples"
    assert report.launches > 0
    assert report.nbytes > 0


def test_lines_on_the_fly():
    report = ab.explain(recurrent, matrices(3, 1, 2), **GIVEN)
    found = hows(report, recurrent)
    assert found[1] == found[2] == "Python"
    assert found[3] == found[4] == "block"
    test = next(line for line in report.lines if line.text.strip() == "if h.sum() > 0:")
    assert "waits for a value" in test.reason
    assert "give a batch" in test.remedy
    assert sum(line.calls for line in report.lines) == report.calls
    assert [line.text for line in report.lines] == inspect.getsource(recurrent).splitlines()


def test_lines_of_the_loop():
    with ab.options(way="loop"):
        report = ab.explain(recurrent, matrices(3, 1, 2), **GIVEN)
    found = {line.text.strip(): line for line in report.lines}
    assert {line.how for line in report.lines if line.seconds} == {"loop"}
    assert found["h = np.tanh(a)"].times == 6
    assert found["return h"].times == 3
    assert (report.launches, report.nbytes) == (0, 0)


def vectorized(x):
    y = x * 2.0
    return np.vectorize(float)(y).sum()


def test_a_line_that_runs_lane_by_lane_says_why_and_what_to_write():
    report = ab.explain(vectorized, ab.MaskedBatch.from_examples(ragged(2, 3, 1)))
    line = next(line for line in report.lines if "np.vectorize" in line.text)
    assert line.how == "one by one"
    assert "vectorize" in line.reason
    assert line.remedy == "write it with NumPy functions on whole arrays, np.where for a choice"
    assert line.remedy in " ".join(str(report).split())


def handles(x):
    try:
        return x[2] * 2.0
    except IndexError:
        return x.sum()


def test_what_has_no_form_is_said_at_its_line():
    report = ab.explain(handles, ab.MaskedBatch.from_examples(ragged(3, 4)))
    line = next(line for line in report.lines if line.reason)
    assert line.text.strip() == "try:"
    assert "an exception that is handled" in line.reason
    assert "test for it before" in line.remedy


def test_helpers_and_methods_are_shown_below_what_was_called():
    class Model:
        def __init__(self, w):
            self.w = w

        def __call__(self, x):
            return self.layer(x).sum()

        def layer(self, x):
            return np.tanh(x @ self.w)

    report = ab.explain(Model(normal(4, 4)), vectors(3, 4))
    assert list(dict.fromkeys(line.function for line in report.lines)) == ["__call__", "layer"]
    assert report.lines[0].text == "def __call__(self, x):"


def test_a_map_that_records_nothing_says_why():
    w = normal(3, 3)

    def counted(tree):
        return tree if isinstance(tree, int) else counted(tree[0]) + counted(tree[1])

    def looked_up(tree):
        return np.tanh(w[tree] @ w) if isinstance(tree, int) else looked_up(tree[0]) + looked_up(tree[1])

    trees = [(0, 1), ((1, 2), 0), 2]
    assert "nothing was recorded" in str(ab.explain(counted, trees))
    assert "nothing was recorded" not in str(ab.explain(looked_up, trees))


def test_layers_of_the_library_are_not_lines_of_the_user():
    layer = ab.nn.Linear(4, 2, seed=0)

    def model(x):
        y = layer(x)
        return y.sum()

    report = ab.explain(model, ab.MaskedBatch.from_examples(vectors(3, 4)))
    assert {line.file for line in report.lines} == {__file__}
    assert next(line for line in report.lines if "layer(x)" in line.text).seconds > 0


@pytest.mark.parametrize("way", ["fly", "lockstep", "loop"])
def test_the_most_expensive_line_and_a_remedy_are_on_the_first_screen(way):
    words, characters, tags = tagger.sentences()
    given: tuple = (words, characters, tags)
    if way == "lockstep":
        given = tuple(ab.collate(each) for each in given)
    with ab.options(way=way):
        for _ in range(2):  # the first one loads code
            report = ab.explain(tagger.loss, *given, p=tagger.parameters())
    text = str(report).splitlines()
    assert report.way == {"fly": "tracing", "lockstep": "lock-step", "loop": "the loop"}[way]
    slowest = report.slowest[0]
    top = "\n".join(text[:FIRST_SCREEN])
    assert f"tagger.py:{slowest.line}" in top
    if way != "loop":
        remedies = [" ".join(line.remedy.split()[:4]) for line in report.slowest if line.remedy]
        assert any(remedy in top for remedy in remedies)  # which line is the most expensive one depends on the machine
    assert max(map(len, text)) <= 80
    assert sum(line.share for line in report.lines) <= 1.0 + 1e-9
    shown = {line.function for line in report.lines}
    assert shown == {"loss", "encode", "word_of_characters", "attend", "score_of", "log_z"}


STEPS = """
def f(xs, w):
    h, worst = 0, 0
    for x in xs:
        y = x @ w
        if y > worst:
            worst = y
        h = h + y
    return h
"""


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        (5, "compute what does not depend on the previous step for all steps at once, before the loop"),
        (6, "choose with np.where, np.maximum or the like: examples of different branches run separately"),
        (9, ""),
    ],
)
def test_a_dear_line_of_lock_step_has_its_remedy(line, remedy):
    source, many = Source("f.py", STEPS.splitlines()), Figures(runs=50, launches=50, calls=50 * 500)
    assert advice(source, line, many, Facts("lock-step", 500, {}, True))[1] == remedy
    assert advice(source, line, many, Facts("lock-step", 500, {}, True), expensive=False) == ("", "")
    few = advice(source, line, Figures(runs=2, launches=2, calls=20), Facts("lock-step", 10, {}, True))
    assert few[1] == "give more examples to one call"


def test_who_gives_a_batch_is_not_told_to_give_one(monkeypatch):
    monkeypatch.setattr(explain, "_WORTH", 0.0)  # whatever share of the time the lines take on a busy machine

    def model(x, w):
        h, spent = np.zeros(4), 0.0
        for row in x:
            if row[0] > 0:
                spent += row[0]
            h = np.tanh(row @ w + h)
        return np.full(3, spent) @ np.ones(3) + h.sum()

    examples, w = [np.asarray(x, np.float64) for x in matrices(30, 20, 9)], normal(4, 4)
    with ab.options(way="fly"):
        told = [ab.explain(model, examples, w=w), ab.explain(model, ab.MaskedBatch.from_examples(examples), w)]
    assert any("give a batch" in line.remedy for line in told[0].lines)
    assert not any("give a batch" in line.remedy for line in told[1].lines)


def test_the_time_of_all_lines_and_the_rest_is_the_time_of_the_call():
    report = ab.explain(recurrent, matrices(3, 1, 2), **GIVEN)
    seconds = sum(line.seconds for line in report.lines) + report.preparing + report.library
    assert seconds == pytest.approx(report.seconds, rel=1e-6)


def test_of_a_long_file_the_functions_that_ran_are_read(monkeypatch):
    """The others would take longer than the call itself; a text that looks like code is no function."""
    texts = []
    monkeypatch.setattr(source_lines, "parse", lambda text: (texts.append(text), ast.parse(text))[1])
    written = Source("f.py", ["import os", *STEPS.strip().splitlines(), "def other():", "    return 1"])
    first = written.section(2, "f")
    assert (first.first, first.last) == (2, 1 + len(STEPS.strip().splitlines()))
    assert [type(written.statement(line)) for line in (2, 4)] == [ast.FunctionDef, ast.For]
    assert len(texts) == 1
    assert "other" not in texts[0]
    assert written.start(first.last + 2) == first.last + 2
    assert len(texts) == 2

    assert Source("f.py", ["@batch", "def f(x):", "    return x"]).section(1, "f").last == 3
    lines = ["def f(x):", '    text = """', "def g(y):", '    pass"""', "    return text", "def g(x): return x"]
    written = Source("f.py", lines)
    assert written.start(4) == 2
    assert written.section(1, "f").last == 5
    assert (written.section(6, "g").last, written.section(3, "g").last) == (6, 3)
