"""Containers and objects under divergence: what tries to be silently wrong, and what is known to need the loop."""

import copy
import dataclasses
import heapq

import numpy as np
import pytest

from autobatch import PackedBatch, batch, examples
from tests.law import batch_of, ragged
from tests.law import equals_loop_either_way as equals_loop

SCALARS = [np.float64(v) for v in (1.0, -2.0, 3.0, -0.5)]
FLOATS = [np.array(x) for x in ([1.0, -2.0, 3.0], [4.0], [], [-1.0, 2.0, 2.0, 5.0])]


class Counter:
    def __init__(self):
        self.n = 0

    def bump(self):
        self.n += 1
        return self.n


@dataclasses.dataclass
class Pair:
    left: object
    right: object


def an_object_of_two_names_after_branches_met(x):
    a, b = Pair(x, 1), Pair(2, x)
    p = a if x > 0 else b
    p.left = 9.0
    return a.left, b.left, p.left


def an_object_of_two_names_in_a_ragged_loop(xs):
    state = first = Pair(0.0, 0.0)
    for x in xs:
        state.left = state.left + x
        state = Pair(state.left, x)
    return first.left, state.left


def an_object_in_a_tuple_that_is_rebound(x):
    a = Pair(x, 1)
    t = (a, x)
    if x > 0:
        t = (a, 2 * x)
    a.left = 7.0
    t[0].right = 3
    return t[0].left, a.right, t[1], t[0] is a


def whether_two_arrays_are_one(x):
    a, b = np.ones(2) * x, np.ones(2)
    c = b if x > 0 else a
    return c is a, c is b


def an_exception_after_a_change(xs):
    out = []
    try:
        for x in xs:
            out.append(x)
            if x < 0:
                raise ValueError("negative")
    except ValueError:
        out.append(-99.0)
    return out


def a_key_that_is_missing_after_a_change(x):
    d = {"a": 1}
    try:
        d["b"] = 2
        y = d["c" if x > 0 else "b"]
    except KeyError:
        y = -1
    return d, y


def writes_into_an_array_of_a_list(x):
    kept = [np.zeros(2)]
    if x > 0:
        kept.append(np.ones(2))
    last = kept[-1]
    last[0] = 5
    return kept


def objects_in_a_heap(xs):
    class Item:
        def __init__(self, x):
            self.x = x

        def __lt__(self, other):
            return bool(self.x < other.x) if isinstance(self.x, np.floating) else False

    heap = []
    for x in xs:
        heapq.heappush(heap, Item(x))
    return [heapq.heappop(heap).x for _ in range(len(heap))]


def a_class_of_each_branch(x):
    if x > 0:

        class Own:
            value = x
    else:

        class Own:
            value = -x

    return Own.value


NEEDS_THE_LOOP = [
    (a_class_of_each_branch, SCALARS),
    (whether_two_arrays_are_one, SCALARS),
    (writes_into_an_array_of_a_list, SCALARS),
    (objects_in_a_heap, FLOATS),
]


@pytest.mark.parametrize(("f", "column"), NEEDS_THE_LOOP)
def test_what_needs_the_loop_is_right(f, column):
    equals_loop(f, column, falls_back=True)


def stored_before_it_changes(x):
    a = Pair(x, 1)
    kept = []
    if x > 0:
        kept.append(a)
    kept.append(a)
    a.left = 7.0
    kept[0].right = x
    return kept[0].left, a.right, kept[0] is a, [each.left for each in kept]


def lists_of_one_lane_in_others(x):
    inner = []
    outer = [inner, [inner]]
    if x > 0:
        inner.append(1)
        outer[1] = outer[1] + [x]
    inner.append(2)
    return outer, outer[0] is inner, outer[1][0] is inner


def shared_rows(x):
    rows = [[]] * 3
    if x > 0:
        rows[0].append(1)
    rows[1] = list(rows[1])
    rows[1].append(x)
    return rows, rows[0] is rows[2], rows[0] is rows[1]


def a_closure_keeps_its_list(xs):
    seen = []

    def visit(v):
        seen.append(v)
        return visit(v - 1) if v > 1 else len(seen)

    return [visit(x) for x in xs], seen


def recursion_with_an_accumulator(x):
    def go(k, acc):
        if k <= 0:
            return acc
        acc.append(k)
        return go(k - 1 - (x > 0), acc)

    out = []
    return go(4, out), out, go(0, out) is out


def views_read_late(xs):
    d = {}
    values, keys = d.values(), d.keys()
    for i, x in enumerate(xs):
        d[i] = x
    for key in keys:
        d[key] = d[key] * 2
    return list(values), list(keys), len(values)


def text_of_containers(x):
    kept, d = [1, 2], {"a": 1}
    if x > 0:
        kept.append(3)
    return str(kept), repr(d), f"{kept} {d!r}", "%s %s" % (kept, 1), "{}".format(kept)  # noqa: UP031, UP032


def text_of_containers_that_agree(x):
    kept, d = [1, 2], {"a": (1, [2])}
    return str(kept), repr(d), f"{kept} {d!r}", "%s %s" % (kept, d), "{}".format(d), x  # noqa: UP031, UP032


def equal_objects(x):
    a, b = Counter(), Counter()
    c = a if x > 0 else b
    return a == b, c == a, c != b, c is b, c in [a], {"x": c}["x"] is a


def an_object_or_none(x):
    found = Counter() if x > 0 else None
    if found is not None:
        found.bump()
    return found.n if found else -1, found is None, getattr(found, "n", "none") if x > 0 else 0


def attributes_of_some(x):
    c = Counter()
    if x > 0:
        c.extra = x
    return hasattr(c, "n"), c.extra if x > 0 else None, c.n


def dataclasses_are_equal_by_field(x):
    a, b = Pair(x, 1), Pair(1.0, 1)
    c = a if x > 1 else b
    return a == b, a != b, c == b, Pair(x, 2) == b, a == 1.0


def deep_copies(x):
    kept = [[x], [1]]
    more = copy.deepcopy(kept)
    if x > 0:
        more[0].append(2)
    return kept, more


def a_list_of_arrays_changed_after(x):
    h = np.zeros(2)
    kept = [h]
    for _ in range(3):
        h = h + x
        if x > 0:
            kept.append(h)
    return kept, kept[-1] * 2


def whether_two_objects_are_one_after_a_loop(xs):
    first = last = Pair(1.0, len(xs))
    for x in xs:
        last = last if x > 0 else Pair(x, len(xs))
    pair = other = (xs.sum(), 1)
    for x in xs:
        other = (other[0] + x, 1)
    return last is first, last.left, pair is other


def text_of_an_object_with_a_list(xs):
    pair = Pair([1.0], len(xs))
    if len(xs) > 2:
        pair.left.append(2.0)
    return str(pair), f"{pair}", repr((pair, 1))


def a_state_in_a_dict(xs):
    state, outer = {"h": np.zeros(2)}, {"own": {"n": 0}}
    for x in xs:
        state["h"] = np.tanh(state["h"] + x)
        outer["own"]["n"] = outer["own"]["n"] + 1
    return state, outer


@dataclasses.dataclass
class Noted:
    x: object

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value + 1 if isinstance(value, np.floating) else None)


def an_object_that_sees_what_is_set(x):
    return Noted(x), Noted(x).x


class Doubled:
    """A descriptor."""

    def __get__(self, owner, kind=None):
        return 0.0 if owner is None else owner.kept

    def __set__(self, owner, value):
        owner.kept = value * 2


@dataclasses.dataclass
class Twofold:
    x: object = Doubled()


def an_object_whose_field_is_a_descriptor(x):
    return Twofold(x).x, Twofold().x


BATCHES = [
    (an_object_whose_field_is_a_descriptor, SCALARS),
    (an_object_that_sees_what_is_set, SCALARS),
    (whether_two_objects_are_one_after_a_loop, FLOATS),
    (text_of_an_object_with_a_list, FLOATS),
    (a_state_in_a_dict, FLOATS),
    (stored_before_it_changes, SCALARS),
    (lists_of_one_lane_in_others, SCALARS),
    (shared_rows, SCALARS),
    (an_exception_after_a_change, FLOATS),
    (a_key_that_is_missing_after_a_change, SCALARS),
    (a_closure_keeps_its_list, FLOATS),
    (recursion_with_an_accumulator, SCALARS),
    (an_object_of_two_names_in_a_ragged_loop, FLOATS),
    (views_read_late, FLOATS),
    (text_of_containers, SCALARS),
    (text_of_containers_that_agree, SCALARS),
    (equal_objects, SCALARS),
    (an_object_or_none, SCALARS),
    (attributes_of_some, SCALARS),
    (an_object_of_two_names_after_branches_met, SCALARS),
    (an_object_in_a_tuple_that_is_rebound, SCALARS),
    (deep_copies, SCALARS),
    (dataclasses_are_equal_by_field, SCALARS),
    (a_list_of_arrays_changed_after, SCALARS),
]


@pytest.mark.parametrize("chosen", [slice(None), slice(0, 1), slice(3, 0, -1)])
@pytest.mark.parametrize(("f", "column"), BATCHES)
def test_what_batches_is_right(f, column, chosen):
    equals_loop(f, column[chosen])


def test_outer_objects_change_as_in_the_loop():
    class Model:
        count, state, log = 0, None, []

    def f(x, model):
        model.count += 1
        model.state = x * 2
        model.log.append(float(x))
        return model.count

    looped, batched = Model(), Model()
    looped.log, batched.log = [], []
    want = [f(x, looped) for x in SCALARS]
    with pytest.warns(match="setting an attribute of a Model"):
        out = batch(f)(batch_of(SCALARS), batched)
    assert examples(out) == want
    assert (batched.count, batched.state, batched.log) == (looped.count, looped.state, looped.log)


def test_examples_own_lists_change_once():
    words = [[1, 2, 3], [4], [5, 6]]
    given = [list(each) for each in words]
    with pytest.warns(match="of objects that differ by example"):
        out = batch(lambda own: (own.pop(), len(own)))(batch_of(given))
    assert examples(out) == [(3, 2), (4, 0), (6, 1)]
    assert given == [each[:-1] for each in words]


def sentences(doc):
    total, longest = np.zeros(2), 0
    for sentence in doc:
        h = np.zeros(2)
        for word in sentence:
            h = np.tanh(h + word)
        total = total + h
        longest = max(longest, len(sentence))
    return total, longest, len(doc)


def test_nested_packed_batches():
    docs = [ragged(2, 1, 3, width=2, seed=1), ragged(4, width=2, seed=2), ragged(0, 2, width=2, seed=3)]
    out = examples(batch(sentences, strict=True)(PackedBatch.from_examples(docs, depth=2)))
    for got, doc in zip(out, docs, strict=True):
        want = sentences(doc)
        np.testing.assert_allclose(got[0], want[0])
        assert got[1:] == want[1:]


def test_an_item_of_nested_packed_batches():
    docs = [ragged(2, 1, 3, width=2, seed=1), ragged(4, width=2, seed=2), ragged(1, 2, width=2, seed=3)]
    f = lambda doc: (doc[0].max(), doc[-1].shape[0])
    with pytest.warns(match="an item of a list of arrays"):
        out = examples(batch(f)(PackedBatch.from_examples(docs, depth=2)))
    assert out == list(map(f, docs))


@pytest.mark.parametrize("packed", [False, True])
def test_unpacking(packed):
    def f(xs):
        a, b = xs
        (first, *rest), last = xs[:1], xs[-1]
        return a + b, first, rest, last

    equals_loop(f, ragged(2, 2, 2, width=3), packed=packed)


def test_unpacking_of_another_number_raises_for_that_example():
    def f(xs):
        a, b = xs
        return a + b

    with pytest.raises(ValueError, match="too many values") as caught, pytest.warns(match="traced"):
        batch(f)(batch_of(ragged(2, 3, 2)))
    assert "raised for example 1" in caught.value.__notes__


@pytest.mark.parametrize("column", [[1, 1], [1, 0, 2], [2, 0]])
def test_a_dict_that_grows_in_the_last_step_of_a_loop_over_it(column):
    def f(n):
        table = {k: k for k in range(n)}
        try:
            for k in table:
                table[k + 10] = 1
        except RuntimeError as error:
            return str(error)
        return table

    equals_loop(f, column, falls_back=True)


def test_who_leaves_the_loop_may_change_the_dict():
    def f(n):
        table = {k: k for k in range(n)}
        for k in table:
            if k == 1:
                del table[k]
                break
        return table

    equals_loop(f, [3, 1, 0, 2])


def a_number_is_found_by_identity(x):
    both = [x]
    return x in (0, x), x in both, (1, x) in [(1, x)], max((x, 1), (x, 2))[1], x in (x, 1) if abs(x) != 2 else None


@pytest.mark.parametrize("number", [float, complex, np.float64, lambda value: np.array([value])])
def test_nan_is_found_where_it_is_the_same_object(number):
    values = [number(value) for value in (np.nan, 1.0, 2.0)]
    if number is complex:  # which has no order
        equals_loop(lambda x: (x in (0, x), x in [x], x in (x, 1) if x != 2 else None), values)
        return
    equals_loop(a_number_is_found_by_identity, values)
