"""Optimisers against step-by-step oracles in float64 (torch's formulas), dense and by rows."""

import collections
import dataclasses
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest

from autobatch import EmbeddingTable, SparseRows, grad
from autobatch.errors import DTypeError, ShapeError, StructureError, UnsupportedError
from autobatch.optim import FTRL, SGD, Adagrad, Adam, AdamW, RMSProp, RowWiseAdagrad
from tests import naive

RANDOM = np.random.default_rng(4)
CASES = [
    (SGD(0.1), naive.sgd, {"lr": 0.1}),
    (SGD(0.1, weight_decay=0.01), naive.sgd, {"lr": 0.1, "weight_decay": 0.01}),
    (SGD(0.1, momentum=0.9), naive.sgd, {"lr": 0.1, "momentum": 0.9}),
    (SGD(0.1, 0.9, True, 0.01), naive.sgd, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (Adagrad(0.1), naive.adagrad, {"lr": 0.1}),
    (Adagrad(0.1, 1e-3, 0.01, 0.5), naive.adagrad, {"lr": 0.1, "eps": 1e-3, "weight_decay": 0.01, "initial": 0.5}),
    (Adam(0.1), naive.adam, {"lr": 0.1}),
    (
        Adam(0.1, (0.5, 0.9), 1e-3, 0.01),
        naive.adam,
        {"lr": 0.1, "betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.01},
    ),
]
CASES += [
    (AdamW(0.1), naive.adam, {"lr": 0.1, "decoupled": 0.01}),
    (RMSProp(0.1), naive.rmsprop, {"lr": 0.1}),
    (
        RMSProp(0.1, 0.9, 1e-3, 0.01, 0.9),
        naive.rmsprop,
        {"lr": 0.1, "alpha": 0.9, "eps": 1e-3, "weight_decay": 0.01, "momentum": 0.9},
    ),
    (RMSProp(0.1, eps=1e-2, centered=True), naive.rmsprop, {"lr": 0.1, "eps": 1e-2, "centered": True}),
    (FTRL(0.5), naive.ftrl, {"lr": 0.5}),
    (
        FTRL(0.5, 0.5, 0.3, 0.1, 0.01, 0.2),
        naive.ftrl,
        {"lr": 0.5, "beta": 0.5, "l1": 0.3, "l2": 0.1, "weight_decay": 0.01, "initial": 0.2},
    ),
]
FIRST = {type(opt): opt for opt, *_ in reversed(CASES)}
KINDS = [  # each option in float64, each optimiser in each dtype: each compiles kernels
    (*case, dtype)
    for case in CASES
    for dtype in (np.float16, np.float32, np.float64)
    if dtype is np.float64 or FIRST[type(case[0])] is case[0]
]
LAYOUTS = [  # rows with gaps are copied first, in the same way for each optimiser and dtype, and each compiles kernels
    pytest.param(*kind, layout, marks=[pytest.mark.slow] if rare else [])
    for kind in KINDS
    for layout in ("table", "strided table", "array")
    for rare in [layout == "strided table" and kind[-1] is np.float64 and kind[0] is not FIRST[SGD]]
]
DTYPES = {np.float16: 2e-2, np.float32: 1e-5, np.float64: 1e-12}
Pair = collections.namedtuple("Pair", "w b")


def make(shape, dtype=np.float64):
    return RANDOM.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize(("opt", "oracle", "options", "dtype"), KINDS)
def test_dense_steps_in_place(opt, oracle, options, dtype):
    base = make((6, 8), dtype)
    params = {
        "w": make((3, 4), dtype),
        "strided": base[::2, ::2],
        "zero": np.array(0.5, dtype),
        "empty": make((0, 3), dtype),
    }
    before = {name: value.copy() for name, value in params.items()}
    steps = [{name: make(value.shape, dtype) for name, value in params.items()} for _ in range(4)]
    state, same = opt.init(params), params
    for grads in steps:
        params, state = opt.update(params, grads, state)
    assert params is same
    assert params["strided"].base is base
    for name, value in params.items():
        expected = oracle(before[name], [grads[name].astype(np.float64) for grads in steps], **options)
        assert value.dtype == dtype
        np.testing.assert_allclose(value, expected, DTYPES[dtype], DTYPES[dtype])


@pytest.mark.parametrize(("opt", "oracle", "options", "dtype", "layout"), LAYOUTS)
def test_sparse_steps_move_the_named_rows_only(opt, oracle, options, dtype, layout):
    base = make((12, 3), dtype)
    weights = base[::2] if layout == "strided table" else base[:6].copy()
    before, params = weights.copy(), weights if layout == "array" else EmbeddingTable(weights)
    ids = np.array([4, 1, 4, 0])
    steps = [make((4, 3), dtype) for _ in range(3)]
    state = opt.init(params)
    for rows in steps:
        params, state = opt.update(params, SparseRows(ids, rows, 6), state)
    np.testing.assert_array_equal(weights[[2, 3, 5]], before[[2, 3, 5]])
    for row in (0, 1, 4):
        sums = [sum(r.astype(np.float64) for r, at in zip(rows, ids, strict=True) if at == row) for rows in steps]
        np.testing.assert_allclose(weights[row], oracle(before[row], sums, **options), DTYPES[dtype], DTYPES[dtype])


@pytest.mark.parametrize(
    ("opt", "oracle", "options"),
    [  # a number is a dense array of no dimension, and each of these compiles kernels
        pytest.param(*case, marks=[pytest.mark.slow] if rare else [])
        for case in CASES
        for rare in [type(case[0]) is RMSProp and case[0] is not FIRST[RMSProp]]
    ],
)
def test_numbers_are_returned_and_other_leaves_left(opt, oracle, options):
    params = Pair(1.5, ["name", np.float32(2), None, True])
    new, state = opt.update(params, Pair(0.5, [None, np.float32(1), None, None]), opt.init(params))
    assert type(new) is Pair
    assert type(new.w) is float
    np.testing.assert_allclose(new.w, oracle(1.5, [0.5], **options))
    assert type(new.b[1]) is np.float32
    np.testing.assert_allclose(new.b[1], oracle(2, [1], **options), rtol=1e-6)
    assert [new.b[0], *new.b[2:]] == ["name", None, True]
    assert state["step"] == 1


@pytest.mark.parametrize(("opt", "oracle", "options"), CASES)
def test_a_dense_gradient_moves_a_whole_table_and_none_moves_nothing(opt, oracle, options):
    table, g = EmbeddingTable(make((4, 3))), make((4, 3))
    before = table.weights.copy()
    state = opt.init(table)
    opt.update(table, None, state)
    np.testing.assert_array_equal(table.weights, before)
    opt.update(table, g, opt.init(table))  # the first step moved nothing, but it was one
    np.testing.assert_allclose(table.weights, oracle(before, [g], **options))


def test_state_pickles_and_continues():
    opt, params, other = Adam(0.1), {"w": np.ones(3)}, {"w": np.ones(3)}
    state, again = opt.init(params), opt.init(other)
    for _ in range(3):
        params, state = opt.update(params, {"w": np.array([1.0, 2.0, 3.0])}, state)
        other, again = opt.update(other, {"w": np.array([1.0, 2.0, 3.0])}, pickle.loads(pickle.dumps(again)))
    assert params["w"].tobytes() == other["w"].tobytes()


def test_everything_is_checked_before_anything_is_written():
    opt, params = SGD(0.1), {"a": np.ones(2), "b": np.ones(3)}
    with pytest.raises(ShapeError, match=r"grads\['b'\] has shape \(2,\); expected that of the parameter, \(3,\)"):
        opt.update(params, {"a": np.ones(2), "b": np.ones(2)}, opt.init(params))
    np.testing.assert_array_equal(params["a"], np.ones(2))


def read_only():
    out = np.ones(2)
    out.flags.writeable = False
    return out


@pytest.mark.parametrize(
    ("params", "grads", "error", "match"),
    [
        ({"a": np.ones(2)}, {"b": np.ones(2)}, StructureError, r"grads is a dict with \['b'\].*a dict with \['a'\]"),
        ({"a": [1.0]}, {"a": (1.0, 2.0)}, StructureError, r"grads\['a'\] is a tuple of 2"),
        ([np.ones(2)], [np.ones(2, np.float32)], DTypeError, r"grads\[0\] has dtype float32; .*astype\(np.float64\)"),
        ([3], [1.0], DTypeError, r"params\[0\] is int of dtype int64, .* make it a float"),
        ([np.ones(2, int)], [np.ones(2)], DTypeError, r"params\[0\] is ndarray of dtype int64"),
        ([read_only()], [np.ones(2)], UnsupportedError, r"params\[0\] is read-only"),
        (EmbeddingTable(np.ones((3, 2))), SparseRows([0], np.ones((1, 2)), 4), ShapeError, r"grads has shape \(4, 2\)"),
    ],
)
def test_bad_input(params, grads, error, match):
    opt = SGD(0.1)
    with pytest.raises(error, match=match):
        opt.update(params, grads, opt.init(params))


def test_bad_state_and_options():
    with pytest.raises(StructureError, match=r"the state has \['step'\]; expected that of Adam.init\(params\)"):
        Adam().update([1.0], [1.0], SGD(0.1).init([1.0]))
    with pytest.raises(ShapeError, match=r"the state of params\[0\] has shape \(2,\)"):
        Adam().update([np.ones(3)], [np.ones(3)], Adam().init([np.ones(2)]))
    for make_it, match in [
        (lambda: SGD(-0.1), "lr=-0.1; expected at least 0"),
        (lambda: SGD(0.1, nesterov=True), "give a momentum"),
        (lambda: Adam(betas=(0.9, 1.0)), r"betas\[1\]=1.0; expected at least 0 and below 1"),
        (lambda: Adagrad(eps=-1), "eps=-1"),
    ]:
        with pytest.raises(ValueError, match=match):
            make_it()


def read_only(x):
    x.flags.writeable = False
    return x


@pytest.mark.parametrize("spoil", [lambda x: x.astype(object), lambda x: x.astype(int), memoryview, list, read_only])
def test_a_state_that_is_no_floats(spoil):
    params = [np.ones(2)]
    optimizer = Adam(0.1)
    state = optimizer.init(params)
    slot = next(name for name in state if name != "step")
    state[slot] = [spoil(np.zeros(2))]
    with pytest.raises((DTypeError, StructureError), match=r"state"):
        optimizer.update(params, [np.ones(2)], state)
    assert params[0].tolist() == [1.0, 1.0]


OPTIMIZERS = [SGD, Adagrad, RowWiseAdagrad, Adam, AdamW, RMSProp, FTRL]
NO_NUMBERS = [None, "0.1", [0.1], np.array([0.1]), 1j, True, np.True_]
NOT_IN_BOUNDS = [math.nan, -1, -1.0, np.float32(-1), np.float64(math.nan), np.int64(-3), math.inf, Fraction(-1, 2)]
PAIRS = [0.9, (0.9,), "ab", (0.9, None), (1.0, 0.9), [0.9, math.nan], (0.9, np.float32(1.5)), (-0.1, 0.9), None]


HYPERPARAMETERS = [(kind, field) for kind in OPTIMIZERS for field in dataclasses.fields(kind)]


@pytest.mark.parametrize(("kind", "field"), HYPERPARAMETERS, ids=lambda x: getattr(x, "__name__", None) or x.name)
def test_every_hyperparameter_is_checked_by_value_whatever_its_type(kind, field):
    name, optional = field.name, field.default is None
    if name == "betas":
        wrong = PAIRS
    elif isinstance(field.default, bool):
        wrong = [None, 1, 0.5, "yes"]
    elif name == "state_dtype":
        wrong = ["float7", np.int64, 3.5, [0.1]]
    else:
        wrong = NO_NUMBERS[optional:] + NOT_IN_BOUNDS + [1.5] * (name == "alpha")
    start = {"lr": 0.1}
    for value in wrong:
        with pytest.raises((ValueError, TypeError), match=name):
            kind(**(start | {name: value}))
        optimizer = kind(**start)
        with pytest.raises((ValueError, TypeError), match=name):
            setattr(optimizer, name, value)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_numbers_of_every_type_are_taken_and_what_a_schedule_gives_is_checked(kind):
    for value in (1, 0.5, np.float32(0.5), np.float64(0.5), np.int64(1), Fraction(1, 2), np.array(0.5)):
        optimizer = kind(lr=value, weight_decay=value, clip_norm=value)
        weights = np.ones(2)
        optimizer.update(weights, np.ones(2), optimizer.init(weights))
        assert np.isfinite(weights).all()
    for value in (None, "a", math.nan, -1.0, np.float32(-1)):
        optimizer = kind(lr=lambda step, value=value: value)
        with pytest.raises((ValueError, TypeError), match=r"lr\(0\)"):
            optimizer.update(np.ones(2), np.ones(2), optimizer.init(np.ones(2)))


def sparse_part(rng):
    return SparseRows(rng.integers(0, 5, 7), rng.standard_normal((7, 3)), 5)


@pytest.mark.parametrize("kinds", ["dense dense", "sparse sparse", "sparse dense", "dense none", "none sparse"])
@pytest.mark.parametrize("holder", ["array", "table", "table and its array", "two tables of one array"])
@pytest.mark.parametrize(
    "kind", [SGD, Adagrad, *(pytest.param(kind, marks=pytest.mark.slow) for kind in OPTIMIZERS[2:])]
)
def test_a_parameter_at_two_places_is_updated_once_with_the_sum(kind, holder, kinds):
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((5, 3))
    alone, once = EmbeddingTable(weights.copy()), kind(lr=0.1)
    one = weights if holder == "array" else EmbeddingTable(weights)
    other = {"table and its array": weights, "two tables of one array": EmbeddingTable(weights)}.get(holder, one)
    params = {"a": one, "between": np.ones(2), "b": other}
    optimizer = kind(lr=0.1)
    state, expected = optimizer.init(params), once.init(alone)
    make = {"dense": lambda: rng.standard_normal((5, 3)), "sparse": lambda: sparse_part(rng), "none": lambda: None}
    for _ in range(3):
        parts = [make[each]() for each in kinds.split()]
        grads = dict(zip("ab", parts, strict=True)) | {"between": np.ones(2)}
        params, state = optimizer.update(params, grads, state)
        given = [part for part in parts if part is not None]
        if all(isinstance(part, SparseRows) for part in given):
            ids, rows = (np.concatenate([getattr(part, name) for part in given]) for name in ("ids", "rows"))
            total = SparseRows(ids, rows, 5)
        else:
            total = sum(part.to_dense() if isinstance(part, SparseRows) else part for part in given)
        alone, expected = once.update(alone, total, expected)
    assert params["a"] is one
    assert params["b"] is other
    np.testing.assert_allclose(weights, alone.weights, rtol=1e-12)


def test_an_update_inside_a_gradient_is_refused():
    opt = SGD(0.1)
    with pytest.raises(UnsupportedError, match=r"call update outside of ab\.grad"):
        grad(lambda x: opt.update(x, np.ones(2), opt.init(np.ones(2)))[0].sum())(np.ones(2))


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # what torch says of its own optimisers
def test_equals_torch():
    torch = pytest.importorskip("torch")
    start, steps = make((5, 3)), [make((5, 3)) for _ in range(4)]
    for ours, theirs in [
        (SGD(0.1, 0.9, True, 0.01), lambda p: torch.optim.SGD(p, 0.1, 0.9, nesterov=True, weight_decay=0.01)),
        (Adagrad(0.1), lambda p: torch.optim.Adagrad(p, 0.1)),
        (Adam(0.1, weight_decay=0.01), lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.01)),
        (AdamW(0.1, weight_decay=0.1), lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.1)),
        (RMSProp(0.1, momentum=0.9), lambda p: torch.optim.RMSprop(p, 0.1, momentum=0.9)),
        (
            RMSProp(0.1, centered=True, weight_decay=0.1),
            lambda p: torch.optim.RMSprop(p, 0.1, centered=True, weight_decay=0.1),
        ),
    ]:
        params, weight = start.copy(), torch.nn.Parameter(torch.tensor(start))
        state, other = ours.init(params), theirs([weight])
        for g in steps:
            params, state = ours.update(params, g, state)
            weight.grad = torch.tensor(g)
            other.step()
        np.testing.assert_allclose(params, weight.detach().numpy(), rtol=1e-10)
