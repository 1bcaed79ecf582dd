"""The stream whose vocabulary drifts: what the example says of its three tables holds, in small."""

import importlib

import numpy as np
import pytest


@pytest.fixture(scope="module")
def days():
    return importlib.import_module("examples.drifting").run(present=100, steps=12, size=128)


def test_the_variable_predicts_what_the_dense_table_of_all_users_predicts(days):
    for variable, dense in zip(days["variable"], days["dense"], strict=True):
        np.testing.assert_array_equal(variable.logits, dense.logits)


def test_strangers_who_share_a_bucket_are_told_apart(days):
    assert days["variable"][-1].accuracy > days["buckets"][-1].accuracy + 0.05


def test_memory_and_checkpoints_are_of_those_who_are_there(days):
    for day, dense in zip(days["variable"], days["dense"], strict=True):
        assert day.rows <= 150  # those of today, and those who left at the end of yesterday
        assert (dense.rows, dense.memory) == (400, 400 * 16 * 4 * 2)
    assert days["variable"][-1].memory < days["dense"][-1].memory
    assert days["variable"][-1].checkpoint < days["dense"][-1].checkpoint
    assert days["variable"][-1].memory < 1.05 * days["variable"][2].memory, "the rows of those who left are used again"


def test_the_days_are_drawn(days, tmp_path):
    pytest.importorskip("matplotlib")
    importlib.import_module("examples.drifting").plot(days, str(tmp_path / "days.svg"))
    assert (tmp_path / "days.svg").read_text().count("<path") > 20
