"""Every operation on files is made to fail in turn: what is restored is the last committed step or the one that was
being committed, bit by bit as a replay from the seed."""

import functools
import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch.checkpoint.files import write_all
from autobatch.checkpoint.manifests import Folder
from autobatch.errors import CheckpointError, CheckpointWarning
from tests.checkpoint.simulated import PowerCutError, SimulatedFiles
from tests.checkpoint.training import Training, replay

STEPS = 6
FAULTS = ["error", "late error", "short", "full", "power cut"]


def checkpoints(files, **options):
    return ab.Checkpoints("/simulated/run", files=files, **{"keep": 2, "full_every": 4} | options)


def train(files, **options):
    """Train and save; returns the step of the last save that returned, and those that were tried after it."""
    committed, tried = 0, []
    training = Training()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        saver = checkpoints(files, **options)
        try:
            for step in range(1, STEPS + 1):
                training.advance()
                tried.append(step)
                try:
                    training.save(saver)
                    if step == 3:
                        saver.compact()
                    saver.wait()
                except (OSError, CheckpointError):
                    continue
                committed, tried = step, []
            saver.close()
        except PowerCutError:
            pass
    return committed, tried


@functools.cache
def known():
    return replay(STEPS)


def wrong(files, allowed):
    """What is wrong with what a new process finds: it has to be one of these steps, whole; 0: nothing."""
    reader = checkpoints(files)
    if not reader.steps():
        return "" if 0 in allowed else f"nothing is left of step {allowed}"
    try:
        restored = reader.restore()
        reader.verify()  # the older ones too, while they are there
    except CheckpointError as error:
        return f"not step {allowed}: {error}"
    if restored.step not in allowed:
        return f"step {restored.step}, not {allowed}"
    return "" if Training().resume(restored).fingerprint() == known()[restored.step] else "a mixture"


@functools.cache
def operations(background=False):
    files = SimulatedFiles()
    assert train(files, background=background) == (STEPS, [])
    return tuple(files.log)


def test_a_training_without_faults_ends_in_its_last_step():
    assert len(operations()) > 100
    assert {"create", "write", "flush", "rename", "unlink"} <= {line.split()[0] for line in operations()}


EVERY = [pytest.param(False, id="some"), pytest.param(True, id="all", marks=pytest.mark.slow)]


def places(fault, every, background=False):
    """Where an operation fails: at every one, or at one of each kind, by the fault; a power cut, behind each rename."""
    log = operations(background)
    kinds = {}
    for at, line in enumerate(log):
        kinds.setdefault(line.split()[0], []).append(at)
    if background:  # what only reads is read by the same code
        kinds = {kind: kinds[kind] for kind in ("create", "write", "flush", "rename", "unlink")}
    share = FAULTS.index(fault) / len(FAULTS)
    some = {found[int(share * len(found))] for found in kinds.values()}
    if fault == "power cut":
        some |= {at + 1 for at in kinds["rename"]}
    return range(len(log)) if every else sorted(some)


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("fault", FAULTS)
def test_each_operation_fails_in_turn(fault, every):
    rng = np.random.default_rng(FAULTS.index(fault))
    for at in places(fault, every):
        files = SimulatedFiles(at, fault)
        committed, tried = train(files)
        cuts = ["nothing", "all", *["some"] * (4 if fault == "power cut" else 1)]
        states = [files.after_power_cut(which, rng) for which in cuts]
        for state in [*([] if fault == "power cut" else [files.copy()]), *states]:
            assert not wrong(state, [committed, *tried]), (at, files.log[at])


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("fault", FAULTS)
def test_each_operation_of_a_background_save_fails_in_turn(fault, every):
    rng = np.random.default_rng(FAULTS.index(fault))
    for at in places(fault, every, background=True):
        files = SimulatedFiles(at, fault)
        committed, tried = train(files, background=True)
        for which in ("nothing", "some"):
            state = files.after_power_cut(which, rng)
            assert not wrong(state, [committed, *tried]), (at, files.log[at])


def test_training_goes_on_after_a_power_cut():
    """From each state that a cut may leave the run is resumed, and ends as if nothing had been."""
    rng = np.random.default_rng(5)
    for at in range(0, len(operations()), 29):
        files = SimulatedFiles(at, "power cut")
        train(files)
        files = files.after_power_cut("some", rng)
        saver = checkpoints(files)
        training = Training()
        if saver.steps():
            training.resume(saver.restore())
        while training.step < STEPS:
            training.advance()
            training.save(saver)
        assert training.fingerprint() == known()[STEPS]
        assert not wrong(files, [STEPS])
        left = {path for path in files.names_ if path.endswith(".part")}
        assert not left, "files of saves that were cut off are removed"


@pytest.mark.parametrize("operation", ["flush", "flush_folder", "rename"])
def test_a_missing_flush_would_be_seen(monkeypatch, operation):
    """The simulation can fail: a training that leaves one kind of operation out loses steps that were committed."""
    if operation == "rename":  # in place of it the file is written under its last name
        monkeypatch.setattr(Folder, "commit", write_in_place)
    else:
        monkeypatch.setattr(SimulatedFiles, operation, lambda self, what: self._step(operation))
    rng = np.random.default_rng(0)

    def seen(at):
        files = SimulatedFiles(at, "power cut")
        committed, tried = train(files)
        return any(wrong(files.after_power_cut(which, rng), [committed, *tried]) for which in ("nothing", "some"))

    assert any(map(seen, range(len(operations()))))


def write_in_place(self, manifest):
    handle = self.files.create(self.join(manifest.name))
    write_all(self.files, handle, memoryview(manifest.encode()), 0)
    self.files.flush(handle)
    self.files.close(handle)
    self.files.flush_folder(self.path)
