"""The schedulers: every node once, after its operands, equal signatures together."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autobatch.lazy.schedule import refine, schedule


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


@pytest.mark.parametrize("policy", ["depth", "agenda", "auto"])
@settings(deadline=None)
@given(graph=graphs())
def test_a_schedule_runs_every_node_after_its_operands(policy, graph):
    sigs, offsets, refs = graph
    order, starts = schedule(sigs, offsets, refs, 4, policy)
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
def test_auto_takes_the_better_of_the_two(graph):
    launches = {policy: len(schedule(*graph, 4, policy)[1]) for policy in ("depth", "agenda", "auto")}
    assert launches["auto"] == min(launches["depth"], launches["agenda"])


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
