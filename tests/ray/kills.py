"""Processes of real trainings, by Ray, are killed by `kill -9` at random moments: they end with the same parameters.

    python -m tests.ray.kills --count 200

A training runs in a process of its own. At random moments one of its processes is killed: a worker, the owner of a
shard, the raylet (in which is the object store), or the process that leads. Where the last is gone, it is started
again on the same folder, as its user would. What it ends with is compared, bit by bit, with a training in which nothing
was killed.
"""

import argparse
import collections
import hashlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

import autobatch as ab
from tests.ray import clicks

STEPS = 60
LONGEST = 3.0  # seconds from one kill to the next, of a training that runs
PATIENCE = 240.0  # seconds without a new checkpoint that are a failure
KINDS = {"ray::WorkerActor": "worker", "ray::ShardActor": "shard", "raylet": "raylet"}


def train(folder: str) -> str:
    """Train to the end, or go on to it; a digest of what came out."""
    group = None if folder else ab.ray.LocalCommunicator(1)
    trained = ab.ray.train(
        clicks.loss, clicks.params(), clicks.batches(), ab.optim.Adagrad(0.1), steps=STEPS, every=4,
        workers=2 if folder else None, checkpoints=folder or None, communicator=group, retries=20,
    )  # fmt: skip
    return hashlib.sha256(repr(clicks.fingerprint(trained)).encode()).hexdigest()


def processes_below(parent: int) -> dict[int, str]:
    """The processes that a process has started, and those that these have, with what they are called."""
    parents, names = {}, {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
                names[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found: dict[int, str] = {}
    below = [parent]
    while below:
        one = below.pop()
        children = [pid for pid, above in parents.items() if above == one]
        found |= {pid: names[pid] for pid in children}
        below += children
    return found


def victims(leader: int) -> dict[str, list[int]]:
    """By kind, what may be killed."""
    out: dict[str, list[int]] = {"leader": [leader]}
    for pid, name in processes_below(leader).items():
        for beginning, kind in KINDS.items():
            if name.startswith(beginning) or (kind == "raylet" and "/raylet/raylet " in name):
                out.setdefault(kind, []).append(pid)
    return out


def kill_many(count: int, seed: int = 0, kinds: tuple[str, ...] = ("worker", "shard", "raylet", "leader")):
    """Kill so many processes; how many of each kind.

    Raises:
        AssertionError: a training ended with something else, or did not go on.
    """
    expected = train("")
    choose = random.Random(seed)
    killed: collections.Counter[str] = collections.Counter()
    while killed.total() < count:
        with tempfile.TemporaryDirectory() as folder:
            _one_training(folder, expected, choose, killed, count, kinds)
    return killed


def _one_training(folder: str, expected: str, choose: random.Random, killed: collections.Counter, count: int, kinds):
    said = pathlib.Path(folder, "digest")
    leader: subprocess.Popen | None = None
    try:
        moved, before = time.monotonic(), None
        due = None
        while not said.exists():
            if leader is None or leader.poll() is not None:
                leader, due = _start(folder), None
            now = time.monotonic()
            steps = ab.Checkpoints(pathlib.Path(folder, "run")).steps()
            if steps != before:
                moved, before = now, steps
            assert now - moved < PATIENCE, f"{killed}: no new checkpoint after {before}"
            found = victims(leader.pid)
            if due is None and {"worker", "shard"} <= set(found):
                due = now + choose.random() * LONGEST
            if due is not None and now >= due and killed.total() < count:
                kind = choose.choice([kind for kind in kinds if kind in found])
                os.kill(choose.choice(sorted(found[kind])), signal.SIGKILL)
                killed[kind] += 1
                due = None
            time.sleep(0.05)
        assert said.read_text() == expected, f"{killed}: the training ended with other parameters"
        leader.wait(60)
    finally:
        if leader is not None:
            _end(leader)


def _start(folder: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.ray.kills", "--train", folder],
        stdout=subprocess.DEVNULL,
        stderr=open(os.path.join(folder, "errors"), "ab"),  # the child has it
        start_new_session=True,
    )


def _end(leader: subprocess.Popen) -> None:
    """End what is left of a training, its own processes only."""
    for pid in (*processes_below(leader.pid), leader.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    leader.wait()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--count", type=int, default=200, help="how many kills")
    arguments.add_argument("--seed", type=int, default=0, help="of the moments and kinds")
    arguments.add_argument("--train", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.train:
        digest = train(os.path.join(given.train, "run"))
        part = pathlib.Path(given.train, "digest.part")
        part.write_text(digest)
        part.rename(pathlib.Path(given.train, "digest"))
        return
    begin = time.monotonic()
    killed = kill_many(given.count, given.seed)
    sys.stdout.write(f"{killed.total()} kills in {time.monotonic() - begin:.0f} s, the same bits: {dict(killed)}\n")


if __name__ == "__main__":
    main()
