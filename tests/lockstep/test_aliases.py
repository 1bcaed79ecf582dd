"""Arrays that several names know: a write through one is seen through all, as NumPy has it, or it runs as a loop."""

import copy
import operator
import runpy
import textwrap
import types
import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch import MaskedBatch, batch
from autobatch.errors import FallbackWarning
from tests import law
from tests.law import assert_same, ragged
from tests.law import equals_loop_either_way as equals_loop

XS = ragged(3, 2, 5, 1, 3)
ROWS = ragged(3, 1, 4, 2, width=2)


def same_array(x):
    total = np.zeros(3)
    other = np.asarray(total)
    for v in x:
        total[0] += v
    return other, total


def slice_of_it(x):
    total = np.zeros(3)
    head = total[:2]
    for v in x:
        total[0] += v
    return head, total


def reshaped(x):
    total = np.zeros((1, 3))
    flat = total.reshape(-1)
    for v in x:
        total[0, 1] += v
    return flat, total


def raveled(x):
    total = np.zeros(3)
    flat = np.ravel(total)
    for v in x:
        total += v
    return flat, total


def listed_views(x):
    total = np.zeros(3)
    heads = []
    for v in x:
        total[0] += v
        heads.append(total[:1])
    return heads


def whole_views(x):
    total = np.zeros(3)
    seen = []
    for v in x:
        total += v
        seen.append(total[...])
    return seen


def reversed_view(x):
    out = np.zeros_like(x)
    back = out[::-1]
    for i, v in enumerate(x):
        out[i] = v
    return out, back


def cast_that_does_not_copy(x):
    total = np.zeros(3)
    other = total.astype(float, copy=False)
    for v in x:
        total += v
    return other, total


@pytest.mark.parametrize(
    "f",
    [
        same_array,
        slice_of_it,
        reshaped,
        raveled,
        listed_views,
        whole_views,
        reversed_view,
        cast_that_does_not_copy,
    ],
)
def test_views_of_an_array_that_a_loop_writes_for_some_examples(f):
    equals_loop(f, XS, falls_back=True)
    equals_loop(f, XS[:1])


def view_of_the_step_before(x):
    out = np.zeros((len(x), 2))
    for t in range(len(x)):
        row = out[t - 1]
        out[t] = row + x[t]
    out *= 2
    return out


def test_a_view_that_is_not_read_again_is_no_other_name():
    equals_loop(view_of_the_step_before, XS)


def ellipsis(x):
    y = x.copy()
    first = y[..., 0]
    first += 1
    return y


def reshaped_to_nothing(x):
    y = x.copy()
    first = y[:1].reshape(())
    first += 1
    return y


def zeros_of_a_scalar(x):
    y = np.zeros_like(x[0])
    z = y
    y += 1
    z += x[0]
    return y, z


def zeros_of_no_shape(x):
    y = np.zeros(())
    z = y
    y += x.sum()
    return z


def array_of_a_scalar(x):
    s = x.sum()
    y = np.asarray(s)
    z = y
    y += 1
    return z, s


def where_of_scalars(x):
    y = np.where(x[0] > 0, x[0], 0.0)
    z = y
    y += 1
    return z


def scalars_out_of_arrays(x):
    y = np.where(x[0] > 0, x[0], 0.0)[()]
    z = y
    y += 1
    p = np.percentile(x, 30)
    q = p
    p += 1
    flat = x.sum().reshape(())
    same = flat
    flat += 1
    return y, z, p, q, flat, same


def scalars_stay(x):
    s = x.sum()
    before = s
    row = np.atleast_1d(s)
    row[0] = 5
    s += 1
    s *= 2
    return s, before, row


@pytest.mark.parametrize(
    "f",
    [
        ellipsis,
        reshaped_to_nothing,
        zeros_of_a_scalar,
        zeros_of_no_shape,
        array_of_a_scalar,
        where_of_scalars,
        scalars_out_of_arrays,
        scalars_stay,
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_arrays_of_no_dimensions_are_written_in_place_and_scalars_are_not(f, packed):
    equals_loop(f, XS, packed=packed)


def listed_array_of_no_dimensions(x):
    s = np.full((), x[0])
    kept = [s]
    for v in x:
        s += v
    return s, kept


def test_an_array_of_no_dimensions_that_a_loop_writes_for_some_examples():
    equals_loop(listed_array_of_no_dimensions, XS, falls_back=True)


def test_a_scalar_takes_no_items():
    def f(x):
        s = x.sum()
        s[()] = 3
        return s

    xs = MaskedBatch.from_examples(XS)
    warned = pytest.warns(FallbackWarning, match="a write into a scalar")
    with warned, pytest.raises(TypeError, match="does not support item assignment") as caught:
        batch(f)(xs)
    assert "raised for example 0" in caught.value.__notes__


def whole_view(x):
    y = x.copy()
    z = y.view()
    z[-1] = 2
    return y


def conjugate(x):
    y = x.copy()
    z = y.conj()
    z[0] = 2
    return y


def broadcast_follows(x):
    y = x.copy()
    wide = np.broadcast_to(y, (2, len(y)))
    y[0] = 4
    return wide


def diagonal_follows(m):
    y = m.copy()
    d = np.diagonal(y)
    y[0, 0] = 8
    return d


@pytest.mark.parametrize("f", [whole_view, conjugate, broadcast_follows])
def test_views_by_other_functions(f):
    equals_loop(f, XS)


def test_a_diagonal_follows_its_array():
    equals_loop(diagonal_follows, ROWS)


def rows_in_a_list(m):
    y = m.copy()
    rows = list(y)
    y[0] = 5
    return np.stack(rows), sum(rows[:1])


def rows_by_comprehension(x):
    y = x * 2
    parts = [row[:] for row in y[:, None]]
    y[0] = 9
    return parts[0] * 1


def rows_while_they_are_written(m):
    y = m.copy()
    total = y[0] * 0
    for row in y:
        y[-1] = 5
        total = total + row
    return total


@pytest.mark.parametrize("f", [rows_in_a_list, rows_while_they_are_written])
@pytest.mark.parametrize("examples", [ROWS, ROWS[:1] * 3])
def test_rows_follow_the_array_that_they_are_of(f, examples):
    equals_loop(f, examples)


def test_rows_of_a_view_follow_its_array():
    equals_loop(rows_by_comprehension, XS)


def by_as_strided(x):
    y = x.copy()
    part = np.lib.stride_tricks.as_strided(y)
    part[0] = 5
    return y


def by_a_method_caller(x):
    y = x.copy()
    part = operator.methodcaller("reshape", -1)(y)
    y[0] = 5
    return part * 1


def by_a_builtin(x):
    y = x.copy()
    part = max([y], key=len)
    y[0] = 5
    return part * 1


@pytest.mark.parametrize("f", [by_as_strided, by_a_method_caller, by_a_builtin])
def test_views_by_code_that_is_not_converted(f):
    equals_loop(f, XS)
    equals_loop(f, XS[:1] * 3)


def strided(m):
    y = m.copy()
    column = y[:, 1].reshape(-1, 1)
    column[0] = 50
    return y


def transposed(m):
    y = (m * 1).T
    flat = y.ravel()
    flat[0] = 99
    return y, flat


def wide_against(x):
    y = x.copy()
    wide = np.broadcast_arrays(y, 1.0)[0]
    y[0] = 3
    return wide


@pytest.mark.parametrize(("f", "examples"), [(strided, ROWS), (transposed, ROWS), (wide_against, XS)])
def test_what_strides_decide_is_decided_by_each_example(f, examples):
    equals_loop(f, examples, falls_back=True)


def written_and_copied(x):
    y = x.T
    y[0] = 0
    return x, np.ascontiguousarray(x)


@pytest.mark.parametrize("way", ["auto", "lockstep", "fly", "compiled", "loop"])
def test_a_copy_of_an_empty_example_leaves_the_next_one_writable(way):
    examples = [np.ones((n, 3)) for n in (0, 2, 1)]

    def loss(batch):
        written, copied = ab.batch(written_and_copied)(batch)
        return ab.sum(written) + ab.sum(copied * copied)

    with ab.options(way=way, warn=False):
        found = ab.grad(loss)(MaskedBatch.from_examples(examples))
    for gradient, example in zip(found.examples(), examples, strict=True):
        np.testing.assert_array_equal(gradient, np.full(example.shape, [0.0, 3.0, 3.0]))


def writes_into_a_copy(x):
    y = x.copy()
    y[0] = 5
    z = x * 2
    z[1:] = 0
    w = np.zeros_like(x)
    w += x
    return y, z, w, x


def test_copies_of_a_packed_batch_are_written_in_lock_step():
    equals_loop(writes_into_a_copy, XS, packed=True)


def writes_into_what_may_be_no_copy(x):
    y = x.astype(np.float64, copy=False)
    y[0] = 5
    return y


def test_the_packed_argument_itself_is_not():
    equals_loop(writes_into_what_may_be_no_copy, [x.copy() for x in XS], packed=True, falls_back=True)


def writes_into_its_rows(x):
    table = np.zeros((3, 2))
    for i in range(3):
        row = table[i]
        if len(x) > i:
            row[1] = x.sum()
            row += i
    part = table.T[0]
    part[len(x) % 3] -= 1
    return table


def writes_into_a_part(x):
    out = np.zeros(4)
    head = out[:2]
    if len(x) > 1:
        head[0] = x[0]
    head[1] += 1
    return out, head


@pytest.mark.parametrize("f", [writes_into_its_rows, writes_into_a_part])
def test_a_part_of_a_fresh_array_is_written_by_its_own_name(f):
    equals_loop(f, XS)
    equals_loop(f, XS[:1])


def a_deep_copy_of_a_list(x):
    kept = [x * 1.0, {"first": x[:1] + 1.0}]
    more = copy.deepcopy(kept)
    more[0][:1] = 9.0
    kept[0][-1:] = 7.0
    more[1]["first"][:] = 5.0
    return kept, more


@pytest.mark.parametrize("examples", [XS, XS[:1]])
def test_a_deep_copy_has_arrays_of_its_own(examples):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ab.testing.assert_equivalent(a_deep_copy_of_a_list, examples, grad=False)


def an_array_in_a_namespace(x):
    kept = types.SimpleNamespace(h=x * 2.0)
    kept.h[:1] = 1.5
    if len(x) > 2:
        kept.h.sort()
    return kept.h


def test_an_array_in_an_object_of_the_library_is_written_there():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ab.testing.assert_equivalent(an_array_in_a_namespace, XS, grad=False)


def a_view_of_one_element(x):
    y = x.copy()
    z = y[0, ...]
    hasattr(z, "missing")
    z += 1
    y *= 2
    return y, z


def a_choice_of_two_scalars(x):
    w = other = np.where(x[0] > 0, x[0], -1.0)
    while float(w) < 5:
        w += 2
    return w, other


def a_zero_d_index_copies(x):
    y = np.outer(x, x)
    row, last, fixed = y[np.asarray(x.argmax())], y[np.int64(-1)], y[np.array(0), 1:]
    y += 1
    fixed *= 3
    return y, row, last, fixed


@pytest.mark.parametrize("way", ["auto", "lockstep", "fly", "compiled", "loop"])
@pytest.mark.parametrize("f", [a_view_of_one_element, a_choice_of_two_scalars, a_zero_d_index_copies])
def test_arrays_without_dimensions_are_written_in_place(f, way):
    with ab.options(way=way, warn=False):
        for found, x in zip(ab.map(f, [x.copy() for x in XS]), XS, strict=True):
            assert_same(found, f(x.copy()))


COUNTS = [2, 1, 0, 3, 1]
PICKED = {
    "by a condition": "c = x[1:] if n else x[:1]",
    "by two arms": "if n:\n    c = x[1:]\nelse:\n    c = x[:1]",
    "by one arm": "c = x[:1]\nif n:\n    c = x[1:]",
    "by `and`": "c = n and x[:1]",
    "by a loop": "c = x\nfor k in range(n):\n    c = x[k:]",
    "by an arm of a loop": "c = x[:0]\nfor k in range(n):\n    if k == 1:\n        c = x[k:]",
    "by a function": "def pick(v):\n    if n:\n        return v[1:]\n    return v[:1]\nc = pick(x)",
    "in a container": "c = {'a': [x[1:] if n else x[:1]]}",
    "of a view": "v = x[::-1]\nc = v[1:] if n else v[:1]",
    "of rows": "m = np.stack([x, x])\nc = m[0] if n else m[1]\nx = m",
    "of unpacked rows": "m = np.stack([x, x])\nif n:\n    c, d = m\nelse:\n    d, c = m\nx = m",
    "twice": "c = x[1:] if n else x[:2]\nc = c[:1] if n > 1 else c",
}


@pytest.mark.parametrize("written", ["x *= 3", "x[-1] = 9", "y = x[-1:]\ny[:] = 9"])
@pytest.mark.parametrize("picked", PICKED)
def test_views_that_differ_by_example_follow_a_write_into_their_array(picked, written, tmp_path):
    body = "\n".join(["x = x + 0", PICKED[picked], written, "return c, x"])
    path = tmp_path / "picks.py"
    path.write_text("import numpy as np\n\n\ndef f(x, n):\n" + textwrap.indent(body, "    ") + "\n")
    equals_loop(runpy.run_path(str(path))["f"], XS, COUNTS)


def test_an_array_is_written_in_lock_step_once_views_that_differ_by_example_are_gone():
    def f(x, n):
        x = x + 0
        c = x[1:] if n else x[:1]
        total = c.sum()
        c = None
        x *= 3
        return total, c, x

    law.equals_loop(f, XS, COUNTS)


WRITTEN = {
    "a choice of it or a copy": "like = like * r if r > 0 else like\nlike[n] = r",
    "a closure that reads it": "like[n] = part(n) + r",
    "a choice of a new one": "like = like if r > 0 else np.zeros(4)\nlike[n] = r",
    "a choice in a `while`": "k = 0\nwhile k < 2:\n    k += 1\n    like = like * k if r > 0 else like\n    like[n] = k",
    "rows of a new array": "for row in np.zeros((2, 4)):\n    row[n] = r\n    like = like + row",
    "numbered rows": "for k, row in enumerate(np.zeros((2, 4))):\n    row += r * k\n    like = like + row",
    "a dict of its own": "held = {'a': np.ones(4), 'n': n}\nif r > 0:\n    held['a'][n] = r\nlike = like + held['a']",
    "rows of an array that is read": "both = np.zeros((2, 4))\nfor row in both:\n    row[n] = r\n    both[1] += row",
}
SEEN = {
    "a list": "held = [like]\nlike = held[0] if r > 0 else like + 0\nlike[n] = r\nkept.append(held)",
    "a dict": "held = {'a': like}\nif r > 0:\n    held['a'][n] = r",
    "a dict that is copied": "held = {'a': like}.copy()\nif r > 0:\n    held['a'][n] = r",
    "a dict in a dict": "inner = {'b': like}\nheld = {'a': inner}\nif r > 0:\n    held['a']['b'][n] = r",
    "two keys": "held = {k: like for k in 'ab'}\nif r > 0:\n    held['a'][n] = r\nkept.append(held['b'])",
    "a key in a loop": "held = {}\nheld['a'] = like\nfor k in range(n):\n    held['a'][k] += r",
    "a name": "kept.append(like)\nlike = like * r if r > 0 else like\nlike[n] = r",
    "a view": "view = like[1:]\nlike = like * r if r > 0 else like\nlike[n] = r\nkept.append(view)",
    "a default": "def first(k=like):\n    return k[0]\nlike = like if r > 0 else -like\nlike[0] = n\nkept += [first()]",
    "rows": "for row in np.zeros((2, 4)):\n    kept.append(row)\n    if n:\n        row[n] = r",
}


@pytest.mark.parametrize("alone", WRITTEN)
def test_an_array_that_nothing_else_shows_is_written_in_lock_step(alone, tmp_path):
    law.equals_loop(_of_lines(WRITTEN[alone], tmp_path), XS, COUNTS)


@pytest.mark.parametrize("seen", SEEN)
def test_what_else_shows_an_array_follows_writes(seen, tmp_path):
    equals_loop(_of_lines(SEEN[seen], tmp_path), XS, COUNTS)


def _of_lines(lines, folder):
    path = folder / "writes.py"
    path.write_text(
        "import numpy as np\n\n\ndef f(x, n):\n    like, kept = np.ones(4), []\n"
        "    def part(k):\n        return like[k] * 2\n    for r in x:\n"
        + textwrap.indent(lines, " " * 8)
        + "\n    return like, kept\n"
    )
    return runpy.run_path(str(path))["f"]


def known_by_a_name(x):
    u = np.zeros(2)
    before = u
    for v in x:
        u = u * 0.5 + v
    u[0] = 0.5
    return u, before


def known_in_a_list(x):
    u = np.zeros(2)
    kept = []
    kept.append(u)
    for v in x:
        u = u * 0.5 + v
    u[0] = 0.5
    return u, kept


def known_in_a_tuple_and_a_dict(x):
    u = np.zeros(2)
    w = np.ones(2)
    kept = {"u": u}, (w,)
    for v in x:
        u, w = u + v, w * v
    u += 1
    w[1] = 7
    return u, w, kept[0]["u"], kept[1]


def written_by_its_other_name(x):
    u = np.zeros(2)
    before = [u]
    for v in x:
        u = u + v
    before[0][0] = 0.5
    return u, before


def known_since_the_last_step(x):
    u = np.zeros(2)
    kept = []
    for v in x:
        u = u * 0.5 + v
        kept.append(u)
    u[0] = 9.0
    return u, kept


def in_a_list_that_the_loop_carries(x):
    u = np.zeros(2)
    pair = [u, 1.0]
    for v in x:
        pair = [pair[0] + v, v]
    pair[0][1] = 4.0
    return u, pair


@pytest.mark.parametrize(
    "f",
    [
        known_by_a_name,
        known_in_a_list,
        known_in_a_tuple_and_a_dict,
        written_by_its_other_name,
        known_since_the_last_step,
        in_a_list_that_the_loop_carries,
    ],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("lengths", [(3, 0, 2), (0, 0, 1), (2, 5, 0, 0, 3)], ids=str)
def test_an_array_that_only_some_examples_replace_in_a_loop(f, lengths):
    xs = ragged(*lengths)
    with ab.options(warn=False):
        found = ab.examples(batch(f)(MaskedBatch.from_examples(xs)))
        for got, x in zip(found, xs, strict=True):
            assert_same(got, f(x))
