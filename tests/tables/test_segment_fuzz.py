"""Arbitrary descriptions of segments, good and bad: an error of the library's own or the right result, and no write
outside of the output.

A soak run: `python -m tests.tables.test_segment_fuzz --seed 5000 --count 2000`.
"""

import sys

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import autobatch as ab
from autobatch.errors import BadIdError, DTypeError, ShapeError
from tests import naive
from tests.fuzz import by_strategy, main

pytestmark = pytest.mark.fuzz

SENTINEL = 12345.0
INTEGERS = [np.int8, np.uint8, np.int16, np.uint32, np.int32, np.int64, np.uint64]
MODES = ["sum", "mean", "max", "prod", "logsumexp", "softmax", "cumsum", "sort", "argmax", "last", "var"]


@st.composite
def numbers(draw, low=-2, high=9, most=8):
    """A list of integers, mostly small, in some dtype; sometimes far outside, or no integers at all."""
    values = draw(st.lists(st.integers(low, high), max_size=most))
    if values and draw(st.integers(0, 9)) == 0:
        values[draw(st.integers(0, len(values) - 1))] = draw(st.sampled_from([-(2**62), 2**31, 2**62, 2**40]))
    dtype = draw(st.sampled_from([None, None, np.float64, *INTEGERS]))
    if dtype is None:
        return values
    with np.errstate(all="ignore"):
        out = np.array(values, np.int64).astype(dtype)
    return out if draw(st.integers(0, 9)) else out[:, None]


def within(x, n, count):
    """Whether integers are all in [0, count) and n of them, one-dimensional."""
    x = np.asarray(x)
    good = x.ndim == 1 and len(x) == n and (x.dtype.kind in "iu" or not x.size)
    return good and all(0 <= int(value) < count for value in x)


def check_segments(data):
    mode, n, count = data.draw(st.sampled_from(MODES)), data.draw(st.integers(0, 8)), data.draw(st.integers(0, 6))
    whole = np.full((n + 4, 2), SENTINEL)
    rows = whole[2 : n + 2]
    rows[:] = np.arange(2 * n).reshape(n, 2) % 3
    form = data.draw(st.sampled_from(["segment_ids", "lengths", "offsets"]))
    described = data.draw(numbers())
    ids = data.draw(st.none() | numbers())
    how = {form: described, "ids": ids}
    if form == "segment_ids":
        how["num_segments"] = count
    try:
        found = getattr(ab, f"segment_{mode}")(rows, **how)
    except (BadIdError, DTypeError, ShapeError):
        found = None
    assert (whole[:2] == SENTINEL).all()
    assert (whole[n + 2 :] == SENTINEL).all()
    taken = rows if ids is None else rows[np.asarray(ids, np.int64)] if within(ids, len(ids), n) else None
    if taken is None:
        assert found is None
        return
    total = len(taken)
    if form == "segment_ids":
        of = described if within(described, total, count) else None
    else:
        flat = np.asarray(described)
        if not within(flat, len(flat), 2**40) or (flat.dtype.kind == "f" and isinstance(described, np.ndarray)):
            of = None
        else:
            steps = flat.astype(np.int64) if form == "lengths" else np.diff(flat.astype(np.int64))
            starts = form == "lengths" or (len(flat) > 0 and flat[0] == 0)
            good = starts and (steps >= 0).all() and steps.sum() == total
            of, count = (np.repeat(np.arange(len(steps)), steps), len(steps)) if good else (None, 0)
    if isinstance(described, np.ndarray) and described.dtype.kind == "f":
        of = None
    if isinstance(ids, np.ndarray) and ids.dtype.kind == "f":
        of = None
    if of is None:
        assert found is None
    else:
        assert found is not None
        np.testing.assert_allclose(found, naive.segment(taken, of, count, mode), 1e-9, 1e-9)


@hypothesis.settings(max_examples=400, deadline=None)
@hypothesis.given(st.data())
def test_segments(data):
    check_segments(data)


def check_scatters_and_updates(data):
    n, ids = data.draw(st.integers(0, 6)), data.draw(numbers())
    whole = np.full((n + 4, 2), SENTINEL)
    target = whole[2 : n + 2]
    target[:] = 1.0
    rows = np.ones((data.draw(st.integers(0, 8)), 2))
    good = within(ids, len(rows), n) and not (isinstance(ids, np.ndarray) and ids.dtype.kind == "f")
    which = data.draw(st.sampled_from(["add", "assign", "update"]))
    try:
        if which == "update":
            table, opt = ab.EmbeddingTable(target), ab.optim.SGD(1.0)
            opt.update(table, ab.SparseRows(ids, -rows, n), {"step": 0})
        else:
            getattr(ab, f"scatter_{which}")(target, ids, rows, out=target)
        assert good
    except (BadIdError, DTypeError, ShapeError):
        assert not good
    assert (whole[:2] == SENTINEL).all()
    assert (whole[n + 2 :] == SENTINEL).all()
    expected = np.ones((n, 2))
    if good and which != "assign":
        expected += naive.scatter_add(rows, np.asarray(ids, np.int64), n)
    np.testing.assert_allclose(target, expected)


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(st.data())
def test_scatters_and_updates(data):
    check_scatters_and_updates(data)


def test_ids_past_every_table():
    for bad in (np.array([2**63], np.uint64), np.array([2**64 - 1], np.uint64)):
        with pytest.raises(BadIdError, match=f"ids hold {bad[0]}"):
            ab.SparseRows(bad, np.ones((1, 2)), 4)
        with pytest.raises(BadIdError, match="beyond any table"):
            ab.scatter_add(np.ones((2, 2)), bad, np.ones((1, 2)))


FUZZERS = {
    "segments": by_strategy(check_segments, st.data()),
    "scatters": by_strategy(check_scatters_and_updates, st.data()),
}

if __name__ == "__main__":
    sys.exit(main(FUZZERS))
