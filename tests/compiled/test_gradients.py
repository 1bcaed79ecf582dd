"""Gradients of code of numbers, compiled: those of the loop, which are central differences, in every call.

Broken once by hand: a partial derivative without its sign, the adjoints of shared arguments left from the example
before, places of a callee's array not given back, flags of the way back taken for those of the function.
"""

import math
import sys
import warnings
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.compiled.taping import taped_map
from autobatch.compiled.taping.gradient_map import compiled_gradient_map, prepared_gradient
from autobatch.errors import Unsupported
from autobatch.kernels.compiled_code.gradient_tape import sign_of
from tests.compiled.gradient_programs import GRADIENTS
from tests.compiled.interpreted import each_as_text, interpreted
from tests.compiled.model_programs import MODELS
from tests.inspect import ran_ways

FEW = {"scan_with_if", "recursion", "number_of_several_types"}
NAMES = [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in GRADIENTS]


@pytest.mark.parametrize("x", [2.5, -3.0, 0.0, -0.0, math.inf, math.nan])
def test_the_sign_that_a_tape_takes_is_numpys_where_it_is_compiled(x):
    assert repr(sign_of(x)) == repr(float(np.sign(x)))


def _columns(name, count=5):
    rng = np.random.default_rng(0)
    function, examples, argnums = GRADIENTS[name]
    return function, [list(column) for column in zip(*[examples(rng) for _ in range(count)], strict=True)], argnums


def _close(a, b):
    assert type(a) is type(b), (a, b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        a, b = list(a.values()), list(b.values())
    if isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            _close(x, y)
    elif a is not None:
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_allclose(a, b, rtol=1e-4 if np.asarray(a).dtype == np.float32 else 1e-6, atol=1e-9)


def _way(call):
    """How a map runs; `ab.explain` would explain a call of the gradient itself."""
    with ab.options(warn=False), ran_ways() as ran:
        ab.map(*call)
    return ran[-1].way


@pytest.mark.parametrize("name", NAMES)
def test_a_map_of_gradients(name):
    function, columns, argnums = _columns(name)
    gradient = ab.value_and_grad(function, argnums=argnums)
    with ab.options(way="loop"):
        expected = ab.map(gradient, *columns)
    with ab.options(way="compiled"):
        assert _way((gradient, *columns)) == "compiled"
        got = ab.map(gradient, *columns)
        _close(got, expected)
        only = ab.map(ab.grad(function, argnums=argnums), *columns)
    _close(only, [each for _, each in expected])


def _moved(tree, step, direction):
    if isinstance(tree, dict):
        return {key: _moved(value, step, direction[key]) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)([_moved(value, step, each) for value, each in zip(tree, direction, strict=True)])
    return tree if direction is None else tree + step * direction


def _norm(tree):
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, list | tuple):
        return sum(map(_norm, tree))
    return 0.0 if tree is None else float(np.sum(np.square(tree)))


@pytest.mark.parametrize("name", [name for name in GRADIENTS if name not in ("single_precision", "option")])
def test_the_loops_gradients_are_central_differences(name):
    function, columns, argnums = _columns(name, 2)
    for example in zip(*columns, strict=True):
        gradient = ab.grad(function, argnums=argnums)(*example)
        sides = []
        for step in (1e-6, -1e-6):
            args = list(example)
            for position, direction in zip(argnums, gradient, strict=True):
                args[position] = _moved(args[position], step, direction)
            sides.append(function(*args))
        assert (sides[0] - sides[1]) / 2e-6 == pytest.approx(_norm(gradient), rel=1e-4, abs=1e-8, nan_ok=True)


def _weigh(x, w):
    level = 0.0
    for v in x:
        level = math.exp(-v * w) + level * 0.5
    return level


weigh = ab.batch(_weigh)


@pytest.mark.parametrize("count", [4, 150])  # 64 at a time are added up
def test_a_step_on_a_batch_and_on_a_map(count, text_or_compiled):
    xs = [np.linspace(-1.0, 1.0, n) for n in np.resize((3, 1, 4, 2), count)]
    batches = [ab.MaskedBatch.from_examples(xs), ab.PackedBatch.from_examples(xs)]
    for loss in (
        lambda w: ab.sum(weigh(batches[0], w) * weigh(batches[1], w)),
        lambda w: sum(ab.map(_weigh, xs, w=w)) ** 2,
        lambda w: sum(ab.map(_weigh, [x * w for x in xs], ab.shared(w))),
    ):
        with ab.options(way="loop"):
            expected = ab.value_and_grad(loss)(1.3)
        with ab.options(way="compiled"):
            _close(ab.value_and_grad(loss)(1.3), expected)
    for batch in batches:
        with ab.options(way="loop"):
            expected = ab.grad(lambda x: ab.mean(weigh(x, 0.7)))(batch)
        with ab.options(way="compiled"):
            got = ab.grad(lambda x: ab.mean(weigh(x, 0.7)))(batch)
        for one, two in zip(got.examples(), expected.examples(), strict=True):
            _close(one, two)


@pytest.mark.parametrize("batched", [False, True])
def test_a_derivative_along_a_direction(batched, text_or_compiled):
    xs = [np.linspace(-1.0, 1.0, n) for n in (3, 1, 4)]

    def loss(w):
        return ab.sum(weigh(ab.MaskedBatch.from_examples(xs), w)) if batched else sum(ab.map(_weigh, xs, w=w))

    with ab.options(way="compiled"), ran_ways() as ran:
        found = ab.jvp(loss, (1.3,), (2.0,))
    with ab.options(way="loop"):
        np.testing.assert_allclose(found, ab.jvp(loss, (1.3,), (2.0,)))
    assert ran[-1].way == "compiled"


def test_a_compiled_map_in_a_gradient_runs_no_python():
    names = []

    def slope():
        return ab.grad(lambda w: sum(ab.map(_weigh, [np.ones(2), np.ones(1)], w=w)))(1.3)

    with ab.options(way="compiled"):
        expected = slope()
        sys.setprofile(lambda frame, *_: names.append(frame.f_code.co_name))
        try:
            found = slope()
        finally:
            sys.setprofile(None)
    assert found == expected
    assert "slope" in names
    assert "_weigh" not in names


def _stack(x, p):
    total = 0.0
    for layer in p["layers"]:
        for w in layer["w"]:
            total = total * 0.5 + np.sum(w * x) + layer["b"]
    return total * p["scales"][1] + p["scales"][0]


def _stacked(*sizes, dtype=np.float64):
    rng = np.random.default_rng(len(sizes))
    layers = [{"w": [rng.normal(size=n).astype(dtype) for n in own], "b": 0.1 * len(own)} for own in sizes]
    return {"layers": layers, "scales": [0.3, 1.5]}


@pytest.fixture
def in_full(monkeypatch):
    """The functions of calls whose arguments were not read at a glance."""
    found, read_in_full = [], taped_map._TapedCall._read_in_full
    monkeypatch.setattr(taped_map._TapedCall, "_read_in_full", lambda self, f: (found.append(f), read_in_full(self, f)))
    return found


def test_lists_of_parameters_are_read_at_a_glance(in_full, text_or_compiled):
    stack, xs = ab.batch(_stack), ab.collate([0.5, -2.0, 3.0])
    alike = [_stacked((2, 3), (1,)), _stacked((2, 2), (2, 4)), _stacked((1,), (3,), (2, 1, 1))]
    for params, anew in [
        *zip(alike, (True, False, False), strict=True),
        (_stacked((2,), (1,), dtype=np.float32), True),
    ]:
        for loss in (
            lambda p: ab.sum(stack(xs, p)),
            lambda p, own=params: ab.sum(stack(xs, {**p, "layers": [p["layers"][0], own["layers"][1]]})),  # constants
        ):
            in_full.clear()
            with ab.options(way="compiled"), ran_ways() as ran:
                found = ab.value_and_grad(loss)(params)
            assert (ran[-1].way, bool(in_full)) == ("compiled", anew)
            with ab.options(way="loop"):
                _close(found, ab.value_and_grad(loss)(params))
            anew = False


def _of_number(x, w):
    return w * x * x


def _of_tree(x, w):
    if isinstance(x, tuple):
        return w * (_of_tree(x[0], w) + _of_tree(x[1], w))
    return w * x


_ALIKE = {  # lists of examples of one type, and one of another
    "arrays": (_weigh, [np.ones(2), np.ones(3)], [np.zeros(1), np.ones(4)], [np.ones(2, np.float32), np.ones(1)]),
    "numbers": (_of_number, [2, 3], [-1, 0, 5], [2.5, 1.0]),
    "trees": (
        _of_tree,
        [((1, 2), 3), (4, (5, 6))],
        [(1, (2, (5, 3))), ((2, 2), 1), 7],
        [((1.5, 2.0), 1.0), (0.5, (4.0, 1.0))],
    ),
}


@pytest.mark.parametrize("kind", _ALIKE)
def test_lists_of_examples_are_read_at_a_glance(kind, in_full, text_or_compiled):
    function, first, second, other = _ALIKE[kind]
    for xs, anew in ((first, True), (second, False), (second[::-1], False), (other, True), (first, False)):
        in_full.clear()
        with ab.options(way="compiled", warn=False):
            found = ab.value_and_grad(lambda w, xs=xs: sum(ab.map(function, xs, w=w)))(0.7)
        assert bool(in_full) == anew
        with ab.options(way="loop"):
            _close(found, ab.value_and_grad(lambda w, xs=xs: sum(ab.map(function, xs, w=w)))(0.7))


def _logs(x, w):
    total = 0.0
    for v in x:
        total += math.log(v + w) + math.sqrt(v * 0.0)
    return total


def test_what_fails_is_pythons():
    xs = [np.array([1.0, 2.0]), np.array([3.0]), np.array([0.5, -2.0])]
    gradient = ab.grad(_logs, argnums=1)
    with ab.options(way="compiled"):
        with pytest.raises(ValueError, match=r"math domain|positive input") as caught:
            ab.map(gradient, xs, [0.1, 0.1, 0.1])
        assert "raised for example 2" in caught.value.__notes__
        assert ab.map(gradient, xs[:2], [0.1, 0.1]) == [ab.grad(_logs, argnums=1)(x, 0.1) for x in xs[:2]]
        huge = [np.array([1.0]), np.array([-800.0]), np.array([2.0])]
        with np.errstate(over="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = [ab.grad(_exp)(x) for x in huge]
            _close(ab.map(ab.grad(_exp), huge), expected)


def _masked_later(x, w):
    out = np.zeros(1, np.int64)
    total = 0.0
    for k in range(2):
        scores = x @ w
        total += scores[out].sum()
        out[0] = k + 1
    return total


def test_pythons_gradient_of_an_example_knows_what_an_array_held_before_a_write(text_or_compiled):
    x, w = np.arange(6.0).reshape(3, 2), np.ones(2)
    with ab.options(way="compiled", warn=False):
        got = ab.grad(lambda w: sum(ab.map(_masked_later, [x] * 3, w=w)))(w)
    np.testing.assert_array_equal(got, 3 * (x[0] + x[1]))


def _exp(x):
    return np.exp(-x[0]) * 1.0


def test_a_root_at_zero_and_what_nothing_depends_on(text_or_compiled):
    def guarded(x, y):
        root = math.sqrt(x)
        return root * 0.0 + y if y > 0 else root

    columns = [0.0, 4.0, -0.0, 0.0], [1.0, -1.0, -1.0, -1.0]  # Python checks the first and the last one
    with ab.options(way="compiled", warn=False):
        got = ab.map(ab.grad(guarded, argnums=(0, 1)), *columns)
    _close(got, [ab.grad(guarded, argnums=(0, 1))(x, y) for x, y in zip(*columns, strict=True)])


def _chosen(x, p):
    return x[0] * np.maximum(p, len(x))


def _written_over(x, p):
    y = np.zeros(2)
    y[0] = abs(x[0])
    y[0] = 1.5
    return x[0] * y.sum() * p


def _never_read(x, p):
    y = np.zeros(2)
    y[0] = math.exp(x[0])
    y[1] = x[1] * p
    return y[1] * p


@pytest.mark.parametrize("function", [_chosen, _written_over, _never_read])
def test_of_nan_python_says_what_is_multiplied_by_zero(function, text_or_compiled):
    columns = [np.array([x, 0.5]) for x in (0.5, math.nan, 2.0, math.inf, 0.25)], [0.5, 0.6, 0.7, 5.0, 3.0]
    gradient = ab.value_and_grad(function, argnums=(0, 1))
    with np.errstate(all="ignore"):
        expected = [gradient(x, p) for x, p in zip(*columns, strict=True)]
        with ab.options(way="compiled", warn=False), ran_ways() as ran:
            _close(ab.map(gradient, *columns), expected)
            total = ab.grad(lambda p: sum(ab.map(function, columns[0], ab.shared(p))))(0.7)
        of_shared = sum(ab.grad(function, argnums=1)(x, 0.7) for x in columns[0])
    assert [each.way for each in ran] == ["compiled"] * 2
    np.testing.assert_allclose(total, of_shared)


def _with_aux(x):
    total = 0.0
    for v in x:
        total += v * v
    return total, (len(x), x * 2.0)


def test_auxiliary_results_and_types(text_or_compiled):
    xs = [np.arange(3.0), np.arange(1.0)]
    with ab.options(way="compiled"):
        _close(
            ab.map(ab.value_and_grad(_with_aux, has_aux=True), xs),
            [ab.value_and_grad(_with_aux, has_aux=True)(x) for x in xs],
        )
        _close(ab.map(ab.grad(_with_aux, has_aux=True), xs), [ab.grad(_with_aux, has_aux=True)(x) for x in xs])


def _counts(x):
    return x[0] * int(x[0])


def _constant_for_some(x, w):
    return w * x if x > 0.0 else 0.5


def test_what_does_not_depend_on_it_is_a_number(text_or_compiled):
    def loss(w, xs, place):
        results = ab.map(_constant_for_some, xs, w=w)
        assert float(results[place]) == 0.5
        return sum(results)

    with ab.options(way="compiled"):
        assert ab.grad(loss)(3.0, [1.0, -1.0, 2.0], 1) == 3.0
        with pytest.raises(ab.errors.ForcedValueError, match="carries a gradient"):
            ab.grad(loss)(3.0, [1.0, -1.0, 2.0], 0)


def test_what_is_refused_takes_another_way():
    wrapper: Any = ab.grad(_counts)
    with pytest.raises(Unsupported, match=r"test_gradients\.py:\d+.*an int is made"):
        compiled_gradient_map(wrapper._ab_differentiated, wrapper, [[np.ones(2)]], {})
    with ab.options(way="compiled", warn=False), ran_ways() as ran:
        ab.map(ab.grad(_keyed), [0.5, 2.0])
    assert ran[-1].way == "fly"
    assert ran[-1].why.where[0].endswith("test_gradients.py")


def _keyed(x):
    weights = {1: x, 2: x * 2.0}
    return weights[1] * weights[2]


def _mixed(x, w, m):
    total = w
    for v in x:
        total = total * 0.9 + np.sum(np.sqrt(x * v + 4.0) - w) + (m @ x[:3])[0] * w
    return total * total


def test_a_tape_grows_and_is_bounded():
    xs = [np.linspace(0.1, 1.0, 3000), np.ones(3), np.zeros(0)]
    gradient = ab.grad(_weigh)
    with ab.options(way="compiled"):
        _close(
            ab.map(gradient, xs, [0.1, 0.2, 0.3]), [gradient(x, w) for x, w in zip(xs, [0.1, 0.2, 0.3], strict=True)]
        )


@pytest.mark.parametrize("name", GRADIENTS)
def test_text_of_a_gradient(name):
    """Python runs the text."""
    function, columns, argnums = _columns(name)
    gradient = ab.value_and_grad(function, argnums=argnums)
    wrapper: Any = gradient
    with ab.options(way="loop"):
        expected = ab.map(gradient, *columns)
    with interpreted():
        _close(compiled_gradient_map(wrapper._ab_differentiated, wrapper, columns, {}), expected)
        if name in MODELS:  # the second time without Python's help
            alone: Any = lambda *row: pytest.fail("an example is left to Python")
            _close(compiled_gradient_map(wrapper._ab_differentiated, alone, columns, {}), expected)


def _attended(ids, p):
    x = p["emb"][ids]
    keys = np.tanh(x @ p["w"] + p["b"])
    weights = np.exp(keys @ keys.T - keys.sum(axis=1)[:, None])
    return ((weights / weights.sum(axis=1)[:, None]) @ x * p["b"]).sum() + (keys[:1] * 2.0 * keys).mean()


def test_gradients_of_matrices_that_differ_in_length():
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, 6, n) for n in (3, 1, 4, 2)]
    p = {"emb": ab.EmbeddingTable(rng.normal(size=(6, 5))), "w": rng.normal(size=(5, 5)), "b": rng.normal(size=5)}

    def mean(p):
        return sum(ab.map(_attended, ids, p=p)) / len(ids)

    with ab.options(way="loop"):
        expected = ab.value_and_grad(mean)(p)
    with ab.options(way="compiled", warn=False), ran_ways() as ran:
        for _ in range(2):  # the second time, without a comparison with Python's
            value, gradient = ab.value_and_grad(mean)(p)
    assert {each.way for each in ran} == {"compiled"}
    _close((value, gradient["w"], gradient["b"]), (expected[0], expected[1]["w"], expected[1]["b"]))
    _close(gradient["emb"].to_dense(), expected[1]["emb"].to_dense())


def _sums(x, w):
    total = w
    for v in x:
        total = total * 0.9 + np.sum(x * v) * w
    return total * total


@pytest.mark.parametrize(("budget", "is_enough"), [(1 << 13, False), (1 << 20, True)])
@each_as_text(("function", "size"), [(_mixed, 20), (_sums, 40)], compiled={"_sums"})
def test_what_a_tape_has_no_room_for_is_left_to_python(function, size, budget, is_enough, text_or_compiled):
    """Tapes of 112 and of 14,000 nodes; the examples need 1,700 or more."""
    rng = np.random.default_rng(0)
    columns = [rng.normal(size=size), rng.normal(size=size)], [0.1, 0.2], list(rng.normal(size=(2, 2, 3)))
    columns = columns[: function.__code__.co_argcount]
    gradient = ab.value_and_grad(function, argnums=tuple(range(len(columns))))
    with ab.options(way="compiled", memory_budget=budget):
        got = ab.map(gradient, *columns)
        taped = prepared_gradient(gradient._ab_differentiated, columns, {}, None)[2]
    _close(got, [gradient(*row) for row in zip(*columns, strict=True)])
    assert taped is not None
    assert taped.checked == is_enough  # what Python ran is not compared with it


def _read_in_parts(x, w):
    h = np.zeros(8)
    for row in x:
        h = np.tanh(row @ w + h @ w[1:])
    return (h * h).sum()


def test_a_matrix_and_a_part_of_it_are_often_read(text_or_compiled):
    rng = np.random.default_rng(3)
    xs, w = [rng.normal(size=(count, 9)) for count in (80, 3)], rng.normal(size=(9, 8))
    gradient = ab.value_and_grad(_read_in_parts, argnums=(0, 1))
    with ab.options(way="loop"):
        expected = ab.map(gradient, xs, [w, w])
    with ab.options(way="compiled", warn=False), ran_ways() as ran:
        got = ab.map(gradient, xs, [w, w])
    assert ran[-1].way == "compiled"
    _close(got, expected)


def _chains(x, w, v):
    """Chains of operations whose results nothing else reads: of numbers, vectors, broadcast matrices and choices."""
    gate = 1.0 / (1.0 + np.exp(-(x @ w + v)))
    mixed = gate * np.tanh(2.0 * v - x) - (x * x + v)
    spread = np.exp((x[:, None] - w) * 0.5 - v).sum(axis=1)
    log_sum = np.log(np.exp(x[:, None] + w - w.max(axis=0)).sum(axis=0))
    chosen = np.where(x > 0.0, -x, x * v) * 3.0
    return (mixed - spread / 9.0 + log_sum * chosen).sum() + np.log(np.exp(w - v).sum(axis=1)).min()


def _put_together(x, w, v):
    """Rows and parts put together, which several products read."""
    rows = []
    for each in w:
        v = np.tanh(each * v)
        rows.append(v)
    keys = np.stack(rows)
    for _ in range(2):
        both = np.concatenate([x, keys @ v, np.ones(len(x)), v, x, v])
        v = np.tanh(both[: len(x)] @ keys + both[-len(x) :] @ w)
    return (keys @ v) @ (v @ keys.T) + both @ both


@pytest.mark.parametrize("function", [_chains, _put_together])
def test_operations_that_join_and_parts_put_together(function, text_or_compiled):
    rng = np.random.default_rng(4)
    columns = [rng.normal(size=(3, 8)), rng.normal(size=(3, 8, 8)), rng.normal(size=(3, 8))]
    gradient = ab.value_and_grad(function, argnums=(0, 1, 2))
    with ab.options(way="loop"):
        expected = ab.map(gradient, *map(list, columns))
    with ab.options(way="compiled", warn=False), ran_ways() as ran:
        got = ab.map(gradient, *map(list, columns))
    assert ran[-1].way == "compiled"
    _close(got, expected)


REARRANGED = {
    "flip": lambda x, w: np.flip(x * w, axis=0),
    "flip_last": lambda x, w: np.flip(x * w, -1),
    "flip_all": lambda x, w: np.flip(x * w),
    "flip_vector": lambda x, w: np.flip(x[:, 0] * w[0]),
    "roll": lambda x, w: np.roll(x * w, 1, axis=0),
    "roll_last": lambda x, w: np.roll(x * w, -1, axis=-1),
    "roll_vector": lambda x, w: np.roll(x[:, 0] * w[0], 2),
    "take_along_rows": lambda x, w: np.take_along_axis(x * w, x[:, :1].astype(np.int64) % 2, 1),
    "take_along_rows_of_one": lambda x, w: np.take_along_axis(x * w, np.zeros((1, 3), np.int64), -1),
    "take_along_columns": lambda x, w: np.take_along_axis(x * w, np.zeros((min(len(x), 1), 2), np.int64), axis=0),
}


@pytest.mark.parametrize("f", REARRANGED.values(), ids=REARRANGED)
def test_what_rearranges_or_picks_along_an_axis(f, text_or_compiled):
    xs = [np.array([[0.0, 2.0], [1.0, 3.0], [1.0, -5.0]]), np.ones((1, 2)), np.ones((4, 2)), np.zeros((0, 2))]
    w = np.array([2.0, -3.0])

    def weighed(x, w):
        y = f(x, w).reshape(-1)
        return (y * np.arange(y.size)).sum()

    assert ab.testing.forms(f, xs, w=w)["compiled"] == ""
    for count in (0, 1, len(xs)):
        outs = []
        for way in ("loop", "compiled"):
            with ab.options(way=way, warn=False), ran_ways() as ran:
                step = ab.value_and_grad(weighed, argnums=1)
                outs.append([ab.map(f, xs[:count], w=w), ab.map(step, xs[:count], [w] * count)])
        assert not count or [each.way for each in ran] == ["compiled"] * 2
        _close(outs[1], outs[0])
