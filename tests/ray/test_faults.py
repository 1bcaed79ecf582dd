"""Networks that delay and reorder messages, processes that are gone: the parameters are the same to the bit.

python -m tests.ray.schedules --count 1000      so many random networks
python -m tests.ray.kills --count 200           processes of real trainings killed, with Ray
"""

import functools

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import CheckpointError, OptionError
from autobatch.ray import hosts, ray_session
from autobatch.ray.shard import Pull, Push, Shard, ShardRequest
from tests.ray import clicks, schedules
from tests.ray.unordered import Unordered

ADAGRAD = ab.optim.Adagrad(0.1)


@pytest.mark.parametrize("count", [8, pytest.param(100, marks=pytest.mark.slow)])
def test_random_networks(count):
    assert schedules.run_many(count, 0) == count


def test_a_run_repeats_from_its_seed():
    def trace(seed):
        group = Unordered(3, seed=seed)
        said = []
        group.run(lambda worker: [said.append((worker.rank, float(worker.all_reduce(worker.rank)))) for _ in range(3)])
        return said

    assert trace(1) == trace(1)
    assert trace(1) != trace(2)


def test_pull_and_push():
    """What the parts of a communicator do, without a training."""
    users = ab.EmbeddingVariable(2, initializer=ab.nn.init.zeros())
    group = Unordered(3, shards=2, tables={"users": users}, optimizer=ab.optim.SGD(1.0), seed=4)

    def work(worker):
        worker.push({"users": ab.SparseRows([7, worker.rank, 7], np.ones((3, 2), np.float32), None)})
        worker.barrier()
        return worker.pull("users", [7, 0, 7, 50])

    for rows in group.run(work):
        np.testing.assert_array_equal(rows[:, 0], [-6, -1, -6, 0])
    with pytest.raises(OptionError, match="no variable 'nobody' here"):
        group.run(lambda worker: worker.pull("nobody", [1]))


def test_a_pull_waits_for_the_updates_that_it_names_and_forgets_later_ones():
    users = ab.EmbeddingVariable(2, initializer=ab.nn.init.zeros())
    shard = Shard(1, {"users": users}, ab.optim.SGD(1.0), history=1)
    keys = {"users": np.array([7, 8])}
    push = Push(0, [(0, 0, {"users": ab.SparseRows([7], np.ones((1, 2), np.float32), None)})])
    assert shard.receive(ShardRequest(0, 0, Pull(1, keys))) == []
    pushed, late = shard.receive(ShardRequest(0, 1, push))
    (before,) = shard.receive(ShardRequest(0, 2, Pull(0, keys)))
    assert (pushed.number, late.number) == (1, 0)
    np.testing.assert_array_equal(late.body["users"][:, 0], [-1, 0])
    np.testing.assert_array_equal(before.body["users"][:, 0], [0, 0])


@pytest.mark.parametrize(("change", "match"), [({"n": 0}, "0 workers"), ({"shards": 0}, "0 shards")])
def test_bad_networks(change, match):
    with pytest.raises(OptionError, match=match):
        ab.ray.LocalCommunicator(**{"n": 2} | change)


def test_a_worker_that_fails_ends_the_others():
    def work(worker):
        if worker.rank == 1:
            raise KeyError("mine")
        worker.barrier()

    for group in (ab.ray.LocalCommunicator(3), Unordered(3, seed=3)):
        with pytest.raises(KeyError, match="mine"):
            group.run(work)


class Failing(hosts.LocalTraining):
    """A training whose processes are lost at given places: before the n-th call of `run`, `save` or `dense`."""

    def __init__(self, group, lost):
        super().__init__(group)
        self.lost, self.calls, self.starts = set(lost), 0, 0

    def start(self, plan, start):
        self.starts += 1
        super().start(plan, start)

    def _maybe(self, half=None):
        self.calls += 1
        if self.calls in self.lost:
            self.lost.discard(self.calls)
            if half is not None:
                half()
            raise ray_session.ProcessesLostError(f"call {self.calls}")

    def run(self, first, last):
        self._maybe(lambda: super(Failing, self).run(first, first + 1))
        return super().run(first, last)

    def save(self, folder, committed, keep):
        def half():  # one shard has saved, the others have not
            shards, self.group.shard_objects = self.group.shard_objects, self.group.shard_objects[:1]
            self.shards, whole = 1, self.shards
            try:
                super(Failing, self).save(folder, committed, keep)
            finally:
                self.group.shard_objects, self.shards = shards, whole

        self._maybe()
        super().save(folder, committed, keep)

    def dense(self):
        self._maybe()
        return super().dense()


def train(monkeypatch, lost=(), n=2, shards=2, steps=9, **more):
    hostss = []

    def host(group):
        hostss.append(Failing(group, lost))
        return hostss[-1]

    monkeypatch.setattr("autobatch.ray.training.LocalTraining", host)
    group = ab.ray.LocalCommunicator(n, shards=shards)
    found = ab.ray.train(
        clicks.loss, clicks.params(), clicks.batches(), ADAGRAD, steps=steps, communicator=group, every=2, **more
    )
    return clicks.fingerprint(found), hostss[-1]


@functools.cache
def undisturbed():
    """What `train` ends with, by itself."""
    group = ab.ray.LocalCommunicator(2, shards=2)
    return clicks.fingerprint(
        ab.ray.train(clicks.loss, clicks.params(), clicks.batches(), ADAGRAD, steps=9, communicator=group, every=2)
    )


@pytest.mark.parametrize("apart", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_lost_processes_are_replaced(monkeypatch, tmp_path, apart):
    expected, quiet = train(monkeypatch, steps=5, checkpoints=tmp_path / "quiet")
    for lost in range(1, quiet.calls + 1, apart):
        found, host = train(monkeypatch, {lost, lost + 4}, steps=5, checkpoints=tmp_path / str(lost))
        assert found == expected, lost
        assert host.starts >= 2
    found, host = train(monkeypatch, {2}, steps=5)
    assert found == expected, "without checkpoints it begins anew"
    assert host.starts == 2


def test_too_many_losses_are_an_error(monkeypatch, tmp_path):
    with pytest.raises(RuntimeError, match="lost 3 times in a row, the last time: call 3; retries=2"):
        train(monkeypatch, {1, 2, 3}, checkpoints=tmp_path, retries=2)


@pytest.mark.parametrize(("before", "after"), [((1, 1), (3, 4)), ((4, 3), (2, 2)), ((2, 2), (5, 1))], ids=str)
def test_elastic(monkeypatch, tmp_path, before, after):
    train(monkeypatch, n=before[0], shards=before[1], steps=4, checkpoints=tmp_path)
    found, _ = train(monkeypatch, n=after[0], shards=after[1], checkpoints=tmp_path)
    assert found == undisturbed()
    folders = {path.name for path in tmp_path.glob("shards-*")}
    assert f"shards-{after[1]}" in folders


def test_elastic_with_keys_that_are_counted(monkeypatch, tmp_path):
    def run(steps, shards, folder):
        given = clicks.params(admission=ab.admission.count(3), capacity=1000)
        group = ab.ray.LocalCommunicator(2, shards=shards)
        return ab.ray.train(
            clicks.loss, given, clicks.batches(), ADAGRAD, steps=steps, communicator=group, checkpoints=folder, every=2
        )

    expected = clicks.fingerprint(run(9, 1, tmp_path / "one"))
    run(4, 3, tmp_path / "two")
    found = run(9, 2, tmp_path / "two")
    assert clicks.fingerprint(found) == expected
    assert found[0]["users"].capacity == 1000 or found[0]["users"].capacity == 1002


def test_a_checkpoint_is_one_when_all_shards_are_saved(monkeypatch, tmp_path):
    """Shards that saved a step of which nobody else knows do no harm, however often."""
    train(monkeypatch, steps=4, checkpoints=tmp_path)
    tables = dict(enumerate(ab.Checkpoints(tmp_path / "shards-2" / "0").restore().params))
    for i in range(6):
        with ab.Checkpoints(tmp_path / "shards-2" / "0") as saver:
            Shard(1, tables, ADAGRAD, step=1000 + i).save(saver, [2, 4], keep=2)
            assert saver.steps()[:2] == [2, 4]
    assert train(monkeypatch, checkpoints=tmp_path)[0] == undisturbed()
    assert ab.Checkpoints(tmp_path).steps() == [6, 8, 9]


def test_old_folders_of_shards_go(monkeypatch, tmp_path):
    train(monkeypatch, steps=4, checkpoints=tmp_path)
    train(monkeypatch, shards=3, steps=12, checkpoints=tmp_path)
    assert [path.name for path in tmp_path.glob("shards-*")] == ["shards-3"]


def test_a_damaged_shard_is_named(monkeypatch, tmp_path):
    train(monkeypatch, steps=4, checkpoints=tmp_path)
    for path in (tmp_path / "shards-2" / "1").glob("*.json"):
        path.unlink()
    with pytest.raises(CheckpointError, match="shard 1 of 2 of step 4"):
        train(monkeypatch, checkpoints=tmp_path)


def test_checkpoints_of_something_else(monkeypatch, tmp_path):
    with ab.Checkpoints(tmp_path) as saver:
        saver.save(3, {"w": np.ones(3)})
    with pytest.raises(CheckpointError, match="not of this training"):
        train(monkeypatch, checkpoints=tmp_path)
    with pytest.raises(OptionError, match="background"):
        train(monkeypatch, checkpoints=ab.Checkpoints(tmp_path, background=True))
