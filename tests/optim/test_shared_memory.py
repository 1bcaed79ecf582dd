"""Parameters that share memory: the same elements at several places are updated once; a part in common is an error."""

import dataclasses

import numpy as np
import pytest

import autobatch as ab
from autobatch import optim
from autobatch.errors import UnsupportedError
from tests.law import assert_same

OPTIMIZERS = {
    "sgd": lambda: optim.SGD(0.1),
    "momentum": lambda: optim.SGD(0.1, momentum=0.9, weight_decay=0.1),
    "adagrad": lambda: optim.Adagrad(0.1),
    "row-wise adagrad": lambda: optim.RowWiseAdagrad(0.1),
    "adam": lambda: optim.Adam(0.1),
    "adamw": lambda: optim.AdamW(0.1),
    "rmsprop": lambda: optim.RMSProp(0.1),
    "ftrl": lambda: optim.FTRL(),
    "clipped": lambda: optim.SGD(0.1, clip_norm=0.5),
}


@dataclasses.dataclass
class Tied:
    emb: np.ndarray
    out: np.ndarray


# How the second place shows the elements of the first, and how its gradient is put in the axes of the first.
VIEWS = {
    "itself": (lambda w: w, lambda g: g),
    "a view": (lambda w: w[:], lambda g: g),
    "transposed": (lambda w: w.T, lambda g: g.T),
}


def test_every_optimizer_is_here():
    assert {type(make()).__name__ for make in OPTIMIZERS.values()} == set(optim.optimizers.__all__)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_tied_weights_get_the_sum_of_their_gradients(name, view, dtype):
    show, back = VIEWS[view]
    rng = np.random.default_rng(0)
    start = rng.normal(size=(4, 3)).astype(dtype)
    steps = [(rng.normal(size=(4, 3)).astype(dtype), show(rng.normal(size=(4, 3)).astype(dtype))) for _ in range(3)]
    one, own = OPTIMIZERS[name](), start.copy()
    state = one.init(own)
    for g, h in steps:
        own, state = one.update(own, g + back(h), state)
    for make in (dict, Tied, lambda **parts: list(parts.values()), lambda **parts: tuple(parts.values())):
        w = start.copy()
        params, optimizer = make(emb=w, out=show(w)), OPTIMIZERS[name]()
        state = optimizer.init(params)
        for g, h in steps:
            params, state = optimizer.update(params, make(emb=g, out=h), state)
        assert_same(w, own)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_table_tied_to_its_transpose(name):
    def loss(p):
        return ((p["emb"][[1, 1, 2]] @ p["out"]) ** 2).sum()

    start = np.random.default_rng(1).normal(size=(5, 3))
    expected = OPTIMIZERS[name]()
    own = expected.update(
        start.copy(), ab.grad(lambda w: loss({"emb": w, "out": w.T}))(start), expected.init(start.copy())
    )[0]
    for first in ("emb", "out"):
        w = start.copy()
        parts = {"emb": ab.EmbeddingTable(w), "out": w.T}
        params = {key: parts[key] for key in sorted(parts, reverse=first == "out")}
        optimizer = OPTIMIZERS[name]()
        optimizer.update(params, ab.grad(loss)(params), optimizer.init(params))
        if first == "emb" or not optimizer.by_row:  # else a row is a row of the transpose
            assert_same(w, own)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parts_in_common_are_an_error_and_change_nothing(name):
    w = np.ones((4, 3))
    whole = np.ones((4, 3))
    pairs = {
        "rows": (w, w[1:]),
        "overlapping rows": (w[:3], w[2:]),
        "a column": (w[:, 0], w),
        "flat": (w, w.reshape(-1)),
        "reversed": (w, w[::-1]),
        "a table": (ab.EmbeddingTable(w), w[:2]),
        "the middle of three": ([w[:1], w[:2]], w[3:]),
    }
    for pair in pairs.values():
        optimizer, params = OPTIMIZERS[name](), {"a": pair[0], "b": pair[1]}
        state = optimizer.init(params)
        grads = {"a": [np.ones_like(x) for x in pair[0]], "b": np.ones_like(pair[1])}
        if not isinstance(pair[0], list):
            grads["a"] = np.ones(pair[0].shape)
        with pytest.raises(UnsupportedError, match=r"params\[.*share a part of their memory.*\.copy\(\)"):
            optimizer.update(params, grads, state)
        assert_same(w, whole)
        assert state["step"] == 0


def test_parts_that_have_no_element_in_common_are_parameters_of_their_own():
    w = np.ones((4, 6))
    params = {"left": w[:, :2], "right": w[:, 2:4], "even": w[::2, 4:], "odd": w[1::2, 4:], "none": w[:0]}
    optimizer = optim.SGD(0.5)
    grads = {name: np.full_like(x, place) for place, (name, x) in enumerate(params.items())}
    optimizer.update(params, grads, optimizer.init(params))
    assert_same(w[:2], 1 - 0.5 * np.array([[0, 0, 1, 1, 2, 2], [0.0, 0, 1, 1, 3, 3]]))
    optimizer.update([w, w[1:]], [np.ones_like(w), None], optimizer.init([w, w[1:]]))  # one of them is not updated
    assert w[0, 0] == 0.5
