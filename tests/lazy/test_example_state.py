"""What a function changes inside of its examples: as after the loop, whatever becomes of the batched run."""

import dataclasses
import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch.lazy import example_state
from autobatch.program.purity import may_change
from tests.law import assert_same
from tests.lazy import effect_chains

XS = [np.arange(3.0) + i for i in range(4)]


class Node:
    def __init__(self, children=()):
        self.children = list(children)
        self.state = None
        self.visits = 0
        self.log = []

    def visit(self):
        self.visits += 1
        return self


class Slotted:
    __slots__ = ("children", "state", "visits")

    def __init__(self, children=()):
        self.children = list(children)
        self.visits = 0


@dataclasses.dataclass
class Record:
    data: object
    state: object = None
    visits: int = 0


def given_up(x):
    """What a map can only do as the loop."""
    np.asarray(x * 2)[0] = 1


def an_attribute(node, x):
    node.visits += 1
    given_up(x)
    return node.visits


def a_slot_of_its_own(node, x):
    node.state = x * 2
    node.visits += 1
    return node.visits if float(node.state.sum()) > 3 else node.state


def a_list(node, x):
    node.log.append(float((x * 2).sum()))
    given_up(x)
    return list(node.log)


def a_method(node, x):
    node.visit()
    given_up(x)
    return node.visit().visits


def an_entry(entry, x):
    entry["visits"] = entry.get("visits", 0) + 1
    entry["state"] = np.tanh(x) + entry["data"]
    if float(x.sum()) > 4:
        entry["visits"] += 1
    return entry["visits"]


def a_field(record, x):
    record.visits += 1
    record.state = np.tanh(x) + record.data
    return record.visits if float(x.sum()) > 4 else record.state


def an_item_beside_an_array(items, x):
    items.append(x * 2)
    items[0] = items[0] + 1
    return len(items)


def a_common_part(node, x):
    part = node.children[0]
    part.visits += float((x * 2).sum())
    return part.visits


def a_common_copy(entry, x):
    part = entry["part"]
    part["total"] = part["total"] + 1.0
    return part["total"], part["data"] * x


def an_error_after_a_change(node, x):
    node.visits += 1
    if float(x.sum()) > 8:
        raise ValueError("too much")
    return node.visits


def nodes():
    return [Node([Node()]) for _ in XS]


def with_a_common_part(kind=Node):
    part = kind()
    return [kind([part]) for _ in XS]


def with_a_common_dict():
    part = {"total": 0.0, "data": np.ones(3)}
    return [{"part": part} for _ in XS]


def told(value):
    """What is in a structure, objects included."""
    if isinstance(value, list | tuple):
        return [told(each) for each in value]
    if isinstance(value, dict):
        return {key: told(each) for key, each in value.items()}
    if isinstance(value, Slotted):
        return [told(getattr(value, name, None)) for name in value.__slots__]
    if isinstance(value, np.ndarray):
        assert type(value) is np.ndarray
        return value.tolist()
    return told(vars(value)) if hasattr(value, "__dict__") else value


def outcome(call):
    try:
        return told(call())
    except ValueError as error:
        return repr(error)


@pytest.mark.parametrize(
    ("f", "make"),
    [
        (an_attribute, nodes),
        (a_slot_of_its_own, lambda: [Slotted() for _ in XS]),
        (a_list, nodes),
        (a_method, nodes),
        (an_entry, lambda: [{"data": np.ones(3)} for _ in XS]),
        (an_entry, lambda: [{"data": 1} for _ in XS]),
        (a_field, lambda: [Record(np.ones(3)) for _ in XS]),
        (an_item_beside_an_array, lambda: [[np.ones(3)] for _ in XS]),
        (a_common_part, with_a_common_part),
        (a_common_part, lambda: with_a_common_part(Slotted)),
        (a_common_copy, with_a_common_dict),
        (an_error_after_a_change, nodes),
    ],
)
def test_examples_are_left_as_the_loop_leaves_them(f, make):
    mine, theirs = make(), make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = outcome(lambda: ab.map(f, mine, XS))
    assert_same(found, outcome(lambda: [f(*each) for each in zip(theirs, XS, strict=True)]))
    if f is not an_error_after_a_change:
        assert_same(told(mine), told(theirs))
    assert [node.visits for node in mine] == [node.visits for node in theirs] if make is nodes else True


def test_a_slot_of_a_shared_object():
    def f(x, shared):
        shared.visits += float((x * 2).sum())
        return shared.visits

    mine, theirs = Slotted(), Slotted()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_same(ab.map(f, XS, shared=mine), [f(x, theirs) for x in XS])
    assert mine.visits == theirs.visits


def test_what_an_example_alone_holds_stays_batched():
    def f(node, x):
        node.state = np.tanh(x)
        node.visits += 1
        return node.state * 2 if float(node.state.sum()) > 1 else node.state

    with ab.options(strict=True):
        assert_same(ab.map(f, nodes(), XS), [f(*each) for each in zip(nodes(), XS, strict=True)])


def own_list(tree):
    out = []
    for child in tree:
        out.append(np.tanh(child))
    sums = np.zeros(3)
    sums[0] = 1.0
    counts = {}
    counts["all"] = len(out)
    return out, sums, counts


def others_list(tree):
    out = tree[0]
    out.append(1)


def others_array(tree):
    out = np.ravel(tree)
    out[0] = 1


def items_of_its_own_list(tree):
    out = [*tree]
    out[0].state = 1


@pytest.mark.parametrize(
    ("f", "stores"),
    [(own_list, False), (others_list, True), (others_array, True), (items_of_its_own_list, True), (an_attribute, True)],
)
def test_what_a_function_makes_itself_it_may_change(f, stores):
    assert may_change([f], []) is stores


def test_methods_are_looked_into():
    def visits(node):
        return node.visit()

    assert may_change([visits], [Node])
    assert may_change([visits], [])
    assert not may_change([visits], [type("Quiet", (), {"visit": lambda self: self.state})])


@pytest.mark.fuzz
@pytest.mark.parametrize(
    "first", [*range(0, 100, 20), *(pytest.param(first, marks=pytest.mark.slow) for first in range(100, 200, 20))]
)
def test_random_functions_with_effects(first):
    for seed in range(first, first + 20):
        effect_chains.check(seed)


def _state_of_pair(pair, p):
    return np.tanh(p["w"] * pair[0])


def _loss_of_pair(pair, label, p):
    return ((_state_of_pair(pair, p) - pair[1] * label) ** 2).sum()


def test_examples_are_not_kept_for_a_taped_function_that_changes_nothing(monkeypatch):
    """The form that runs under a gradient is the user's function: as pure as that is."""
    kept = []

    class Counted(example_state.Snapshot):
        def __init__(self, roots, *, inside=False, **options):
            kept.append(inside)
            super().__init__(roots, inside=inside, **options)

    monkeypatch.setattr(example_state, "Snapshot", Counted)
    pairs, labels = [(1.0, 2.0), (3.0, 4.0)], [1.0, -1.0]

    def mean_loss(p):
        return np.mean(ab.map(_loss_of_pair, pairs, labels, p=p))

    p = {"w": np.array([0.5, -0.25])}
    found = ab.grad(mean_loss)(p)
    assert True not in kept
    want = ab.grad(lambda p: (_loss_of_pair(pairs[0], 1.0, p) + _loss_of_pair(pairs[1], -1.0, p)) / 2)(p)
    np.testing.assert_allclose(found["w"], want["w"])


def test_a_shared_dataclass_that_is_changed_and_changed_back_while_others_wait():
    """Holding an array, it is copied for the map; what an example sets there another one sees."""
    effect_chains.check(320199)
