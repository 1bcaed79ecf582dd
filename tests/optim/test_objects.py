"""Models that are objects of any class: their float arrays and tables train, all else is carried along as it is."""

import collections
import dataclasses
import pickle
import types

import numpy as np
import pytest

import autobatch as ab
from tests.law import assert_same

W, THREE = np.ones(2), np.int64(3)


class Model:
    def __init__(self, w):
        self.w, self.size, self.rate, self.dtype, self.ids = w, 2, 0.5, np.float64, np.arange(3)

    def __call__(self, x):
        return (self.w * x * self.size).sum()


class Slotted:
    __slots__ = ("size", "w")

    def __init__(self, w):
        self.w, self.size = w, 2


class Child(Slotted):
    __slots__ = ("other",)


class Frozen:
    def __init__(self, w):
        object.__setattr__(self, "w", w)

    def __setattr__(self, name, value):
        raise AttributeError(name)


@dataclasses.dataclass
class Cell:
    w: np.ndarray
    size: int = 2
    name: str = "cell"
    shape: tuple[int, ...] = (2, 3)
    count: np.int64 = THREE
    activation: object = np.tanh
    nothing: None = None


class Tokenizer:
    def __init__(self):
        self.ids, self.words, self.drop = np.arange(3), {"a": 0}, 0.5


OBJECTS = {"object": Model, "slots": Slotted, "inherited slots": Child, "frozen": Frozen}
OBJECTS["namespace"] = lambda w: types.SimpleNamespace(w=w, words=["a"])
OBJECTS["user dict"] = lambda w: collections.UserDict(w=w)
PLACES = {
    "whole": (lambda x: x, lambda x: x),
    "in a dict": (lambda x: {"other": np.ones(3), "cell": x}, lambda p: p["cell"]),
    "in a list": (lambda x: [np.ones(3), x], lambda p: p[1]),
    "in a dataclass": (Cell, lambda p: p.w),
    "in an object": (Model, lambda p: p.w),
    "in a list of an object": (lambda x: Model(["a", x, 0.5]), lambda p: p.w[1]),
}


def weight(x):
    return x["w"] if isinstance(x, collections.UserDict) else x.w


@pytest.mark.parametrize(("put", "get"), PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("make", OBJECTS.values(), ids=OBJECTS)
def test_an_object_trains_as_it_is(make, put, get):
    w = np.array([1.0, 2.0])
    params = put(make(w))
    grads = ab.grad(lambda p: (weight(get(p)) ** 2).sum())(params)
    assert type(get(grads)) is type(get(params))
    assert_same(weight(get(grads)), np.array([2.0, 4.0]))
    for optimizer in (ab.optim.SGD(0.1), ab.optim.Adam(0.1), ab.optim.Adagrad(0.1)):
        before = w.copy()
        plain = {"w": w.copy()}
        state = pickle.loads(pickle.dumps(optimizer.init(params)))
        new, state = optimizer.update(params, grads, state)
        optimizer.update(plain, {"w": weight(get(grads))}, optimizer.init(plain))
        assert new is params
        assert weight(get(params)) is w
        assert_same(w, plain["w"])
        assert (w != before).all()
        assert_same(state["step"], 1)


def test_what_is_static_is_carried_along():
    model = Model({"w": W, "names": ["a"], "rate": 0.1, "ids": np.arange(2)})
    grads = ab.grad(lambda p: (p.w["w"] * p.w["rate"] * p.rate).sum())(model)
    assert_same(grads.w, {"w": np.array([0.05, 0.05]), "names": ["a"], "rate": 0.1, "ids": np.arange(2)})
    assert (grads.size, grads.rate, grads.dtype) == (2, 0.5, np.float64)
    assert grads.ids is model.ids
    state = ab.optim.Adam().init(model)
    assert_same(state["mean"], {"w": {"w": np.zeros(2), "names": [None], "rate": None, "ids": None}})


def test_methods_of_a_model_see_its_gradient():
    model = Model(np.array([1.0, 2.0]))
    assert_same(ab.grad(lambda m, x: m(x))(model, 3.0).w, np.array([6.0, 6.0]))
    batched = ab.batch(Model.__call__)
    xs = [np.array([1.0, 2.0]), np.array([3.0, 4.0])]
    expected = sum(ab.grad(lambda m, x=x: m(x))(model).w for x in xs)
    assert_same(ab.grad(lambda m: ab.sum(batched(m, ab.collate(xs))))(model).w, expected)
    assert_same(ab.grad(lambda m: sum(ab.map(lambda x, m: m(x), xs, m=m)))(model).w, expected)


def test_tables_in_objects_get_sparse_gradients():
    model = Model([ab.EmbeddingTable(np.ones((4, 2)))])
    grads = ab.grad(lambda m: m.w[0][[1, 1]].sum())(model)
    assert_same(grads.w[0].to_dense(), np.array([[0.0, 0], [2, 2], [0, 0], [0, 0]]))
    ab.optim.SGD(1.0).update(model, grads, ab.optim.SGD(1.0).init(model))
    assert_same(np.asarray(model.w[0]), np.array([[1.0, 1], [-1, -1], [1, 1], [1, 1]]))


def test_a_tied_part_is_updated_once():
    inner = Slotted(np.array([1.0, 2.0]))
    model = types.SimpleNamespace(a=inner, b=inner)
    grads = ab.grad(lambda m: (m.a.w * m.b.w).sum())(model)
    ab.optim.SGD(0.5).update(model, grads, ab.optim.SGD(0.5).init(model))
    assert_same(inner.w, np.array([0.0, 0.0]))
    assert model.a is model.b


def test_gradients_of_gradients():
    model = Model(np.array([1.0, 2.0]))
    inner = ab.grad(lambda m: (m.w**3).sum())
    assert_same(ab.grad(lambda m: inner(m).w.sum())(model).w, np.array([6.0, 12.0]))


def test_models_are_proved_and_checked():
    model = Model(np.array([1.0, 2.0]))
    ab.testing.assert_equivalent(lambda x, m: m(x), [np.ones(2), np.zeros(2)], m=model)
    assert ab.testing.check_grads(lambda m: np.tanh(m.w) * m.rate, model) < 1e-6


@pytest.mark.parametrize("value", [collections.deque([W]), types.MappingProxyType({"w": W})], ids=["deque", "proxy"])
@pytest.mark.parametrize("put", [lambda x: x, lambda x: {"other": W, "cell": x}, lambda x: Model([x])])
def test_what_cannot_be_made_anew_is_an_error_that_names_it(value, put):
    params = put(value)
    message = rf".* is a {type(value).__name__}, which is not searched: .* pass a plain dict or list"
    with pytest.raises(ab.errors.UnsupportedError, match=f"given{message}"):
        ab.value_and_grad(lambda given: 1.0)(params)
    with pytest.raises(ab.errors.UnsupportedError, match=f"params{message}"):
        ab.optim.Adam().init(params)
    with pytest.raises(ab.errors.UnsupportedError, match=f"params{message}"):
        ab.optim.Adam().update(params, params, {"step": 0, "mean": params, "square": params})


def test_an_object_that_lies_within_itself_is_an_error():
    parent = types.SimpleNamespace(w=W, child=types.SimpleNamespace(w=W))
    parent.child.parent = parent
    with pytest.raises(ab.errors.StructureError, match="given holds a SimpleNamespace that contains itself"):
        ab.grad(lambda given: 1.0)(parent)


def test_an_object_of_one_number_is_an_error_where_it_is_all_there_is():
    with pytest.raises(ab.errors.UnsupportedError, match=r"given is a Tokenizer .* its drop are settings.*np\.array"):
        ab.grad(lambda given: given.drop * 2.0)(Tokenizer())


def test_gradients_of_another_structure_are_an_error():
    model = Model(W)
    with pytest.raises(ab.errors.StructureError, match="grads is a SimpleNamespace; expected"):
        ab.optim.SGD(0.1).update(model, types.SimpleNamespace(v=W), {"step": 0})


def test_what_is_no_parameter_stays_what_it_is():
    params = {"cell": Cell(W.copy()), "tokenizer": Tokenizer(), "f": Model, "g": lambda x: x, "text": "a", "no": None}
    value, grads = ab.value_and_grad(lambda p: (p["cell"].w * p["cell"].size).sum())(params)
    assert value == 4.0
    assert grads["cell"].w.tolist() == [2.0, 2.0]
    assert grads["tokenizer"] is None
    others = ("size", "name", "count", "activation", "nothing")
    assert [getattr(grads["cell"], name) for name in others] == [None] * len(others)
    assert grads["cell"].shape == (None, None)
    optimizer = ab.optim.SGD(0.1)
    new, _ = optimizer.update(params, grads, optimizer.init(params))
    assert new["cell"].w.tolist() == [0.8, 0.8]
    assert (new["cell"].size, new["cell"].shape, new["cell"].count) == (2, (2, 3), 3)
    with pytest.raises(ab.errors.DTypeError, match=r"p\['n'\] is int of dtype int64"):
        ab.grad(lambda p: p["w"].sum())({"w": W, "n": 3})


DEFAULTS = {
    "SGD": {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0},
    "Adagrad": {"lr": 0.01, "eps": 1e-10, "weight_decay": 0.0, "initial_accumulator": 0.0},
    "Adam": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0},
    "AdamW": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2},
    "RMSProp": {"lr": 0.01, "alpha": 0.99, "eps": 1e-8, "weight_decay": 0.0, "momentum": 0.0, "centered": False},
    "FTRL": {"lr": 0.1, "beta": 1.0, "weight_decay": 0.0, "initial_accumulator": 0.0},
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_is_not_said_is_what_pytorch_and_tensorflow_take(name):
    cls = getattr(ab.optim, name)
    found = {field.name: field.default for field in dataclasses.fields(cls)}
    assert {key: found[key] for key in DEFAULTS[name]} == DEFAULTS[name]
