"""Each region of each file of a folder changed or cut: an error that names the file and offers the last good
checkpoint, never another model."""

import contextlib
import os

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import CheckpointError
from tests.checkpoint.damages import NEEDS, Saved


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return Saved(tmp_path_factory.mktemp("run"))


@pytest.mark.parametrize("regions", [40, pytest.param(4000, marks=pytest.mark.slow)])
def test_each_region_of_each_file(saved, regions):
    done, seen = saved.sweep(regions)
    assert done >= regions
    assert {(name, step) for name, step in seen if name.endswith("s")} == {
        (f"0000000{number}.safetensors", step) for step, numbers in NEEDS.items() for number in numbers
    }


@pytest.mark.slow
def test_each_byte_of_each_file(saved):
    assert saved.sweep_bytes() > 100_000


def test_a_file_of_another_save_is_not_taken(saved):
    """Valid by itself, and of the same name: not the file that the manifest was saved with."""
    folder, files = saved.folder, saved.files
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
