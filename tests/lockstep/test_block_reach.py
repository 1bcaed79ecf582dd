"""What blocks of lock-step hold: helpers that only compute, numbers, unpacking; and what they rely on may change.

Mutations that must turn this file red; each was made by hand and seen red:
    - no guards: in `LaneBlock._failures`, none asked;
    - no helpers: in `convert`, `helper` that gives None.
"""

import math

import numpy as np
import pytest

from autobatch.lockstep import block_launch
from tests.law import agrees, equals_loop, ragged, run_again

RNG = np.random.default_rng(11)
W, U = RNG.normal(size=(3, 4)), RNG.normal(size=(4, 4)) * 0.5
XS = ragged(4, 2, 0, 5, width=3, seed=4)
SCALE = 0.5
squash = np.tanh


def cell(x, h, w, u):
    return np.tanh(x @ w + h @ u)


def by_a_helper(xs, w, u):
    h = np.zeros(4)
    for x in xs:
        h = cell(x, h, w, u) * 0.9
    return h


def by_unpacking(xs, w, u):
    h = np.zeros(4)
    for x in xs:
        z: np.ndarray = x @ w + h @ u
        a, b = z.reshape(2, 2) * 2.0
        h = np.concatenate([np.tanh(a), b / math.sqrt(h.shape[0]) + np.pi])
    return h


def by_a_call_before(xs, w, u):
    h = np.zeros(4)
    for x in xs:
        h = np.tanh(other_helper(x, w) + h @ u) * 0.5
    return h


def other_helper(x, w):
    if x.sum() > 0:
        return x @ w
    return x @ -w


def by_keys(xs, w, u, ws):
    h = np.zeros(4)
    for i, x in enumerate(xs):
        h = np.tanh(x @ w + h @ ws[i % 2]["u"]) * (1.0 + h)
    return h


def by_globals(xs, w, u):
    h = np.zeros(4)
    for x in xs:
        h = squash(x @ w * SCALE + h @ u)
    return h


def by_a_name_that_it_binds(xs, w, u):
    global SCALE
    h = np.zeros(4)
    for i, x in enumerate(xs):
        SCALE = 0.25 * (i + 1)
        h = scaled(x @ w, h) + h @ u
    SCALE = 0.5
    return h


def scaled(x, h):
    return np.tanh(x * SCALE) - h


@pytest.fixture
def launched(monkeypatch):
    """The names of the ops of every launch of a block."""
    seen = []
    launch = block_launch.launch

    def counted(program, operands):
        seen.append([step.op.name for step in program.steps])
        return launch(program, operands)

    monkeypatch.setattr(block_launch, "launch", counted)
    return seen


@pytest.mark.parametrize("f", [by_a_helper, by_unpacking, by_a_call_before, by_globals])
def test_results_are_those_of_the_loop(f):
    equals_loop(f, XS, w=W, u=U)
    agrees(f, XS, w=W, u=U)


def test_inputs_by_keys_that_change():
    ws = [{"u": U}, {"u": -U}]
    equals_loop(by_keys, XS, w=W, u=U, ws=ws)
    agrees(by_keys, XS, w=W, u=U, ws=ws)


def test_a_helper_is_part_of_a_block(launched, step_by_step):
    run_again(by_a_helper, XS, w=W, u=U)
    assert any("tanh" in names and "multiply" in names for names in launched)


def test_a_global_name_that_the_function_binds():
    equals_loop(by_a_name_that_it_binds, XS[:1] * 3, w=W, u=U, falls_back=True)
    for _ in range(3):
        equals_loop(by_a_name_that_it_binds, XS[:1] * 3, w=W, u=U, falls_back=True)


@pytest.mark.parametrize(
    ("f", "name", "value"),
    [
        (by_globals, "squash", np.sin),
        (by_globals, "SCALE", 2.0),
        (by_a_helper, "cell", lambda x, h, w, u: x @ w - h),
    ],
)
def test_a_global_name_that_comes_to_mean_another(f, name, value, monkeypatch):
    agrees(f, XS, w=W, u=U)
    monkeypatch.setitem(globals(), name, value)
    agrees(f, XS, w=W, u=U)


def test_a_helper_whose_code_changes(monkeypatch):
    agrees(by_a_helper, XS, w=W, u=U)
    monkeypatch.setattr(cell, "__code__", (lambda x, h, w, u: np.sin(x @ w) + h @ u).__code__)
    agrees(by_a_helper, XS, w=W, u=U)
