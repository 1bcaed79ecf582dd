"""`ab.lazy`: recording by hand."""

import networkx
import numpy as np
import pytest

import autobatch as ab
from tests.law import normal, vectors

W = normal(4, 4)


def test_what_is_recorded_is_launched_together():
    xs = vectors(10, 4)
    with ab.lazy() as lz:
        ys = [np.tanh(lz(x) @ W) for x in xs]
        assert lz.stats.launches == 0
        np.testing.assert_allclose(np.asarray(ys[3]), np.tanh(xs[3] @ W), rtol=1e-6)
        assert (lz.stats.launches, lz.stats.calls) == (2, 20)
    for x, y in zip(xs, ys, strict=True):
        np.testing.assert_allclose(np.asarray(y), np.tanh(x @ W), rtol=1e-6)


def test_values_are_there_after_the_block():
    with ab.lazy() as lz:
        y = lz(np.ones(3)) + 1
    assert y.tolist() == [2, 2, 2]
    assert np.asarray(y * 2).tolist() == [4, 4, 4]


def test_flush_launches_and_recording_goes_on():
    with ab.lazy() as lz:
        x = lz({"a": np.ones(3), "n": 3})
        y = x["a"] * x["n"]
        lz.flush()
        assert lz.stats.launches == 1
        z = y + x["a"]
    assert lz.stats.launches == 2
    assert lz.results({"z": z})["z"].tolist() == [4, 4, 4]


def test_values_that_are_never_used():
    with ab.lazy() as lz:
        assert lz(np.arange(3)).sum().item() == 3
        assert repr(lz(np.ones(2)) * 2) == "LazyArray(shape=(2,), dtype=float64)"


def test_the_graph_for_a_person():
    with ab.lazy() as lz:
        x = lz(np.ones(3))
        np.tanh(x * 2 + 1)
        graph = lz.to_networkx()
        assert [graph.nodes[n]["op"] for n in networkx.topological_sort(graph)] == ["multiply", "add", "tanh"]
        assert graph.nodes[2]["shape"] == (3,)
    assert len(lz.to_networkx()) == 0


def test_under_a_gradient():
    def loss(w):
        with ab.lazy() as lz:
            ys = [np.tanh(lz(x) @ w).sum() for x in vectors(3, 4)]
        return sum(lz.results(ys))

    def wanted(w):
        return sum(np.tanh(x @ w).sum() for x in vectors(3, 4))

    np.testing.assert_allclose(ab.grad(loss)(W), ab.grad(wanted)(W), rtol=1e-5)


def test_an_error_in_the_block_launches_nothing():
    lz = ab.lazy()
    with pytest.raises(KeyError, match="False"), lz:
        {}[lz(np.ones(3)) + 1 is None]
    assert lz.stats.launches == 0


def test_an_error_of_a_launch_is_raised_where_the_value_is_needed():
    with ab.lazy() as lz:
        table = lz(np.ones((3, 2)))
        rows = table[lz(np.array([0, 7]))]
        with pytest.raises(IndexError, match="7"):
            np.asarray(rows)
        with pytest.raises(IndexError, match="7"):
            np.asarray(rows)
        assert np.asarray(table + 1)[0, 0] == 2


def test_an_array_that_is_written_to_after_it_was_taken():
    x = np.ones(3)
    with ab.lazy() as lz:
        y = lz(x) * 2
        x += 1
    assert y.tolist() == [2, 2, 2]


def test_a_map_inside_the_block():
    xs = vectors(4, 4)
    with ab.lazy() as lz:
        ys = ab.map(lambda x: np.tanh(x @ W).sum(), [lz(x) * 2 for x in xs])
    found = lz.results(ys)
    np.testing.assert_allclose(found, [np.tanh((x * 2) @ W).sum() for x in xs], rtol=1e-5)
