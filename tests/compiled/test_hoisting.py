"""Products with the rows that a loop runs over are made before the loop, where that changes nothing."""

import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch.compiled.compiled_map import compiled_map, prepared
from tests.compiled.interpreted import interpreted
from tests.compiled.law import outcome, same

RNG = np.random.default_rng(3)
LENGTHS = (4, 0, 1, 3)


def recurrent(xs, p):
    h = np.zeros(3, xs.dtype)
    for x in xs:
        h = np.tanh(x @ p["w"] + h @ p["u"])
    return h


def tagged(xs, p):
    h, total = np.zeros(3, xs.dtype), 0.0
    for k, (x, y) in enumerate(zip(xs, xs[::-1] * 2.0, strict=True)):
        h = np.tanh(x @ p["w"] + h @ p["u"] - y @ p["w"])
        total = total + k * (x @ p["a"]) * h[0]
    return h * total


def comprehended(xs, p):
    return np.sum([np.tanh(x @ p["w"]) for x in xs])


def summed(xs, p):
    return sum(np.sum(np.tanh(x @ p["u"])) for x in xs) * 1.0


def of_local_names(xs, p):
    w, a = p["w"] * 2.0, p["a"]
    out = []
    for x in xs:
        out.append((x @ w) * (x @ a))
    return np.sum(out)


def in_a_loop(xs, p):
    h = np.zeros(3, xs.dtype)
    for w in p["layers"]:
        for x in xs:
            h = np.tanh(x @ w + h)
    return h


HOISTED = [recurrent, tagged, comprehended, summed, of_local_names, in_a_loop]


def that_stops(xs, p):
    h = np.zeros(3, xs.dtype)
    for x in xs:
        h = h + x @ p["w"]
        if h[0] > 0:
            break
    return h


def in_a_branch(xs, p):
    h = np.zeros(3, xs.dtype)
    for x in xs:
        if x[0] > 0:
            h = h + x @ p["w"]
    return h


def of_what_is_bound(xs, p):
    w = p["w"]
    h = np.zeros(3, xs.dtype)
    for x in xs:
        h = h + x @ w
        w = w * 0.5
    return h


def of_what_is_written(xs, p):
    w = p["w"] * np.float32(1)
    v = w
    h = np.zeros(3, xs.dtype)
    for x in xs:
        h = h + x @ w
        v[0] = h
    return h


def of_rows_that_are_written(xs, p):
    rows = xs * 1.0
    h = np.zeros(3, xs.dtype)
    for x in rows:
        h = h + x @ p["w"]
        rows[-1] = h
    return h


def of_own_rows_that_are_written(xs, p):
    h = np.zeros(3, xs.dtype)
    for x in xs:
        h = h + x @ p["w"]
        xs[-1] = h
    return h


def of_another_item(xs, p):
    h = np.zeros(3, xs.dtype)
    for x in xs:
        x = x + h
        h = h + x @ p["w"]
    return h


def of_what_a_function_binds(xs, p):
    w = p["w"] * np.float32(1)
    h = np.zeros(3, xs.dtype)

    def halve():
        nonlocal w
        w = w * np.float32(0.5)

    for x in xs:
        h = h + x @ w
        halve()
    return h


def of_what_another_function_binds(xs, p):
    w = p["w"] * np.float32(1)

    def halve():
        nonlocal w
        w = w * np.float32(0.5)

    def run():
        h = np.zeros(3, xs.dtype)
        for x in xs:
            h = h + x @ w
            halve()
        return h

    return run()


def of_what_a_function_made_in_each_round_binds(xs, p):
    w = p["w"] * np.float32(1)
    h = np.zeros(3, xs.dtype)
    for x in xs:

        def halve():
            nonlocal w
            w = w * np.float32(0.5)

        h = h + x @ w
        halve()
    return h


def scaled(w):
    w *= 0.5
    return w[0]


def of_what_a_helper_writes(xs, p):
    w = p["w"] * np.float32(1)
    h = np.zeros(3, xs.dtype)
    for x in xs:
        h = h + x @ w + scaled(w)
    return h


IN_PLACE = [
    that_stops, in_a_branch, of_what_is_bound, of_what_is_written, of_rows_that_are_written,
    of_own_rows_that_are_written, of_another_item, of_what_a_helper_writes, of_what_a_function_binds,
    of_what_another_function_binds, of_what_a_function_made_in_each_round_binds,
]  # fmt: skip


def examples(dtype=np.float64):
    params = {name: RNG.normal(size=(3, 3)).astype(dtype) for name in "wu"} | {"a": RNG.normal(size=3).astype(dtype)}
    params["layers"] = [RNG.normal(size=(3, 3)).astype(dtype) for _ in range(2)]
    return [RNG.normal(size=(n, 3)).astype(dtype) for n in LENGTHS], params


def products(f):
    """How many products of matrices the text has, and how many of a vector."""
    xs, p = examples()
    text = prepared(f, [xs], {"p": p}, None)[1].module.text
    return text.count("= product_22("), text.count("= product_12(") + text.count("= product_11(")


@pytest.mark.parametrize(
    ("f", "expected"), [(recurrent, (1, 1)), (tagged, (2, 1)), (comprehended, (1, 0)), (summed, (1, 0))]
)
def test_products_are_made_before_the_loop(f, expected):
    assert products(f) == expected


@pytest.mark.parametrize("f", IN_PLACE)
def test_products_that_depend_on_the_rounds_stay_in_the_loop(f):
    assert products(f)[0] == 0


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("f", [*HOISTED, *IN_PLACE])
def test_values(f, dtype):
    xs, p = examples(dtype)
    with interpreted(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(compiled_map(f, [[x.copy() for x in xs]], {"p": p}), [f(x, p) for x in xs])


@pytest.mark.parametrize("f", [*HOISTED, that_stops, in_a_branch, of_what_is_bound])
def test_gradients(f):
    xs, p = examples()

    def step(way):
        with ab.options(way=way):
            return ab.grad(lambda q: sum(np.sum(np.sin(y)) for y in ab.map(f, q[0], p=q[1])))((xs, p))

    with interpreted():
        of_xs, of_p = step("compiled")
    xs_plain, p_plain = step("loop")
    found, wanted = ([*of_p.values()], [*p_plain.values()])
    for ours, plain in zip([*of_xs, *found[:3], *found[3]], [*xs_plain, *wanted[:3], *wanted[3]], strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("f", [recurrent, tagged, comprehended])
@pytest.mark.parametrize("shape", [(2, 3), (3, 2)])
def test_errors(f, shape):
    xs, p = examples()
    p["w"] = np.ones(shape)
    want = outcome(lambda: [f(x, p) for x in xs])
    with interpreted():
        got = outcome(lambda: compiled_map(f, [xs], {"p": p}))
    assert type(got) is type(want)
    if isinstance(want, Exception):
        assert str(want) in str(got)
        empty = xs[1]  # no round, no error
        with interpreted():
            assert same(compiled_map(f, [[empty]], {"p": p}), [f(empty, p)])


def test_rows_that_overflow_warn_as_in_the_loop():
    xs, p = examples(np.float32)
    xs[0][2] = 3e38
    with interpreted(), pytest.warns(RuntimeWarning, match="encountered in matmul") as found:
        compiled_map(recurrent, [xs], {"p": p})
    with pytest.warns(RuntimeWarning, match="encountered") as wanted:
        [recurrent(x, p) for x in xs]
    assert [str(each.message) for each in wanted] == [str(each.message) for each in found]
