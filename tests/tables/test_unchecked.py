"""Nothing reaches a kernel unchecked, and nothing is written outside of an output; threads and processes."""

import concurrent.futures
import multiprocessing

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import autobatch as ab

RANDOM = np.random.default_rng(15)
INTEGERS = ["i1", "u1", "i2", "i4", "u4", "i8", "u8"]


def numbers(limit):
    usual = st.integers(0, limit)
    return st.one_of(
        usual, usual, usual, st.integers(-3, limit + 3), st.sampled_from([-(2**31), 2**31, 2**63 - 1, -(2**63)])
    )


@st.composite
def arrays(draw, limit, most):
    values = draw(st.lists(numbers(limit), max_size=most))
    dtype = np.dtype(draw(st.sampled_from(INTEGERS)))
    kept = [x for x in values if np.iinfo(dtype).min <= x <= np.iinfo(dtype).max]
    return np.array(kept, dtype)


def meant(ids, rows):
    return all(0 <= int(x) < rows for x in ids)


@settings(max_examples=150, deadline=None)
@given(arrays(5, 9), arrays(9, 5), st.booleans(), st.sampled_from(["sum", "max"]))
@example(np.array([], np.int32), np.array([1], np.int32), True, "sum")
def test_s1_09_s1_12_any_ids_and_offsets(ids, offsets, closed, mode):
    """Either the result of the loop, or an error; and the error exactly where ids or offsets are wrong."""
    table = RANDOM.standard_normal((5, 3)).astype(np.float32)
    starts = [int(x) for x in offsets]
    good = meant(ids, 5) and starts == sorted(starts) and all(0 <= x <= len(ids) for x in starts)
    good = good and (not starts or starts[0] == 0)
    if closed:
        good = good and bool(starts) and starts[-1] == len(ids)
    elif not starts:
        good = good and not len(ids)
    bounds = starts if closed else [*starts, len(ids)]
    try:
        found = ab.embedding_bag(ids, table, offsets, mode=mode, include_last_offset=closed)
    except IndexError:
        assert not good
        return
    assert good
    for row, a, b in zip(found, bounds[:-1], bounds[1:], strict=True):
        expected = getattr(table[ids[a:b].astype(int)], mode)(0) if b > a else np.zeros(3)
        np.testing.assert_allclose(row, expected, rtol=1e-5, atol=1e-6)


@settings(max_examples=80, deadline=None)
@given(arrays(5, 8), st.sampled_from([0, 1, 3, 33]), st.booleans())
def test_out_is_all_that_is_written(ids, dim, summed):
    table = RANDOM.standard_normal((5, dim)).astype(np.float32)
    whole = np.full((len(ids) + 2, dim + 2), 77, np.float32)
    out = whole[1:-1, 1:-1]
    given_ids = np.stack([ids, ids], axis=1) if summed else ids
    try:
        ab.lookup(table, given_ids, out=out)
    except IndexError:
        assert not meant(ids, 5)
        assert (whole == 77).all()
        return
    np.testing.assert_array_equal(out, table[ids.astype(int)] * (1 + summed))
    out[...] = 77
    assert (whole == 77).all()


def large():
    table = np.random.default_rng(1).standard_normal((5000, 60), np.float32)  # wherever it starts, the kernels are one
    lengths = np.random.default_rng(2).integers(0, 60, 4000)
    ids = np.random.default_rng(3).integers(0, 5000, lengths.sum())
    return ids, table, np.cumsum([0, *lengths])


def results():
    ids, table, offsets = large()
    bags = [ab.embedding_bag(ids, table, offsets, mode=mode, include_last_offset=True) for mode in ("mean", "max")]
    return [x.tobytes() for x in (*bags, ab.lookup(table, ids))]


def test_s1_08_equal_to_the_bit_at_any_number_of_threads():
    with ab.options(threads=1):
        expected = results()
    for threads in (2, 3, 7):
        with ab.options(threads=threads):
            assert results() == expected
    assert results() == expected


def test_many_python_threads_at_once():
    expected = results()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert all(found.result() == expected for found in [pool.submit(results) for _ in range(8)])


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_processes(method):
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        assert pool.submit(results).result(timeout=120) == results()


def test_an_error_in_a_thread_is_raised_when_all_have_ended():
    table = [np.ones((4, 2)), np.ones(3), np.ones((4, 2))]
    with pytest.raises(ValueError, match="table 1 has shape"), ab.options(threads=3):
        ab.maplookup(table, [[0], [0], [0]], ab.strategies.SimpleParallel())
