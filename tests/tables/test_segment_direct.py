"""A plain sum of segments takes a short way: the result of the long way to the bit, and nothing that is wrong."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autobatch as ab
from autobatch.tables import fast_paths as direct_calls
from autobatch.tables.fast_paths import direct_segments as direct
from tests import inspect, naive

RANDOM = np.random.default_rng(37)


def described(lengths):
    """The same segments in each form."""
    bounds = np.cumsum([0, *lengths])
    return {
        "offsets": bounds,
        "lengths": np.asarray(lengths, np.int64),
        "segment_ids": np.repeat(np.arange(len(lengths)), lengths),
    }


def long_way(mode, data, form, value, count):
    """The same call with an argument that changes nothing but the way."""
    return getattr(ab, f"segment_{mode}")(data, **{form: value}, num_segments=count, empty=0)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_s3_12_to_s3_19_any_width_and_lengths(data):
    width = data.draw(st.sampled_from([0, 1, 2]))
    lengths = data.draw(st.lists(st.one_of(st.integers(0, 5), st.just(70)), min_size=1, max_size=6))
    mode = data.draw(st.sampled_from(["sum", "mean", "sqrtn"]))
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    form = data.draw(st.sampled_from(["offsets", "lengths", "segment_ids"]))
    count = data.draw(st.sampled_from([None, len(lengths)]))
    rows = RANDOM.standard_normal((sum(lengths), width)).astype(dtype)
    rows = rows[:, 0] if width == 1 and data.draw(st.booleans()) else rows
    value = described(lengths)[form]
    out = getattr(ab, f"segment_{mode}")(rows, **{form: value}, num_segments=count)
    np.testing.assert_array_equal(out, long_way(mode, rows, form, value, count))
    wide, segments = rows.astype(np.float64).reshape(len(rows), width), described(lengths)["segment_ids"]
    expected = naive.segments(wide, segments, len(out), "sum")
    over = {"sum": np.ones_like, "mean": np.asarray, "sqrtn": np.sqrt}[mode](np.maximum(lengths, 1.0)[: len(out)])
    expected /= over[:, None]
    np.testing.assert_allclose(out, expected.reshape(out.shape), rtol=1e-4, atol=1e-5)
    assert out.dtype == dtype
    short = direct(mode, rows, form, value, count)
    general = (form == "segment_ids" and not sum(lengths)) or width == 0 or (mode != "sum" and width == 1)
    assert (short is None) == general


WRONG = [
    ("offsets", [1, 3], "expected 0, where the first"),
    ("offsets", [0, 2, 1, 3], "below offsets"),
    ("offsets", [0, 5, 3], "above the number of values"),
    ("offsets", [0, 2], "the last of the offsets"),
    ("offsets", [], "empty"),
    ("lengths", [1, 1], "add up to 2"),
    ("lengths", [4, -1], "a length is at least 0"),
    ("lengths", [2**62, 2**62, 2**62, 2**62, 3], "add up to"),
    ("segment_ids", [0, 1], "expected one for each row"),
    ("segment_ids", [-1, 0, 1], "negative"),
    ("segment_ids", [0, 1, -5], "negative"),
]


@pytest.mark.parametrize(("form", "value", "match"), WRONG)
def test_what_is_wrong_goes_the_long_way_and_raises(form, value, match):
    rows, value = np.ones((3, 2)), np.array(value, np.int64)
    assert direct("sum", rows, form, value, None) is None
    with pytest.raises((ValueError, IndexError), match=match):
        ab.segment_sum(rows, **{form: value})


def test_segments_of_which_there_are_too_many_for_the_short_way():
    with inspect.replaced(direct_calls, _MOST=2):
        assert direct("sum", np.ones((3, 2)), "segment_ids", np.array([0, 1, 1]), None) is not None
        assert direct("sum", np.ones((3, 2)), "segment_ids", np.array([0, 1, 2]), None) is None


def test_what_is_read_and_written_is_left_alone_around_it():
    """S1.12: sentinels around the rows and the bounds; values beyond them would show in the sums."""
    whole = np.full(40, np.nan)
    rows = whole[7:31].reshape(12, 2)
    rows[:] = 1
    bounds = np.full(6, 99)
    bounds[1:5] = [0, 5, 5, 12]
    assert ab.segment_sum(rows, offsets=bounds[1:5])[:, 0].tolist() == [5, 0, 7]


@pytest.mark.parametrize("width", [4, 300])
def test_threads_change_nothing(width):
    """Rows enough for two threads, which go the long way, against one thread, which goes the short one."""
    lengths = np.array([0, 70, 1, 5, 0, 9000] * 200)[: 24_000_000 // (4 * width) // 1_500]
    rows = RANDOM.random((lengths.sum(), width), np.float32)
    assert rows.nbytes > 1 << 24
    found = []
    for threads in (1, 2):
        with ab.options(threads=threads):
            assert (direct("mean", rows, "lengths", lengths, None) is None) == (threads == 2)
            found.append(ab.segment_mean(rows, lengths=lengths))
    np.testing.assert_array_equal(*found)
