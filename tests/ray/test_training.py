"""`ab.ray.train` without Ray: the result is that of a plain loop, and the same bits whoever shares out the work."""

import copy

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import OptionError
from tests.ray import clicks

ADAM = ab.optim.Adam(0.05)


def run(workers=1, shards=None, steps=4, parts=4, data=None, optimizer=ADAM, given=None, group=None, **more):
    group = group or ab.ray.LocalCommunicator(workers, shards=shards)
    data = clicks.batches() if data is None else data
    given = clicks.params() if given is None else given
    return ab.ray.train(clicks.loss, given, data, optimizer, steps=steps, parts=parts, communicator=group, **more)


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(ab.optim.SGD(0.1, momentum=0.9), id="SGD", marks=pytest.mark.slow),
        pytest.param(ab.optim.Adagrad(0.1), id="Adagrad"),
        pytest.param(ab.optim.RowWiseAdagrad(0.1), id="RowWiseAdagrad"),  # one number for each row
        pytest.param(ab.optim.Adam(lambda step: 0.1 / (1 + step), weight_decay=0.01), id="Adam"),  # two slots, the step
        pytest.param(ab.optim.FTRL(0.1, clip_value=0.5), id="FTRL", marks=pytest.mark.slow),
    ],
)
def test_one_part_is_the_plain_loop_to_the_bit(optimizer):
    with ab.options(way="lockstep", kernels=False):
        expected = clicks.plain(optimizer, 4, clicks.params(), clicks.batches())
    assert clicks.fingerprint(run(optimizer=optimizer, parts=1)) == clicks.fingerprint(expected)


def test_parts_differ_from_the_plain_loop_by_rounding():
    expected, _ = clicks.plain(ADAM, 4, clicks.params(), clicks.batches())
    found, state = run(workers=3, parts=8)
    for name in ("users", "items"):
        for mine, plain in zip(found[name].export(), expected[name].export(), strict=True):
            np.testing.assert_allclose(mine, plain, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(found["w"], expected["w"], rtol=2e-4)
    assert isinstance(found["bias"], float)
    assert found["name"] == "clicks"
    assert state["step"] == 4


@pytest.mark.parametrize("parts", [5, 8])
def test_workers_and_shards_change_no_bit(parts):
    expected = clicks.fingerprint(run(parts=parts))
    for workers, shards in [(2, 2), (3, 1), (4, 3)]:
        assert clicks.fingerprint(run(workers, shards, parts=parts)) == expected, (workers, shards)


def test_arrays_that_shards_add_up_in_pieces():
    def loss(params, batch):
        return ab.mean(((batch["x"] @ params["w"]) ** 2).sum())

    rng = np.random.default_rng(0)
    data = ab.minibatches({"x": rng.normal(size=(40, 130)).astype(np.float32)}, 10)
    start = rng.normal(size=(130, 140)).astype(np.float32)  # more than 64 KiB
    kept = start.copy()
    found = [
        ab.ray.train(
            loss, {"w": start}, data, ADAM, steps=3, parts=4, communicator=ab.ray.LocalCommunicator(n, shards=s)
        )[0]["w"]
        for n, s in [(1, 1), (2, 3), (4, 2)]
    ]
    assert (start == kept).all(), "what was given is not written to"
    assert all((each == found[0]).all() for each in found)
    assert not (found[0] == start).any()


def test_what_a_step_reads_is_as_many_updates_old_as_staleness_says():
    """Beside a loop that keeps every state of the parameters."""
    data, optimizer = clicks.batches(), ab.optim.SGD(0.1)
    for staleness in (1, 3):
        with ab.options(way="lockstep", kernels=False):
            current, state = clicks.params(), None
            state = optimizer.init(current)
            past = [clicks.params()]
            gradient = ab.value_and_grad(clicks.loss)
            for step in range(6):
                read = past[max(0, step - staleness)]
                current, state = optimizer.update(current, gradient(read, data[step % 5])[1], state)
                past.append({**current, **_copies(current)})
        found = run(optimizer=optimizer, steps=6, parts=1, staleness=staleness)
        assert clicks.fingerprint(found) == clicks.fingerprint((current, state)), staleness
        late = run(2, 2, optimizer=optimizer, steps=6, parts=2, staleness=staleness, keys=lambda batch: {})
        ahead = run(2, 2, optimizer=optimizer, steps=6, parts=2, staleness=staleness)
        assert clicks.fingerprint(late) == clicks.fingerprint(ahead), "what nobody foresaw is as old as the rest"
        assert clicks.fingerprint(run(2, 3, steps=5, parts=2, staleness=staleness)) == clicks.fingerprint(
            run(1, 1, steps=5, parts=2, staleness=staleness)
        )


def _copies(params):
    return {name: copy.deepcopy(params[name]) for name in ("users", "items", "prices", "w")}


def test_the_given_state_and_partitions_are_gone_on_with():
    half = run(2, 2, steps=2)
    data = clicks.batches()
    found = run(3, 2, steps=2, given=half[0], state=half[1], data=data[2:])
    assert clicks.fingerprint(found) == clicks.fingerprint(run(steps=4))
    parts = run(2, 2, given=clicks.params(partitions=3))
    assert len(parts[0]["users"].parts) == 3
    assert clicks.fingerprint(parts) == clicks.fingerprint(run())


@pytest.mark.parametrize("more", [{"steps_to_live": 3}, {"admission": ab.admission.count(2)}], ids=repr)
def test_life_of_keys(more):
    expected = clicks.fingerprint(run(given=clicks.params(**more)))
    assert clicks.fingerprint(run(3, 2, given=clicks.params(**more))) == expected
    assert expected != clicks.fingerprint(run()) or "steps_to_live" in more


def test_few_examples_many_parts():
    data = clicks.batches(size=2)
    assert clicks.fingerprint(run(4, 2, data=data)) == clicks.fingerprint(run(1, 1, data=data))


def test_examples_in_a_list():
    def loss(params, examples):
        return np.mean(np.stack(ab.map(lambda keys, users: users[keys].sum(), examples, users=params["users"])))

    def train(n):
        params = {"users": ab.EmbeddingVariable(2)}
        data = [[[1, 2], [], [5]], [[7, 7, 7], [2], [9]]]
        return ab.ray.train(
            loss, params, data, ab.optim.SGD(0.1), steps=4, communicator=ab.ray.LocalCommunicator(n), parts=4
        )[0]["users"].export()

    for one, three in zip(train(1), train(3), strict=True):
        np.testing.assert_array_equal(one, three)


def test_keys_are_pulled_once_and_ahead(monkeypatch):
    """Bytes: a key and its row for each distinct key of a worker's part, there and back, and little else."""
    late = []
    pull = ab.ray.Communicator.pull
    monkeypatch.setattr(ab.ray.Communicator, "pull", lambda self, *args: late.append(len(args[1])) or pull(self, *args))
    group = ab.ray.LocalCommunicator(2)
    rng = np.random.default_rng(1)
    size, dim = 4000, 16
    data = ab.minibatches({"user": rng.zipf(1.3, 8 * size) % 10**6, "y": np.ones(8 * size, np.float32)}, size)

    def loss(params, batch):
        return ab.mean((params["users"][batch["user"]].sum() - batch["y"]) ** 2)

    params = {"users": ab.EmbeddingVariable(dim)}
    ab.ray.train(loss, params, data, ab.optim.SGD(0.1), steps=8, communicator=group, parts=2)
    halves = [
        len(np.unique(np.asarray(batch["user"].data)[half]))
        for batch in data
        for half in (slice(0, size // 2), slice(size // 2, None))
    ]
    moved = sum(sum(member.traffic.values()) for member in group.members)
    assert moved <= 1.1 * 2 * sum(halves) * (dim * 4 + 8)
    assert sum(late) == halves[0] + halves[1], "the first batch's keys alone are not foreseen"


def test_keys_that_the_user_says():
    found = []

    def keys(batch):
        found.append(1)
        return {"users": batch["user"], "items": [batch["item"], batch["seen"]]}

    assert clicks.fingerprint(run(2, 2, keys=keys)) == clicks.fingerprint(run())
    assert found


def test_wrong_keys_change_nothing():
    def keys(batch):
        return {"users": [1, 2, 99], "items": np.array([5], np.uint64)}

    assert clicks.fingerprint(run(2, 2, keys=keys)) == clicks.fingerprint(run())


def test_seeds_of_random_numbers_belong_to_parts():
    def loss(params, batch):
        return ab.mean((ab.nn.dropout(params["users"][batch["user"]], 0.5) ** 2).sum())

    def train(n):
        params = {"users": ab.EmbeddingVariable(4, initializer=ab.nn.init.normal())}
        data = ab.minibatches({"user": np.arange(20)}, 10)
        with ab.options(seed=3):
            group = ab.ray.LocalCommunicator(n)
            return ab.ray.train(loss, params, data, ab.optim.SGD(0.1), steps=3, communicator=group)[0]["users"]

    assert (train(1).export()[1] == train(4).export()[1]).all()
    rows = train(2)[np.arange(20)]
    assert (rows == 0).mean() < 0.1
    assert len(np.unique(rows.round(6))) > 40


def test_log():
    seen = []
    run(2, steps=5, every=2, log=lambda step, loss: seen.append((step, loss)))
    assert [step for step, _ in seen] == [0, 1, 2, 3, 4]
    first = float(clicks.loss(clicks.params(), clicks.batches()[0]))
    assert seen[0][1] == pytest.approx(first, rel=1e-5)


def test_no_steps_give_what_was_given():
    found, state = run(2, steps=0)
    assert state["step"] == 0
    assert (found["users"].keys() == [-8, 3]).all()


def test_a_loss_that_raises_raises():
    def loss(params, batch):
        raise ZeroDivisionError("by the user")

    with pytest.raises(ZeroDivisionError, match="by the user"):
        ab.ray.train(loss, clicks.params(), clicks.batches(), ADAM, steps=2, communicator=ab.ray.LocalCommunicator(2))


def test_a_shard_that_cannot_update_raises():
    given = clicks.params()
    given["users"] = ab.EmbeddingVariable(4, capacity=2, eviction=None)
    with pytest.raises(MemoryError, match="capacity"):
        run(2, 2, given=given)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"steps": -1}, OptionError, "steps=-1"),
        ({"staleness": 1.5}, OptionError, r"staleness=1\.5"),
        ({"every": 0}, OptionError, "every=0"),
        ({"parts": 1, "workers": 2}, OptionError, "2 workers for parts=1"),
        ({"optimizer": "adam"}, OptionError, "one of ab.optim"),
        ({"optimizer": ab.optim.SGD(0.1, clip_norm=1.0)}, TypeError, "clip_norm"),
        ({"data": iter([1])}, OptionError, "a function data"),
        ({"data": []}, OptionError, "no batches"),
        ({"data": lambda step: []}, ValueError, "no examples"),
        ({"keys": lambda batch: {"nobody": [1]}}, OptionError, "nobody"),
        ({"checkpoints": 7}, OptionError, "checkpoints=7"),
    ],
    ids=range(11),
)
def test_bad_arguments(change, error, match):
    with pytest.raises(error, match=match):
        run(**change)


def test_the_whole_variable_is_not_for_the_loss():
    for look in (np.asarray, lambda users: users.keys(), lambda users: users.sum()):

        def loss(params, batch, look=look):
            look(params["users"])
            return clicks.loss(params, batch)

        with pytest.raises(TypeError, match=r"rows of its examples' keys only|a plain array was needed"):
            ab.ray.train(
                loss, clicks.params(), clicks.batches(), ADAM, steps=1, communicator=ab.ray.LocalCommunicator(2)
            )
