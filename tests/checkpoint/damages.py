"""Checkpoints of which a region is flipped, cut or zeroed, region by region of each file; what is restored from them.

python -m tests.checkpoint.damages --count 4000        that many regions, restored from step by step
python -m tests.checkpoint.damages --every-byte        each byte of each file, by `verify` alone
"""

import argparse
import os
import pathlib
import re
import sys
import tempfile
import time
from collections.abc import Iterator

import pytest

import autobatch as ab
from autobatch.errors import CheckpointError
from tests.checkpoint.training import Training, replay

STEPS = 4
NEEDS = {1: {1}, 2: {1, 2}, 3: {1, 2, 3}, 4: {4}}  # the files of each step's checkpoint


class Saved:
    """A folder of a whole checkpoint, two that need it, and another that is whole.

    Attributes:
        files: by name, what they hold. known: what a run that was not saved is after each step.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, training = folder, Training()
        with ab.Checkpoints(folder, keep=STEPS, full_every=3) as saver:
            for _ in range(STEPS):
                training.advance()
                training.save(saver)
        self.reader = ab.Checkpoints(folder)
        self.files = {name: (folder / name).read_bytes() for name in sorted(os.listdir(folder)) if name != "lock"}
        self.known = replay(STEPS)

    def damaged(self, count: int) -> Iterator[tuple[str, bytes]]:
        """Some `count` changed files, each of which has its share by its length: a bit flipped, cut, or 512 zeros."""
        total = sum(map(len, self.files.values()))
        for name, data in self.files.items():
            share = max(5, -(-count * len(data) // total))
            for k in range(share):
                place = k * len(data) // share
                kind = k % 3 if any(data[place : place + 512]) and place else 0
                other = data[:place] + bytes([data[place] ^ 1 << (k // 3) % 8]) + data[place + 1 :]
                if kind == 1:
                    other = data[:place]
                elif kind == 2:
                    other = data[:place] + bytes(min(512, len(data) - place)) + data[place + 512 :]
                yield name, other
            yield name, data + b" "

    def check(self, name: str, other: bytes) -> set[tuple[str, int]]:
        """Each step is restored as it was, or is an error that names the file and the last good step.

        Returns:
            (name, step) of those errors.
        """
        (self.folder / name).write_bytes(other)
        number, seen = int(name[:8]), set()
        for step in range(1, STEPS + 1):
            hit = number in NEEDS[step] if name.endswith(".safetensors") else number == step
            try:
                restored = self.reader.restore(step=step)
            except CheckpointError as error:
                message = str(error)
            else:  # what it needs of the file is not what was changed, or it has to be refused
                assert not hit or number < step, f"step {step} is restored from a damaged {name}"
                assert Training().resume(restored).fingerprint() == self.known[step], f"another step {step}"
                continue
            good = [s for s in range(1, step) if number not in NEEDS[s]] if name.endswith("s") else [step - 1]
            offered = f"restore(step={good[-1]})" if good and good[-1] else "no checkpoint before it is good"
            assert hit, f"step {step} is refused for a damaged {name}: {message}"
            assert name in message, message
            assert offered in message, message
            seen.add((name, step))
        self.refused(name)
        return seen

    def refused(self, name: str) -> None:
        """`verify` names the file."""
        with pytest.raises(CheckpointError, match=re.escape(name)):
            self.reader.verify()

    def mend(self) -> None:
        """All files as they were."""
        for name, data in self.files.items():
            (self.folder / name).write_bytes(data)

    def sweep(self, count: int) -> tuple[int, set[tuple[str, int]]]:
        """How many damages there were, and which files were seen to be damaged by which steps."""
        done, seen, before = 0, set(), ""
        for name, other in self.damaged(count):
            if name != before:
                self.mend()
                before = name
            seen |= self.check(name, other)
            done += 1
        self.mend()
        assert self.reader.verify() == list(range(1, STEPS + 1))
        return done, seen

    def sweep_bytes(self) -> int:
        """Flip a bit of every byte of every file; how many those were."""
        for name, data in self.files.items():
            path = self.folder / name
            with open(path, "r+b", buffering=0) as file:
                for place in range(len(data)):
                    os.pwrite(file.fileno(), bytes([data[place] ^ 1 << place % 8]), place)
                    self.refused(name)
                    os.pwrite(file.fileno(), data[place : place + 1], place)
        assert self.reader.verify() == list(range(1, STEPS + 1))
        return sum(map(len, self.files.values()))


def main(arguments: list[str] | None = None) -> int:
    """0; an AssertionError says what was not as it should be."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.checkpoint.damages", description=re.split("\n\n", __doc__)[0]
    )
    parser.add_argument("--count", type=int, default=4000, help="regions, of all files together")
    parser.add_argument("--every-byte", action="store_true")
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        saved = Saved(pathlib.Path(folder))
        if options.every_byte:
            done, what = saved.sweep_bytes(), "bytes flipped, each of them seen by verify()"
        else:
            done, seen = saved.sweep(options.count)
            what = (
                f"regions damaged, {len(seen)} pairs of a file and a step refused, nothing restored that was not saved"
            )
    print(f"{done} {what}; {time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
