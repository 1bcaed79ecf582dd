"""What examples wait for is a node of the segment that is launched: compiled code does not look past its end."""

import numpy as np

import autobatch as ab
from autobatch.lazy.grouping import plans
from tests.law import assert_same


def test_examples_wait_for_nodes_of_the_segment(monkeypatch):
    launched, take = [], plans.take_calls

    def spied(*args):
        launched.append((max(args[-1].tolist(), default=-1), len(args[-2])))
        assert launched[-1][0] < launched[-1][1]  # else compiled code would read past an array
        return take(*args)

    monkeypatch.setattr(plans, "take_calls", spied)
    xs = [np.random.default_rng(n).normal(size=n) for n in (3, 5, 4)]
    edges = np.linspace(-2, 2, 5)
    with ab.options(way="fly"):
        out = ab.map(lambda x, w: np.union1d(x, w), xs, w=edges)
    assert launched
    assert all(node < count for node, count in launched)
    assert_same(out, [np.union1d(x, edges) for x in xs])
