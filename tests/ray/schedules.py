"""Trainings over random networks: messages are delayed and reordered, and not one bit is different.

python -m tests.ray.schedules --count 1000
"""

import argparse
import random
import sys
import time

import autobatch as ab
from tests.ray import clicks
from tests.ray.unordered import Unordered

STEPS = 4


def train(seed: int | None, workers: int, shards: int, staleness: int):
    """What a training ends with."""
    if seed is None:
        group = ab.ray.LocalCommunicator(workers, shards=shards)
    else:
        group = Unordered(workers, shards=shards, seed=seed)
    data = clicks.batches(count=3, size=6)
    with ab.options(way="lockstep"):
        trained = ab.ray.train(
            clicks.loss, clicks.params(), data, ab.optim.Adagrad(0.1), steps=STEPS, parts=4, staleness=staleness,
            communicator=group,
        )  # fmt: skip
    return clicks.fingerprint(trained)


def run_many(count: int, seed: int) -> int:
    """Train over so many networks.

    Raises:
        AssertionError: names the seed of the first that differs from one worker whose messages arrive in order.
    """
    known = {staleness: train(None, 1, 1, staleness) for staleness in (0, 1, 2)}
    for each in range(seed, seed + count):
        draw = random.Random(each)
        staleness = draw.choice([0, 0, 1, 2])
        workers, shards = draw.randint(1, 4), draw.randint(1, 4)
        found = train(each, workers, shards, staleness)
        assert found == known[staleness], f"seed {each}: {workers} workers, {shards} shards, staleness {staleness}"
    return count


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--count", type=int, default=1000, help="how many networks")
    arguments.add_argument("--seed", type=int, default=0, help="of the first")
    given = arguments.parse_args()
    begin = time.monotonic()
    for done in range(0, given.count, 50):
        run_many(min(50, given.count - done), given.seed + done)
        sys.stderr.write(f"{min(done + 50, given.count)} of {given.count}\n")
    sys.stdout.write(f"{given.count} networks in {time.monotonic() - begin:.0f} s, not one bit different\n")


if __name__ == "__main__":
    main()
