"""The example of a map and a training, in this process: it goes on where it was."""

import numpy as np
import pytest

import autobatch as ab
from examples import cluster

pytest.importorskip("pyarrow")


def test_it_runs_and_goes_on(tmp_path, capsys):
    given = ["--folder", str(tmp_path), "--files", "2", "--rows", "40"]
    assert cluster.main([*given, "--steps", "2"]) == 0
    assert "80 rows of 8 row groups" in capsys.readouterr().out
    assert cluster.main([*given, "--steps", "3"]) == 0
    assert "8 of them from before" in capsys.readouterr().out
    assert ab.Checkpoints(tmp_path / "run").steps() == [2, 3]


def test_a_batch_of_likes_is_the_loop():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3, 9, 8)).astype(np.float32)
    params = dict(zip(("users", "films", "about"), map(ab.EmbeddingTable, rows), strict=True))
    columns = [[1, 2, 3], [np.array([4, 5]), np.array([], np.int64), np.array([7])], [0, 8, 2], np.ones(3, np.float32)]
    ab.testing.assert_equivalent(cluster.like, *columns, params=params | {"bias": np.float32(0.5)})
