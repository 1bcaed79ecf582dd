"""Loops whose body is one block run the steps that are left as one op: which do, and that nothing else shows of it.

Mutations that must turn this file red; each was made by hand and seen red:
    - lanes that leave with the state of another step: in `blocks.scan.Scan.run`, `lanes` set before `whole[lanes] = x`;
    - a cotangent that is forgotten: in `Scan.walk_back`, `rows.get(i)` as None, and `wide[keep] = 0`;
    - rows of another step: in `blocks.scan.Scan.run`, `offsets[step + 1] - 1`;
    - a weight that changes: in `LaneScan._stays`, `return True`;
    - a state that is written into, and an item of a list: in `lockstep.scans`, no `freeze`.
"""

import unittest.mock
import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch import batch, examples, options
from autobatch.errors import FallbackWarning
from tests.law import agrees, assert_same, batch_of, equals_loop, every_way_equals_loop, ragged, run_again

RNG = np.random.default_rng(0)
U = RNG.normal(size=(4, 4)) / 4
PARAMS = {"w": RNG.normal(size=(3, 4)), "u": U, "b": RNG.normal(size=4)}
ROWS = ragged(5, 0, 3, 9, 1, 9, 12, width=3)
STARTS = [RNG.normal(size=4) * 10.0**-i for i in range(5)]


def rnn(xs, p):
    h = np.zeros(4)
    for x in xs:
        h = np.tanh(x @ p["w"] + h @ p["u"] + p["b"])
    return h


def gated(xs, p):
    h, c = np.zeros(4), np.ones(4)
    states = []
    for x in xs:
        z = x @ p["w"] + h @ p["u"]
        c = c * 0.5 + np.tanh(z)
        h = np.exp(-c * c) * z
        states.append(h)
    return states


def all_states(xs, p):
    states = gated(xs, p)
    return np.stack(states) if states else np.zeros((0, 4))


def last_states(xs, p):
    return gated(np.concatenate([xs, xs[:1], np.ones((2, 3))]), p)[-1]


def settles(h, u):
    while np.abs(h).max() > 1e-6:
        h = np.tanh(h @ u) * 0.9
    return h


def counted(xs, p):
    h = np.zeros(4)
    n = h.sum()
    for x in xs:
        h = np.tanh(x @ p["w"] + h)
        n = (h * h).sum() + n * 0.5
    return h, n


def with_context(xs, q, p):
    h, q = q, np.tanh(q @ p["u"])
    for x in xs:
        h = np.tanh(x @ p["w"] + h @ p["u"] + q)
    return h


def only_items(xs, p):
    h = np.zeros(4)
    for x in xs @ p["w"]:
        h = np.tanh(h * 0.5 + x)
    return h


CASES = [
    (rnn, [ROWS], {"p": PARAMS}),
    (all_states, [ROWS], {"p": PARAMS}),
    (last_states, [ROWS], {"p": PARAMS}),
    (settles, [STARTS], {"u": U}),
    (counted, [ROWS], {"p": PARAMS}),
    (with_context, [ROWS, list(RNG.normal(size=(7, 4)))], {"p": PARAMS}),
    (only_items, [ROWS], {"p": {"w": PARAMS["w"]}}),
]


@pytest.mark.parametrize(("f", "columns", "shared"), CASES)
@pytest.mark.parametrize("pick", [slice(None), slice(None, None, -1), slice(3, 4), slice(5, 6), slice(0, 0)])
def test_results_are_those_of_the_loop(f, columns, shared, pick):
    for _ in range(3):
        if columns[0][pick]:
            agrees(f, *(column[pick] for column in columns), **shared)


@pytest.mark.parametrize(("f", "columns", "shared"), CASES)
def test_the_steps_run_as_one(f, columns, shared, scans):
    run_again(f, *columns, **shared, times=3)
    scans.clear()
    run_again(f, *columns, **shared, times=1)
    assert sum(scans) >= 5, scans


@pytest.mark.parametrize(("f", "columns", "shared"), CASES)
def test_gradients_are_those_of_the_loop(f, columns, shared, scans):
    """Of every parameter and of what is per example, weighted so that every element of the result counts."""

    def total(*args):
        out = f(*args)
        if f is counted:
            return (np.sin(out[0]) * out[0]).sum() + np.sin(out[1])
        return (np.sin(out) * out).sum()

    (name,) = shared
    g = batch(total, strict=True)
    for _ in range(4):
        got = ab.grad(lambda p: ab.sum(g(*map(batch_of, columns), p)))(shared[name])
    assert sum(scans) >= 5
    want = None
    for row in zip(*columns, strict=True):
        own = ab.grad(lambda p, row=row: total(*row, p))(shared[name])
        want = own if want is None else _added(want, own)
    _close(got, want)


def _added(a, b):
    return {key: a[key] + b[key] for key in a} if isinstance(a, dict) else a + b


def _close(a, b):
    for key in a if isinstance(a, dict) else [...]:
        np.testing.assert_allclose(a[key], b[key], rtol=1e-9, atol=1e-12)


def test_gradients_of_gradients(scans):
    """Where the walk back is itself differentiated the steps are ops, one after the other."""
    g = batch(lambda h, u: (settles(h, u) ** 2).sum(), strict=True)
    r = batch(lambda xs, p: (all_states(xs, p) ** 3).sum(), strict=True)

    for f, plain, column, params in (
        (g, lambda h, u: (settles(h, u) ** 2).sum(), STARTS, U),
        (r, lambda xs, p: (all_states(xs, p) ** 3).sum(), ROWS, PARAMS),
    ):
        inner = ab.grad(lambda p, s, f=f, xs=column: ab.sum(f(batch_of(xs), p)) * s)

        def total(s, inner=inner, params=params):
            out = inner(params, s)
            return sum((each * each).sum() for each in (out.values() if isinstance(out, dict) else [out]))

        for _ in range(4):
            got = ab.grad(total)(1.5)
        own = [ab.grad(lambda p, x=x, plain=plain: plain(x, p))(params) for x in column]
        keys = list(params) if isinstance(params, dict) else [...]
        want = 2 * 1.5 * sum((sum(each[key] for each in own) ** 2).sum() for key in keys)
        np.testing.assert_allclose(got, want, rtol=1e-8)
    assert not scans


def test_cotangents_that_a_map_records():
    """The walk back over steps takes plain cotangents only: the examples of such a map run as a loop."""
    g = batch(settles)
    inner = ab.grad(lambda p, x: ab.sum(g(batch_of(STARTS), p)) * np.tanh(x).sum())
    xs = [RNG.normal(size=3) for _ in range(3)]
    want = [inner(U, x) for x in xs]
    with options(way="fly"), pytest.warns(FallbackWarning, match="recorded cotangents"):
        got = ab.map(lambda x: inner(U, x), xs)
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_all_ways_and_their_gradients():
    every_way_equals_loop(rnn, ROWS, p=PARAMS)
    every_way_equals_loop(settles, STARTS, u=U)


def test_what_an_example_complains_of_is_heard_once_and_in_its_step(scans):
    def f(xs, w):
        h = np.ones(3)
        for x in xs:
            h = np.sqrt(x @ w) * h + x
        return h

    w = np.eye(3)
    fine = [np.abs(x) + 0.1 for x in ROWS]
    run_again(f, fine, w=w, times=3)
    assert scans
    odd = [x.copy() for x in fine]
    odd[3][7] = -1.0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = examples(batch(f, strict=True)(batch_of(odd), w))
    assert [str(each.message) for each in caught] == ["invalid value encountered in sqrt"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x, own in zip(odd, got, strict=True):
            assert_same(own, f(x, w))
    with np.errstate(all="raise"), pytest.raises(FloatingPointError, match="sqrt") as raised:
        batch(f, strict=True)(batch_of(odd), w)
    assert any("example 3" in note for note in raised.value.__notes__)


def test_a_loop_that_overflows_goes_on_as_it_stands():
    def f(h, u):
        while np.abs(h).max() < 1e300:
            h = h * u + h * h
        return h

    with np.errstate(all="ignore"):
        for _ in range(3):
            agrees(f, [np.array([1.5, 2.0]), np.array([3.0, 1.0]), np.array([1e200, 1.0])], u=np.array([2.0, 3.0]))


def test_weights_that_change_as_they_are_read():
    def f(xs, p):
        h = np.zeros(4)
        for x in xs:
            h = np.tanh(h @ p["u"] + x)
        return h

    def weights():  # no code of the user's decides what is read, so that nothing is known of it
        p = unittest.mock.MagicMock()
        p.__getitem__.side_effect = [U * k for k in range(8)]
        return p

    (xs,) = ragged(8, width=4)
    want = f(xs, weights())
    for _ in range(4):
        assert_same(examples(batch(f, strict=True)(batch_of([xs]), weights())), [want])


def test_attributes_of_objects(scans):
    class Cell:
        def __init__(self):
            self.u = U
            self.parts = {"w": [PARAMS["w"]]}

    def f(xs, cell):
        h = np.zeros(4)
        for x in xs:
            h = np.tanh(h @ cell.u + x @ cell.parts["w"][0])
        return h

    agrees(f, ROWS, cell=Cell())
    agrees(f, ROWS, cell=Cell())
    assert scans


def test_lists_that_are_appended_to_otherwise_too():
    def f(xs, p):
        states = [np.ones(4)]
        h = np.zeros(4)
        for x in xs:
            h = np.tanh(x @ p["w"] + h @ p["u"])
            states.append(h)
        states.append(h * 2)
        back = states[::-1]
        return np.stack(states), states[-1], back[0], back[len(back) - 1], len(states)

    def twice(xs, ys, p):
        states, others = [], []
        h = np.zeros(4)
        for x in xs:
            h = np.tanh(x @ p["w"] + h @ p["u"])
            c = h * 2.0
            states.append(h)
            others.append(c)
        for y in ys:
            h = np.tanh(y @ p["w"] - h)
            states.append(h)
        return np.stack(states) if states else h, [s.sum() for s in others], sum(others, np.zeros(4))

    for _ in range(3):
        agrees(f, ROWS, p=PARAMS)
        agrees(f, ragged(6, 6, 6, width=3), p=PARAMS)
        agrees(twice, ROWS, ROWS[::-1], p=PARAMS)
        agrees(twice, ROWS, ragged(4, 4, 4, 4, 4, 4, 4, width=3), p=PARAMS)


def test_writes_into_what_a_step_made():
    def into_the_state(xs, p):
        h = np.zeros(4)
        states = []
        for x in xs:
            h = np.tanh(x @ p["w"] + h @ p["u"])
            states.append(h)
        last = h
        last[0] = 5.0
        return np.stack(states), h

    def into_an_item(xs, p):
        h = np.zeros(4)
        states = []
        for x in xs:
            h = np.tanh(x @ p["w"] + h @ p["u"])
            states.append(h)
        last = states[-1]
        last[1] = 7.0
        return np.stack(states), h

    for f in (into_the_state, into_an_item):
        for rows in (ragged(6, 6, 5, width=3), ragged(6, 6, 6, width=3)):
            for _ in range(4):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", FallbackWarning)
                    got = examples(batch(f)(batch_of(rows), PARAMS))
                assert_same(got, [f(x, PARAMS) for x in rows])


def test_in_branches_loops_and_attempts():
    def f(xs, n, p):
        h = np.zeros(4)
        for _ in range(n):
            if h[0] < 0.3:
                for x in xs:
                    h = np.tanh(x @ p["w"] + h @ p["u"])
            else:
                while np.abs(h).sum() * 2.0 > 0.5:
                    h = np.tanh(h @ p["u"]) * 0.5
        return h

    for _ in range(3):
        agrees(f, ROWS, [3, 1, 0, 4, 2, 3, 3], p=PARAMS)


def test_states_that_are_integers_or_flags():
    def f(xs, w):
        h, n = np.zeros(3), np.zeros(3, np.int64)
        for x in xs:
            h = np.tanh(x @ w + h)
            n = n + (h > 0) * 2
        return h, n

    for _ in range(3):
        agrees(f, ROWS, w=np.eye(3))
    total = batch(lambda xs, w: f(xs, w)[0].sum(), strict=True)
    got = [ab.grad(lambda w: ab.sum(total(batch_of(ROWS), w)))(np.eye(3)) for _ in range(4)][-1]
    want = sum(ab.grad(lambda w, x=x: f(x, w)[0].sum())(np.eye(3)) for x in ROWS)
    np.testing.assert_allclose(got, want)


def test_a_variable_that_nothing_carries():
    def f(xs, w):
        h = z = np.zeros(3)
        for x in xs:
            z = x @ w + h * 2.0
            h = np.tanh(h)
        return z

    for _ in range(3):
        agrees(f, ROWS, w=np.eye(3))


def test_without_blocks_nothing_is_a_scan(scans):
    with options(blocks=False):
        equals_loop(rnn, ROWS, p=PARAMS)
    assert not scans
