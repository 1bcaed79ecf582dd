"""`ab.explain`: the report is what happened."""

import inspect

import numpy as np

import autobatch as ab
from autobatch.report.explain import Launch, Report
from tests.law import normal, vectors


def branches(x, w):
    y = x @ w
    if y.sum() > 0:
        return np.tanh(y)
    return np.linalg.cond(np.outer(y, y) + w, 1)


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
    assert lines[0].startswith("20 examples: ")
    assert lines[2].split() == ["op", "signature", "calls", "launches", "mean", "group", "ms"]
    table = lines[2 : lines.index("", 3)]
    assert len({line.rindex(" ") for line in table if line.endswith(("0", "1"))}) <= 2
    assert any(line.startswith("matmul") and " 20.0 " in line for line in lines)
    assert "not batched:" in lines
    assert f"{__file__}:" in text


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
    assert shown[-1] == "and 3 more, 3.00 ms"


def test_nothing_to_report():
    report = ab.explain(lambda x: x, [])
    assert (report.examples, report.launches, report.calls) == (0, 0, 0)
    assert "0 examples" in str(report)
