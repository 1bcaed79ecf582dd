"""Each region of each file of a folder changed or cut: an error that names the file and offers the last good
checkpoint, never another model."""

import contextlib
import os
import re

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import CheckpointError
from tests.checkpoint.training import Training, replay


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder of a whole checkpoint, and two that need it; then another that is whole."""
    folder = tmp_path_factory.mktemp("run")
    training = Training()
    with ab.Checkpoints(folder, keep=4, full_every=3) as saver:
        for _ in range(4):
            training.advance()
            training.save(saver)
    return folder, {name: (folder / name).read_bytes() for name in os.listdir(folder) if name != "lock"}


def damaged(data, regions):
    for place in range(0, len(data), max(1, len(data) // regions)):
        yield data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :]
    for place in range(0, len(data), max(1, 4 * len(data) // regions)):
        yield data[:place]
        yield data[:place] + bytes(min(512, len(data) - place)) + data[place + 512 :]
    yield data + b" "


@pytest.mark.parametrize("regions", [12, pytest.param(4000, marks=pytest.mark.slow)])
def test_each_region_of_each_file(saved, regions):
    folder, files = saved
    known = replay(4)
    needs = {1: {1}, 2: {1, 2}, 3: {1, 2, 3}, 4: {4}}  # the files of each step's checkpoint
    seen = set()
    for name, data in files.items():
        number = int(name[:8])
        for other in damaged(data, regions):
            if other == data:
                continue
            (folder / name).write_bytes(other)
            reader = ab.Checkpoints(folder)
            for step in (1, 2, 3, 4):
                hit = number in needs[step] if name.endswith(".safetensors") else number == step
                try:
                    restored = reader.restore(step=step)
                except CheckpointError as error:
                    message = str(error)
                else:  # what this step needs of the file is not what was changed
                    assert not hit or number < step
                    assert Training().resume(restored).fingerprint() == known[step]
                    continue
                assert hit
                assert name in message
                seen.add((name, step))
                good = [s for s in range(1, step) if number not in needs[s]] if name.endswith("s") else [step - 1]
                offered = f"restore(step={good[-1]})" if good and good[-1] else "no checkpoint before it is good"
                assert offered in message
            with pytest.raises(CheckpointError, match=re.escape(name)):
                reader.verify()
        (folder / name).write_bytes(data)
    assert ab.Checkpoints(folder).verify() == [1, 2, 3, 4]
    assert {(name, step) for name, step in seen if name.endswith("s")} == {
        (f"0000000{number}.safetensors", step) for step, numbers in needs.items() for number in numbers
    }


def test_a_file_of_another_save_is_not_taken(saved):
    """Valid by itself, and of the same name: not the file that the manifest was saved with."""
    folder, files = saved
    (folder / "00000002.safetensors").write_bytes(files["00000003.safetensors"])
    with pytest.raises(CheckpointError, match=r"00000002.safetensors is damaged: it is not the file"):
        ab.Checkpoints(folder).restore(step=2)
    (folder / "00000002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"00000002.safetensors is not there; the last good .* step 1"):
        ab.Checkpoints(folder).restore(step=3)
    (folder / "00000002.safetensors").write_bytes(files["00000002.safetensors"])


def test_nothing_is_removed_that_a_damaged_checkpoint_may_need(tmp_path):
    with ab.Checkpoints(tmp_path, keep=2) as saver:
        saver.save(1, np.arange(9000))
        (path,) = tmp_path.glob("*.json")
        path.write_bytes(path.read_bytes()[:-5])
        with pytest.warns(UserWarning, match="old checkpoints stay"):
            saver.save(2, np.arange(9000))
        assert len(list(tmp_path.glob("*.safetensors"))) == 1 + 0
        assert (saver.restore().params == np.arange(9000)).all()


def test_an_error_of_reading_names_the_file(tmp_path, monkeypatch):
    with ab.Checkpoints(tmp_path) as saver:
        saver.save(1, np.arange(10))

        def broken(handle, out, offset):
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(saver._folder.files, "read_into", broken)
        with pytest.raises(CheckpointError, match=r"00000001-step-1.json cannot be read: .*Input/output"):
            saver.restore()
        monkeypatch.undo()
        assert saver.restore().step == 1
        with contextlib.suppress(FileNotFoundError):
            os.unlink(tmp_path / "00000001.safetensors")
        with pytest.raises(CheckpointError, match=r"00000001.safetensors is not there; no checkpoint before"):
            saver.restore()
