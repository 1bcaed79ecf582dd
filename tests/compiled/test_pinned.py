"""`way="compiled"`: what can be compiled is, and the rest runs as the call names it."""

import numpy as np
import pytest

import autobatch as ab
from tests import law

RAGGED = [np.arange(3.0), np.arange(1.0), np.zeros(0), np.array([1.0, 4.0, 2.0, 9.0])]


def longest_step(x):
    best = 0.0
    for i in range(1, len(x)):
        step = x[i] - x[i - 1]
        if step > best:
            best = step
    return best


def of_text(x):
    return {"sum": x.sum(), "text": f"{x.dtype}"}


def divides(x):
    return 1.0 / len(x)


@pytest.mark.parametrize("function", [longest_step, of_text])
def test_maps_and_batches(function):
    with ab.options(way="compiled", warn=False):
        expected = [function(x) for x in RAGGED]
        batch = ab.MaskedBatch.from_examples(RAGGED)
        law.assert_same(ab.map(function, RAGGED), expected)
        law.assert_same(ab.examples(ab.batch(function)(batch)), expected)
        mapped, called = ab.explain(function, RAGGED), ab.explain(function, batch)
    if function is longest_step:
        assert mapped.way == called.way == "compiled"
        for report in (mapped, called):
            assert {line.how for line in report.lines if line.text.strip()} == {"compiled"}
            assert any(span.kind == "compiled" for span in report.spans)
        assert mapped.why == "way='compiled'"
    else:
        assert (mapped.way, called.way) == ("tracing", "lock-step")
        assert "test_pinned.py" in mapped.why


def doubled(v):
    return v * 2.0


def shifted(v):
    return v + 10.0


def of_helpers(x):
    return doubled(x.sum()) + other(x.sum())


other = doubled


def test_a_helper_whose_code_is_replaced_and_a_second_name_of_one_are_seen(monkeypatch, text_or_compiled):
    with ab.options(way="compiled", warn=False):
        for code in (doubled.__code__, shifted.__code__):
            monkeypatch.setattr(doubled, "__code__", code)
            law.assert_same(ab.map(of_helpers, RAGGED), [of_helpers(x) for x in RAGGED])
        monkeypatch.setitem(globals(), "other", np.sqrt)
        law.assert_same(ab.map(of_helpers, RAGGED), [of_helpers(x) for x in RAGGED])


def test_an_error_names_its_example():
    with ab.options(way="compiled"), pytest.raises(ZeroDivisionError, match="division by zero") as caught:
        ab.map(divides, RAGGED)
    assert "raised for example 2" in caught.value.__notes__


def test_the_proof_includes_it():
    report = ab.testing.assert_equivalent(longest_step, RAGGED)
    assert "compiled" in report.ways
    assert not report.not_compiled
    assert ab.testing.assert_equivalent(of_text, RAGGED).not_compiled


def of_lists(rows, scale):
    total = len(rows) * 1.0
    for row in rows:
        total += row.sum() * scale
    return total


def test_lists_of_arrays_are_packed_where_they_lie(monkeypatch):
    examples = [[np.arange(3.0), np.zeros(0)], [], [np.ones(2)], [np.array([2.0]), np.arange(4.0), np.ones(1)]]
    batch, expected = ab.collate(examples), [of_lists(rows, 0.5) for rows in examples]
    with ab.options(way="compiled", warn=False):
        law.assert_same(ab.examples(ab.batch(of_lists)(batch, 0.5)), expected)
        short = ab.examples(ab.batch(of_lists)(ab.collate([[np.zeros(0)], []]), 0.5))
        law.assert_same(short, [of_lists(rows, 0.5) for rows in ([np.zeros(0)], [])])
        monkeypatch.setattr(ab.PackedBatch, "examples", lambda self: pytest.fail("the examples are made one by one"))
        again = ab.batch(of_lists)(batch, 0.5)
    monkeypatch.undo()
    law.assert_same(ab.examples(again), expected)
