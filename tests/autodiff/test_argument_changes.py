"""What a function changes in the arguments that it is differentiated by is changed after `ab.grad`, as after a call.

Expected is the plain function, called on a copy. What is left holds plain values, and is the caller's own objects.
"""

import collections
import copy
import dataclasses
import types
from typing import NamedTuple

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import ForcedValueError, UnsupportedError
from tests.law import assert_same


class Model:
    def __init__(self, **parts):
        vars(self).update(parts)


class Slotted:
    __slots__ = ("calls", "items", "mean", "w")

    def __init__(self, **parts):
        for name, value in parts.items():
            setattr(self, name, value)


@dataclasses.dataclass
class Data:
    w: np.ndarray
    mean: np.ndarray
    calls: float
    items: list


class Pair(NamedTuple):
    first: object
    second: object


X = np.array([1.0, 2.0])


def running_mean(m, x):
    m.mean = 0.9 * m.mean + 0.1 * x
    return (m.w * m.mean).sum()


def running_mean_in_place(m, x):
    m.mean *= 0.9
    m.mean[0] += x[0]
    return (m.w * m.mean).sum()


def counted(m, x):
    m.calls += 1
    return (m.w * x * m.calls).sum()


def kept(m, x):
    m.items.append(m.w * x)
    m.items.insert(0, "first")
    return m.items[-1].sum()


def taken_out(m, x):
    return (m.items.pop() * m.w * x).sum()


def bound_anew(m, x):
    m.items, m.w = [m.w, {"w": m.w * 2}, (m.w, 3)], m.mean
    return (m.items[0] * x).sum()


def written(m, x):
    m.w[0] = x[1] * m.w[1]
    m.w *= 2
    return (m.w * m.w).sum()


def a_view(m, x):
    part = m.w[1:]
    part += x[0]
    return (m.w * m.w).sum()


OBJECTS = [Model, Slotted, Data, types.SimpleNamespace]
CHANGES = [running_mean, running_mean_in_place, counted, kept, taken_out, bound_anew, written, a_view]


def start(kind, dtype=np.float64):
    return kind(w=np.array([2.0, 1.5], dtype), mean=np.array([1.0, -1.0], dtype), calls=0.0, items=[X.astype(dtype)])


def parts(m):
    return {name: getattr(m, name) for name in ("w", "mean", "calls", "items")}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", OBJECTS)
@pytest.mark.parametrize("f", CHANGES, ids=lambda f: f.__name__)
def test_changes_of_objects(f, kind, dtype):
    x = X.astype(dtype)
    for way in ("loop", "compiled"):
        for call in (ab.grad, ab.value_and_grad):
            own, wanted = start(kind, dtype), start(kind, dtype)
            f(wanted, x)
            mean, items = own.mean, own.items
            with ab.options(way=way, warn=False):
                call(f)(own, x)
            assert_same(parts(own), parts(wanted))
            if f is running_mean_in_place:
                assert own.mean is mean
            if f in (kept, taken_out):
                assert own.items is items
    held, wanted = {"model": start(kind, dtype), "rest": [1.0, X]}, start(kind, dtype)
    f(wanted, x)
    ab.grad(lambda x, held: f(held["model"], x), argnums=1)(x, held)
    assert_same(parts(held["model"]), parts(wanted))


def entries(p):
    p["n"] = p.pop("n") + 1  # goes to the end
    p["new"] = p["w"] * 2
    p["deep"]["count"] += 1.0
    del p["gone"]
    return (p["w"] * p["new"]).sum()


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict, lambda p: collections.defaultdict(list, p)])
def test_changes_of_dicts(kind):
    own, wanted = (kind({"n": 1.0, "gone": X, "w": X.copy(), "deep": {"count": 0.0}}) for _ in range(2))
    deep, w = own["deep"], own["w"]
    entries(wanted)
    ab.grad(entries)(own)
    assert_same(own, wanted)
    assert own["deep"] is deep
    assert own["w"] is w


def test_changes_of_lists_and_what_tuples_hold():
    def f(p):
        p.first.append(p.second["w"] * 2)
        p.second["w"][0] = 5.0
        p.first[0], p.second["again"] = p.second, p.first
        return p.second["w"].sum()

    own, wanted = (Pair([X.copy()], {"w": X.copy()}) for _ in range(2))
    f(wanted)
    assert ab.grad(f)(own).second["w"].tolist() == [0.0, 1.0]
    assert_same((own.first[1], own.second["w"]), (wanted.first[1], wanted.second["w"]))
    assert own.first[0] is own.second
    assert own.second["again"] is own.first


def test_parameters_that_change_places_stay_the_callers_arrays():
    def f(p):
        p["a"], p["b"] = p["b"], p["a"]
        return (p["a"] * X).sum()

    a, b = np.ones(2), np.zeros(2)
    p = {"a": a, "b": b}
    ab.grad(f)(p)
    assert p["a"] is b
    assert p["b"] is a


def test_an_array_that_is_the_argument():
    def f(x):
        x[0] = 3.0
        x *= 2
        return (x**2).sum()

    x = X.copy()
    assert ab.grad(f)(x).tolist() == [0.0, 16.0]
    assert x.tolist() == [6.0, 4.0]
    assert ab.grad(f)(np.ones(1)).tolist() == [0.0]
    empty = {"x": np.zeros(0)}
    ab.grad(lambda p: p["x"].__imul__(2).sum())(empty)
    assert empty["x"].shape == (0,)


@pytest.mark.parametrize("way", ["loop", "lockstep", "fly", "compiled"])
def test_an_array_without_dimensions_is_written_a_number_is_not(way):
    def f(p, x):
        t, n = p["t"], p["n"]
        t += x
        n += x
        return p["t"] * p["n"] * 3.0

    own, wanted, shared = ({"t": np.array(2.0), "n": np.float64(1.0)} for _ in range(3))
    value = f(wanted, 1.0)
    found, gradient = ab.value_and_grad(f)(own, 1.0)
    assert (found, gradient["t"], gradient["n"]) == (value, 3.0, 9.0) == (9.0, 3.0, 9.0)
    assert_same(own, wanted)
    xs = [1.0, 2.0, 4.0]
    with ab.options(way=way, warn=False):
        found = ab.value_and_grad(lambda p: ab.sum(ab.batch(lambda x, p: f(p, x))(ab.collate(xs), p)))(shared)
    assert found[0] == sum(f(wanted, x) for x in xs[1:]) + value
    assert_same(found[1], {"t": np.array(9.0), "n": np.float64(3.0 * (3 + 5 + 9))})
    assert_same(shared, wanted)


def test_changes_before_an_exception_stay():
    def f(p, fails):
        p["n"] += 1.0
        p["w"][0] = 7.0
        if fails:
            raise KeyError("x")
        return p["w"].sum()

    own, wanted = ({"w": X.copy(), "n": 0.0} for _ in range(2))
    for call, p in ((f, wanted), (ab.grad(f), own)):
        with pytest.raises(KeyError, match="x"):
            call(p, True)
    assert_same(own, wanted)


@pytest.mark.chosen
@pytest.mark.parametrize("way", ["chosen", "loop", "lockstep", "fly", "compiled"])
def test_gradients_within_examples(way):
    def loss(p, x):
        p["calls"] += 1
        p["n"][0] += x[0]
        p["l"].append(x * 2)
        return (p["w"] * x * p["calls"]).sum() + p["n"].sum()

    def gradients(x, p):
        return ab.grad(loss)(p, x)["w"] + 0.0 * x

    def own(x):
        x[0] = x[1] * 2
        x *= 2
        return (x**2).sum()

    for data in ([X, 3 * X, -X], [X], []):
        wanted, p, q = ({"w": X.copy(), "n": np.zeros(2), "calls": 0.0, "l": [X]} for _ in range(3))
        for x in data:
            loss(wanted, x)
        arrays, changed = ([x.copy() for x in data] for _ in range(2))
        for x in changed:
            own(x)
        with ab.options(warn=False, **({} if way == "chosen" else {"way": way})):
            found = [
                ab.map(gradients, data, p=p),
                ab.examples(ab.batch(gradients)(ab.collate(data), q)) if data else [],
            ]
            ab.map(ab.grad(own), arrays)
        for gradient in found:
            assert_same(gradient, [(place + 1) * x for place, x in enumerate(data)])
        for changed_here in (p, q) if data else (p,):
            assert_same(changed_here, wanted)
        assert_same(arrays, changed)


def test_gradients_within_gradients():
    def inner(p, x):
        p["n"] += x
        return (p["w"] * p["n"]).sum()

    def outer(p, x):
        g = ab.grad(inner)(p, x)
        return (g["w"] ** 2).sum() + p["n"].sum() * 2 + (p["w"] ** 2).sum()

    p = {"w": np.ones(2), "n": np.zeros(2)}
    assert_same(ab.grad(outer)(p, X), {"w": np.array([2.0, 2.0]), "n": 2 * X + 2})
    assert_same(p, {"w": np.ones(2), "n": X})


def test_tied_weights_get_the_gradient_of_each_place():
    w = np.array([2.0, 3.0])
    shared = Model(w=w)
    found = ab.grad(lambda p: (p["a"] * p["b"]).sum() + (p["m"].w * p["n"].w).sum())(
        {"a": w, "b": w, "m": shared, "n": shared}
    )
    assert_same([found["a"], found["b"], found["m"].w, found["n"].w], [w] * 4)


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda w, m: {"a": w, "b": w}, lambda p: p["a"].__setitem__(0, 1.0)),
        (lambda w, m: {"a": w, "b": w[1:]}, lambda p: p["b"].__imul__(2.0)),
        (lambda w, m: {"a": w, "b": w.T}, lambda p: p["b"].__iadd__(2.0)),
        (lambda w, m: {"a": m, "b": m}, lambda p: setattr(p["a"], "calls", 1)),
        (lambda w, m: [{"w": w}, {"w": w}], lambda p: p[1]["w"].fill(0.0)),
    ],
)
def test_changes_that_other_places_have_not_seen_are_errors(make, change):
    def f(p):
        change(p)
        return sum(x.sum() for x in (p["a"].w, p["b"].w)) if hasattr(p, "keys") and hasattr(p["a"], "w") else 1.0

    with pytest.raises(UnsupportedError, match=r"changes .* several places.*pass it at one place"):
        ab.grad(f)(make(np.ones(2), Model(w=np.ones(2), calls=0)))


def test_an_argument_that_is_given_twice():
    def f(a, b):
        a[0] = 3.0
        return (a * b).sum()

    w = X.copy()
    for call in (lambda: ab.grad(f)(w, w), lambda: ab.grad(f, (0, 1))(w, w), lambda: ab.grad(f)(w, b=w[:])):
        with pytest.raises(UnsupportedError, match="several places"):
            call()
    assert_same(w, X)
    for argnums in ((0, 0), [1, 0, 1]):
        with pytest.raises(UnsupportedError, match=r"argnums=.* names an argument twice; name each argument once"):
            ab.grad(f, argnums)


def test_parts_of_one_array_without_elements_in_common_change():
    w = np.ones((2, 4))
    ab.grad(lambda p: p["left"].__imul__(3.0).sum() + p["right"].sum())({"left": w[:, :2], "right": w[:, 2:]})
    assert_same(w, np.array([[3.0, 3.0, 1.0, 1.0]] * 2))


def test_nothing_changes_where_nothing_is_changed():
    p = {"w": X, "m": start(Model), "t": (X, [1.0]), "n": 3.0}
    before = copy.deepcopy(p)
    ab.grad(lambda p: (p["w"] * p["m"].w * p["t"][0]).sum() * p["n"])(p)
    assert_same(p, before)
    assert p["w"] is X


def test_the_device_of_a_differentiated_array_is_that_of_numpys():
    def on_device(x):
        return (x * np.ones(3, device=x.device)).sum()

    np.testing.assert_array_equal(ab.grad(on_device)(np.zeros(3)), np.ones(3))


def test_a_differentiated_array_moves_to_the_cpu_and_says_that_it_has_no_base():
    if not hasattr(np.ndarray, "to_device"):
        pytest.skip("NumPy 1")

    def moved(x):
        assert x.base is None
        return (x.to_device("cpu") ** 2).sum()

    np.testing.assert_array_equal(ab.grad(moved)(np.ones(3)), np.full(3, 2.0))
    with pytest.raises(ValueError, match="Unsupported device"):
        ab.grad(lambda x: x.to_device("gpu").sum())(np.ones(3))


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x[1:].base,
        lambda x: x.resize(2),
        lambda x: x.ctypes,
        lambda x: x.dumps(),
        lambda x: x.getfield(np.float64),
        lambda x: x.byteswap(),
        lambda x: x.setflags(write=False),
    ],
)
def test_what_would_lose_a_gradient_is_not_said_to_be_missing(read):
    with pytest.raises(ForcedValueError, match="from a value that carries a gradient"):
        ab.grad(lambda x: (read(x), x.sum())[1])(np.ones(3))


def test_an_array_without_a_shape_is_not_differentiated():
    class Empty:
        """An empty data set of h5py's."""

        shape, dtype = None, np.dtype(np.float64)

        def __array__(self, dtype=None, copy=None):
            return np.zeros(self.shape, dtype)

    with pytest.raises(UnsupportedError, match="without a shape and data"):
        ab.grad(lambda x: x.sum())(Empty())
