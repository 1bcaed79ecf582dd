"""Processes of real trainings, by Ray, are killed by `kill -9` at random moments: they end with the same parameters.

    python -m tests.ray.kills --count 200       with Ray
    python -m tests.ray.kills --local 1000      without: each process holds all workers and shards

A Ray cluster of one machine is kept; the process that leads a training is a child that joins it. At random moments a
process is killed: a worker, the owner of a shard, the raylet (in which is the object store), or the one that leads.
Where the raylet is gone, the cluster is started again, as its operator would; where the leader is, it is started again
on the same folder, as its user would. What a training ends with is compared, bit by bit, with one in which nothing was
killed.
"""

import argparse
import collections
import contextlib
import dataclasses
import hashlib
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time

import autobatch as ab
from tests.ray import clicks
from tests.ray.unordered import Unordered

STEPS = 120
LONGEST = 1.0  # seconds from a checkpoint, or from when all processes are there, to a kill
EARLY = 0.2  # the share of kills that do not wait for a checkpoint after the one before
PATIENCE = 400.0  # seconds without a new checkpoint or a kill that are a failure
KINDS = {"worker": "ray::WorkerActor", "shard": "ray::ShardActor", "raylet": "/raylet/raylet "}
WEIGHTS = {"worker": 3, "shard": 3, "leader": 2, "raylet": 1}  # what is dear to start again is killed less often
ROOT = pathlib.Path(__file__).resolve().parents[2]


def train(folder: str, group: ab.ray.LocalCommunicator | None = None) -> str:
    """Train to the end, or go on to it, by Ray or in this process; a digest of what came out."""
    trained = ab.ray.train(
        clicks.loss, clicks.params(), clicks.batches(), ab.optim.Adagrad(0.1), steps=STEPS, every=6,
        workers=None if group else 2, checkpoints=folder or None, communicator=group, retries=20,
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


class Child:
    """A process and all that it starts."""

    def __init__(self, command: list[str], environment: dict[str, str], errors: str) -> None:
        with open(errors, "ab") as file:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=file, stderr=file, start_new_session=True
            )
        self.pid = self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it has."""
        return self._process.poll() is not None

    def below(self) -> dict[int, str]:
        """What it has started."""
        return processes_below(self.pid)

    def end(self) -> None:
        """Kill what is left of it."""
        for pid in (*self.below(), self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


@dataclasses.dataclass
class Killer:
    """Kills at random, and starts again what people would.

    Attributes:
        count: how many kills. killed: by kind. trainings: that have ended.
    """

    count: int
    choose: random.Random
    kinds: tuple[str, ...]
    folder: str
    killed: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    trainings: int = 0

    def __post_init__(self) -> None:
        self.began = time.monotonic()
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        self.environment = os.environ | {
            "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": f"{self.choose.getrandbits(256):064x}",
            "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0",  # 15, beside which all else goes first
        }  # fmt: skip
        self.ray: Child | None = None

    def _start_ray(self) -> None:
        if self.ray is not None:
            self.ray.end()
        command = [
            os.path.join(os.path.dirname(sys.executable), "ray"), "start", "--head", "--block", "--num-cpus=2",
            f"--port={self.port}", "--node-ip-address=127.0.0.1", "--include-dashboard=false",
            "--object-store-memory=200000000",
        ]  # fmt: skip
        self.ray = Child(command, self.environment, os.path.join(self.folder, "ray-errors"))
        until = time.monotonic() + PATIENCE
        while not self._of("raylet"):
            assert time.monotonic() < until, "Ray did not start"
            assert not self.ray.ended, pathlib.Path(self.folder, "ray-errors").read_text()
            time.sleep(0.05)

    def _of(self, kind: str) -> list[int]:
        """The processes of a kind, lowest first."""
        assert self.ray is not None
        return sorted(pid for pid, name in self.ray.below().items() if KINDS[kind] in name)

    def train(self, expected: str) -> None:
        """One training, of which processes are killed until it has ended or enough are."""
        folder = os.path.join(self.folder, f"training-{self.trainings}")
        os.mkdir(folder)
        said = pathlib.Path(folder, "digest")
        leader: Child | None = None
        moved, before, early = time.monotonic(), None, False
        try:
            while not said.exists():
                if self.ray is None or not self._of("raylet"):
                    if leader is not None:
                        leader.end()
                    self._start_ray()
                if leader is None or leader.ended:
                    command = [sys.executable, "-m", "tests.ray.kills", "--train", folder]
                    environment = self.environment | {"RAY_ADDRESS": f"127.0.0.1:{self.port}"}
                    leader = Child(command, environment, os.path.join(self.folder, "errors"))
                now = time.monotonic()
                steps = ab.Checkpoints(pathlib.Path(folder, "run")).steps()
                due = early
                if steps != before:
                    due = before is not None
                    moved, before = now, steps
                assert now - moved < PATIENCE, f"{self.killed}: no new checkpoint after {before}"
                if due and self.killed.total() < self.count and len(self._of("worker")) == len(self._of("shard")) == 2:
                    time.sleep(self.choose.random() * LONGEST)
                    self._kill(leader)
                    before, early = ab.Checkpoints(pathlib.Path(folder, "run")).steps(), self.choose.random() < EARLY
                    moved = time.monotonic()
                else:
                    time.sleep(0.1)
            assert said.read_text() == expected, f"{self.killed}: the training ended with other parameters"
            self.trainings += 1
        finally:
            if leader is not None:
                leader.end()

    def _kill(self, leader: Child) -> None:
        kind = self.choose.choices(self.kinds, [WEIGHTS[each] for each in self.kinds])[0]
        found = [leader.pid] if kind == "leader" else self._of(kind)
        if found:
            os.kill(self.choose.choice(found), signal.SIGKILL)
            self.killed[kind] += 1
            sys.stderr.write(f"{time.monotonic() - self.began:.0f} s: {dict(self.killed)}\n")

    def end(self) -> None:
        """End the cluster."""
        if self.ray is not None:
            self.ray.end()


def kill_many(count: int, seed: int, kinds: tuple[str, ...]) -> Killer:
    """Kill so many processes of trainings.

    Raises:
        AssertionError: a training ended with something else, or did not go on.
    """
    expected = train("", ab.ray.LocalCommunicator(1))
    with tempfile.TemporaryDirectory() as folder:
        killer = Killer(count, random.Random(seed), kinds, folder)
        try:
            while killer.killed.total() < count:
                killer.train(expected)
        except BaseException:
            for name in ("ray-errors", "errors"):
                with contextlib.suppress(OSError):
                    sys.stderr.write(pathlib.Path(folder, name).read_text()[-4000:])
            raise
        finally:
            killer.end()
    return killer


def kill_processes(count: int, seed: int) -> int:
    """Kill so many processes in each of which a whole training runs over a network that reorders messages, without Ray.

    Each goes on from where the one before was killed, with another number of workers and shards.

    Returns:
        How many trainings ended.

    Raises:
        AssertionError: one with something else.
    """
    expected = train("", ab.ray.LocalCommunicator(1))
    ended = killed = 0
    choose = random.Random(seed)
    while killed < count:
        with tempfile.TemporaryDirectory() as folder:
            said = pathlib.Path(folder, "digest")
            while not said.exists():
                sizes = choose.randint(1, 4), choose.randint(1, 4)
                child = os.fork()
                if not child:
                    try:
                        group = Unordered(sizes[0], shards=sizes[1], seed=killed)
                        _train_and_say(folder, group)
                    finally:
                        os._exit(0)
                if killed < count:
                    _let_go_on(folder, said, choose.random() < EARLY)
                    time.sleep(choose.random() * LONGEST / 2)
                    os.kill(child, signal.SIGKILL)
                killed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
            assert said.read_text() == expected, f"after {killed} kills, seed {seed}"
            ended += 1
    return ended


def _let_go_on(folder: str, said: pathlib.Path, early: bool) -> None:
    """Wait until a training has saved once more, or has ended."""
    checkpoints = ab.Checkpoints(pathlib.Path(folder, "run"))
    before, until = checkpoints.steps(), time.monotonic() + PATIENCE
    while not early and checkpoints.steps() == before and not said.exists():
        assert time.monotonic() < until, f"no new checkpoint after {before}"
        time.sleep(0.01)


def _train_and_say(folder: str, group: ab.ray.LocalCommunicator | None = None) -> None:
    """Train, and write the digest, at once."""
    digest = train(os.path.join(folder, "run"), group)
    part = pathlib.Path(folder, "digest.part")
    part.write_text(digest)
    part.rename(pathlib.Path(folder, "digest"))


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--count", type=int, default=200, help="how many kills")
    arguments.add_argument("--seed", type=int, default=0, help="of the moments and kinds")
    arguments.add_argument("--kinds", nargs="*", choices=WEIGHTS, default=list(WEIGHTS))
    arguments.add_argument("--local", type=int, help="kill so many processes that train without Ray, instead")
    arguments.add_argument("--train", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.train:
        _train_and_say(given.train)
        return
    begin = time.monotonic()
    if given.local:
        ended = kill_processes(given.local, given.seed)
        sys.stdout.write(
            f"{given.local} kills of {ended} trainings in {time.monotonic() - begin:.0f} s, the same bits\n"
        )
        return
    killer = kill_many(given.count, given.seed, tuple(given.kinds))
    sys.stdout.write(
        f"{killer.killed.total()} kills of {killer.trainings} trainings in {time.monotonic() - begin:.0f} s, the same "
        f"bits: {dict(killer.killed)}\n"
    )


if __name__ == "__main__":
    main()
