"""Examples that write into what is differentiated, and into arrays made of it, have the loop's values and gradients.

Expected are differences of the loop over the examples, on plain arrays: an example sees what those before it wrote.
"""

import copy
import dataclasses
import types

import numpy as np
import pytest

import autobatch as ab

XS = [np.array([1.0, 2.0]), np.array([3.0, -1.0]), np.array([0.5, 0.25])]
RAGGED = [np.array([1.0, 2.0]), np.array([3.0]), np.array([0.5, 0.25, 1.0])]


def added(x, p):
    w = p.w
    w += x[0]
    return (w * w).sum()


def added_in_place_of_an_attribute(x, p):
    p.w += x[0]
    return (p.w * p.w).sum()


def scaled_by_what_is_shared(x, p):
    w = p.w
    w *= 1.5
    return (w * x.sum()).sum()


def squared(x, p):
    w = p.w
    w **= 2
    return (w * x[0]).sum() * 0.01


def sometimes(x, p):
    w = p.w
    if x[0] > 1:
        w += x[0]
    return (w * w).sum()


def again_and_again(x, p):
    w = p.w
    for v in x:
        w += v
        w *= 0.9
    return (w * w).sum()


def an_item(x, p):
    p.m[0] += x.sum()
    return (p.m * x[0]).sum()


def a_row(x, p):
    row = p.m[0]
    row += x[0]
    return (p.m * p.m).sum()


def every_row(x, p):
    for row in p.m:
        row += x[0]
    return (p.m * p.m).sum()


def of_another(x, p):
    first, second = p.m
    first -= x[0] * second
    return (p.m * p.m).sum()


def the_transpose(x, p):
    p.m.T[0] = x[0] * p.w[1]
    return (p.m * p.m).sum()


def out(x, p):
    np.maximum(p.w, x[0], out=p.w)
    return (p.w * p.w).sum()


def sorted_and_filled(x, p):
    p.m[1].sort()
    p.w.fill(x[0])
    return (p.w * p.m).sum()


def by_a_helper(x, p):
    def add(w, by):
        w += by

    add(p.w, x[0])
    return (p.w * p.w).sum()


WRITERS = [
    added, added_in_place_of_an_attribute, scaled_by_what_is_shared, squared, sometimes, again_and_again, an_item,
    a_row, every_row, of_another, the_transpose, out, sorted_and_filled, by_a_helper,
]  # fmt: skip


@dataclasses.dataclass
class Model:
    w: np.ndarray
    m: np.ndarray


def start(kind, dtype=np.float64):
    return kind(w=np.array([2.0, 1.5], dtype), m=np.array([[1.0, 2.0], [-1.0, 0.5]], dtype))


def expected(f, data):
    """The value of the loop on plain arrays, and its gradient by differences."""

    def total(p):
        p = copy.deepcopy(p)
        return sum((f(x, p) for x in data), 0.0)

    gradient = start(Model)
    for name in ("w", "m"):
        for index in np.ndindex(getattr(gradient, name).shape):
            ends = []
            for step in (1e-5, -1e-5):
                moved = start(Model)
                getattr(moved, name)[index] += step
                ends.append(total(moved))
            getattr(gradient, name)[index] = (ends[0] - ends[1]) / 2e-5
    return total(start(Model)), gradient


@pytest.mark.chosen
@pytest.mark.parametrize("way", ["chosen", "loop", "lockstep", "fly", "compiled"])
@pytest.mark.parametrize("f", WRITERS, ids=lambda f: f.__name__)
def test_writes_into_parameters_are_seen_by_the_examples_after(f, way):
    options = {"warn": False} if way == "chosen" else {"warn": False, "way": way}
    for data in (XS, RAGGED, XS[:1], []):
        value, gradient = expected(f, data)

        def argument(p, data=data):
            return sum(ab.map(f, data, p=p), 0.0) + 0.0 * p.w[0]

        def captured(p, data=data):
            return sum(ab.map(lambda x: f(x, p), data), 0.0) + 0.0 * p.w[0]

        def batch(p, data=data):
            return ab.sum(ab.batch(f)(ab.collate(data), p))

        def captured_batch(p, data=data):
            return ab.sum(ab.batch(lambda x: f(x, p))(ab.collate(data)))

        for loss in (argument, captured, batch, captured_batch) if data else (argument, captured):
            for kind in (Model, types.SimpleNamespace):
                with ab.options(**options):
                    found, slope = ab.value_and_grad(loss)(start(kind))
                where = f"{loss.__name__} of {len(data)} in a {kind.__name__}"
                np.testing.assert_allclose(found, value, rtol=1e-9, err_msg=where)
                for name in ("w", "m"):
                    np.testing.assert_allclose(getattr(slope, name), getattr(gradient, name), 1e-5, 1e-5, err_msg=where)


def copied(x, p):
    h = p.w.copy()
    h[0] = x.sum()
    return (h * p.w).sum()


def zeros_like(x, p):
    a = np.zeros_like(p.m)
    for i in range(2):
        a[i] = p.m[i] * x.sum()
    return (a * a).sum()


def by_its_length(x, p):
    a = np.zeros_like(p.w)
    for i in range(len(x)):
        a[i % 2] += p.w[i % 2] * x[i]
    return (a * a).sum()


def of_a_call(x, p):
    a = np.array(p.w)
    a[0] += x[0]
    return (a * a).sum()


def of_an_operation(x, p):
    a = p.w * 2
    a[0] = x[0]
    return (a * a * p.w).sum()


def a_part(x, p):
    a = np.zeros_like(p.w)
    part = a[1:]
    part[0] = x.sum()
    part *= p.w[0]
    return (a * a).sum()


def in_a_branch(x, p):
    a = np.ones_like(p.w)
    if x.sum() > 1:
        a[1] = x.sum() * p.w[0]
    return (a * a * p.w).sum()


def whole(x, p):
    a = np.full_like(p.w, 2.0)
    a += x.sum() * p.w
    a *= 2
    return (a * a).sum()


def of_a_cast(x, p):
    a = p.m.astype(np.float64)
    a[0] -= x[0]
    a.sort()
    return (a * p.m).sum()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    "f",
    [copied, zeros_like, by_its_length, of_a_call, of_an_operation, a_part, in_a_branch, whole, of_a_cast],
    ids=lambda f: f.__name__,
)
def test_arrays_made_of_parameters_are_written_in_lockstep(f, dtype):
    for data in (XS, RAGGED, XS[:1]):
        value, gradient = expected(f, data)
        batch = ab.collate([each.astype(dtype) for each in data])

        def argument(p, batch=batch):
            return ab.sum(ab.batch(f)(batch, p))

        def captured(p, batch=batch):
            return ab.sum(ab.batch(lambda x: f(x, p))(batch))

        for loss in (argument, captured):
            with ab.options(way="lockstep", strict=True):
                found, slope = ab.value_and_grad(loss)(start(Model, dtype))
            np.testing.assert_allclose(found, value, rtol=1e-5)
            for name in ("w", "m"):
                assert getattr(slope, name).dtype == dtype
                np.testing.assert_allclose(getattr(slope, name), getattr(gradient, name), 1e-4, 1e-4)
