"""ab.nn: plain values against their formulas, batches against the loop, gradients numerically."""

import math

import numpy as np
import pytest

import autobatch as ab
from autobatch import nn
from autobatch.errors import BadIdError, DTypeError, ShapeError, UnsupportedError
from autobatch.ops.nn.activations import normal_cdf
from autobatch.ops.nn.dropout_and_masks import random_uniform
from tests.inspect import Example, Tape, example
from tests.law import Shared, as_operands, check, check_grads

T = (3, 5, 0, 1)
S = (2, 4, 3, 1)


def lanes(shape, dtype="f8", seed=0):
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=shape(t, s)) * 3).astype(dtype) for t, s in zip(T, S, strict=True)]


SHAPES = {
    "static": lambda t, s: (4,),
    "ragged": lambda t, s: (t,),
    "rows": lambda t, s: (t, 4),
    "columns": lambda t, s: (2, t),
    "both": lambda t, s: (t, s),
    "attention": lambda t, s: (2, s, t),
}
ALONG = {
    "softmax": nn.softmax,
    "log_softmax": nn.log_softmax,
    "logsumexp": nn.logsumexp,
    "logsumexp kept": lambda x, axis: nn.logsumexp(x, axis, keepdims=True),
    "layer_norm": lambda x, axis: nn.layer_norm(x, axis=axis),
}


@pytest.mark.parametrize("case", SHAPES)
@pytest.mark.parametrize("name", ALONG)
def test_along_an_axis(name, case):
    f = ALONG[name]
    for axis in range(-1, len(SHAPES[case](0, 0)) - 1):
        for dtype in ("f2", "f4", "f8", "i4", "?"):
            check(lambda x, axis=axis: f(x, axis=axis), lanes(SHAPES[case], dtype))
        check_grads(lambda x, axis=axis: f(x, axis=axis), lanes(SHAPES[case]), rtol=1e-4)


def test_values_of_the_normalisations():
    x = np.array([[1.0, 2.0, 3.0], [1000.0, 1000.0, -np.inf], [0.0, 0.0, 0.0]])
    e = np.exp(x - x.max(-1, keepdims=True))
    np.testing.assert_allclose(nn.softmax(x), e / e.sum(-1, keepdims=True), rtol=1e-15)
    np.testing.assert_allclose(nn.log_softmax(x)[0], np.log(nn.softmax(x)[0]), rtol=1e-14)
    np.testing.assert_allclose(nn.logsumexp(x), [np.log(np.exp(x[0]).sum()), 1000 + np.log(2), np.log(3)])
    assert nn.logsumexp(np.full(3, -np.inf)) == -np.inf
    assert nn.logsumexp(np.zeros(0)) == -np.inf
    assert nn.logsumexp(x, None).shape == ()
    with pytest.warns(RuntimeWarning, match="invalid value"):
        assert np.isnan(nn.softmax(np.full(2, -np.inf))).all()
    mean, var = x[0].mean(), x[0].var()
    np.testing.assert_allclose(nn.layer_norm(x[0]), (x[0] - mean) / np.sqrt(var + 1e-5))


def test_rows_of_minus_infinity_in_a_batch():
    x = [np.array([-np.inf, 1.0, -np.inf]), np.array([-np.inf, -np.inf]), np.array([2.0])]
    for f in ALONG.values():
        if f is not ALONG["layer_norm"]:
            check(lambda a, f=f: f(a, axis=-1), x)


def test_logsumexp_over_several_axes():
    for axis in (None, (0, 1), (0, -1)):
        check(lambda x, axis=axis: nn.logsumexp(x, axis), lanes(SHAPES["both"]))
        check_grads(lambda x, axis=axis: nn.logsumexp(x, axis), lanes(SHAPES["both"]))


@pytest.mark.parametrize("name", ["sigmoid", "relu", "gelu"])
def test_activations(name):
    f = getattr(nn, name)
    for dtype in ("f2", "f4", "f8", "i4"):
        x = lanes(SHAPES["rows"], dtype)
        assert f(x[0]).dtype == (x[0].dtype if name == "relu" or np.dtype(dtype).kind == "f" else np.float64)
        check(f, x)
    check(f, [0.5, -2.0])
    check_grads(f, lanes(SHAPES["rows"]))


def test_values_of_the_activations():
    x = np.array([-1000.0, -20.0, -0.5, 0.0, 0.5, 20.0, 1000.0])
    exact = [0.0 if v < -700 else 1 / (1 + math.exp(-v)) for v in x]
    np.testing.assert_allclose(nn.sigmoid(x), exact, rtol=1e-15)
    np.testing.assert_allclose(nn.gelu(x), [0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x], rtol=1e-13, atol=1e-300)
    assert nn.gelu(np.array([-np.inf, np.inf])).tolist() == [0, np.inf]
    tape = Tape()
    leaf = tape.leaf(np.zeros(1))
    assert tape.backward([nn.relu(leaf)], [np.ones(1)], [leaf._ab_index])[0].tolist() == [0]


def test_the_normal_distribution_function():
    assert normal_cdf([-np.inf, 0.0, np.inf]).tolist() == [0, 0.5, 1]
    np.testing.assert_allclose(normal_cdf([-30.0, -5.0]), [4.906713927148187e-198, 2.866515718791939e-07], rtol=1e-13)
    assert np.isnan(normal_cdf(np.nan))
    assert normal_cdf(np.float32(0)).dtype == np.float32


AFFINE = {
    "both": lambda x, w, b: nn.layer_norm(x, w, b),
    "weight": lambda x, w, b: nn.layer_norm(x, w) + b,
    "bias": lambda x, w, b: nn.layer_norm(x, bias=b) * w,
    "positional axis": lambda x, w, b: nn.layer_norm(x, w, b, -1, 0.1),
}


@pytest.mark.parametrize("case", AFFINE)
def test_layer_norm_affine(case):
    f = AFFINE[case]
    rng = np.random.default_rng(0)
    w, b = Shared(rng.normal(size=4)), Shared(rng.normal(size=4))
    for shape in ("static", "rows"):
        check(f, lanes(SHAPES[shape]), w, b)
        check(f, lanes(SHAPES[shape], "f4"), Shared(w.value.astype("f4")), b)
        check_grads(f, lanes(SHAPES[shape]), w, b, rtol=1e-4)
    per_lane = lanes(SHAPES["static"], seed=3)
    check(f, lanes(SHAPES["rows"]), per_lane, b)
    check_grads(f, lanes(SHAPES["rows"]), per_lane, b, rtol=1e-4)
    check(f, Shared(rng.normal(size=(2, 4))), per_lane, b)
    ragged = [np.asarray(x) for x in lanes(SHAPES["ragged"], seed=4)]
    check_grads(f, lanes(SHAPES["ragged"]), ragged, ragged, rtol=1e-4)


def test_layer_norm_over_two_axes():
    check(lambda x: nn.layer_norm(x, axis=(0, 1)), lanes(SHAPES["both"]))
    check_grads(lambda x: nn.layer_norm(x, axis=(-2, -1)), lanes(SHAPES["attention"]), rtol=1e-4)


def labels(shape, classes):
    rng = np.random.default_rng(1)
    return [rng.integers(0, classes, size=shape(t, s)) for t, s in zip(T, S, strict=True)]


CROSS = {
    "one": (lambda t, s: (4,), lambda t, s: (), 4),
    "rows": (lambda t, s: (t + 1, 4), lambda t, s: (t + 1,), 4),
    "ragged classes": (lambda t, s: (s,), lambda t, s: (), 1),
    "ragged both": (lambda t, s: (t + 1, s), lambda t, s: (t + 1,), 1),
    "deep": (lambda t, s: (2, t + 1, 3), lambda t, s: (2, t + 1), 3),
}


@pytest.mark.parametrize("case", CROSS)
def test_cross_entropy(case):
    shape, ids, classes = CROSS[case]
    for dtype in ("f2", "f4", "f8", "i4"):
        check(nn.cross_entropy, lanes(shape, dtype), labels(ids, classes))
    check_grads(nn.cross_entropy, lanes(shape), labels(ids, classes), rtol=1e-4)


def test_cross_entropy_with_shared_operands():
    logits = Shared(np.random.default_rng(0).normal(size=(3, 4)))
    ids = labels(lambda t, s: (3,), 4)
    check(nn.cross_entropy, logits, ids)
    check_grads(nn.cross_entropy, logits, ids, rtol=1e-4)
    check(nn.cross_entropy, lanes(lambda t, s: (3, 4)), Shared(ids[0]))
    check(nn.cross_entropy, lanes(SHAPES["static"]), [0, 1, 2, 3])
    check(nn.cross_entropy, lanes(SHAPES["static"]), Shared(2))


def test_cross_entropy_with_probabilities():
    p = [nn.softmax(x) for x in lanes(lambda t, s: (t + 1, 4), seed=5)]
    check(nn.cross_entropy, lanes(lambda t, s: (t + 1, 4)), p)
    check_grads(nn.cross_entropy, lanes(lambda t, s: (t + 1, 4)), p, rtol=1e-4)
    x = np.array([0.3, -1.0])
    np.testing.assert_allclose(nn.cross_entropy(x, np.array([0.0, 1.0])), nn.cross_entropy(x, 1))


def test_cross_entropy_bad_input():
    with pytest.raises(BadIdError, match=r"label 4 at position 1 is not one of the 4 classes 0 .. 3"):
        nn.cross_entropy(np.zeros((2, 4)), np.array([0, 4]))
    x, ids = as_operands((lanes(lambda t, s: (t + 1, 4)), [np.full(t + 1, 4 * (t == 0)) for t in T]))
    with pytest.raises(BadIdError, match="label 4 at position 0") as caught:
        nn.cross_entropy(x, ids)
    assert "example 2" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match=r"labels of shape \(3,\) for logits of shape \(2, 4\)"):
        nn.cross_entropy(np.zeros((2, 4)), np.zeros(3, int))
    with pytest.raises(ValueError, match="expected integer class ids"):
        nn.cross_entropy(np.zeros((2, 4)), np.zeros(2))
    with pytest.raises(ValueError, match=r"expected \(\.\.\., C\): write cross_entropy\(logits, label\)"):
        nn.cross_entropy(np.float64(1), 0)
    with pytest.raises(ShapeError, match=r"cross_entropy: .* example 0"):
        nn.cross_entropy(*as_operands((lanes(lambda t, s: (t + 1, 4)), labels(lambda t, s: (t + 2,), 4))))


def test_one_hot():
    check(lambda i: nn.one_hot(i, 4), labels(lambda t, s: (t,), 4))
    check(lambda i: nn.one_hot(i, 4, np.float32), labels(lambda t, s: (2, t), 4))
    check(lambda i: nn.one_hot(i, 4, bool), [1, 2, 3])
    with pytest.raises(BadIdError, match="id -1 at position 0"):
        nn.one_hot(np.array([-1]), 3)
    with pytest.raises(DTypeError, match="expected integers"):
        nn.one_hot(np.zeros(2), 3)


def test_causal_mask():
    for dtype in ("f4", "f8", "i4"):
        check(nn.causal_mask, lanes(lambda t, s: (t, t), dtype))
        check(nn.causal_mask, lanes(lambda t, s: (2, t, s), dtype))
    check(lambda x: nn.causal_mask(x, -1.0), lanes(lambda t, s: (3, 3)))
    check_grads(lambda x: nn.softmax(nn.causal_mask(x)), lanes(lambda t, s: (t, t)))
    with pytest.raises(ValueError, match="at least two dimensions"):
        nn.causal_mask(np.zeros(3))


@pytest.mark.parametrize(
    "shape", [lambda t, s: (t,), lambda t, s: (t, s), lambda t, s: (3,), lambda t, s: (2, t, s), lambda t, s: ()]
)
def test_dropout_draws_what_the_loop_draws(shape):
    x = [np.ones(shape(t, s), np.float32) for t, s in zip(T, S, strict=True)]
    wants = []
    for i, one in enumerate(x):
        with example(Example(i)):
            wants.append(nn.dropout(nn.dropout(one, 0.3), 0.3))
    with example(Example(np.arange(len(x)))):
        batch = as_operands((x,))[0]
        keys = as_operands(([np.asarray(k) for k in Example(np.arange(len(x))).next_key(0)],))[0]
        assert keys.dtype == np.uint64
    for i, one in enumerate(x):
        with example(Example(i)):
            np.testing.assert_array_equal(
                random_uniform(keys, batch).examples()[i], random_uniform.impl(Example(i).next_key(0), one)
            )
    assert all(want.dtype == np.float32 for want in wants)


def test_dropout():
    x = np.ones((200, 50))
    out = nn.dropout(x, 0.25, seed=3)
    assert set(np.unique(out)) == {0.0, 1 / 0.75}
    assert abs((out == 0).mean() - 0.25) < 0.01
    assert nn.dropout(x, 0.25, training=False) is x
    assert nn.dropout(np.ones(3, int), 0.5).dtype == np.float64
    assert not np.array_equal(out, nn.dropout(x, 0.25, seed=4))
    np.testing.assert_array_equal(out, nn.dropout(x, 0.25, seed=3))
    for rate in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match="expected 0 <= rate < 1"):
            nn.dropout(x, rate)
    check_grads(lambda a: nn.dropout(a, 0.5, seed=1), lanes(SHAPES["both"]))


def test_two_calls_of_one_example_differ():
    with example(Example(0)):
        a, b = nn.dropout(np.ones(64)), nn.dropout(np.ones(64))
    assert not np.array_equal(a, b)


def test_a_plain_call_of_a_decorated_function_drops_what_a_batch_of_one_drops():
    @ab.batch
    def inner(x):
        return nn.dropout(x)

    @ab.batch
    def twice(x):
        return inner(x), nn.dropout(x)

    x = np.ones(64)
    calls = [
        lambda: twice(x),
        lambda: twice.__wrapped__(x),
        lambda: ab.map(twice, [x])[0],
        lambda: ab.examples(twice(ab.MaskedBatch.from_examples([x])))[0],
    ]
    drawn = []
    for call in calls:
        with ab.options(seed=4):
            drawn.append(call())
    first, second = drawn[0]
    assert not np.array_equal(first, second)
    for other in drawn[1:]:
        np.testing.assert_array_equal(other, (first, second))


def masks_of_a_step(way, xs, seed):
    def f(x):
        return nn.dropout(nn.dropout(x, seed=seed) * 3, seed=seed)

    if way == "map":
        return ab.map(f, xs)
    if way == "lock-step":
        return ab.examples(ab.batch(f, strict=True)(ab.MaskedBatch.from_examples(xs)))
    return [ab.batch(f)(x) for x in xs]


@pytest.mark.parametrize("way", ["map", "lock-step", "plain"])
@pytest.mark.parametrize("form", ["argument", "options"])
def test_steps_draw_alike_with_one_seed_and_differ_with_another_or_none(way, form):
    xs = [np.ones(64)] * 3

    def step(seed):
        if form == "argument":
            return np.stack(masks_of_a_step(way, xs, seed))
        with ab.options(seed=seed):
            return np.stack(masks_of_a_step(way, xs, None))

    np.testing.assert_array_equal(step(3), step(3))
    if way != "plain":
        np.testing.assert_array_equal(step(3), np.stack(masks_of_a_step("map", xs, 3)))
    different = [row.tobytes() for seed in (3, 4, -3, 2**40, None, None, None) for row in step(seed)[:1]]
    assert len(set(different)) == len(different)
    if way != "plain":
        assert len({row.tobytes() for row in step(None)}) == len(xs)


def test_no_two_of_seed_example_and_call_share_a_key():
    seeds = [*range(64), *(1 << n for n in range(6, 64)), *range(-64, 0)]
    index, call = np.meshgrid(np.arange(64), np.arange(8))
    keys = np.stack([Example(index, call.copy()).next_key(seed) for seed in seeds])
    assert len(np.unique(keys)) == keys.size


@pytest.mark.parametrize("along", ["elements", "steps", "examples", "calls"])
def test_the_streams_pass_simple_tests_of_randomness(along):
    """Frequencies in 64 bins, serial correlation at several lags, and runs above and below the middle."""
    n = 1 << 14
    if along == "elements":
        stream = random_uniform.impl(Example(3).next_key(7), np.ones(n))
    else:
        keys = {
            "steps": [Example(5).next_key(i) for i in range(n)],
            "examples": Example(np.arange(n)).next_key(7),
            "calls": Example(5, np.arange(n)).next_key(7),
        }[along]
        stream = np.array([random_uniform.impl(key, np.ones(1))[0] for key in keys])
    counts = np.bincount((stream * 64).astype(int), minlength=64)
    assert ((counts - n / 64) ** 2 / (n / 64)).sum() < 63 + 5 * np.sqrt(2 * 63)
    centred = stream - stream.mean()
    for lag in (1, 2, 3, 7, 64, 1000):
        assert abs((centred[lag:] * centred[:-lag]).mean() / centred.var()) < 5 / np.sqrt(n)
    above = stream > 0.5
    runs = 1 + np.count_nonzero(above[1:] != above[:-1])
    assert abs(runs - n / 2) < 5 * np.sqrt(n / 4)


def test_a_seed_that_is_no_integer_is_refused():
    for seed in (0.5, "1"):
        with pytest.raises(UnsupportedError, match="expected an integer, or None"):
            nn.dropout(np.ones(3), seed=seed)


def test_an_axis_that_is_not_there():
    for f in (nn.softmax, nn.log_softmax, nn.logsumexp):
        with pytest.raises(np.exceptions.AxisError, match="axis 2 is out of bounds"):
            f(np.zeros((2, 2)), 2)
