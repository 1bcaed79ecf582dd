"""The code of docs/checkpoints.md: a training as it is shown, and a reader of the files without this library."""

import pathlib
import re

import numpy as np
import pytest

import autobatch as ab
from tests.law import assert_same

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "checkpoints.md"
TRAINING, READING = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_files_are_read_without_the_library():
    pytest.importorskip("safetensors")
    weights = np.random.default_rng(0).normal(size=(1001, 3))
    with ab.Checkpoints("run", full_every=100, keep=20) as saver:
        for save in range(1, 13):
            weights[[save, 500 + 7 * save, 1000]] += 1
            saver.save(250 * save, {"emb": ab.EmbeddingTable(weights)})
    names: dict = {}
    exec(READING, names)
    assert len(names["changes"]) == 11
    assert_same(names["table"], weights)


def test_the_training_goes_on():
    text = TRAINING.replace("100_000", "6").replace("1000", "2")
    gradient = lambda params, step: {"w": np.full(3, float(step))}
    ends = []
    for _ in range(2):
        optimizer, params = ab.optim.Adam(0.1), {"w": np.zeros(3)}
        names = {"ab": ab, "optimizer": optimizer, "params": params, "gradient": gradient, "rng": None, "position": 0}
        exec(text, names)
        names["checkpoints"].close()
        ends.append(names["params"]["w"])
        assert names["step"] == 6
    assert_same(*ends)
