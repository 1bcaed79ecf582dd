"""Parameters in objects that pytrees do not look into: an error that names the object, never a gradient of None."""

import collections
import dataclasses
import types

import numpy as np
import pytest

import autobatch as ab

W, THREE = np.ones(2), np.int64(3)


class Model:
    def __init__(self, w):
        self.w, self.size, self.name = w, 2, "model"


class Slotted:
    __slots__ = ("size", "w")

    def __init__(self, w):
        self.w, self.size = w, 2


class Child(Slotted):
    __slots__ = ("other",)


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


OBJECTS = {
    "object": (Model(W), r" is a Model, .*: its w would get no gradient; make its class a dataclass .*\{'w': .*\.w\}"),
    "slots": (Slotted(W), " is a Slotted, "),
    "inherited slots": (Child(W), " is a Child, "),
    "table": (Model(ab.EmbeddingTable(np.ones((2, 2)))), " is a Model, "),
    "list in an object": (Model([W, {"b": W}]), " is a Model, "),
    "object in an object": (Model(Slotted(W)), " is a Model, "),
    "namespace": (types.SimpleNamespace(w=W), " is a SimpleNamespace, "),
    "deque": (collections.deque([W]), r" is a deque, .* pass a plain one"),
    "mapping": (types.MappingProxyType({"w": W}), " is a mappingproxy, .* pass a plain one"),
    "user dict": (collections.UserDict(w=W), " is a UserDict, "),
}
PLACES = {
    "whole": (lambda x: x, ""),
    "in a dict": (lambda x: {"other": np.ones(3), "cell": x}, r"\['cell'\]"),
    "in a list": (lambda x: [np.ones(3), x], r"\[1\]"),
    "in a dataclass": (Cell, r"\.w"),
}


@pytest.mark.parametrize(("put", "path"), PLACES.values(), ids=PLACES)
@pytest.mark.parametrize(("value", "message"), OBJECTS.values(), ids=OBJECTS)
def test_an_object_with_parameters_is_an_error_that_names_it(value, message, put, path):
    params = put(value)
    with pytest.raises(ab.errors.UnsupportedError, match=f"^given{path}{message}"):
        ab.value_and_grad(lambda given: 1.0)(params)
    optimizer = ab.optim.Adam()
    with pytest.raises(ab.errors.UnsupportedError, match=f"^params{path}{message}"):
        optimizer.init(params)
    with pytest.raises(ab.errors.UnsupportedError, match=f"^params{path}{message}"):
        optimizer.update(params, params, {"step": 0, "mean": params, "square": params})


def test_an_object_of_one_number_is_an_error_where_it_is_all_there_is():
    with pytest.raises(ab.errors.UnsupportedError, match="given is a Model"):
        ab.grad(lambda given: given.w * 2.0)(Model(0.5))


def test_what_is_no_parameter_stays_what_it_is():
    params = {"cell": Cell(W.copy()), "tokenizer": Tokenizer(), "f": Model, "g": lambda x: x, "text": "a", "no": None}
    value, grads = ab.value_and_grad(lambda p: (p["cell"].w * p["cell"].size).sum())(params)
    assert value == 4.0
    assert grads["cell"].w.tolist() == [2.0, 2.0]
    others = ("size", "name", "count", "activation", "nothing")
    assert [getattr(grads["cell"], name) for name in others] == [None] * len(others)
    assert grads["cell"].shape == (None, None)
    optimizer = ab.optim.SGD(0.1)
    new, _ = optimizer.update(params, grads, optimizer.init(params))
    assert new["cell"].w.tolist() == [0.8, 0.8]
    assert (new["cell"].size, new["cell"].shape, new["cell"].count) == (2, (2, 3), 3)
    with pytest.raises(ab.errors.DTypeError, match=r"p\['n'\] is int of dtype int64"):
        ab.grad(lambda p: p["w"].sum())({"w": W, "n": 3})
