"""Changes of what is outside a call, or in containers of its own: example by example, in the order of the loop."""

import collections
import copy
import functools
import itertools
import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch import batch, examples
from autobatch.errors import FallbackWarning, UnsupportedError
from tests import law
from tests.inspect import forget_warnings
from tests.law import assert_same, batch_of, map_equals_loop, ragged
from tests.lockstep.outside import Model, equals_loop, state

XS = ragged(3, 1, 0, 4, width=2)


def counts(x, model):
    model.calls += 1
    model.bump()
    if len(x) > 2:
        model.calls *= 2
    return x.sum()


def logs(x, model):
    loss = np.tanh(x).sum()
    model.log.append(loss)
    model.queue.appendleft((len(x), loss))
    for row in x:
        model.log += [row.sum()]
    model.log.extend([0.5, loss])
    return loss


def sums(x, model):
    model.total += x.sum()
    model.total = 0.0 if len(x) == 1 else x.sum()
    model.sums += 1
    model.sums[len(x)] += 2
    model.sums[0] = len(x)
    model.sums[1:3] -= 0.5
    return x


def keeps_its_state(x, model):
    model.h = np.zeros(2)
    for row in x:
        model.h = np.tanh(row @ model.w + model.h)
    return model.h.sum()


def writes_into_its_state(x, model):
    model.h = np.zeros(3)
    for row in x:
        model.h[0] = model.h[0] + row.sum()
        model.h[1] = row.max()
    return model.h * 2


def keeps_containers(x, model):
    model.h = {"items": [], "n": len(x)}
    for row in x:
        if row[0] > 0:
            model.h["items"].append(row)
    return len(model.h["items"])


def calls_layers(x, model):
    for layer in model.layers:
        x = layer(x)
    return x


def remembers(x, model):
    n = len(x)
    if n not in model.cache:
        model.cache[n] = np.tanh(x).sum()
    return model.cache[n] + model.cache["known"]


def counts_keys(x, model):
    for row in x:
        model.counts[len(x)] += 1
        model.counts["all"] += row[0] > 0
        model.words.add(len(x))
    return model.cache.get(len(x), 0.25)


def by_branches(x, model):
    if len(x) > 2:
        model.h = x.sum()
    elif len(x) == 1:
        model.h = "one"
        model.calls += 1
    while len(x) > 1:
        x = x[1:]
        model.log.append(len(x))
    return x


def by_name(x, model):
    log, table = model.log, model.cache
    log.append(len(x))
    table["last"] = len(x)
    sums = model.sums
    sums += x.sum()
    for name in ("calls", "h"):
        setattr(model, name, len(x) + len(name))
    return getattr(model, name) + model.w


def in_a_try(x, model):
    try:
        model.calls += 1
        model.log.append(len(x))
        model.h = len(x)
        if len(x) == 1:
            raise ValueError("one")
        model.log.append("after")
    except ValueError:
        model.log.append("caught")
    return x


def of_the_class(x, model):
    Model.instances += 1
    model.log.append(1)
    return x


ALONE = [
    counts, logs, sums, keeps_its_state, writes_into_its_state, keeps_containers, calls_layers, remembers, counts_keys,
    by_branches, by_name, in_a_try, of_the_class,
]  # fmt: skip


@pytest.mark.parametrize("f", ALONE, ids=[f.__name__ for f in ALONE])
def test_changes_that_no_other_example_reads(f):
    equals_loop(f, XS)
    equals_loop(f, XS[:1])


def adds_to_an_attribute(x, model):
    model.calls += len(x)
    return x.sum()


def adds_to_an_item(x, model):
    for row in x:
        model.counts[len(x)] += 1
        model.counts["all"] += row[0] > 0
    model.cache["known"] -= 0.5
    return x


def appends(x, model):
    model.log.append(len(x))
    for row in x:
        model.log.append(row.sum())
    return x


@pytest.mark.parametrize("f", [adds_to_an_attribute, adds_to_an_item, appends])
def test_what_each_example_adds_is_added_by_the_next_way(f):
    equals_loop(f, XS, falls_back=True)


def reads_the_count(x, model):
    model.calls += 1
    return x.sum() * model.calls


def reads_before(x, model):
    n = model.calls
    model.calls += len(x)
    return x * n


def averages(x, model):
    model.total = 0.9 * model.total + 0.1 * x.sum()
    return x


def counts_in_a_dict(x, model):
    model.cache["n"] = model.cache.get("n", 0) + 1
    return x


def waits_for_others(x, model):
    while len(model.log) < 2:
        model.log.append(len(x))
    return x


def reads_the_sum(x, model):
    model.sums[len(x)] = 1
    return model.sums.sum()


def returns_what_it_changes(x, model):
    model.log.append(len(x))
    return model.log


def reads_by_a_view(x, model):
    part = model.sums[:3]
    model.sums[0] += 1
    return part * 2


def unpacks(x, model):
    model.log.append(len(x))
    first, *_ = model.log
    return first


def passes_on(x, model):
    def rest(*items):
        return len(items)

    model.log.append(len(x))
    return rest(*model.log)


def counts_from_the_end(x, model):
    model.log.append(0)
    model.log[-1] += len(x)
    return x


def shows(x, model):
    model.cache["n"] = len(x)
    return f"{model.cache}"


def compares(x, model):
    model.cache["n"] = len(x)
    return model.cache == {"known": 1.0, "n": 3}


def updates_while_it_computes(x, model):
    def value():
        model.calls = 10
        return 1

    model.calls += value()
    return x


READING = [
    reads_the_count, reads_before, averages, counts_in_a_dict, waits_for_others, reads_the_sum, returns_what_it_changes,
    reads_by_a_view, unpacks, passes_on, counts_from_the_end, shows, compares, updates_while_it_computes,
]  # fmt: skip


@pytest.mark.parametrize("f", READING, ids=[f.__name__ for f in READING])
def test_a_change_that_is_read_runs_as_the_loop(f):
    equals_loop(f, XS, falls_back=True)


def test_the_warning_names_the_line_and_what_is_changed():
    forget_warnings()
    with pytest.warns(FallbackWarning, match="setting an attribute of a Model") as caught:
        batch(reads_the_count)(batch_of(XS), Model())
    assert caught[0].lineno == reads_the_count.__code__.co_firstlineno + 1
    with pytest.raises(UnsupportedError, match=r"test_outside.py:\d+: setting an attribute.*strict=True"):
        batch(reads_the_count, strict=True)(batch_of(XS), Model())


def test_keys_that_examples_share_are_computed_by_the_first():
    equals_loop(remembers, ragged(3, 1, 3, 1, width=2), falls_back=True)


def counts_in_a_dict_of_its_own(x):
    found = {"n": 0}
    for _ in x:
        found["n"] += 1
    return found["n"]


def adds_up_in_a_dict_by_a_branch(x):
    found = {"n": 0.0, "k": 1}
    for row in x:
        if row[0] > 0:
            found["n"] += row.sum()
    return found["n"], found


def adds_up_in_a_dict_in_a_dict(x):
    found = {"n": 0.0}
    outer = {"own": found}
    for row in x:
        outer["own"]["n"] += row.sum()
    return found["n"], outer


def adds_up_and_copies(x):
    found = {"n": 0.0}
    for row in x:
        found["n"] += row.sum()
    copied = {**found}
    if len(x) > 2:
        found["n"] += 1
    return found["n"], copied["n"]


@pytest.mark.parametrize(
    "f", [counts_in_a_dict_of_its_own, adds_up_in_a_dict_by_a_branch, adds_up_in_a_dict_in_a_dict, adds_up_and_copies]
)
def test_dicts_of_the_call_are_updated_in_loops_of_different_lengths(f):
    law.equals_loop(f, XS, falls_back=True)
    map_equals_loop(f, XS)


def quiet(f):
    """A function that takes batches and may loop."""

    def call(*args):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            return batch(f)(*args)

    return call


def test_a_change_that_raises_is_made_by_no_example_too_many():
    def f(x, model):
        model.log.append(len(x))
        model.sums[len(x)] += 1
        return x

    xs = ragged(2, 1, 9, 1, width=2)
    looped, batched = Model(), Model()
    with pytest.raises(IndexError, match="out of bounds"):
        [f(x, looped) for x in xs]
    f = quiet(f)
    with pytest.raises(IndexError, match="out of bounds") as caught:
        f(batch_of(xs), batched)
    assert caught.value.__notes__ == ["raised for example 2"]
    assert_same(state(batched), state(looped))


def test_an_example_that_raises_leaves_what_those_before_it_changed():
    def f(x, model):
        model.calls += 1
        model.log.append(1 / len(x))
        return x

    model, f = Model(), quiet(f)
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        f(batch_of(XS), model)
    assert (model.calls, model.log) == (3, [1 / 3, 1.0])


def test_what_is_kept_is_each_examples_own():
    def f(x, model):
        model.log.append(x)
        model.h = x
        model.log.append(np.arange(3))
        model.cache["w"] = model.w
        return x

    model = Model()
    out = quiet(f)(batch_of(XS), model)
    out.data[:] = 7
    assert_same(model.log[::2], XS)
    assert_same(model.h, XS[-1])
    assert model.log[1] is not model.log[3]
    assert model.cache["w"] is model.w


def test_no_examples_change_nothing():
    model = Model()
    for f in [*ALONE, *READING]:
        assert examples(batch(f)(ab.MaskedBatch(np.zeros((0, 3, 2)), lengths=np.zeros(0, int)), model)) == []
    assert_same(state(model), state(Model()))


def test_gradients_pass_through_what_is_kept():
    def f(x, w, model):
        model.calls += 1
        model.h = np.zeros(2)
        for row in x:
            model.h = np.tanh(row @ w + model.h)
        return (model.h**2).sum()

    def losses(call):
        return ab.value_and_grad(lambda w: sum(call(w)))(Model().w)

    value, grad = losses(lambda w: [f(x, w, Model()) for x in XS])
    batched = quiet(f)
    model = Model()
    got = ab.value_and_grad(lambda w: ab.sum(batched(batch_of(XS), w, model)))(model.w)
    np.testing.assert_allclose(got[0], value)
    np.testing.assert_allclose(got[1], grad)
    assert model.calls == len(XS)


def test_a_copy_of_what_is_changed_is_made_by_the_loop():
    def f(x, model):
        other = copy.copy(model)
        other.calls = 5
        model.log.append(len(x))
        return x

    equals_loop(f, XS, falls_back=True)


def test_a_second_call_sees_what_the_first_changed():
    model = Model()
    f = quiet(lambda x, model: (setattr(model, "total", x.sum()), model.w.sum())[1])
    for xs in (XS, XS[:2]):
        f(batch_of(xs), model)
        assert_same(model.total, xs[-1].sum())


class Expert:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, x, model):
        model.log.append(len(x))
        return x.sum() * self.scale if self.scale > 1 else x.sum()

    def counted(self, x, model):
        model.calls += 1
        return self(x, model)


EXPERTS = [Expert(1.0), Expert(2.0), Expert(3.0)]


def test_methods_of_objects_that_differ_by_example_change_things_once_for_each():
    def by_call(x, model):
        return EXPERTS[len(x) % 3](x, model)

    def by_method(x, model):
        return EXPERTS[len(x) % 3].counted(x, model)

    equals_loop(by_call, XS)
    equals_loop(by_method, XS)


def test_what_they_change_in_themselves_is_changed_by_the_loop():
    def f(x, model):
        return model.layers[len(x) % 2](x)

    equals_loop(f, XS, falls_back=True)


def _array_of_a_list():
    parts = [np.zeros(2), np.zeros(3)]

    def f(x):
        parts[len(x) % 2][:] += x.sum()
        w = parts[len(x) % 2]
        w += 1.0
        parts[len(x) % 2].fill(w[0])
        return len(x)

    return f, parts


def _array_of_a_dict():
    parts = {0: np.zeros(2), 1: np.zeros(2)}

    def f(x):
        parts.get(len(x) % 2)[0] += x.sum()
        np.add.at(parts[len(x) % 2], [0, 0], 1.0)
        return len(x)

    return f, parts


def _attribute_by_name():
    model = Model()

    def f(x):
        h = getattr(model, "sums" if len(x) > 1 else "w")
        h += len(x)
        return len(x)

    return f, [model.sums, model.w]


def _list_of_a_list():
    parts = [[], []]

    def f(x):
        parts[len(x) % 2].append(len(x))
        return len(x)

    return f, parts


def _dict_of_a_list():
    parts = [{"n": 0}, {"n": 0}]

    def f(x):
        parts[len(x) % 2]["n"] += len(x)
        return len(x)

    return f, parts


def _dict_that_makes_items():
    parts = collections.defaultdict(list)

    def f(x):
        parts[len(x)].append(len(x))
        return len(parts)

    return f, parts


def _bound_iterator():
    parts = []
    draw = itertools.count().__next__

    def f(x):
        return draw() + draw() * len(x)

    return f, parts


def _cache_around_a_function_that_logs():
    parts = []

    @functools.cache
    def noted(n):
        parts.append(n)
        return n

    def f(x):
        return [noted(int(row[0] > 0) + 2 * k) for k, row in enumerate(x)]

    return f, parts


def _function_that_numpy_calls():
    parts = []

    def noted(row):
        parts.append(len(row))
        return row.sum()

    def f(x):
        y = np.apply_along_axis(noted, 0, x) if len(x) else x.sum(0)
        z = np.vectorize(lambda v: parts.append(1) or v, otypes=[float])(y)
        return {len(x): z}

    return f, parts


@pytest.mark.parametrize(
    "make",
    [
        _array_of_a_list, _array_of_a_dict, _attribute_by_name, _list_of_a_list, _dict_of_a_list, _bound_iterator,
        _dict_that_makes_items, _cache_around_a_function_that_logs, _function_that_numpy_calls,
    ],
)  # fmt: skip
def test_changes_of_what_is_another_object_for_each_example(make):
    (looped, looped_state), (batched, batched_state) = make(), make()
    f = batch(batched)
    for _ in range(2):
        want = [looped(x) for x in XS]
        with ab.options(warn=False):
            assert_same(examples(f(batch_of(XS))), want)
        assert_same(batched_state, looped_state)


def test_lists_that_differ_by_example():
    following = [[1, 2], [2], [0, 1, 3], [], [4]]

    def f(n):
        total = 0
        for j in following[n]:
            for k in following[j]:
                total += k
        return total

    with pytest.warns(match="a loop over objects that differ by example"):
        assert examples(batch(f)(batch_of([0, 1, 2, 3, 4]))) == [f(n) for n in range(5)]
