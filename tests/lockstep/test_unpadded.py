"""Rows of ragged examples held without their padding: the results and gradients of the loop, and less work.

Mutations that must turn this file red; each was made by hand and seen red:
    - rows of other positions: in `unpadded._Layout`, `np.flatnonzero(self.mask.T)`;
    - padding that is not zero: in `Unpadded._ab_force`, `np.ones` for `np.zeros`;
    - an axis too many: in `unpadded._other_axes`, `a < 1`.
"""

import math
import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch import batch
from autobatch.batches import padded_batch, unpadded
from autobatch.batches.unpadded import Unpadded
from autobatch.ops.rules.padding import where_or_zero
from tests import inspect
from tests.law import batch_of, equals_loop, ragged

RNG = np.random.default_rng(1)
D = 8
W = RNG.normal(size=(D, D)) / 3
V = RNG.normal(size=D)
PLACES = RNG.normal(size=(20, D))
LENGTHS = (9, 3, 1, 17, 5, 0, 2)
XS = ragged(*LENGTHS, width=D)
FULL = ragged(6, 6, 6, width=D)


@pytest.fixture(autouse=True)
def always():
    """However small the data, and however full."""
    with inspect.however_small("rows without padding"):
        yield


def dense(x, w, v):
    return np.tanh(x @ w + v) * 2.0 - x


def against_places(x, w, places):
    return x @ w + places[: len(x)]


def against_the_example(x, q, w):
    return np.maximum(x @ w, q) * q.sum()


def features(x, w):
    y = x @ w
    return y[:, :3] * y[:, 5:], y.sum(axis=1), y.max(axis=-1), y.mean(axis=0), y.argmax(axis=1), y.std(axis=1)


def normalised(x, w, v):
    y = ab.nn.layer_norm(x @ w, v, v)
    return ab.nn.softmax(y), ab.nn.log_softmax(y, axis=-1), ab.nn.softmax(y, axis=0), ab.nn.logsumexp(y, axis=-1)


def attention(x, w, v):
    heads = (x @ w).reshape(len(x), 2, D // 2).transpose(1, 0, 2)
    scores = ab.nn.softmax(heads @ heads.transpose(0, 2, 1))
    x = ab.nn.layer_norm(x + (scores @ heads).transpose(1, 0, 2).reshape(len(x), D) @ w, v)
    return ab.nn.relu(x @ w)


def mixes_positions(x, w):
    y = x @ w
    return y[::-1] + y, np.cumsum(y, axis=0), y.T @ y, np.concatenate([y, y]), y[0:1], np.sort(y, axis=0)


def written(x, w):
    y = x @ w
    y[0] = 1.0
    z = y
    z += 1.0
    return y


PROGRAMS = [
    (dense, (), {"w": W, "v": V}),
    (against_places, (), {"w": W, "places": PLACES}),
    (against_the_example, (list(RNG.normal(size=(7, D))),), {"w": W}),
    (attention, (), {"w": W, "v": V}),
]


@pytest.mark.parametrize(("f", "columns", "shared"), PROGRAMS)
def test_results_are_those_of_the_loop(f, columns, shared):
    equals_loop(f, XS, *columns, **shared)
    equals_loop(f, FULL, *[column[:3] for column in columns], **shared)
    equals_loop(f, XS[:1], *[column[:1] for column in columns], **shared)
    equals_loop(f, XS[5:6], *[column[5:6] for column in columns], **shared)


@pytest.mark.parametrize(
    ("f", "shared"), [(features, {}), (normalised, {"v": V}), (mixes_positions, {}), (written, {})]
)
def test_what_follows_a_product(f, shared):
    xs = [x for x in XS if len(x)]
    equals_loop(f, xs, w=W, **shared)
    equals_loop(f, xs[2:3], w=W, **shared)


def test_a_loop_over_such_rows():
    def f(x, w):
        h = np.zeros(D)
        for row in x @ w:
            h = np.tanh(h + row)
        return h

    equals_loop(f, XS, w=W)


def test_no_examples():
    x = ab.MaskedBatch(np.zeros((0, 5, D)), lengths=np.zeros(0, int))
    for f in (dense, attention):
        assert batch(f, strict=True)(x, W, V).examples() == []


def test_under_a_branch():
    def f(x, w):
        y = x @ w
        z = y * 2 if len(x) > 4 else y - 1
        return z @ w

    equals_loop(f, XS, w=W)


@pytest.mark.parametrize(("f", "columns", "shared"), PROGRAMS)
def test_gradients_are_those_of_the_loop(f, columns, shared):
    xs = [x for x in XS if len(x)]
    columns = [[c for c, x in zip(column, XS, strict=True) if len(x)] for column in columns]
    g = batch(f, strict=True)
    names = list(shared)

    def squares(out):
        return (out * out).sum()

    def loss(p, x, *more):
        out = batch(lambda y: (y * y).sum(), strict=True)(g(x, *more, **p))
        return ab.sum(out)

    got, rows = ab.grad(loss, argnums=(0, 1))(shared, batch_of(xs), *map(batch_of, columns))
    for i, row in enumerate(zip(xs, *columns, strict=True)):
        want, own = ab.grad(lambda p, x, *more: squares(f(x, *more, **p)), argnums=(0, 1))(shared, *row)
        np.testing.assert_allclose(rows.examples()[i], own, rtol=1e-6, atol=1e-9)
        for name in names:
            got[name] = got[name] - want[name]
    for name in names:
        np.testing.assert_allclose(got[name], 0, atol=1e-8)


def test_no_work_is_done_for_padding():
    with inspect.products() as products:
        batch(lambda x, w: np.tanh(x @ w) @ w, strict=True)(batch_of(XS), w=W)
    assert [math.prod(x[:-1]) for x, _ in products] == [sum(LENGTHS)] * 2


def test_no_work_is_done_for_padding_after_a_reshape_to_the_example_s_own_length():
    def residual(x, w):
        heads = x.reshape(len(x), 2, D // 2).transpose(1, 0, 2)
        y = x + heads.transpose(1, 0, 2).reshape(len(x), D) @ w
        return y @ w

    with inspect.products() as products:
        batch(residual, strict=True)(batch_of(XS), W)
    assert [math.prod(x[:-1]) for x, y in products if len(y) == 2] == [sum(LENGTHS)] * 2


def test_no_work_is_done_for_padding_where_a_gradient_is_taken():
    f = batch(lambda x, w, v: np.tanh(x @ w + v) @ w, strict=True)
    total = batch(lambda y: (y * y).sum(), strict=True)
    x = batch_of(XS)
    with inspect.watched(Unpadded, "_ab_force") as made:
        ab.grad(lambda p: ab.sum(total(f(x, *p))))((W, V))
    assert len(made) == 1  # where the result leaves the call


def test_padding_never_warns_and_never_leaves():
    f = batch(lambda x, w: np.log(x @ w), strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = f(batch_of([abs(x) for x in XS]), w=abs(W))
    assert isinstance(out.data, np.ndarray)
    with pytest.warns(RuntimeWarning, match="invalid value"):
        f(batch_of(XS), w=abs(W))


def test_outside_of_a_call_data_is_an_array():
    assert isinstance((batch_of(XS) @ W).data, np.ndarray)
    x = batch_of(XS)
    batch(dense, strict=True)(x, W, V)
    assert type(x.data) is np.ndarray


def test_few_or_full_rows_stay_as_they_are():
    def kind(examples, **sizes):
        with (
            inspect.replaced(unpadded, **sizes),
            inspect.watched(padded_batch, "unpadded", after=lambda made, *args: type(made)) as kinds,
            ab.options(blocks=False),
        ):
            batch(dense, strict=True)(batch_of(examples), W, V)
        return kinds[-1]

    assert kind(XS, _LEAST_ELEMENTS=1 << 13) is np.ndarray
    assert kind(ragged(6, 6, 6, 5, width=D), _MOST_FILLED=0.9) is np.ndarray
    assert kind(XS, _MOST_FILLED=0.9) is Unpadded


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64])
def test_kept_is_where_bit_for_bit(dtype):
    special = [1.0, -1.0, np.nan, np.inf, -np.inf, -0.0] if np.dtype(dtype).kind == "f" else range(6)
    x = np.array([*special] * 2, dtype).reshape(2, 6)
    mask = RNG.random(x.shape) < 0.5
    for m, a in [
        (mask, x),
        (mask[:, :1], x),
        (mask[:1], x),
        (mask.T, x.T[:, :1]),
        (mask[:, ::2], x[:, ::2]),
        (mask.T, x.T),
        (mask[:, :0], x[:, :0]),
        (mask[0], x),
    ]:
        want = np.where(m, a, np.zeros((), dtype))
        got = where_or_zero(m, a)
        assert got.dtype == want.dtype
        assert got.tobytes() == want.tobytes()


def tagged(x, w):
    h = np.zeros(D)
    out = []
    for row in x:
        h = np.tanh(row @ w + h)
        out.append(h)
    y = np.stack(out)
    return y @ w, y[::-1], y.sum(axis=0)


def test_a_list_of_each_step_is_stacked_without_padding():
    xs = [x for x in XS if len(x)]
    equals_loop(tagged, xs, w=W)
    equals_loop(tagged, FULL, w=W)
    f = batch(lambda x, w: tagged(x, w)[0], strict=True)
    total = batch(lambda y: (y * y).sum(), strict=True)
    for _ in range(3):
        got = ab.grad(lambda w: ab.sum(total(f(batch_of(xs), w))))(W)
    want = sum(ab.grad(lambda w, x=x: (tagged(x, w)[0] ** 2).sum())(W) for x in xs)
    np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-10)
