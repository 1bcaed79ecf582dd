"""Writes on the fly: what the caller, other names and other examples see of them, as after the plain loop."""

import copy

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import FallbackWarning
from tests.inspect import noted_fallbacks
from tests.law import assert_same, loop, normal, vectors


def same_effects(f, *columns, falls_back=False, **shared):
    """Results, and what has become of the arguments, are those of the loop."""
    mine, theirs = copy.deepcopy((columns, shared)), copy.deepcopy((columns, shared))
    with noted_fallbacks() as notes:
        found = ab.map(f, *mine[0], **mine[1])
    assert_same(found, loop(f, *theirs[0], **theirs[1]))
    assert_same(list(mine[0]), list(theirs[0]))
    assert_same(mine[1], theirs[1])
    assert bool(notes) == falls_back, notes


def test_the_caller_sees_writes_into_an_argument():
    def centre(x):
        x -= x.mean()
        x[0] = x.max()
        return x.sum()

    def through_views(x):
        half = x[1:]
        half *= 2
        half.reshape(-1)[0] = 7
        return x[::-1]

    def by_methods(x):
        x.sort()
        x[x > 1] = 0
        return x

    def two(x, y):
        x[:2], y[:2] = y[:2], x[:2]
        return x @ y

    for f in (centre, through_views, by_methods):
        same_effects(f, vectors(4, 4))
    same_effects(two, vectors(3, 4), vectors(3, 4, seed=1))
    same_effects(lambda tree: tree["x"].fill(3), [{"x": x} for x in vectors(3, 4)])


def test_a_write_that_another_example_sees():
    def count(x):
        x += 1
        return x.copy()

    x = normal(4)
    same_effects(count, [x, x, normal(4, seed=1)], falls_back=True)
    memory = normal(6)

    def windows():
        owned = memory.copy()
        return [owned[0:4], owned[2:6]]

    with noted_fallbacks() as notes:
        assert_same(ab.map(count, windows()), loop(count, windows()))
    assert notes


def test_a_write_into_what_is_shared_as_well():
    table = normal(3, 4)

    def run(mapped):
        own = table.copy()

        def f(x, own):
            x += 1
            return own.sum(0)

        return (ab.map if mapped else loop)(f, list(own), own=own)

    with noted_fallbacks() as notes:
        assert_same(run(True), run(False))
    assert notes


def test_neighbours_in_one_array_are_not_shared():
    rows = normal(3, 4)

    def f(x):
        x *= 2
        return x.sum()

    expected, found = rows.copy(), rows.copy()
    wanted = loop(f, list(expected))
    with noted_fallbacks() as notes:
        assert_same(ab.map(f, list(found)), wanted)
    assert not notes
    assert_same(found, expected)


def test_writes_of_examples_that_ran_before_the_one_that_failed():
    def f(x, k):
        x[0] = 5
        if k == 2:
            raise KeyError(k)
        return x

    mine, theirs = vectors(4, 4), vectors(4, 4)
    with pytest.raises(KeyError, match="2") as caught:
        ab.map(f, mine, range(4))
    with pytest.raises(KeyError, match="2"):
        loop(f, theirs, range(4))
    assert caught.value.__notes__ == ["raised for example 2"]
    assert_same(mine, theirs)


def test_a_copy_of_an_argument_is_not_the_argument():
    def f(x):
        other = copy.deepcopy({"x": x})
        other["x"] += 1
        return x, other, copy.copy(x)

    same_effects(f, vectors(3, 4))


def test_a_refused_write_that_the_example_handles():
    def whole(x, table):
        row = table[1]
        try:
            row -= x
        except Exception:
            return row
        return row * 2

    def part(x, table):
        view = table[1].reshape(-1)
        try:
            view[0] = 9
        except Exception:
            return x
        return view * x

    same_effects(whole, vectors(3, 4), table=normal(3, 4), falls_back=True)
    same_effects(part, vectors(3, 4), table=normal(3, 4), falls_back=True)


def test_writes_after_np_require():
    def after(x):
        y = x * 2
        plain = np.require(y)
        y[0] = 5
        return plain, y

    def before(x):
        y = x * 2
        plain = np.require(y)
        plain[0] = 5
        return y, y + 1

    same_effects(after, vectors(3, 4), falls_back=True)
    same_effects(before, vectors(3, 4), falls_back=True)


def test_writes_after_np_asarray():
    def f(x):
        y = x * 2
        plain = np.asarray(y)
        z = plain + 1
        plain[0] = 5
        y[1] = 4
        return y, plain, z, plain is y

    same_effects(f, vectors(3, 4))


def test_a_plain_array_as_out_comes_back_itself():
    def f(x):
        buffer = np.zeros(4, np.float32)
        y = np.add(x, 1, out=buffer)
        buffer[0] = 9
        y[1] = 3
        return y, buffer, y is buffer

    same_effects(f, vectors(3, 4))


def test_plain_arrays_of_a_map_inside_an_example():
    def f(x):
        values, scale, ids = np.ones(4, np.float32), np.ones((3, 4), np.float32), np.array([0, 1])
        products = ab.map(lambda v, scale: v * x + scale[ids].sum(0), [values, values], scale=scale)
        values[:], scale[:], ids[:] = 7, 7, 2
        return products

    def written(x):
        values = np.ones(4, np.float32)

        def fill(v):
            v[0] = 3
            return v.sum() * x[0]

        return ab.map(fill, [values]), values

    same_effects(f, vectors(3, 4))
    same_effects(written, vectors(3, 4))


def test_a_closure_on_a_tape_that_is_written_to_after_its_use():
    xs = vectors(3, 4, dtype=np.float64)

    def total(run):
        def of(p):
            def f(x):
                y = p * 2
                z = y + x
                y[0] = 5
                return (z * y).sum()

            return sum(run(f, xs))

        return of

    p = normal(4, seed=5, dtype=np.float64)
    assert_same(ab.value_and_grad(total(ab.map))(p), ab.value_and_grad(total(loop))(p))


def test_items_of_scalars():
    def f(x):
        total = x.sum()
        try:
            total[...] = 3
        except TypeError as error:
            return str(error)

    same_effects(f, vectors(3, 4))


def test_results_of_rank_zero():
    def f(x):
        first = x[..., 0]
        alone = x[0][...]
        alone[...] = 4
        return first, alone, x, np.median(x), np.percentile(x, 30), np.allclose(x, x), np.array_equal(x, x)

    same_effects(f, vectors(3, 4))


def test_views_that_are_read_only_follow_their_base():
    def followed(x):
        wide, diagonal = np.broadcast_to(x[0], (2, 3)), np.diagonal(x)
        x[0] = 5
        return wide + 0, diagonal * 2, np.diag(x) + 0

    def written(x, kind):
        part = np.broadcast_to(x, (2, 3, 3))[0] if kind else np.diagonal(x)
        try:
            part[0] = 7
        except ValueError as error:
            return str(error), x
        return x

    def added(x):
        part = np.diagonal(x)
        try:
            part += 1
        except ValueError as error:
            return str(error), x
        return x

    same_effects(followed, vectors(3, 3, 3))
    same_effects(added, vectors(3, 3, 3))
    same_effects(written, vectors(4, 3, 3), [0, 1, 0, 1])


@pytest.mark.parametrize(
    "view", [np.real_if_close, np.trim_zeros, lambda x: x.view(np.int32), lambda x: x.view(x.dtype)]
)
@pytest.mark.parametrize("to_view", [False, True])
def test_views_by_functions_that_have_no_op_are_not_written_apart(view, to_view):
    def f(x):
        y = x + 1
        part = view(y)
        (part if to_view else y)[0] = 5
        return y, part

    same_effects(f, vectors(3, 4), falls_back=True)


def test_views_by_functions_that_have_no_op_are_read():
    with pytest.warns(FallbackWarning, match="view of another dtype"):
        (found,) = ab.map(lambda x: x.view(np.int32) + 1, [np.ones(2, np.float32)])
    assert_same(found, np.ones(2, np.float32).view(np.int32) + 1)


@pytest.mark.parametrize("writeable", [False, True])
def test_windows_follow_their_array(writeable):
    def f(x):
        y = x + 1
        windows = np.lib.stride_tricks.sliding_window_view(y, 2, writeable=writeable)
        y[0] = 5
        return windows * 1

    def into(x):
        y = x + 1
        windows = np.lib.stride_tricks.sliding_window_view(y, 2, writeable=writeable)
        try:
            windows[0, 1] = 5
        except ValueError as error:
            return str(error), y
        return y

    same_effects(f, vectors(3, 4))
    same_effects(into, vectors(3, 4), falls_back=writeable)


def test_a_read_only_view_of_what_a_block_makes():
    def f(x, kind):
        part = np.diagonal(np.outer(x, x) + 1) if kind else np.broadcast_to(x * 2 + 1, (2, 4))
        try:
            part[0] = 7
        except ValueError as error:
            return str(error)
        return part

    same_effects(f, vectors(3, 4), [0, 1, 0])


def test_arrays_of_another_byte_order_keep_it():
    def f(x):
        y = x.copy()
        y[0] = 1
        x[1] = 4
        return y, y[::-1], np.sort(x), x * 2

    same_effects(f, [x.astype(">f4") for x in vectors(3, 4)])
    assert {x.dtype.str for x in ab.map(lambda x: x.copy(), [np.ones(2, ">f4"), np.ones(2, ">f4")])} == {">f4"}


def test_the_copy_of_a_scalar():
    same_effects(lambda x: (x[0].copy(), x.sum().copy(), x.copy()), vectors(3, 4))


def test_a_write_to_what_np_require_gave_is_not_seen_by_what_was_computed_before():
    def f(x):
        y = x * 2.0
        plain = np.require(y)
        z = y + 1.0
        plain[0] = 9.0
        return y, z

    same_effects(f, vectors(3, 4), falls_back=True)


def test_what_np_require_gave_can_be_written_to_afterwards():
    def f(x):
        plain = np.require(x * 2.0)
        return plain, plain[1:]

    for whole, part in ab.map(f, vectors(3, 4)):
        whole[:] = 1.0
        part[:] = 2.0
        assert whole.tolist() == [1.0, 2.0, 2.0, 2.0]


def add_to_all(x):
    x += 1
    return x.sum()


def set_in_a_view(x):
    x[1:][0] = 5
    return x.sum()


def sort_in_place(x):
    x.sort()
    return x.sum()


def set_unless_it_is_read_only(x):
    try:
        x[0] = 5
    except ValueError as error:
        return str(error)
    return x.sum()


@pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning")
@pytest.mark.parametrize("f", [add_to_all, set_in_a_view, sort_in_place, set_unless_it_is_read_only])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"x": x}], ids=["argument", "in a dict"])
def test_an_argument_that_is_read_only(f, wrap):
    def outcome(run):
        columns = [wrap(np.arange(float(n))) for n in (4, 3, 2)]
        arrays = [x["x"] if isinstance(x, dict) else x for x in columns]
        arrays[1].flags.writeable = False
        notes = []
        try:
            found = run(lambda x: f(x["x"]) if isinstance(x, dict) else f(x), columns)
        except ValueError as error:
            found, notes = str(error), getattr(error, "__notes__", [])
        return found, arrays, notes

    *mine, notes = outcome(ab.map)
    *theirs, _ = outcome(loop)
    assert_same(mine, theirs)
    assert f is set_unless_it_is_read_only or "raised for example 1" in notes


@pytest.mark.parametrize("numbers", [(1, -1), (-1, 1, -1), (1, 1), (1, -1, 2, -1)])
def test_an_array_in_a_dict_that_a_later_example_reads(numbers):
    def f(each, w):
        x, n = each["x"], each["n"]
        h = np.tanh(x @ w)
        if n > 0:
            x[x > 0] = n
        return h, x

    def shared():
        x = np.array([1.0, -1.0, 0.5])
        return [{"x": x, "n": n} for n in numbers]

    w = np.arange(9.0).reshape(3, 3) / 9
    with noted_fallbacks():
        found = ab.map(f, xs := shared(), w=w)
    assert_same(found, loop(f, again := shared(), w=w))
    assert_same(xs, again)
