"""Changes of what is outside a call that an example reads, which do not run in lock-step."""

import numpy as np
import pytest

import autobatch as ab
from autobatch import batch, examples
from autobatch.errors import FallbackWarning, UnsupportedError
from autobatch.testing.inspect import forget_warnings
from tests.law import assert_same, batch_of, ragged
from tests.lockstep.outside import Model, state
from tests.lockstep.outside import equals_loop_either_way as equals_loop
from tests.lockstep.test_outside import remembers

XS = ragged(3, 1, 0, 4, width=2)


@pytest.fixture(autouse=True)
def _fresh_warnings():
    forget_warnings()


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


def test_the_warning_names_the_line_and_what_is_read():
    with pytest.warns(FallbackWarning, match="attribute 'calls' of a Model from outside the call is changed") as caught:
        batch(reads_the_count)(batch_of(XS), Model())
    assert caught[0].lineno == reads_the_count.__code__.co_firstlineno + 2
    with pytest.raises(UnsupportedError, match=r"test_outside_reads.py:\d+: attribute 'calls'.*strict=True"):
        batch(reads_the_count, strict=True)(batch_of(XS), Model())


def test_keys_that_examples_share_are_computed_by_the_first():
    equals_loop(remembers, ragged(3, 1, 3, 1, width=2), falls_back=True)


def test_no_examples_change_nothing():
    model = Model()
    for f in READING:
        assert examples(batch(f)(ab.MaskedBatch(np.zeros((0, 3, 2)), lengths=np.zeros(0, int)), model)) == []
    assert_same(state(model), state(Model()))
