"""Of an example that the result does not read, NaN reaches no gradient, though all examples are walked back together.

Broken once by hand: calls that the tape does not know, cotangents of an argument that is written into later, what a
function changes left changed, calls within a call that run again as before, the random numbers of another call,
outer tapes that do not know the calls.
"""

import contextlib
import dataclasses
import itertools

import numpy as np
import pytest

import autobatch as ab
from autobatch.autodiff.grad import vjp
from tests.autodiff.unread_examples import FUZZERS
from tests.inspect import ran_ways

_W = np.arange(9.0).reshape(3, 3) / 9.0 - 0.4
_XS = [np.array(x) for x in ([0.5, 1.0, -1.0], [-1.0, np.nan, 1.0], [1.5, -0.3, 0.2], [-1.0, np.inf, 0.0])]
_LOG: list[float] = []


def _only_some(x, w):
    h = np.tanh(w @ x)
    if x[0] > 0:
        return h.sum()
    return 0.0


def _early(x, w):
    y = x * w[0]
    if not np.isfinite(x).all():
        return np.sum(w[1])
    return np.sum(y @ w)


def _one_of_two(x, w):
    return np.sum(np.tanh(w * x[0])), np.tanh(w @ x)


def _logging(x, w):
    _LOG.append(float(x[0]))
    return _only_some(x, w)


def _printing(x, w):
    print("x", x[0])
    return _only_some(x, w)


@dataclasses.dataclass
class _Pair:
    hidden: object
    x: object


def _by_objects(x, w):
    with np.errstate(all="ignore"), contextlib.nullcontext():
        pair = _Pair(np.tanh(w @ x), x)
    return pair.hidden.sum() if pair.x[0] > 0 else 0.0


def _dropping(x, w):
    h = ab.nn.dropout(np.tanh(w @ x), 0.5)
    return h.sum() if x[0] > 0 else 0.0


_GROUPS = [_XS[:2], _XS[2:], _XS[1:4]]
_batched = ab.batch(_only_some)


def _map_of(xs, w):
    return sum(ab.map(_only_some, xs, w=np.tanh(w) * 2.0))


def _batch_of(xs, w):
    return ab.sum(_batched(ab.MaskedBatch.from_examples(xs), w))


def _one_of_a_batch(xs, w):
    return _batched(ab.PackedBatch.from_examples(xs), w).examples()[0]


def _pairs_of(xs, w):
    results = ab.map(_one_of_two, xs, w=w)
    return sum(total for total, _ in results), [h for _, h in results]


def _dropping_of(xs, w):
    return sum(ab.map(_dropping, xs, w=w))


def _appending_of(xs, w):
    _LOG.append(0.0)
    return sum(ab.map(_only_some, xs, w=w))


def _map_of_maps(xs, w, depth=2):
    if not depth:
        return sum(ab.map(_only_some, xs, w=w))
    return sum(ab.map(_map_of_maps, [xs, xs[1:]], [w] * 2, [depth - 1] * 2))


def _total(results):
    return sum(each[0] if isinstance(each, tuple) else each for each in results)


def _loop(function):
    with np.errstate(all="ignore"):
        return ab.grad(lambda w: _total([function(x, w) for x in _XS]))(_W)


@pytest.mark.parametrize("way", ["lockstep", "fly", "compiled", "auto"])
@pytest.mark.parametrize("function", [_only_some, _early, _one_of_two, _logging, _by_objects])
def test_a_map(function, way):
    expected = _loop(function)
    assert np.isfinite(expected).all()
    _LOG.clear()
    with ab.options(way=way, warn=False):
        found = ab.grad(lambda w: _total(ab.map(function, _XS, w=w)))(_W)
    np.testing.assert_allclose(found, expected)
    assert ([x[0] for x in _XS] if function is _logging else []) == _LOG


_NESTED = [_map_of, _batch_of, _one_of_a_batch, _pairs_of, _dropping_of, _appending_of, _map_of_maps]


@pytest.mark.parametrize("way", ["lockstep", "fly", "compiled", "auto"])
@pytest.mark.parametrize("function", _NESTED)
def test_a_map_within_a_map(function, way):
    def loss(w):
        return _total(ab.map(function, _GROUPS, w=w))

    with ab.options(way="loop", warn=False, seed=5), np.errstate(all="ignore"):
        expected = ab.grad(loss)(_W)
    assert np.isfinite(expected).all()
    _LOG.clear()
    with ab.options(way=way, warn=False, seed=5):
        np.testing.assert_allclose(ab.grad(loss)(_W), expected)
    assert len(_LOG) == (len(_GROUPS) if function is _appending_of else 0)


@pytest.mark.parametrize("way", ["lockstep", "fly"])
def test_a_batch_of_maps(way):
    rows = [np.stack(xs) for xs in _GROUPS]
    of_rows = ab.batch(lambda xs, w: ab.sum(_batched(ab.MaskedBatch.from_examples(list(xs)), w)))
    with ab.options(way="loop"), np.errstate(all="ignore"):
        expected = ab.grad(lambda w: sum([_batch_of(xs, w) for xs in _GROUPS]))(_W)
    with ab.options(way=way, warn=False):
        found = ab.grad(lambda w: ab.sum(of_rows(ab.MaskedBatch.from_examples(rows), w)))(_W)
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("way", ["lockstep", "fly"])
def test_a_map_within_what_prints(way, capsys):
    def printing(xs, w):
        print("group")
        return _map_of(xs, w)

    with ab.options(way=way, warn=False):
        found = ab.grad(lambda w: sum(ab.map(printing, _GROUPS, w=w)))(_W)
    assert capsys.readouterr().out.count("group") == len(_GROUPS)
    with ab.options(way="loop"), np.errstate(all="ignore"):
        np.testing.assert_allclose(found, ab.grad(lambda w: sum([_map_of(xs, w) for xs in _GROUPS]))(_W))


@pytest.mark.parametrize("way", ["lockstep", "fly"])
def test_each_call_draws_its_own_numbers_again(way):
    def loss(w):
        with ab.options(seed=7):
            return sum(_dropping_of(_XS, w * scale) for scale in (1.0, 2.0))

    with ab.options(way="loop", warn=False), np.errstate(all="ignore"):
        expected = ab.grad(loss)(_W)
    with ab.options(way=way, warn=False):
        np.testing.assert_allclose(ab.grad(loss)(_W), expected)


def _masked(w, masks):
    """What `_dropping` of the examples that are read gives in all, if it keeps these elements."""
    return sum([(np.tanh(w @ x) * mask).sum() for x, mask in zip((_XS[0], _XS[2]), masks, strict=True)])


_LOSSES = [
    lambda w: _dropping_of(_XS, w),
    lambda w: sum(ab.map(_dropping_of, [_XS], w=w)),
    lambda w: ab.sum(ab.batch(_dropping)(ab.MaskedBatch.from_examples(_XS), w)),
    lambda w: ab.map(lambda xs, w: _dropping_of(xs, w) + 0.0 * _dropping_of(xs[::2], w), [_XS], w=w)[0],
]


@pytest.mark.parametrize("way", ["lockstep", "fly"])
@pytest.mark.parametrize("loss", _LOSSES)
def test_without_a_seed_a_call_draws_its_own_numbers_again(loss, way):
    masks = [*itertools.product(itertools.product((0.0, 2.0), repeat=3), repeat=2)]
    drawn = set()
    for _ in range(8):
        with ab.options(way=way, warn=False):
            value, slope = ab.value_and_grad(loss)(_W)
        alike = [each for each in masks if np.isclose(_masked(_W, each), value, rtol=1e-12)]
        assert any(np.allclose(ab.grad(lambda w, each=each: _masked(w, each))(_W), slope) for each in alike)
        drawn.add(float(value))
    assert len(drawn) > 1


@pytest.mark.parametrize("way", ["lockstep", "fly"])
def test_calls_within_an_example_draw_numbers_of_their_own_without_a_seed(way):
    def kept(w):
        return ab.map(lambda v, w: ab.nn.dropout(v * w, 0.5), [np.ones(200)], w=w)[0].sum()

    def loss(w):
        pairs = ab.map(lambda x, w: [kept(w), kept(w)], [0.0, 1.0, 2.0], w=w)
        return sum(map(sum, pairs)), [[float(np.asarray(each)) for each in pair] for pair in pairs]

    with ab.options(way=way, warn=False):
        _, pairs = ab.grad(loss, has_aux=True)(np.float64(1.0))
    assert any(one != two for one, two in pairs)
    assert len({one for one, _ in pairs}) > 1


def _kept_of(xs, w):
    def kept(x, w):
        h = ab.nn.dropout(x * w, 0.5)
        return h.sum() if x[0] > 0 else 0.0

    return sum(ab.map(kept, xs, w=w))


@pytest.mark.parametrize("way", ["lockstep", "fly", "compiled", "auto"])
@pytest.mark.parametrize("maps", [[_XS], [_XS, _XS[2:], _XS]])
def test_maps_of_shared_examples_within_a_batch_draw_again_what_each_example_drew(maps, way):
    def drawing(x, w):
        return ab.nn.dropout(x * w, 0.5).sum(), sum(_kept_of(xs, w) for xs in maps)

    def loss(w):
        own, of_maps = ab.batch(drawing)(ab.MaskedBatch(np.ones((9, 40))), w)
        return ab.sum(own) + ab.sum(of_maps), of_maps.examples()

    with ab.options(way=way, warn=False):
        (value, of_maps), slope = ab.value_and_grad(loss, has_aux=True)(np.float64(1.0))
    np.testing.assert_allclose(slope, value)  # which is linear in w
    assert len({float(each) for each in of_maps}) > 1


@pytest.mark.parametrize("kind", [ab.MaskedBatch, ab.PackedBatch])
@pytest.mark.parametrize("way", ["lockstep", "fly"])
@pytest.mark.parametrize("function", [_only_some, _early])
def test_a_batch(function, way, kind):
    with ab.options(way=way, warn=False), ran_ways() as ran:
        found = ab.grad(lambda w: ab.sum(ab.batch(function)(kind.from_examples(_XS), w)))(_W)
    np.testing.assert_allclose(found, _loop(function))
    assert ran[0].way == way


def test_a_map_of_rows_of_a_table_and_of_a_batch():
    table, ids = ab.EmbeddingTable(np.array([[1.0, 2.0], [np.nan, 1.0], [0.5, 0.5]])), [0, 1, 2]

    def score(k, table, w):
        h = table[k] * w
        return h.sum() if np.isfinite(h[0]) else 0.0

    def loss(table, w):
        return sum(ab.map(score, ids, table=table, w=w))

    with ab.options(way="loop"):
        rows, slope = ab.grad(loss, argnums=(0, 1))(table, np.ones(2))
    with ab.options(way="fly"):
        found, other = ab.grad(loss, argnums=(0, 1))(table, np.ones(2))
    np.testing.assert_array_equal(found.to_dense(), rows.to_dense())
    np.testing.assert_array_equal(other, slope)
    assert np.isfinite(slope).all()


def _written_into_later(w):
    rows = w * 2.0
    total = sum(ab.map(_only_some, _XS, w=rows))
    rows[0] = 7.0
    return total + rows.sum()


def _changed_results(w):
    results = ab.map(_only_some, _XS, w=w)
    results.sort()
    return sum([*results, 1.0])


def _slope(w):
    return ab.grad(lambda w: sum(ab.map(_only_some, _XS, w=w)))(w).sum()


@pytest.mark.parametrize("way", ["lockstep", "fly", "compiled"])
@pytest.mark.parametrize("loss", [_written_into_later, _changed_results, _slope])
def test_what_becomes_of_arguments_and_results(loss, way):
    with ab.options(way="loop"):
        expected = ab.grad(loss)(_W)
    with ab.options(way=way, warn=False):
        np.testing.assert_allclose(ab.grad(loss)(_W), expected)
    assert np.isfinite(expected).all()


@pytest.mark.parametrize("way", ["lockstep", "fly", "compiled"])
@pytest.mark.parametrize(("function", "xs"), [(_only_some, _XS), (_map_of, _GROUPS)])
def test_a_gradient_of_a_gradient(function, xs, way):
    def loss(w):
        return np.tanh(sum(ab.map(function, xs, w=w)))

    def slope(w):
        return (ab.grad(loss)(w) * _W).sum()

    with ab.options(way="loop"), np.errstate(all="ignore"):
        expected = ab.grad(slope)(_W)
    with ab.options(way=way, warn=False):
        np.testing.assert_allclose(ab.grad(slope)(_W), expected)
    assert np.isfinite(expected).all()


def test_what_prints_runs_once(capsys):
    with ab.options(way="fly", warn=False):
        ab.grad(lambda w: sum(ab.map(_printing, _XS, w=w)))(_W)
    assert capsys.readouterr().out.count("x") == len(_XS)


def test_a_pullback_can_be_called_again():
    with ab.options(way="fly"):
        _, back = vjp(lambda given: sum(ab.map(_only_some, _XS, w=given[0])), [_W])
    for scale in (1.0, 2.0):
        np.testing.assert_allclose(back([np.array(scale)])[0], scale * _loop(_only_some))


@pytest.mark.fuzz
@pytest.mark.parametrize("start", [0, pytest.param(30, marks=pytest.mark.slow)])
def test_random_programs(start):
    FUZZERS["unread examples"](range(start, start * 10 + 15))
