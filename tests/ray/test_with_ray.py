"""The same with Ray itself: two workers of this machine, and processes that die. `tests.ray.kills` has more."""

import os
import pathlib

import numpy as np
import pytest

import autobatch as ab
from tests.ray import clicks

ray = pytest.importorskip("ray")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # Ray's own sockets and files
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def _session():
    ab.ray.training.RayTraining(2, None)  # which starts Ray as the library does
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert os.environ["RAY_AUTH_MODE"] == "token"
    yield
    ray.shutdown()


def dies_once(mark, data):
    """The batches; the worker that asks for the sixth is killed, the first time."""

    def at(step):
        if step == 6 and not pathlib.Path(mark).exists():
            pathlib.Path(mark).touch()
            os.kill(os.getpid(), 9)
        return data[step % len(data)]

    return at


def test_training(tmp_path):
    """Two workers, one of which is killed on the way, and three shards: the bits of one worker of this process."""
    optimizer, data = ab.optim.Adagrad(0.1), clicks.batches()
    found = ab.ray.train(
        clicks.loss, clicks.params(), dies_once(tmp_path / "mark", data), optimizer,
        steps=9, every=3, workers=2, shards=3, checkpoints=tmp_path / "run",
    )  # fmt: skip
    assert (tmp_path / "mark").exists()
    expected = ab.ray.train(
        clicks.loss, clicks.params(), data, optimizer, steps=9, every=3, communicator=ab.ray.LocalCommunicator(1)
    )
    assert clicks.fingerprint(found) == clicks.fingerprint(expected)


def test_map(tmp_path):
    """A worker that dies once costs nothing; a row group that kills every worker is named."""
    for i in range(2):
        made = {"key": np.arange(6) + 6 * i, "ids": [[key] * key for key in range(6 * i, 6 * i + 6)]}
        pq.write_table(pa.table(made), tmp_path / f"in-{i}.parquet", row_group_size=3)
    mark = tmp_path / "mark"

    def once(ids, key):
        if key == 4 and not mark.exists():
            mark.touch()
            os._exit(1)
        return ids.sum()

    given = {"columns": ["ids", "key"], "keep": ["key"], "workers": 2}
    done = ab.ray.map(once, tmp_path / "in-*.parquet", out=tmp_path / "out", **given)
    assert mark.exists()
    assert (done.rows, done.skipped) == (12, [])
    assert pq.read_table(tmp_path / "out").to_pydict() == {
        "key": list(range(12)), "result": [key * key for key in range(12)]
    }  # fmt: skip

    def always(ids, key):
        return os._exit(1) if key == 7 else ids.sum()

    done = ab.ray.map(always, tmp_path / "in-*.parquet", out=tmp_path / "skip", on_error="skip", retries=0, **given)
    assert [(each.group, each.row) for each in done.skipped] == [(0, None)]
    assert "1 workers died with it" in done.skipped[0].error
    assert done.rows == 9

    def raises(ids, key):
        if key == 10:
            raise ZeroDivisionError("ten")
        return 1.0

    with pytest.raises(ZeroDivisionError, match="ten") as caught:
        ab.ray.map(raises, tmp_path / "in-*.parquet", out=tmp_path / "raise", **given)
    assert any("in-1.parquet, row group 1, row 1 (row 4 of the file)" in note for note in caught.value.__notes__)


def total(ids, weight):
    return {"total": ids.sum() * weight, "ids": ids[::-1]}


@pytest.mark.parametrize("batch_format", ["pyarrow", "pandas", "numpy"])
def test_a_mapper_maps_the_batches_of_ray_data(batch_format):
    """Blocks of several sizes, rows of several lengths: what the function gives row by row, in every format."""
    data = pytest.importorskip("ray.data")
    data.DataContext.get_current().enable_progress_bars = False
    rows = [{"ids": list(range(n % 4 + 1)), "weight": float(n), "key": n} for n in range(11)]
    mapper = ab.ray.Mapper(total, columns=["ids", "weight"], keep=["key"])
    given = data.from_arrow([pa.Table.from_pylist(part) for part in (rows[:4], rows[4:])])
    found = given.map_batches(mapper, batch_format=batch_format, batch_size=3).take_all()
    by_key = {int(row["key"]): (float(row["total"]), list(row["ids"])) for row in found}
    assert len(found) == len(by_key) == len(rows)
    for row in rows:
        expected = total(np.array(row["ids"]), row["weight"])
        assert by_key[row["key"]] == (expected["total"], expected["ids"].tolist())
