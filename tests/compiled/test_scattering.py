"""`np.broadcast_to`, and the `at` of ufuncs, in compiled code: values, errors and gradients."""

import numpy as np
import pytest

import autobatch as ab
from autobatch.compiled.compiled_map import KernelForm, compiled_map, prepared
from autobatch.compiled.taping import taped_map
from tests.compiled.interpreted import interpreted
from tests.compiled.law import outcome, same

RNG = np.random.default_rng(0)
IDS = [np.array(x, np.int64) for x in ([0, 2, 2, 0], [1], [], [-1, 2, -1, 2])]


def rows_at(h, ids, w):
    out = np.zeros_like(h)
    np.add.at(out, ids, h[ids] @ w)
    np.subtract.at(out, ids, 0.5)
    np.add.at(out, ids, w[0])
    return out * h


def items_at(h, ids, w):
    out = h[:, 0].copy()
    np.add.at(out, ids, h[ids, 1])
    np.subtract.at(out, ids, w[0, 0])
    return out


def no_sums_at(h, ids, w):
    out = h * 1.0
    np.multiply.at(out, ids, w[0])
    np.maximum.at(out, ids, 0.25)
    return out


def pairs_at(h, ids, w):
    out = h * 1.0
    np.add.at(out, (ids, ids[::-1].copy()), h[ids, 0])
    np.subtract.at(out, ([0, 1], [1, 1]), w[0, 1])
    return out


def own_rows_at(h, ids, w):
    out = h * 1.0
    np.add.at(out, ids, out[: len(ids)])
    return out


def repeated(h, ids, w):
    x = np.broadcast_to(w[0], h.shape)
    y = w[0] * 1.0
    z = np.broadcast_to(y, (2, 3))
    y[0] = 7.0
    n, k = 4, 2.5
    return x * h, z + w[:1], np.broadcast_to(k, (n,)) * k, np.broadcast_to(h[:, :1], h.shape).sum(axis=0) + w[0]


SUMS = [rows_at, items_at, pairs_at, own_rows_at, repeated]


def examples(dtype):
    hs = [RNG.normal(size=(3, 3)).astype(dtype) for _ in IDS]
    return hs, IDS, RNG.normal(size=(3, 3)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("f", [*SUMS, no_sums_at])
def test_values(f, dtype):
    hs, ids, w = examples(dtype)
    ids = [x[:3] for x in ids] if f is own_rows_at else ids
    with interpreted():
        assert same(compiled_map(f, [hs, ids], {"w": w}), [f(h, i, w) for h, i in zip(hs, ids, strict=True)])


@pytest.mark.parametrize("f", SUMS)
def test_gradients(f, monkeypatch):
    runs, run, refused, refuse = [], taped_map.run_backward, [], KernelForm.refuse
    monkeypatch.setattr(taped_map, "run_backward", lambda *args: runs.append(1) or run(*args))
    monkeypatch.setattr(KernelForm, "refuse", lambda *args: refused.append(args) or refuse(*args))
    hs, ids, w = examples(np.float64)
    ids = [x[:3] for x in ids] if f is own_rows_at else ids

    def loss(h, ids, w):
        out = f(h, ids, w)
        return sum([np.sum(np.sin(x)) for x in out]) if isinstance(out, tuple) else np.sum(np.sin(out))

    def step(way):
        with ab.options(way=way):
            return ab.grad(lambda p: sum(ab.map(loss, p[0], ids, w=p[1])))((hs, w))

    with interpreted():
        found = step("compiled")
    assert runs
    assert not refused  # what differs from Python is given up
    (each, of_w), (each_plain, of_w_plain) = found, step("loop")
    for ours, plain in zip([*each, of_w], [*each_plain, of_w_plain], strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-10, atol=1e-12)


def out_of_range(x):
    np.add.at(x, np.array([0, 3]), 1.0)
    return x


def narrow_ints(x):
    out = np.zeros((2, 2), np.int8)
    np.add.at(out, np.array([0, 1, 0]), x.astype(np.int64) + 99)
    return out


def wrong_shape(x):
    return np.broadcast_to(x, (3, 2))


@pytest.mark.parametrize("f", [out_of_range, wrong_shape])
def test_errors(f):
    want = outcome(lambda: f(np.ones(3)))
    assert isinstance(want, Exception)
    with interpreted():
        got = outcome(lambda: compiled_map(f, [[np.ones(3)]], {}))
    assert type(got) is type(want)
    assert str(want) in str(got)


def test_ints_are_cut_off():
    xs = [np.full(2, x) for x in (0.5, 60.0)]
    with interpreted():
        assert same(compiled_map(narrow_ints, [xs], {}), [narrow_ints(x) for x in xs])


def written(x):
    y = np.broadcast_to(x, (2, 3))
    y[0, 0] = 1.0
    return y


def test_what_is_broadcast_is_not_written():
    assert "writes into" in str(prepared(written, [[np.ones(3)]], {}, None)[1].reason)
