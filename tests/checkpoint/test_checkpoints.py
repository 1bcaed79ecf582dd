"""`ab.Checkpoints`: what was saved comes back, whole or in part, in this process or another; old ones go."""

import os
import threading
import warnings
import weakref

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import CheckpointError, CheckpointWarning, DTypeError, OptionError, ShapeError, StructureError
from tests.checkpoint.training import DIM, ROWS, Training, assign, everything_of, replay
from tests.law import assert_same, normal

STEPS = 9


@pytest.fixture(scope="module")
def known():
    return replay(STEPS)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def trained(saver, steps=STEPS):
    training = Training()
    for _ in range(steps):
        training.advance()
        training.save(saver)
    saver.wait()
    return training


def sizes(folder, ending=".safetensors"):
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.name.endswith(ending)}


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("full_every", [1, 2, 4, 100])
def test_each_step_that_stays_is_restored_to_the_bit(folder, known, full_every, background):
    with ab.Checkpoints(folder, keep=4, full_every=full_every, background=background) as saver:
        trained(saver)
        assert saver.steps() == [6, 7, 8, 9] == saver.verify()
    for step in (6, 7, 8, 9, None):
        restored = ab.Checkpoints(folder).restore(step=step)
        training = Training().resume(restored)
        assert training.fingerprint() == known[restored.step]
    assert training.step == STEPS


@pytest.mark.parametrize("at", [1, 4, 8])
def test_a_resumed_run_ends_as_one_that_was_not_stopped(folder, known, at):
    with ab.Checkpoints(folder, full_every=3) as saver:
        trained(saver, at)
    with ab.Checkpoints(folder, full_every=3) as saver:
        training = Training().resume(saver.restore())
        while training.step < STEPS:
            training.advance()
            training.save(saver)
        assert training.fingerprint() == known[STEPS]
        assert Training().resume(saver.restore()).fingerprint() == known[STEPS]


def test_restored_trees_share_what_the_saved_ones_shared(folder):
    with ab.Checkpoints(folder) as saver:
        trained(saver, 3)
        found = saver.restore().params["dense"]
    found["same"][0] = 7
    assert (found["emb"].weights[0] == 7).all()


def test_an_increment_has_the_units_that_changed(folder):
    table = np.zeros((5000, 16), np.float32)
    params = {"emb": ab.EmbeddingTable(table), "still": np.ones((4000, 4)), "small": np.zeros(3)}
    with ab.Checkpoints(folder, keep=10) as saver:
        saver.save(1, params)
        table[[7, 4999]] += 1
        saver.save(2, params)
        saver.save(3, params)
        params["small"] = params["small"] + 1
        saver.save(4, params)
        table[:] = 5
        saver.save(5, params)
        written = list(sizes(folder).values())
        assert written[0] > table.nbytes + params["still"].nbytes
        assert written[1] < 2000, "two units of four rows"
        assert len(written) == 5
        assert written[2] < 1000, "small arrays are written each time"
        assert table.nbytes < written[4] < table.nbytes + 2000
        for step, first in enumerate([0, 0, 0, 0, 5], 1):
            found = saver.restore(step=step).params["emb"].weights
            expected = np.full_like(table, first)
            if 2 <= step < 5:
                expected[[7, 4999]] += 1
            assert_same(found, expected)


ODD = {
    "one row more than units": np.zeros((1025, 8), np.float32),
    "rows of 3 halves": np.zeros((7001, 3), np.float16),
    "flat bytes": np.zeros(40_001, np.uint8),
    "wide rows": np.zeros((3, 9001)),
    "complex": np.zeros((900, 3), np.complex64),
    "booleans": np.zeros((4000, 7), bool),
    "three dimensions": np.zeros((50, 20, 7)),
}


@pytest.mark.parametrize("array", ODD.values(), ids=ODD)
def test_any_change_of_any_shape_is_found(folder, array):
    rng = np.random.default_rng(0)
    array = array.copy()
    bytes_ = array.reshape(-1).view(np.uint8)
    with ab.Checkpoints(folder, keep=1, full_every=1000) as saver:
        saver.save(0, array)
        for step, place in enumerate([0, len(bytes_) - 1, *rng.integers(0, len(bytes_), 20)], 1):
            bytes_[place] ^= 1
            saver.save(step, array)
            assert saver.restore().params.tobytes() == array.tobytes()
        assert sum(sizes(folder).values()) < array.nbytes + 40_000
        saver.compact()
        assert saver.restore().params.tobytes() == array.tobytes()
        assert len(sizes(folder)) == 1


def test_the_parts_of_an_array_are_at_most_twice_its_size(folder):
    array = np.zeros((1000, 8))
    with ab.Checkpoints(folder, keep=1, full_every=1000) as saver:
        for step in range(30):
            array[step % 3 :: 3] += 1
            saver.save(step, array)
            assert sum(sizes(folder).values()) < 2.2 * array.nbytes
            assert_same(saver.restore().params, array)


def test_keys_that_changed_are_written_alone(folder):
    users = ab.EmbeddingVariable(4)
    assign(users, range(1000), 1)
    with ab.Checkpoints(folder) as saver:
        saver.save(1, users)
        assign(users, [3, 4, 2000], 2)
        users.remove([5, 6])
        saver.save(2, users)
        saver.save(3, users)
        assert [size < 2000 for size in sizes(folder).values()] == [False, True]  # nothing changed before the third
        for compacted in (False, True):
            if compacted:
                saver.compact()
            assert everything_of(saver.restore().params) == everything_of(users)


def test_an_empty_table_of_keys(folder):
    users = ab.EmbeddingVariable(4)
    with ab.Checkpoints(folder) as saver:
        saver.save(1, users)
        users.insert([1])
        saver.save(2, users)
        users.remove([1])
        saver.save(3, users)
        assert [len(saver.restore(step=step).params) for step in (1, 2, 3)] == [0, 1, 0]
        saver.compact()
        assert len(saver.restore().params) == 0


def test_a_table_of_keys_of_other_settings(folder):
    with ab.Checkpoints(folder) as saver:
        training = trained(saver, 3)
        found = saver.restore({"users": ab.EmbeddingVariable(4, seed=5)}).params["users"]
    assert found.seed == 5
    assert_same(found.keys(), training.params["users"].keys())


def test_part_of_the_parameters_with_their_state(folder):
    with ab.Checkpoints(folder) as saver:
        training = trained(saver, 2)
        like = {"dense": {"w": np.zeros((DIM, 3))}}
        optimizer = ab.optim.Adagrad(0.1)
        params, state, step = saver.restore(like, optimizer.init(like["dense"]))
    assert step == 2
    assert params.keys() == {"dense"}
    assert_same(params["dense"]["w"], training.params["dense"]["w"])
    assert_same(state["sum"]["w"], training.state["sum"]["w"])
    assert state["step"] == training.state["step"]
    assert not like["dense"]["w"].any()


@pytest.mark.parametrize("optimizer", [ab.optim.Adam(0.1), ab.optim.SGD(0.1), ab.optim.RowWiseAdagrad(0.1)])
def test_the_state_of_another_optimizer_begins_anew_and_that_is_said(folder, optimizer):
    with ab.Checkpoints(folder) as saver:
        training = trained(saver, 3)
        dense = training.params["dense"]
        state = optimizer.init(dense)
        with pytest.warns(CheckpointWarning, match=r"not restored from step 3, and left as given: state"):
            restored = saver.restore(state=state)
        assert restored.state is state
        assert state["step"] == 0
        assert len(restored.initialised) == 1
        assert_same(restored.params["dense"]["w"], dense["w"])


def test_state_that_was_not_saved(folder):
    with ab.Checkpoints(folder) as saver:
        saver.save(1, [np.ones(2)])
        state = ab.optim.Adam(0.1).init([np.ones(2)])
        with pytest.warns(CheckpointWarning, match="not restored from step 1"):
            assert saver.restore(state=state).state is state
        assert saver.restore().state is None


def test_parts_of_a_state_that_are_new(folder):
    with ab.Checkpoints(folder) as saver:
        saver.save(1, [], {"opt": {"step": 4, "sum": [np.ones(2)]}})
        like = {"opt": {"step": 0, "sum": [np.zeros(2)]}, "average": np.full(3, 9.0)}
        with pytest.warns(CheckpointWarning, match=r"state\['average'\] was not saved"):
            state = saver.restore(state=like).state
    assert state["opt"]["step"] == 4
    assert_same(state["opt"]["sum"][0], np.ones(2))
    assert_same(state["average"], np.full(3, 9.0))


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"dense": {"w": np.zeros((DIM, 4))}}, ShapeError, r"params\['dense'\]\['w'\] was saved with shape \(16, 3\)"),
        ({"dense": {"w": np.zeros((DIM, 3), np.float32)}}, DTypeError, r"was saved with dtype float64"),
        ({"dense": {"head": np.zeros(1)}}, StructureError, r"params\['dense'\]\['head'\] is not in the checkpoint"),
        ({"users": np.zeros(3)}, StructureError, r"\['users'\] was saved as a EmbeddingVariable; given is a ndarray"),
    ],
)
def test_parameters_of_another_structure_are_refused(folder, params, error, message):
    with ab.Checkpoints(folder) as saver:
        trained(saver, 1)
        with pytest.raises(error, match=message):
            saver.restore(params)


def test_mapped_parameters_are_read_only_and_right(folder, known):
    with ab.Checkpoints(folder) as saver:
        trained(saver, 5)
        for compacted in (False, True):
            if compacted:
                saver.compact()
            restored = saver.restore(mapped=True)
            for table in (restored.params["users"], restored.params["dense"]["items"]):
                assert not table.trainable
                table.trainable = True
            assert Training().resume(restored).fingerprint() == known[5]
            assert not restored.params["dense"]["emb"].writeable
            files = {name: (folder / name).read_bytes() for name in sizes(folder)}
            assert saver.verify()
    assert files, "nothing of what was mapped was written to a file"
    assert restored.params["dense"]["emb"][[0, ROWS - 1]].shape == (2, DIM)


def test_compacting_changes_nothing_but_the_files(folder, known):
    with ab.Checkpoints(folder, keep=1) as saver:
        training = trained(saver, 6)
        assert len(sizes(folder)) == 6
        saver.compact()
        assert len(sizes(folder)) == 1
        assert saver.steps() == [6]
        saver.compact()
        assert len(sizes(folder)) == 1
        training.advance()
        training.save(saver)
        assert len(sizes(folder)) == 2, "an increment on what was put together"
        assert Training().resume(saver.restore()).fingerprint() == known[7]


def test_old_checkpoints_and_their_files_go(folder):
    with ab.Checkpoints(folder, keep=2, full_every=3) as saver:
        for step in range(1, 8):
            saver.save(step, [np.arange(9000) + step % 2, np.zeros(9000)])
        assert saver.steps() == [6, 7]
    assert len(sizes(folder, ".json")) == 2
    assert list(sizes(folder)) == [f"0000000{n}.safetensors" for n in (4, 6, 7)], "4 has what 6 did not change"


def test_a_run_that_goes_back(folder):
    """What was saved last is what is restored, whatever its step."""
    with ab.Checkpoints(folder, keep=10) as saver:
        for step in range(1, 6):
            saver.save(step, step)
        assert saver.restore(step=2).params == 2
        saver.save(3, "other")
        assert saver.restore()[::2] == ("other", 3)
        assert saver.restore(step=3).params == "other"
        assert saver.restore(step=5).params == 5
        assert saver.steps() == [1, 2, 4, 5, 3]


def test_another_saver_is_refused_until_the_first_closes(folder):
    first, second = ab.Checkpoints(folder), ab.Checkpoints(folder)
    first.save(1, "a")
    with pytest.raises(CheckpointError, match=r"another saver holds .*close it"):
        second.save(2, "b")
    with pytest.raises(CheckpointError, match=r"another saver holds"):
        second.compact()
    assert second.restore().params == "a", "readers may be many"
    first.close()
    second.save(2, "b")
    with pytest.raises(CheckpointError, match=r"another saver holds"):
        first.save(3, "c")
    assert second.steps() == [1, 2]
    second.close()


def test_a_saver_that_nobody_holds_lets_go(folder):
    saver = ab.Checkpoints(folder)
    saver.save(1, "a")
    reference = weakref.ref(saver)
    del saver
    assert reference() is None
    with ab.Checkpoints(folder) as other:
        other.save(2, "b")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_hold_the_folder(folder):
    saver = ab.Checkpoints(folder)
    saver.save(1, "a")
    reading, writing = os.pipe()
    waiting, going = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        try:
            saver.save(2, "b")
        except CheckpointError:
            os.write(writing, b"refused")
        os.read(waiting, 1)
        os._exit(0)
    assert os.read(reading, 7) == b"refused"
    saver.close()
    with ab.Checkpoints(folder) as other:
        other.save(3, "c")
    os.write(going, b".")
    os.waitpid(child, 0)
    for handle in (reading, writing, waiting, going):
        os.close(handle)


def test_what_another_saver_did_meanwhile_is_no_base(folder):
    """An increment is told apart from the last save of this object only while it holds the folder."""
    array = np.zeros(9000)
    first, second = ab.Checkpoints(folder), ab.Checkpoints(folder)
    first.save(1, array)
    first.close()
    second.save(2, array + 1)
    second.close()
    array[0] = 1
    first.save(3, array)
    assert list(sizes(folder).values())[-1] > array.nbytes
    assert_same(first.restore().params, array)
    first.close()


def test_a_background_save_is_of_the_moment_that_it_began(folder, monkeypatch):
    begin = threading.Event()
    with ab.Checkpoints(folder, background=True) as saver:
        array, users = np.zeros(100_000), ab.EmbeddingVariable(3)
        assign(users, range(50), 1)
        finish = saver._run
        monkeypatch.setattr(saver, "_run", lambda work: (begin.wait(60), finish(work)))
        saver.save(1, [array, users])
        array[:] = 1
        assign(users, range(60), 2)
        assert saver.steps() == []
        begin.set()
        restored = saver.restore()
        assert not restored.params[0].any()
        assert len(restored.params[1]) == 50
        assert (restored.params[1].export()[2] == 1).all()
        saver.save(2, [array, users])
        assert saver.restore().params[0].all()
        assert len(saver.restore().params[1]) == 60


def test_a_background_save_copies_no_more_than_the_budget(folder, monkeypatch):
    copied = []
    snapshot = ab.checkpoint.streams.Stream.snapshot
    monkeypatch.setattr(
        ab.checkpoint.streams.Stream, "snapshot", lambda self: copied.append(self.nbytes) or snapshot(self)
    )
    large, small = np.zeros(100_000), np.ones(1000)
    with ab.options(memory_budget=50_000), ab.Checkpoints(folder, background=True) as saver:
        saver.save(1, [large, small])
        large[:] = 1
        assert copied == [small.nbytes]
        assert not saver.restore().params[0].any()


def test_threads_that_save_take_turns(folder):
    saver = ab.Checkpoints(folder, keep=100, background=True)
    arrays = [np.full(5000, i) for i in range(4)]

    def save(first):
        for number in range(5):
            saver.save(10 * first + number, arrays[first])

    threads = [threading.Thread(target=save, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    saver.wait()
    assert sorted(saver.verify()) == sorted(10 * i + number for i in range(4) for number in range(5))
    for i in range(4):
        assert_same(saver.restore(step=10 * i + 4).params, arrays[i])
    saver.close()


def test_an_interrupted_wait_still_waits_the_next_time(folder, monkeypatch):
    go = threading.Event()
    saver = ab.Checkpoints(folder, background=True)
    finish = saver._run
    monkeypatch.setattr(saver, "_run", lambda work: (go.wait(60), finish(work)))
    saver.save(1, "a")
    with monkeypatch.context() as patch:

        def interrupted(thread):
            raise KeyboardInterrupt("now")

        patch.setattr(threading.Thread, "join", interrupted)
        with pytest.raises(KeyboardInterrupt, match="now"):
            saver.wait()
    assert saver.steps() == []
    go.set()
    saver.save(2, "b")
    saver.wait()
    assert saver.steps() == [1, 2]
    saver.close()


def test_an_interrupted_save_leaves_nothing(folder, monkeypatch):
    with ab.Checkpoints(folder) as saver:
        saver.save(1, np.arange(10_000))
        before = sorted(os.listdir(folder))
        for operation in ("write", "flush", "create"):
            with monkeypatch.context() as patch:

                def interrupted(*_):
                    raise KeyboardInterrupt("now")

                patch.setattr(saver._folder.files, operation, interrupted)
                with pytest.raises(KeyboardInterrupt, match="now"):
                    saver.save(2, np.arange(10_000) + 1)
            assert sorted(os.listdir(folder)) == before
        saver.save(2, np.arange(10_000) + 1)
        assert saver.restore().params[0] == 1


def test_an_error_of_a_background_save_is_raised_once(folder, monkeypatch):
    with ab.Checkpoints(folder, background=True) as saver:
        saver.save(1, "a")
        saver.wait()
        with monkeypatch.context() as patch:
            patch.setattr(saver._folder.files, "flush", lambda handle: (_ for _ in ()).throw(OSError("disk on fire")))
            saver.save(2, "b")
            with pytest.raises(OSError, match="disk on fire"):
                saver.wait()
        saver.wait()
        assert saver.restore().params == "a"
        saver.save(3, "c")
        assert saver.restore().params == "c"


@pytest.mark.parametrize(
    ("options", "message"), [({"keep": 0}, "keep=0; expected at least 1"), ({"full_every": 0}, "full_every=0")]
)
def test_bad_options(folder, options, message):
    with pytest.raises(OptionError, match=message):
        ab.Checkpoints(folder, **options)


def test_bad_steps_and_leaves_change_nothing(folder):
    with ab.Checkpoints(folder) as saver:
        with pytest.raises(OptionError, match="step=-1"):
            saver.save(-1, [])
        with pytest.raises(OptionError, match=r"step=1\.5; expected a whole number"):
            saver.save(1.5, [])
        with pytest.raises(TypeError, match=r"extra\['x'\] is a builtins.object"):
            saver.save(1, [], extra={"x": object()})
        assert saver.steps() == []
        assert sizes(folder) == {}


def test_restoring_from_nothing(folder):
    with pytest.raises(CheckpointError, match=r"no checkpoint in .*run"):
        ab.Checkpoints(folder).restore()
    assert ab.Checkpoints(folder).steps() == []
    assert not folder.exists(), "a reader makes nothing"
    with ab.Checkpoints(folder) as saver:
        saver.save(3, "a")
        with pytest.raises(CheckpointError, match=r"no checkpoint of step 4 in .*; there are \[3\]"):
            saver.restore(step=4)


def test_a_checkpoint_that_goes_while_it_is_read(folder, monkeypatch):
    """The saver removed it meanwhile: the reader takes the one that is last now."""
    with ab.Checkpoints(folder, keep=1) as saver:
        saver.save(1, normal(3))
        reader = ab.Checkpoints(folder)
        read = reader._folder.read

        def slow(name):
            monkeypatch.undo()
            found = read(name)
            saver.save(2, normal(3) + 1)
            return found

        monkeypatch.setattr(reader._folder, "read", slow)
        params, _, step = reader.restore()
    assert step == 2
    assert_same(params, normal(3) + 1)


def test_other_programs_read_the_files(folder):
    numpy_reader = pytest.importorskip("safetensors.numpy")
    with ab.Checkpoints(folder) as saver:
        training = trained(saver, 1)
    (path,) = folder.glob("*.safetensors")
    found = numpy_reader.load_file(path)
    assert_same(found["params/dense/emb"], training.params["dense"]["emb"].weights)
    assert sorted(found["params/users#keys"].tolist()) == training.params["users"].keys().tolist()


class Net:
    def __init__(self):
        self.emb, self.rnn, self.out = ab.nn.Embedding(20, 3), ab.nn.LSTM(3, 4), ab.nn.Linear(4, 2)
        self.labels = ["no", "yes"]

    def __call__(self, words):
        return self.out(self.rnn(self.emb(words))[0][-1])


@pytest.mark.parametrize("given", [False, True])
def test_a_model_of_layers_goes_on(folder, given):
    gradient = ab.grad(lambda net: (net(np.array([3, 1, 3])) ** 2).sum())
    optimizer, net = ab.optim.Adam(0.1), Net()
    state = optimizer.init(net)
    with ab.Checkpoints(folder) as saver:
        for number in range(2):
            net, state = optimizer.update(net, gradient(net), state)
            saver.save(number, net, state)
        like = Net()
        other, own, _ = saver.restore(like, optimizer.init(like)) if given else saver.restore()
    assert type(other) is Net
    assert other.labels == net.labels
    net, state = optimizer.update(net, gradient(net), state)
    other, own = optimizer.update(other, gradient(other), own)
    words = np.array([1, 2, 3, 19])
    assert_same(other(words), net(words))
