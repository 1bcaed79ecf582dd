"""Each region of each file of a folder changed or cut: an error that names the file and offers the last good
checkpoint, never another model."""

import contextlib
import os
import types

import numpy as np
import pytest

import autobatch as ab
from autobatch.checkpoint.trees import rebuild
from autobatch.errors import CheckpointError, StructureError
from tests.checkpoint import fuzz
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
    with pytest.raises(CheckpointError, match=r"00000002.safetensors does not exist; the last good .* step 1"):
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
        with pytest.raises(CheckpointError, match=r"00000001.safetensors does not exist; no checkpoint before"):
            saver.restore()


def run(folder, steps, **options):
    """Save the steps, 9,000 numbers of which one changes; returns the saver, which holds the folder."""
    saver = ab.Checkpoints(folder, **options)
    for step in steps:
        saver.save(step, expected(step))
    return saver


def expected(step):
    x = np.zeros(9000)
    x[:step] = step
    return x


def flip_last_byte(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("full_every", [1, 3])
def test_damaged_checkpoints_do_not_count_as_kept(tmp_path, full_every):
    with run(tmp_path, (1, 2, 3), keep=2, full_every=full_every) as saver:
        assert saver.steps() == [2, 3]
        saver.save(4, expected(4))  # full, whether every save is or every third
        flip_last_byte(tmp_path / "00000004.safetensors")
        for step in range(5, 7):
            saver.save(step, expected(step))
        assert saver.steps() == ([3, 5, 6] if full_every == 3 else [5, 6])  # 5 and 6 need the damaged file
        np.testing.assert_array_equal(saver.restore(step=saver.steps()[0]).params, expected(saver.steps()[0]))
        for step in range(7, 9):
            saver.save(step, expected(step))
        assert saver.steps() == [7, 8]
        assert saver.verify() == [7, 8]


def test_the_last_good_checkpoint_stays_whatever_is_saved_on_a_damaged_one(tmp_path):
    with run(tmp_path, (1,), keep=2):
        pass
    with run(tmp_path, (2,), keep=2) as saver:
        flip_last_byte(tmp_path / "00000002.safetensors")
        for step in range(3, 8):
            saver.save(step, expected(step))
        assert saver.steps()[0] == 1
        np.testing.assert_array_equal(saver.restore(step=1).params, expected(1))
        with pytest.raises(CheckpointError, match=r"the last good checkpoint is that of step 1"):
            saver.restore()


def test_a_replaced_step_stays_until_the_new_one_is_good(tmp_path, monkeypatch):
    with run(tmp_path, (1,)):
        pass
    with ab.Checkpoints(tmp_path) as saver:
        commit = saver._folder.commit

        def damaged(manifest):
            flip_last_byte(tmp_path / "00000002.safetensors")
            commit(manifest)

        monkeypatch.setattr(saver._folder, "commit", damaged)
        saver.save(1, expected(2))
        assert len(list(tmp_path.glob("*.json"))) == 2


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("cut", [False, True])
def test_a_save_onto_a_lost_base_is_full(tmp_path, cut, background):
    with run(tmp_path, (1, 2), background=background) as saver:
        saver.wait()
        path = tmp_path / "00000001.safetensors"
        data = path.read_bytes()
        path.unlink()
        if cut:
            path.write_bytes(data[:100])
        with pytest.warns(UserWarning, match=r"the next save is full: .*00000001.safetensors"):
            saver.save(3, expected(3))
        np.testing.assert_array_equal(saver.restore().params, expected(3))
        saver.save(4, expected(4))
        np.testing.assert_array_equal(saver.restore(step=4).params, expected(4))


def test_a_node_that_says_nothing_is_no_list():
    with pytest.raises(StructureError, match=r"tree\['w'\] was saved as a \{\}; given is a list of 1"):
        rebuild({"dict": [["w", {}]]}, {"w": [1.0]}, "tree", types.SimpleNamespace(path="a.safetensors"))


@pytest.mark.fuzz
def test_crafted_files():
    seeds = [*range(40), 53000608]  # the last has a dtype that NumPy reads as source code
    assert fuzz.FUZZERS["crafted files"](seeds).startswith("41 without a difference")
