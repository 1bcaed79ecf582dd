"""`is`, where an example has one array from two sides: as its own and among what all share, or in two shared arguments.

On the fly each side has a recorded array, and a copy of the containers around it, for itself.
"""

import dataclasses
import operator

import numpy as np
import pytest

import autobatch as ab
from tests.compiled.interpreted import interpreted
from tests.inspect import noted_fallbacks
from tests.law import assert_same, loop, map_equals_loop, vectors


@dataclasses.dataclass(eq=False)
class Node:
    x: object


class Holder:
    def __init__(self, items):
        self.items = items


ARRAYS = vectors(3, 3, 3, seed=4)
KINDS = {
    "array": ARRAYS,
    "list": [[x] for x in ARRAYS],
    "tuple": [(x, 1) for x in ARRAYS],
    "dict": [{"x": x} for x in ARRAYS],
    "dataclass": [Node(x) for x in ARRAYS],
}


def array_of(value):
    while not hasattr(value, "shape"):
        value = value.x if isinstance(value, Node) else value["x"] if isinstance(value, dict) else value[0]
    return value


def energy_without_itself(own, others):
    total = np.float32(0)
    for other in others:
        if other is own:
            continue
        total = total + np.tanh(array_of(other) * array_of(own)).sum()
    return total


def place_by_id(own, others):
    places = {id(other): i for i, other in enumerate(others)}
    return places.get(id(own)), array_of(own) * 2


def in_a_helper(own, others):
    return [same(other, own) for other in others], array_of(own) * 2


def same(a, b):
    return a is b


def by_operator(own, others):
    return [operator.is_not(other, own) for other in others], array_of(own) * 2


FUNCTIONS = [energy_without_itself, place_by_id, in_a_helper, by_operator]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("f", FUNCTIONS)
def test_an_example_that_is_one_of_what_all_share(f, kind):
    examples = KINDS[kind]
    with noted_fallbacks():
        assert_same(ab.map(f, examples, others=examples), loop(f, examples, others=examples))
        assert_same(ab.map(f, examples, ab.shared(examples)), loop(f, examples, others=examples))
        held = Holder(examples)
        of_holder = lambda own, holder: f(own, holder.items)
        assert_same(ab.map(of_holder, examples, holder=held), loop(of_holder, examples, holder=held))
        of_closure = lambda own: f(own, examples)
        assert_same(ab.map(of_closure, examples), loop(of_closure, examples))


LOOK_UPS = {
    "in a list": (lambda own, group: own in group, list),
    "its place": (lambda own, group: group.index(own), list),
    "as a key": (lambda own, group: group.get(own), lambda nodes: {node: i for i, node in enumerate(nodes)}),
    "in a set": (lambda own, group: own in group, lambda nodes: set(nodes[:2])),
    "equal": (lambda own, group: [own == other for other in group], list),
}


@pytest.mark.parametrize("name", LOOK_UPS)
def test_a_look_up_of_what_equals_only_itself(name):
    find, group_of = LOOK_UPS[name]
    nodes = KINDS["dataclass"]

    def f(own, group):
        return find(own, group), np.tanh(own.x).sum()

    with noted_fallbacks():
        assert_same(ab.map(f, nodes, group=group_of(nodes)), loop(f, nodes, group=group_of(nodes)))


@pytest.mark.parametrize("kind", KINDS)
def test_one_object_in_two_shared_arguments(kind):
    nodes, xs = KINDS[kind], vectors(4, 2, 3, seed=5)

    def f(x, root, nodes):
        return [node is root for node in nodes], [node is nodes[0] for node in nodes], np.tanh(x).sum()

    def g(x, nodes, chosen=nodes[1]):
        return [node is chosen for node in nodes], np.tanh(x).sum()

    with noted_fallbacks():
        assert_same(ab.map(f, xs, root=nodes[2], nodes=nodes), loop(f, xs, root=nodes[2], nodes=nodes))
        assert_same(ab.map(g, xs, nodes=nodes), loop(g, xs, nodes=nodes))


def test_gradients_of_examples_that_are_shared():
    def total(xs, run):
        return sum(run(energy_without_itself, xs, others=xs))

    with noted_fallbacks():
        slopes = ab.grad(total)(ARRAYS, ab.map)
    assert_same(slopes, ab.grad(total)(ARRAYS, loop))


def test_two_arguments_that_may_be_one_memory():
    def f(x, y):
        return x * (2.0 if np.shares_memory(x, y) else 3.0)

    base = np.arange(12.0)
    map_equals_loop(f, [base[:4], base[4:8]], [base[4:8], base[8:]])
    with noted_fallbacks():  # the loop compares the arrays themselves
        map_equals_loop(f, [base[:4], base[4:8]], [base[2:6], base[8:]])


def test_what_has_one_side_stays_on_the_fly():
    def f(own, other, root):
        return own is other, own is root, root is None, np.tanh(array_of(own) * array_of(other)).sum()

    for examples in KINDS.values():
        with noted_fallbacks() as notes:
            found = ab.map(f, examples, [*examples[:1], *examples[:2]], root=[np.ones(2)])
        assert_same(found, loop(f, examples, [*examples[:1], *examples[:2]], root=[np.ones(2)]))
        assert not notes
    with noted_fallbacks() as notes:
        ab.map(lambda x, others: sum(x @ y for y in others if y is not None), ARRAYS, others=ARRAYS)
    assert not notes


@dataclasses.dataclass
class Record:
    x: object
    n: int = 0


def written_into(x):
    x[0] += 1
    return x


def written_after_a_choice(x):
    x += 1
    if x.sum() > 0:
        x[1] = 2.0
    return {"me": x}, x, [x, x.sum()]


def changed_dict(d):
    d["n"] = d["x"].sum()
    return d


def dict_of_numbers(d):
    d["x"] = 1.0
    return {"me": d}


def changed_parts(d):
    d["x"][0] = 1.0
    d["more"] = [d["x"]]
    return d["x"], d


def changed_list(items):
    items.append(items[0] * 2)
    return items, items


def changed_record(record):
    record.n += 1
    record.x = record.x * 2
    return [record, {"r": record}]


def unchanged(example):
    return example, {"me": example}


def converted(x):
    return np.asarray(x), {"me": np.asanyarray(x)}, np.array(x, copy=None), np.tanh(x), np.require(x)


def converted_alone(x):
    return np.require(x)


RETURNED = [
    (converted, "array"), (converted_alone, "array"),
    (written_into, "array"), (written_after_a_choice, "array"), (changed_dict, "dict"), (dict_of_numbers, "dict"),
    (changed_parts, "dict"), (changed_list, "list"), (changed_record, "record"),
    *((unchanged, kind) for kind in ("array", "dict", "list", "tuple", "record")),
]  # fmt: skip


def made(kind):
    arrays = [np.arange(3.0) - i for i in range(4)]
    kinds = {"dict": lambda x: {"x": x}, "list": lambda x: [x], "tuple": lambda x: (x, 1), "record": Record}
    return [kinds[kind](x) for x in arrays] if kind in kinds else arrays


def same_objects(result, example):
    """For each part of a result, in order, which part of the example it is, or which of the result's own."""
    known, found = {}, []

    def visit(value, path, note):
        if id(value) in known or np.isscalar(value):
            note(known.get(id(value)))
            return
        known[id(value)] = path, value
        note(None)
        parts = vars(value) if isinstance(value, Record) else value
        for key, part in parts.items() if isinstance(parts, dict) else enumerate(parts if path else ()):
            if not isinstance(value, np.ndarray):
                visit(part, (*path, key), note)

    visit(example, ("example",), lambda _: None)
    visit(result, ("result",), lambda each: found.append(each and each[0]))
    return found


@pytest.mark.parametrize("way", ["fly", pytest.param("auto", marks=pytest.mark.chosen), "compiled"])
@pytest.mark.parametrize(("f", "kind"), RETURNED, ids=[f"{f.__name__}-{kind}" for f, kind in RETURNED])
def test_what_is_returned_of_an_example_is_the_callers(f, kind, way):
    want = [same_objects(f(example), example) for example in made(kind)]
    examples = made(kind)
    with interpreted(), ab.options(way=way, warn=False):
        results = ab.map(f, examples)
    assert [same_objects(each, example) for each, example in zip(results, examples, strict=True)] == want
    for each, example in zip(results, [f(example) for example in made(kind)], strict=True):
        assert_same(each, example)
