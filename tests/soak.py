"""Long runs: very long examples, very many of them, threads for minutes, functions without end, deep recursion.

    python -m tests.soak                        every one in full (some minutes)
    python -m tests.soak threads --scale 0.1    one of them, a tenth of it

Each compares with the loop or with what a formula says, and bounds the memory that the process holds. The exit status
is the number of those that failed. The tests run them at a small scale.
"""

import argparse
import gc
import linecache
import resource
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import autobatch as ab


def peak_mb() -> float:
    """The most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def resident_mb() -> float:
    """The memory that this process has now, in MB."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


def decayed(xs, rate):
    """A loop over the rows of one example."""
    h = 0.0
    for x in xs:
        h = h * rate + x
    return h


def long_example(scale: float) -> str:
    """One example of 10⁶ steps, beside three short ones, in every way."""
    steps = int(1e6 * scale)
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal(n) for n in (steps, 3, 0, 17)]
    want = [decayed(x, 0.5) for x in xs]
    for way in ("loop", "lockstep", "fly", "compiled"):
        with ab.options(way=way, warn=False):
            found = ab.map(decayed, xs, rate=0.5)
            if way == "lockstep":
                found = ab.examples(ab.batch(decayed)(ab.PackedBatch.from_examples(xs), rate=0.5))
        np.testing.assert_allclose(np.array(found, float), np.array(want, float), rtol=1e-9, err_msg=way)
    return f"{steps:,} steps"


def scored(x, w):
    return np.tanh(x @ w).sum()


def many_examples(scale: float) -> str:
    """50,000 examples in one map and one batch."""
    count = int(5e4 * scale)
    rng = np.random.default_rng(1)
    w = rng.standard_normal((4, 3)).astype(np.float32)
    xs = [rng.standard_normal((n, 4)).astype(np.float32) for n in rng.integers(0, 6, count)]
    want = np.array([scored(x, w) for x in xs])
    for way in ("fly", "lockstep"):
        with ab.options(way=way):
            np.testing.assert_allclose(np.array(ab.map(scored, xs, w=w)), want, rtol=1e-4, atol=1e-5, err_msg=way)
    return f"{count:,} examples"


def embedded(tree, p):
    if isinstance(tree, int):
        return p["emb"][tree]
    return np.tanh(embedded(tree[0], p) @ p["left"] + embedded(tree[1], p) @ p["right"])


def many_nodes(scale: float) -> str:
    """One map of 10⁷ nodes: the time of a node at a tenth of it and in full, within the memory budget."""
    rng = np.random.default_rng(4)

    def tree(leaves: int) -> object:
        if leaves == 1:
            return int(rng.integers(0, 50))
        left = int(rng.integers(1, leaves))
        return tree(left), tree(leaves - left)

    kept, nodes = [tree(30) for _ in range(1000)], 59
    shapes = {"emb": (50, 8), "left": (8, 8), "right": (8, 8)}
    p = {name: rng.standard_normal(shape).astype(np.float32) / 3 for name, shape in shapes.items()}
    want = np.stack([embedded(each, p) for each in kept])
    with ab.options(way="fly"):
        ab.map(embedded, kept, p=p)  # what is compiled is there by then
    times = []
    for count in (max(int(1e6 * scale) // nodes, 1), max(int(1e7 * scale) // nodes, 2)):
        trees = [kept[k % len(kept)] for k in range(count)]
        start = time.process_time()
        with ab.options(way="fly"):
            found = ab.map(embedded, trees, p=p)
        times.append((time.process_time() - start) / count / nodes)
        np.testing.assert_allclose(np.stack(found), want[np.arange(count) % len(kept)], rtol=1e-3, atol=1e-5)
    return f"{count * nodes:,} nodes, {times[1] * 1e6:.2f} µs each; {times[0] * 1e6:.2f} of a tenth of them"


def short_rows(scale: float) -> str:
    """10⁶ short bags: forward, and the gradient of the table."""
    bags, rows, dim = int(1e6 * scale), 1000, 8
    rng = np.random.default_rng(2)
    lengths = rng.integers(0, 4, bags)
    ids, table = rng.integers(0, rows, lengths.sum()), rng.standard_normal((rows, dim)).astype(np.float32)
    offsets = np.concatenate([[0], np.cumsum(lengths)[:-1]])

    def total(t):
        return ab.embedding_bag(ids, t, offsets, mode="sum").sum()

    np.testing.assert_allclose(total(table), table[ids].sum(dtype=np.float64), rtol=1e-3)
    slope = ab.grad(total)(ab.EmbeddingTable(table)).to_dense()
    np.testing.assert_array_equal(slope, np.repeat(np.bincount(ids, minlength=rows)[:, None], dim, 1).astype("f4"))
    return f"{bags:,} bags"


def threads(scale: float) -> str:
    """8 threads for ten minutes: maps, batches, gradients and updates of their own, on functions that they share."""
    end, done, failed = time.monotonic() + 600 * scale, [0] * 8, []
    f = ab.batch(scored)

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        table, optimizer = ab.EmbeddingTable(np.ones((9, 3), np.float32)), ab.optim.Adam(0.01)
        state = optimizer.init(table)
        try:
            while time.monotonic() < end and not failed:
                w = rng.standard_normal((4, 3))
                xs = [rng.standard_normal((n, 4)) for n in rng.integers(0, 6, rng.integers(1, 9))]
                want = np.array([scored(x, w) for x in xs])
                np.testing.assert_allclose(np.array(ab.map(scored, xs, w=w)), want, atol=1e-9)
                np.testing.assert_allclose(np.array(ab.examples(f(ab.collate(xs), w))), want, atol=1e-9)
                slope = ab.grad(lambda w, xs=xs: sum(ab.map(scored, xs, w=w)))(w)
                by_hand = sum(x.T @ (1 - np.tanh(x @ w) ** 2) for x in xs)
                np.testing.assert_allclose(slope, by_hand, atol=1e-9)
                ids = rng.integers(0, 9, 5)
                optimizer.update(table, ab.grad(lambda t, ids=ids: t[ids].sum())(table), state)
                done[number] += 1
        except BaseException as error:
            failed.append(error)
            raise

    started = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for each in started:
        each.start()
    for each in started:
        each.join()
    assert not failed, failed
    return f"{sum(done):,} rounds in 8 threads, {600 * scale:.0f} s"


def cell(number: int) -> Callable[..., Any]:
    """A function as a cell of a notebook makes it that is run again: of new code, and now and then of new text."""
    text = f"def f(x):\n    h = {number // 8}.0\n    for v in x:\n        h = np.tanh(h + v)\n    return h\n"
    name, space = f"<cell {number}>", {"np": np}
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    exec(compile(text, name, "exec"), space)
    return space["f"]


def defined_and_dropped(number: int) -> "weakref.ref[Any]":
    """A weak reference to the code of a function that ran in every way and is gone."""
    f, xs = cell(number), [np.ones(n) for n in (3, 0, 2)]
    batch = ab.collate(xs)

    def made(x):  # of the same code each time
        return (x * number).sum() if len(x) else 0.0

    for way in ("lockstep", "fly", "auto"):
        with ab.options(way=way):
            for each in (f, made):
                ab.batch(each)(batch)
                ab.map(each, xs)
    ab.grad(lambda scale: sum(ab.map(f, [x * scale for x in xs])))(1.0)
    del linecache.cache[f.__code__.co_filename]
    return weakref.ref(f.__code__)


def functions_without_end(scale: float) -> str:
    """10,000 functions defined, run in every way, differentiated and dropped: what is held does not grow."""
    count = max(int(1e4 * scale), 30)
    for number in range(count // 2):  # what is kept of a bounded number is there by then
        defined_and_dropped(number)
    gc.collect()
    before = resident_mb()
    for number in range(count // 2, count):
        defined_and_dropped(number)
    gc.collect()
    grown = resident_mb() - before
    assert grown < 20, f"{grown:.1f} MB more are held after {count // 2:,} functions more"
    return f"{count:,} functions, {grown:.1f} MB more in their second half"


def depth(tree):
    return 0.0 if tree is None else 1.0 + depth(tree)


def folded(tree, x):
    return x if tree is None else np.tanh(folded(tree[0], x) + 1.0)


def deep_recursion(scale: float) -> str:
    """Recursion as deep as Python's own limit lets the loop go, in maps and batches; beyond it, the loop's error."""
    limit = sys.getrecursionlimit()
    deep = max(int((limit - 150) * min(scale * 10, 1)), 50)
    chains = []
    for n in (deep, 3, 0):
        tree = None
        for _ in range(n):
            tree = (tree,)
        chains.append(tree)
    xs = [np.full(2, float(k)) for k in range(3)]
    want = [folded(*row) for row in zip(chains, xs, strict=True)]
    for way in ("loop", "fly"):
        with ab.options(way=way):
            for one, other in zip(ab.map(folded, chains, xs), want, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-6, err_msg=way)
    endless = None
    for _ in range(limit * 3):
        endless = (endless,)
    for way in ("loop", "fly"):
        with ab.options(way=way, warn=False):
            try:
                ab.map(folded, [endless], [np.ones(2)])
            except RecursionError:
                continue
            raise AssertionError(f"{way}: no RecursionError")
    while endless is not None:  # link by link: a chain of tuples is freed by recursion
        endless = endless[0]
    return f"{deep:,} calls deep"


SOAKS: dict[str, Callable[[float], str]] = {
    "long-example": long_example,
    "many-examples": many_examples,
    "many-nodes": many_nodes,
    "short-rows": short_rows,
    "threads": threads,
    "functions": functions_without_end,
    "recursion": deep_recursion,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what a command line asks for. Returns how many failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="*", choices=[*SOAKS, []], help="which; all without a name")
    parser.add_argument("--scale", type=float, default=1.0, help="how much of the full size or time (1)")
    asked = parser.parse_args(arguments)
    failed = 0
    for name in asked.name or SOAKS:
        start = time.perf_counter()
        try:
            said = SOAKS[name](asked.scale)
        except Exception as error:
            failed += 1
            said = f"FAILED: {type(error).__name__}: {error}"
        print(f"{name}: {said} ({time.perf_counter() - start:.0f} s, peak {peak_mb():.0f} MB)", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
