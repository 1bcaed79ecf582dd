"""How many launches a run takes, and that only equal calls share one."""

import numpy as np
import pytest

import autobatch as ab
from tests.inspect import map_with_stats
from tests.law import map_equals_loop, normal, vectors

W = normal(4, 4, seed=1)


def mlp(x, w):
    for _ in range(3):
        x = np.tanh(x @ w + 1) * 0.5
    return x.sum()


def test_256_examples_take_as_many_launches_as_one():
    one = map_equals_loop(mlp, vectors(1, 4), w=W)
    many = map_equals_loop(mlp, vectors(256, 4), w=W)
    assert many.launches == one.launches == 13
    assert many.calls == 256 * one.calls
    assert set(many.group_sizes) == {256}


def test_a_loop_takes_as_many_rounds_as_its_longest_example():
    def f(x, limit):
        steps = 0
        while x.sum() < limit:
            x = x + 1
            steps += 1
        return steps

    limits = [0.0, 8.0, 40.0, 20.0]
    stats = map_equals_loop(f, [np.zeros(4)] * 4, limits)
    assert stats.rounds == 10 + 1
    assert sum(stats.forced.values()) == 1 + 3 + 11 + 6


def test_a_branch_costs_a_launch_not_the_batch():
    def f(x):
        y = np.tanh(x)
        return y * 2 if y.sum() > 0 else y - 1

    assert map_equals_loop(f, vectors(64, 4)).launches == 5


@pytest.mark.parametrize("scheduler", ["depth", "agenda", "frontier", "auto"])
def test_schedulers_agree(scheduler):
    def f(x, w):
        return np.tanh(x @ w) if x[0] > 0 else np.tanh(np.tanh(x) @ w)

    with ab.options(scheduler=scheduler):
        map_equals_loop(f, vectors(16, 4), w=W)


def test_agenda_waits_for_calls_that_are_still_to_come():
    def f(x, delay):
        for _ in range(delay):
            x = np.sin(x)
        return np.tanh(x).sum()

    delays = [0, 1, 2, 3]
    launches = {}
    for scheduler in ("depth", "agenda", "auto"):
        with ab.options(scheduler=scheduler):
            launches[scheduler] = map_equals_loop(f, vectors(4, 4), delays).launches
    assert launches == {"depth": 3 + 4 + 4, "agenda": 3 + 1 + 1, "auto": 3 + 1 + 1}


def alternate(*functions):
    """One function per example, by turns: calls that look alike and are not must not share a launch."""
    return lambda x, k: functions[k](x)


@pytest.mark.parametrize(
    "f",
    [
        alternate(lambda x: np.maximum(x, 0), lambda x: np.where(x > 0, x, np.expm1(x))),
        alternate(lambda x: x.sum(axis=0), lambda x: x.sum(axis=1)),
        alternate(lambda x: np.concatenate([x, x], axis=0)[:4], lambda x: np.concatenate([x, x], axis=1)[:, :4]),
        alternate(lambda x: np.exp(x) / np.exp(x).sum(0), lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True)),
        alternate(lambda x: np.cumsum(x, 0), lambda x: np.cumsum(x, 1)),
        alternate(lambda x: np.full_like(x, 1), lambda x: np.full_like(x, 2.0)),
        alternate(lambda x: x.astype(np.float64), lambda x: x.astype(np.float16)),
        alternate(lambda x: np.clip(x, 0.0, 1), lambda x: np.clip(x, -0.0, 2)),
        alternate(lambda x: x * 1, lambda x: x * 1.5),
        alternate(lambda x: x > 0, lambda x: x >= 0),
        alternate(lambda x: x[1], lambda x: x[:, 1]),
        alternate(lambda x: x[0:2], lambda x: x[2:4]),
        alternate(lambda x: x.reshape(2, 8), lambda x: x.reshape(8, 2)),
        alternate(lambda x: np.transpose(x), lambda x: x.copy()),
    ],
)
def test_calls_that_differ_are_not_grouped(f):
    map_equals_loop(f, vectors(6, 4, 4), [0, 1, 0, 0, 1, 1])


def test_dtypes_and_ranks_are_not_grouped():
    xs = [normal(4), normal(4, dtype=np.float64), normal(5), normal(1, 4), normal(4, dtype=np.float16)]
    assert map_equals_loop(lambda x: np.tanh(x), xs).launches == 4


def test_a_bag_is_one_launch_whatever_the_lengths():
    table = normal(20, 4)
    docs = [np.random.default_rng(n).integers(0, 20, n) for n in range(9)]
    stats = map_equals_loop(lambda ids, table: table[ids].sum(0), docs, table=table)
    assert (stats.launches, stats.calls) == (1, 9)


def test_row_look_ups_of_all_examples_are_one_launch():
    def f(ids, table):
        return [np.tanh(row) for row in table[ids]]

    stats = map_equals_loop(f, [np.arange(n) for n in (3, 1, 7)], table=normal(20, 4))
    assert stats.launches == 2


def test_an_operation_on_shared_arrays_runs_once():
    stats = map_equals_loop(lambda x, w: x @ (w.T * 2), vectors(50, 4), w=W)
    assert (stats.launches, stats.calls) == (1, 50)


@pytest.mark.parametrize("budget", [1, 200, 1000])
def test_a_graph_beyond_the_budget_runs_in_segments(budget):
    free = map_equals_loop(mlp, vectors(20, 4), w=W)
    with ab.options(memory_budget=budget):
        bound = map_equals_loop(mlp, vectors(20, 4), w=W)
    assert bound.calls == free.calls
    assert bound.rounds > free.rounds
    assert max(bound.group_sizes) <= max(1, budget // 8)


def test_results_do_not_keep_other_values_alive():
    results, _ = map_with_stats(lambda x: np.tanh(x).sum(), vectors(10, 1000))
    assert all(isinstance(result, np.float32) for result in results)


def test_look_ups_that_are_returned_are_launched_together():
    stats = map_equals_loop(lambda ids, table: table[ids], [np.arange(3)] * 20, table=normal(20, 4))
    assert (stats.launches, stats.rounds) == (1, 1)


def test_attributes_that_are_equal_but_of_another_type_are_not_grouped():
    def f(x, k):
        return x.sum(initial=[np.int64(0), np.float64(0.0)][k])

    map_equals_loop(f, [normal(3), normal(3)] * 2, [0, 1, 0, 1])
