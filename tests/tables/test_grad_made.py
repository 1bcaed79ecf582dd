"""Arrays that a function makes and writes into, and lists that it gives to NumPy, carry the gradient on."""

import gc
import weakref

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import ForcedValueError
from tests import naive

X = np.array([0.5, -1.5, 2.0])


def item_by_item(x):
    h = np.zeros(3)
    for i in range(3):
        h[i] = x[i] ** 2
    return (h * x).sum()


def lists_for_numpy(x):
    hs = [x[0], 2.0]
    hs.append(x[2] * x[1])
    total = np.mean([x[0], x[1] * 2]) + np.max(hs) + np.prod(hs[1:]) + np.median(hs)
    total += np.array([x[0], [3.0, x[1]][1], 3.0]).sum() + np.concatenate([hs, [x[0]]]).prod()
    return total + np.dot([x[0], 1.0], [x[1], 2.0]) + np.tanh([x[0], x[1]]).sum() + np.linalg.norm([x[0], x[2]])


def table_of_a_recursion(x):
    table = np.zeros((3, 3))
    table[0] = x
    for t in range(1, 3):
        for k in range(3):
            table[t, k] = np.log(np.sum(np.exp(table[t - 1] + k))) * 0.1 + table[t - 1, k]
    return table[-1].sum()


def views_and_updates(x):
    h = np.zeros(3)
    view = h[1:]
    view[0] = x[0]
    h += x
    h[0] *= x[1]
    square = np.zeros((2, 2))
    square.T[0, 1] = x[2]
    square[np.arange(2), np.arange(2)] = x[:2]
    return (h**2).sum() + view.sum() + (square @ square).sum()


def rows_in_a_list(x):
    rows = [np.zeros(2) for _ in range(3)]
    for i, row in enumerate(rows):
        row[i % 2] = x[i]
    rows[0][1] = x[2]
    return (np.array(rows) ** 2).sum()


def _filled(n, x):
    out = np.empty(n)
    for i in range(n):
        out[i] = x[i] * i
    return out


def in_a_helper(x):
    return _filled(3, x) @ x


class Buffer:
    def __init__(self, n):
        self.values = np.zeros(n)

    def add(self, i, value):
        self.values[i] = value


def in_an_object(x):
    buffer = Buffer(3)
    for i in range(3):
        buffer.add(i, x[i] ** 3)
    return buffer.values.sum()


def by_other_writers(x):
    h, out, filled = np.ones(3), np.zeros(3), np.zeros(2)
    np.add.at(h, [0, 0, 2], x)
    h[h > 1] = 0.5
    np.multiply(x, x, out=out)
    filled.fill(x[0])
    return (h * x).sum() + out.sum() + filled.prod()


def copies_and_results(x):
    h = x.copy()
    h[0] = h[1] * 2
    g = np.arange(3.0)
    g[1] = h[0]
    k = g * 2.0
    k[2] = x[2]
    return (k * h * g).sum() + np.full(3, x[0]).sum() * np.asarray(x)[1]


def one_array_of_two_names(x):
    a = b = np.zeros(3)
    a[0] = x[0]
    c, d = np.zeros(2), np.ones(2)
    c[0] = x[1]
    d[1] = c[0] * x[2]
    c, d = d, c
    return b.sum() * x[1] + (c * 2 + d).sum()


def memoised_recursion(x):
    memo = {}

    def rec(i):
        if i not in memo:
            row = np.zeros(2)
            row[0] = x[i]
            if i < 2:
                row[1] = rec(i + 1).sum() * x[0]
            memo[i] = row
        return memo[i]

    return rec(0).sum()


def constant_and_read(x):
    mask, count = np.zeros(3), np.zeros(3, int)
    mask[1] = 1.0
    count[2] += 2
    rows = np.asarray(mask, np.float32)
    weight = float(mask[1]) + int(mask.sum()) + mask.tolist()[1] + mask.item(1) + rows[1] + len(mask.tobytes())
    return (mask * x).sum() * weight + x[count].sum() if mask.any() and mask.strides == (8,) else x.sum()


def by_its_type(x):
    if type(x) is np.ndarray and type(x[0]) is np.float64:
        return (x * x).sum()
    return x.sum()


PROGRAMS = [
    by_its_type,
    item_by_item,
    lists_for_numpy,
    table_of_a_recursion,
    views_and_updates,
    rows_in_a_list,
    in_a_helper,
    in_an_object,
    by_other_writers,
    copies_and_results,
    one_array_of_two_names,
    memoised_recursion,
    constant_and_read,
]


@pytest.fixture(params=PROGRAMS, ids=lambda f: f.__name__)
def f(request):
    return request.param


def agrees(found, f):
    np.testing.assert_allclose(found, naive.numeric_gradient(f, X), rtol=1e-5, atol=1e-6)


def test_plain(f):
    agrees(ab.grad(f)(X), f)


@pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning")
@pytest.mark.parametrize("blocks", [True, False])
def test_on_the_fly(f, blocks):
    with ab.options(blocks=blocks):
        agrees(ab.grad(lambda x: sum(ab.map(f, [x, x])))(X) / 2, f)


@pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning")
def test_in_lock_step(f):
    batched = ab.batch(lambda i, x: f(x) + i)
    examples = ab.MaskedBatch.from_examples([0.0, 1.0])
    agrees(ab.grad(lambda x: ab.sum(batched(examples, x)))(X) / 2, f)


def test_decorated(f):
    agrees(ab.grad(ab.batch(f))(X), f)


def test_a_gradient_of_a_gradient():
    def inner(x):
        h = np.zeros(3)
        for i in range(3):
            h[i] = x[i] ** 3 * x[0]
        return h.sum()

    def outer(x):
        g = np.zeros(3)
        g[:] = ab.grad(inner)(x)
        return np.sum([g[0], g[1] * 2, g[2]])

    agrees(ab.grad(outer)(X), outer)


def test_without_source_it_is_an_error():
    space = {"np": np}
    exec("def f(x):\n    h = np.zeros(2)\n    h[0] = x[0]\n    return h.sum()", space)
    with pytest.raises(ForcedValueError, match="instead of writing it into a plain array"):
        ab.grad(space["f"])(X)


def test_a_constant_may_outlive_the_call():
    kept = []

    def f(x):
        h = np.zeros(3)
        h[0] = 2.0
        kept.append(h)
        return (h * x).sum()

    ab.grad(f)(X)
    assert (kept[0] + 1.0).tolist() == [3.0, 1.0, 1.0]
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(kept[0])[0] = 1.0


def test_closures_are_let_go():
    class Held:
        pass

    held = Held()
    reference = weakref.ref(held)

    def f(x, held=held):
        h = np.zeros(1)
        h[0] = x[0]
        return h.sum()

    ab.grad(f)(X)
    del f, held
    gc.collect()
    assert reference() is None


def loss_of(x, p):
    return ((x * p["w"]) ** 2).sum()


def losses_of(xs, p):
    return ab.map(loss_of, xs, p=p)


class Losses:
    def __init__(self, xs, p):
        self.all = losses_of(xs, p)


STEPS = {
    "np.mean": lambda p, xs: np.mean(ab.map(loss_of, xs, p=p)),
    "np.sum": lambda p, xs: np.sum(ab.map(loss_of, xs, p=p)),
    "np.max": lambda p, xs: np.max(ab.map(loss_of, xs, p=p)),
    "np.average": lambda p, xs: np.average(ab.map(loss_of, xs, p=p)),
    "np.stack": lambda p, xs: np.stack(ab.map(loss_of, xs, p=p)).sum(),
    "np.array": lambda p, xs: np.array(ab.map(loss_of, xs, p=p)).mean(),
    "np.asarray": lambda p, xs: np.asarray(ab.map(loss_of, xs, p=p)).mean(),
    "sum": lambda p, xs: sum(ab.map(loss_of, xs, p=p)) / len(xs),
    "of a ufunc": lambda p, xs: np.square(ab.map(loss_of, xs, p=p)).sum(),
    "of a helper": lambda p, xs: np.mean(losses_of(xs, p)),
    "of an attribute": lambda p, xs: np.mean(Losses(xs, p).all),
    "of two lists": lambda p, xs: np.mean(losses_of(xs, p) + losses_of(xs[:1], p)),
    "of a choice": lambda p, xs: np.mean(losses_of(xs, p) if xs else [0.0]),
    "of a name": lambda p, xs: np.mean(losses := losses_of(xs, p)) + losses[0] * 0,
    "of a part": lambda p, xs: np.mean({"train": losses_of(xs, p)}["train"][1:]),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_training_step_reduces_what_a_map_gives(step):
    xs = [np.arange(1.0, n) for n in (2, 3, 5)]

    def by_hand(w):
        losses = [((x * w) ** 2).sum() for x in xs]
        kinds = {
            "np.sum": np.sum, "np.max": np.max, "np.stack": np.sum,
            "of a ufunc": lambda these: np.square(these).sum(),
            "of two lists": lambda these: np.mean([*these, these[0]]),
            "of a part": lambda these: np.mean(these[1:]),
        }  # fmt: skip
        return kinds.get(step, np.mean)(losses)

    value, gradient = ab.value_and_grad(STEPS[step])({"w": np.float64(0.5)}, xs)
    assert type(value) is np.float64
    np.testing.assert_allclose(value, by_hand(0.5))
    np.testing.assert_allclose(gradient["w"], (by_hand(0.5 + 1e-6) - by_hand(0.5 - 1e-6)) / 2e-6, rtol=1e-6)
