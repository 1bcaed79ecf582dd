"""`python -m benchmarks.growing`: a variable that grows key by key: what a key takes, and the longest step beside the
median.

Each step brings `--batch` new keys and updates as many old ones, by Adagrad. A key, its row and its slot are what a
table without an index would need; what there is over that is the index and what is noted of each row. Memory is read
from the operating system too.
"""

import argparse
import sys
import time

import numpy as np

import autobatch as ab

_PAGE = 4096


def resident() -> int:
    """The bytes of memory that this process has, as Linux says; 0 elsewhere."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * _PAGE
    except OSError:
        return 0


def main(arguments: list[str] | None = None) -> int:
    """0 where both bounds hold: memory within 1.35 of keys, rows and slots; no step longer than 10 medians."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growing")
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--storage", help="a folder; rows and slots then lie in mapped files")
    options = parser.parse_args(arguments)
    keys, dim, batch = options.keys, options.dim, options.batch
    users, optimizer = ab.EmbeddingVariable(dim, storage=options.storage), ab.optim.Adagrad(0.1)
    state, random = optimizer.init(users), np.random.default_rng(0)
    gradients = random.random((2 * batch, dim), np.float32)
    mixed = np.int64(-7046029254386353131)  # an odd number: distinct keys that look like any
    with np.errstate(over="ignore"):
        before = resident()
        took: list[float] = []
        for first in range(0, keys, batch):
            new = np.arange(first, min(first + batch, keys)) * mixed
            old = random.integers(0, max(first, 1), len(new)) * mixed
            asked = ab.SparseRows(np.concatenate([new, old]), gradients[: 2 * len(new)], None)
            start = time.process_time()
            optimizer.update(users, asked, state)
            took.append(time.process_time() - start)
    steps = np.array(took[len(took) // 20 :])  # what is compiled and warmed is not of the growth
    own = len(users) * (8 + 2 * dim * 4)
    kept = resident() - before
    median = float(np.median(steps))
    print(f"{len(users):,} keys, dim {dim}, Adagrad, {len(took)} steps of {batch:,} new and {batch:,} old keys")
    print(
        f"keys, rows and slots {own / 1e6:.0f} MB; in use {users.nbytes / 1e6:.0f} MB, {users.nbytes / own:.3f} times"
    )
    print(f"resident {kept / 1e6:.0f} MB, {kept / own:.3f} times")
    print(
        f"a step: median {1e3 * median:.2f} ms of processor time, 99 of 100 within "
        f"{1e3 * np.quantile(steps, 0.99):.2f} ms, the longest {1e3 * steps.max():.2f} ms, {steps.max() / median:.1f} "
        "times the median"
    )
    return int(users.nbytes > 1.35 * own or steps.max() > 10 * median)


if __name__ == "__main__":
    sys.exit(main())
