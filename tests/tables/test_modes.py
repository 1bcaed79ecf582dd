"""The modes of reductions: what it takes to add one, and that each is named in one place."""

import pathlib
import typing

import numpy as np
import pytest

import autobatch as ab
from autobatch.tables import reduction_modes
from autobatch.tables.reduction_modes import Norm, declare, normed_sum
from tests import naive

RANDOM = np.random.default_rng(41)
TABLES = pathlib.Path(reduction_modes.__file__).parent
IDS = [np.array(ids, np.int64) for ids in ([3, 3, 0], [], [1, 4, 2, 1])]


@pytest.fixture
def cube_root():
    """The worked example, a mode of bags: the sum over the cube root of the count, or of the sum of the weights."""
    declare("cbrtn", normed_sum(Norm(np.cbrt, False, lambda w, divisor: 1 / (3 * divisor**2))))
    yield "cbrtn"
    del reduction_modes.MODES["cbrtn"]
    reduction_modes.BAG_MODES.remove("cbrtn")


def bag(ids, table, weights=None):
    """One bag in plain NumPy."""
    rows = table[ids] if weights is None else table[ids] * weights[:, None]
    return (
        rows.sum(0) / np.cbrt(len(ids) if weights is None else weights.sum()) if len(ids) else np.zeros(table.shape[1])
    )


def test_one_declaration_is_a_mode_of_bags(cube_root):
    table, offsets = RANDOM.standard_normal((5, 3)), np.cumsum([0, *map(len, IDS)])
    flat, weights = np.concatenate(IDS), RANDOM.random(7) + 0.5
    parts = np.split(weights, offsets[1:-1])
    for kind in (np.asarray, ab.EmbeddingTable):
        call = {"weight": kind(table), "offsets": offsets, "mode": cube_root, "include_last_offset": True}
        np.testing.assert_allclose(ab.embedding_bag(flat, **call), [bag(ids, table) for ids in IDS])
        found = ab.embedding_bag(flat, **call, per_sample_weights=weights)
        np.testing.assert_allclose(found, [bag(ids, table, w) for ids, w in zip(IDS, parts, strict=True)])
        both = ab.embedding_bag(flat, kind(table), offsets[:-1], mode=("max", cube_root))
        np.testing.assert_allclose(both[1], [bag(ids, table) for ids in IDS])


def test_and_has_its_gradients(cube_root):
    table, ids, weights = RANDOM.standard_normal((5, 3)), np.concatenate(IDS), RANDOM.random(7) + 0.5
    ct = RANDOM.standard_normal((3, 3))

    def loss(table, weights):
        out = ab.embedding_bag(ids, table, [0, 3, 3], mode=cube_root, per_sample_weights=weights)
        return (out * ct).sum()

    for given in (None, weights):
        expected = naive.numeric_gradient(lambda t, w=given: loss(t, w), table)
        np.testing.assert_allclose(ab.grad(loss)(ab.EmbeddingTable(table), given).to_dense(), expected, atol=1e-7)
    expected = naive.numeric_gradient(lambda w: loss(table, w), weights)
    np.testing.assert_allclose(ab.grad(loss, 1)(table, weights), expected, atol=1e-7)


def test_and_runs_batched(cube_root):
    def score(ids, table):
        return np.tanh(ab.embedding_bag(ids, table, [0], mode=cube_root)).sum(axis=0)

    ab.testing.assert_equivalent(score, IDS, table=ab.EmbeddingTable(RANDOM.standard_normal((5, 3))))


def test_a_mode_is_named_in_two_files():
    """Where it is declared, and where its public function is; of a bag that function's docstring names it."""
    for name, public in (("sqrtn", {"segments.py", "embedding_bag.py"}), ("logmeanexp", {"segments.py"})):
        files = {path.name for path in TABLES.parent.rglob("*.py") if f'"{name}"' in path.read_text(encoding="utf-8")}
        assert files == {"reduction_modes.py"} | public


def test_type_checkers_know_the_modes_of_bags():
    assert set(typing.get_args(reduction_modes.BagMode)) == set(reduction_modes.BAG_MODES)
