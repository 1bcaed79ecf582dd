"""The schedulers: every node once, after its operands, equal signatures together."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autobatch.lazy.grouping.launch_order import refine, schedule


@st.composite
def graphs(draw):
    """(sigs, offsets, refs): up to 30 nodes that read earlier nodes or the outside."""
    count = draw(st.integers(0, 30))
    sigs = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    refs, offsets = [], [0]
    for i in range(count):
        refs += draw(st.lists(st.integers(-3, i - 1), max_size=3))
        offsets.append(len(refs))
    return np.array(sigs, np.int64), np.array(offsets, np.int64), np.array(refs, np.int64)


POLICIES = ["depth", "agenda", "frontier", "auto"]


@pytest.mark.parametrize("policy", POLICIES)
@settings(deadline=None)
@given(graph=graphs())
def test_a_schedule_runs_every_node_after_its_operands(policy, graph):
    sigs, offsets, refs = graph
    found = schedule(sigs, offsets, refs, 4, policy)
    order, starts = found.order, found.starts
    assert sorted(order.tolist()) == list(range(len(sigs)))
    launch_of = np.empty(len(sigs), int)
    bounds = starts.tolist()
    for k, (a, b) in enumerate(itertools.pairwise(bounds)):
        assert a < b
        assert len(set(sigs[order[a:b]])) == 1
        launch_of[order[a:b]] = k
    for i in range(len(sigs)):
        for ref in refs[offsets[i] : offsets[i + 1]]:
            assert ref < 0 or launch_of[ref] < launch_of[i]


@settings(deadline=None)
@given(graph=graphs())
def test_auto_takes_the_best(graph):
    launches = {policy: len(schedule(*graph, 4, policy).starts) - 1 for policy in POLICIES}
    assert launches["auto"] == min(launches.values())
    assert launches["auto"] >= schedule(*graph, 4, "auto").bound


def launches_of(sigs, offsets, refs, launched=frozenset()):
    """The fewest launches of any schedule, by trying them all."""
    if len(launched) == len(sigs):
        return 0
    ready = [
        i
        for i in range(len(sigs))
        if i not in launched and all(r < 0 or r in launched for r in refs[offsets[i] : offsets[i + 1]])
    ]
    return 1 + min(
        launches_of(sigs, offsets, refs, launched | {i for i in ready if sigs[i] == s})
        for s in {sigs[i] for i in ready}
    )


@settings(deadline=None)
@given(graph=graphs())
def test_the_bound_is_below_every_schedule(graph):
    sigs, offsets, refs = (part[:n] for part, n in zip(graph, (9, 10, None), strict=True))
    assert schedule(sigs, offsets, refs, 4, "auto").bound <= launches_of(sigs, offsets, refs)


def test_the_frontier_policy_waits_where_average_depth_misleads():
    """Node 2 reads node 0, node 3 reads node 2: node 1, which is ready at once, is best left for node 2's launch."""
    graph = np.array([2, 0, 0, 2]), np.array([0, 0, 0, 1, 2]), np.array([0, 2])
    found = {policy: schedule(*graph, 3, policy) for policy in POLICIES}
    launches = {policy: len(each.starts) - 1 for policy, each in found.items()}
    assert launches == {"depth": 4, "agenda": 4, "frontier": 3, "auto": 3}
    assert found["auto"].bound == 3


@settings(deadline=None)  # the first call compiles
@given(graph=graphs(), marks=st.lists(st.integers(0, 2), min_size=3, max_size=3))
def test_refined_signatures_tell_marked_operands_apart(graph, marks):
    sigs, offsets, refs = graph
    new, old = refine(sigs, offsets, refs, np.array(marks))

    def key(i):
        operands = refs[offsets[i] : offsets[i + 1]].tolist()
        return sigs[i], tuple((k, marks[-r - 1]) for k, r in enumerate(operands) if r < 0 and marks[-r - 1])

    for i in range(len(sigs)):
        assert old[new[i]] == sigs[i]
        for j in range(i):
            assert (new[i] == new[j]) == (key(i) == key(j))
