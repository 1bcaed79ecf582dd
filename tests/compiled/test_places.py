"""Gradients of compiled code where the places of an array on the tape are one number, or an array."""

import numpy as np
import pytest

import autobatch as ab
from autobatch.compiled.compiled_map import KernelForm
from autobatch.compiled.taping import taped_map
from tests.compiled.interpreted import interpreted

RNG = np.random.default_rng(0)


def parts_of_a_row(x, w):
    z, before = x @ w, -len(x) - 2
    return z[:2] * z[1:3], z[before:3] * z[1:], z[-2:] - z[:-2], z[1:1], z[-9:3] * z[1:9], z[2], z[-1] * z[::2], z[::-1]


def parts_of_rows(x, w):
    z = np.tanh(np.outer(x, x) @ np.outer(x, w[0]))
    return z[0] * z[-1], z[1:] @ w[:, :2], z[:, 0], z[:, 1:3], z[1:, :2], z[1, 1:], z[:2].ravel(), z.reshape(-1)[2:5]


def other_orders(x, w):
    z = np.exp(np.outer(x, w[0]))
    flat = z.T.ravel()
    return z.T @ x, z @ z.T, flat[1:4], z.T.reshape(2, -1)[0], z.T.copy()[1], z.T[0] * w[0, 0]


def columns_and_scalars(x, w):
    z, total = w * w, x[0]
    for k in range(3):
        column = z[:, k]
        total = total + column[0] * x[k] + column @ x[:4] + z[k, k]
    return total, z[:, 1] + z[1, :1]


def broadcast_each_way(x, w):
    rows, column, cube = np.outer(x, x), (x * x)[:, None], np.exp(x[:2])[:, None, None]
    first = rows + x, rows * column, rows - x[:1], column + x, rows / (2.0 + x[None, :] ** 2)
    many = (
        cube * rows[None, :2],
        rows[None, :2] - cube,
        cube + x[None, :2, None] * rows[None, :2],
        np.where(x > 0, rows, x),
    )
    return (*first, *many, np.where(x[:, None] > 0, column, rows), np.maximum(rows, x), np.logaddexp(column, x[None]))


def joined(x, w):
    z, none = np.tanh(x), np.zeros(2)
    both = np.concatenate([none, z, x[:0], z[1:]])
    rows = np.concatenate([w, w[:1] * 2.0])
    return (
        both[1:-1] ** 2,
        both[:3] @ w[:3],
        rows @ x[:4],
        np.concatenate([w, w * w], axis=1)[:, 3],
        np.stack([z, z * z])[1],
    )


def taken(x, w):
    ids, z = np.array([1, 0, -1, 1]), np.sin(w)
    cube = np.exp(np.outer(x, x))[:, :, None] * x[:2]
    return (
        z[ids] @ x[:4],
        z[:, ids] * 2.0,
        x[ids] * x[ids[::-1]],
        cube[:, ids],
        cube[ids, 0],
        cube[..., ids[:1] * 0],
        x[x > 0],
    )


def views_that_are_written(x, w):
    h, z = np.zeros(4), x * x
    part = h[1:3]
    part[0] = z[0] * w[0, 0]
    h[3] = part[0] * 2.0
    same = h
    same[2] += x[1]
    return h * h, part * 2.0, same[1:] * 2.0


def results_that_are_written(x, w):
    y = np.tanh(x)
    z = y[1:]
    y[1] = x[0] * 3.0
    copied = y.copy()
    y[0] = 0.0
    return y * x, z * z, copied


def written_by_a_function(x, w):
    def put(out, value):
        out[1] = value
        return out[1:]

    y = x * 2.0
    rest = put(y, x[0] * x[1])
    rest[1] = x[2] ** 2
    return y * y, rest * rest


def written_when_it_is_returned(x, w):
    def tail(z):
        return z[1:]

    y = x * 2.0
    rest = tail(y)
    rest[0] = x[0] ** 2
    return y * y, rest * y[:3]


def written_row_by_row(x, w):
    rows = np.outer(x, x)
    for row in rows:
        row[0] = row[1] * x[2]
    return rows * rows, rows[:, 0] * 2.0


def written_item_by_item(x, w):
    items = [x * 2.0, np.exp(x)]
    first = items[0]
    for item in items:
        item[1] = x[0] * item[2]
    return first * first, items[1] * first


def written_after_it_is_kept(x, w):
    items, y = [], np.exp(x)
    items.append(y)
    items[0][1] = x[0] * x[0]
    return y * y, items[0][:2] * x[:2]


def written_in_a_list(x, w):
    items = [x * 2.0, np.zeros(4)]
    items[1][0] = x[3]
    first = items[0]
    first[2] = x[0] * x[0]
    return items[0] * items[1], np.stack(items)[:, :3], sum(items)


def written_in_a_branch(x, w):
    y = np.exp(x)
    if x[0] > 0:
        y[0] = x[1] * x[1]
    else:
        y = y[::-1]
    for _ in range(2):
        y = y * x
    return y, y[1:3]


def carried_round_a_loop(x, w):
    h, c, seen = np.zeros(4), x, []
    for row in w:
        h, c = np.tanh(c[:3] @ w[:3] + h), h
        seen.append(h[1:3])
        h = h if row[0] > 0 else np.concatenate([row[:2], h[2:]])
    return h, c, np.stack(seen).sum(axis=0), np.concatenate(seen)[::3]


def through_functions(x, w):
    def halves(z):
        return z[:2], (z[2:], z)

    def swap(pair):
        return pair[1], pair[0]

    one, (two, whole) = halves(x * x)
    three, four = swap((one, np.zeros(2)))
    return one * two, whole @ w[0], three + four, halves(np.ones(4))[0] * x[0]


def numbers_one_by_one(x, w):
    """Their places follow each other, but they are no results of one operation, nor the numbers of these leaves."""
    shifted, made, z = np.zeros(4), np.zeros(4), np.tanh(x @ w)
    for k in range(4):
        shifted[k] = x[k] + 1.0
        made[k] = x[k] * x[k - 1]
    later = np.array([z[0] + 1.0, z[1] + 2.0, z[2] - 1.0, z[3] + 3.0])
    taken = shifted[np.array([0, 1, 2, 3])] + 0.0
    return shifted @ w, w @ made, (z @ w) * (later @ w), shifted[np.array([0, 1, 2, 3])] @ w, taken @ made


FUNCTIONS = [
    parts_of_a_row, parts_of_rows, other_orders, columns_and_scalars, broadcast_each_way, joined, taken,
    views_that_are_written, results_that_are_written, written_by_a_function, written_when_it_is_returned,
    written_row_by_row, written_item_by_item, written_after_it_is_kept, written_in_a_list, written_in_a_branch,
    carried_round_a_loop, through_functions, numbers_one_by_one,
]  # fmt: skip


def loss_of(f, place):
    def loss(x, w):
        part = f(x, w)[place]
        return np.sum(np.sin(part) * (1.0 + np.arange(np.size(part)).reshape(np.shape(part))))

    return loss


def step(loss, xs, w, way):
    with ab.options(way=way):
        return ab.value_and_grad(lambda p: sum(ab.map(loss, p[0], w=p[1])))((xs, w))


@pytest.mark.parametrize("f", FUNCTIONS)
def test_gradients(f, monkeypatch):
    """As the loop's, of each part of the result by itself, every number of which has another cotangent."""
    xs, w = [RNG.normal(size=4) * sign for sign in (1, -1, 2)], RNG.normal(size=(4, 4))
    runs, run, refused, refuse = [], taped_map.run_backward, [], KernelForm.refuse
    monkeypatch.setattr(taped_map, "run_backward", lambda *args: runs.append(1) or run(*args))
    monkeypatch.setattr(KernelForm, "refuse", lambda *args: refused.append(args) or refuse(*args))
    for place in range(len(f(xs[0], w))):
        loss = loss_of(f, place)
        runs.clear()
        with interpreted():
            value, (each, of_w) = step(loss, xs, w, "compiled")
        assert runs
        assert not refused  # what differs from Python is given up
        plain, (each_plain, of_w_plain) = step(loss, xs, w, "loop")
        np.testing.assert_allclose(value, plain, rtol=1e-12)
        for ours, expected in zip([*each, of_w], [*each_plain, of_w_plain], strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-10, atol=1e-12, err_msg=f"part {place}")


def test_used_memory(monkeypatch):
    """What the memory of a tape that is gone says of its numbers is not said of those of a new one."""
    empty = np.empty

    def used(*args, **named):
        out = empty(*args, **named)
        if out.dtype == np.int64 and out.ndim == 2:
            out[:, ::2], out[:, 1::2] = 0, 2**32 + 4 - 2**62  # four numbers of the first example
        return out

    def loss(x, w):
        z = np.tanh(w)
        return z[0] @ np.tanh(x)

    monkeypatch.setattr(np, "empty", used)
    monkeypatch.setattr(taped_map, "is_close", lambda *_: True)
    xs, w = [RNG.normal(size=4)], RNG.normal(size=(4, 4))
    with interpreted():
        _, (ours, _) = step(loss, xs, w, "compiled")
    np.testing.assert_allclose(ours[0], step(loss, xs, w, "loop")[1][0][0], rtol=1e-10)
