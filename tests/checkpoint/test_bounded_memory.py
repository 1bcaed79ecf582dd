"""What is saved is not built in memory first: pieces of bounded size go to the file, and come from it."""

import tracemalloc

import numpy as np
import pytest

import autobatch as ab
from autobatch.checkpoint.files import Files

MIB = 1 << 20


@pytest.fixture
def peak():
    """The most bytes that a call holds at once."""

    def measured(call):
        call()  # kernels are compiled, modules imported
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            call()
            return tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()

    return measured


@pytest.mark.parametrize("how", ["C order", "Fortran order", "strided", "big endian"])
def test_an_array_is_saved_in_pieces(tmp_path, peak, how):
    array = {
        "C order": lambda: np.zeros((1024, 8192), np.float32),
        "Fortran order": lambda: np.zeros((1024, 8192), np.float32, order="F"),
        "strided": lambda: np.zeros((2048, 8192), np.float32)[::2],
        "big endian": lambda: np.zeros((1024, 8192), ">f4"),
    }[how]()
    assert array.nbytes == 32 * MIB
    assert peak(lambda: ab.save(tmp_path / "file", array)) < 4 * MIB


def test_an_increment_needs_digests_and_what_changed(tmp_path, peak):
    array = np.zeros((1 << 17, 64), np.float32)
    steps = iter(range(10))

    def save():
        array[::1000] += 1
        saver.save(next(steps), array)

    with ab.Checkpoints(tmp_path) as saver:
        saver.save(next(steps), array)
        assert peak(save) < array.nbytes / 8


def test_a_table_of_keys_is_saved_and_put_together_in_blocks(tmp_path, peak):
    users = ab.EmbeddingVariable(64)
    users.insert(np.arange(200_000))
    with ab.Checkpoints(tmp_path, full_every=1000, keep=1) as saver:
        assert peak(lambda: ab.save(tmp_path / "file", users)) < 0.4 * 200_000 * 64 * 4
        saver.save(1, users)

        def change_and_compact():
            users.assign([3, 4], 1.0)
            saver.save(2, users)
            saver.compact()

        assert peak(change_and_compact) < 0.6 * 200_000 * 64 * 4


def test_an_array_is_put_together_in_pieces(tmp_path, peak):
    array = np.zeros((1 << 18, 64), np.float32)
    steps = iter(range(10))

    def change_and_compact():
        array[::1000] += 1
        saver.save(next(steps), array)
        saver.compact()

    with ab.Checkpoints(tmp_path, keep=1) as saver:
        saver.save(next(steps), array)
        assert peak(change_and_compact) < array.nbytes / 2


def test_a_table_of_keys_is_read_once(tmp_path):
    """Its narrow columns too, whose checksums are of blocks that hold many rows."""

    class Counting(Files):
        read = 0

        def read_into(self, handle, out, offset):
            self.read += len(out)
            return super().read_into(handle, out, offset)

    users, files = ab.EmbeddingVariable(8), Counting()
    users.insert(np.arange(200_000))
    with ab.Checkpoints(tmp_path, files=files) as checkpoints:
        checkpoints.save(1, users)
        files.read = 0
        checkpoints.restore()
    size = max(file.stat().st_size for file in tmp_path.glob("*.safetensors"))
    assert size < files.read < 1.5 * size
