"""A child that trains and saves is killed by `kill -9` at random moments: nothing that it said was saved is lost.

    python -m tests.checkpoint.kills --count 1000

A child goes on from what `restore` gives and says each step on a pipe when `save` has returned (in the background, when
the next one has). After each kill the folder is restored and compared, bit by bit, with a replay from the seed: the
step is the last that was said, or the one after, which was being committed. Children follow each other in one folder,
so that what a kill left behind is there for the next; each has other options. A folder ends with the training.
"""

import argparse
import collections
import os
import pathlib
import random
import select
import signal
import sys
import tempfile
import time

import autobatch as ab
from tests.checkpoint.training import Training, replay

STEPS = 60
LONGEST = 0.15  # seconds that a child trains


def run_child(folder: str, says: int, seed: int) -> None:
    """Train from the last checkpoint on, until killed."""
    choose = random.Random(seed)
    options = {"keep": choose.choice([1, 3]), "full_every": choose.choice([1, 2, 5]), "background": seed % 3 == 0}
    saver = ab.Checkpoints(folder, **options)
    training = Training()
    if saver.steps():
        training.resume(saver.restore())
    os.write(says, b"ready\n")
    while training.step < STEPS:
        training.advance()
        training.save(saver)
        if not options["background"]:
            os.write(says, b"%d\n" % training.step)
        elif choose.random() < 0.3:
            saver.wait()
            os.write(says, b"%d\n" % training.step)
        if choose.random() < 0.2:
            saver.compact()
    saver.close()
    os.write(says, b"%d\n" % training.step)


def kill_once(folder: str, seed: int) -> int:
    """Start a child and kill it; returns the last step that it said was saved, 0 if none."""
    reads, says = os.pipe()
    child = os.fork()
    if not child:
        os.close(reads)
        code = 1
        try:
            run_child(folder, says, seed)
            code = 0
        finally:
            os._exit(code)
    os.close(says)
    said = os.read(reads, 6)  # "ready"
    select.select([], [], [], random.Random(seed).random() * LONGEST)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise AssertionError(f"the child of seed {seed} failed")
    while part := os.read(reads, 1 << 16):
        said += part
    os.close(reads)
    whole = said[: said.rfind(b"\n") + 1].split()[1:]
    return int(whole[-1]) if whole else 0


def kill_many(count: int, seed: int = 0) -> collections.Counter:
    """Kill `count` children; says what was found after each.

    Raises:
        AssertionError: a step was lost, or what was restored is not what a replay gives.
    """
    known = replay(STEPS)
    ab.Checkpoints(tempfile.mkdtemp()).save(0, Training().params)  # kernels are compiled before anything is killed
    found: collections.Counter = collections.Counter()
    saved = 0
    with tempfile.TemporaryDirectory() as top:
        folder = os.path.join(top, "0")
        for kill in range(count):
            said = kill_once(folder, seed + kill)
            saved = max(saved, said)
            reader = ab.Checkpoints(folder)
            where = f"kill {kill}, seed {seed + kill}: step {saved} was saved"
            if not reader.steps():
                assert saved == 0, f"{where}, nothing is there"
                found["nothing was saved yet"] += 1
                continue
            restored = reader.restore()
            assert restored.step >= saved, f"{where}, step {restored.step} is restored"
            same = Training().resume(restored).fingerprint() == known[restored.step]
            assert same, f"{where}, what is restored is not step {restored.step}"
            left = [path.name for path in pathlib.Path(folder).iterdir() if path.name.endswith(".part")]
            found["between two saves" if restored.step == saved else "a save that had not said so yet"] += 1
            found["a manifest half written"] += bool(left)
            saved = restored.step
            if saved == STEPS:
                folder, saved = os.path.join(top, str(kill + 1)), 0
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--count", type=int, default=100, help="how many kills")
    arguments.add_argument("--seed", type=int, default=0, help="of the first")
    given = arguments.parse_args()
    begin = time.monotonic()
    found = kill_many(given.count, given.seed)
    sys.stdout.write(f"{given.count} kills in {time.monotonic() - begin:.0f} s, nothing lost: {dict(found)}\n")


if __name__ == "__main__":
    main()
