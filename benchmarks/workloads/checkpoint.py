"""Checkpoints: a table with its Adagrad state written to the disk, whole or as what a few steps changed, and read back.

The reference is what the disk does by itself: the same bytes written one after the other and flushed, or read.
"""

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

import autobatch as ab
from benchmarks.declare import OURS, Bar, Case, Runner, Way, Workload

_PIECE = 8 << 20  # bytes that are written or read at a time


class Model:
    """A table (rows, dim) and the state of its optimiser, and the rows that change between two saves.

    Attributes:
        arrays: the two, by name. steps: for each of some saves the rows that change before it.
        folder: an empty one on the disk, removed when this process ends.
    """

    def __init__(self, case: Case) -> None:
        rng = np.random.default_rng(5)
        shape = case["rows"], case["dim"]
        self.arrays = {name: rng.random(shape, np.float32) for name in ("table", "sum")}
        self.folder = Path(tempfile.mkdtemp())
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        self._changed = rng.choice(case["rows"], int(np.ceil(case["rows"] * case["changed"])), replace=False)

    def advance(self) -> None:
        """A step: some rows change, and what they become does not depend on how often."""
        for array in self.arrays.values():
            array[self._changed] = np.float32(1) - array[self._changed]


def cases(size: str) -> list[Case]:
    full = size == "full"
    shape = {"rows": 1_000_000 if full else 300, "dim": 64}
    return [
        Case("save", {**shape, "what": "save", "changed": 1.0}),
        Case("save what 1% of rows changed", {**shape, "what": "increment", "changed": 0.01}),
        Case("save what 0.01% of rows changed", {**shape, "what": "increment", "changed": 0.0001}),
        Case("restore", {**shape, "what": "restore", "changed": 0.0}),
        Case("map", {**shape, "what": "map", "changed": 0.0}),
    ]


def _heads(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.asarray(array)[:100] for name, array in arrays.items()}


def ours(case: Case) -> Runner:
    model = Model(case)
    full_every = 1 if case["what"] == "save" else 1_000_000
    checkpoints = ab.Checkpoints(model.folder / "run", keep=1, full_every=full_every)
    checkpoints.save(0, model.arrays)
    steps = iter(range(1, 1 << 40))

    def read() -> dict[str, np.ndarray]:
        return checkpoints.restore(mapped=case["what"] == "map").params

    def run() -> None:
        model.advance()
        checkpoints.save(next(steps), model.arrays)

    def result(_: object) -> dict[str, np.ndarray]:
        found = checkpoints.restore().params
        if any(found[name].tobytes() != array.tobytes() for name, array in model.arrays.items()):
            raise AssertionError("what is restored is not what was saved")
        return {name: np.minimum(array[:100], 1 - array[:100]) for name, array in found.items()}

    return Runner(read, _heads) if case["what"] in ("restore", "map") else Runner(run, result)


def plain(case: Case) -> Runner:
    """The same bytes, written and flushed or read, and nothing else; of an increment all of them."""
    model = Model(case)
    path = model.folder / "bytes"

    def write() -> None:
        model.advance()
        if path.exists():
            path.unlink()  # a checkpoint's file is a new one too
        handle = os.open(path, os.O_WRONLY | os.O_CREAT)
        for array in model.arrays.values():
            view = memoryview(array.reshape(-1).view(np.uint8))
            while len(view):
                view = view[os.write(handle, view[:_PIECE]) :]
        os.fsync(handle)
        os.close(handle)

    def read() -> dict[str, np.ndarray]:
        out = {name: np.empty_like(array) for name, array in model.arrays.items()}
        with open(path, "rb", buffering=0) as file:
            for array in out.values():
                view = memoryview(array.reshape(-1).view(np.uint8))
                while len(view):
                    view = view[file.readinto(view[:_PIECE]) :]
        return out

    if case["what"] in ("restore", "map"):
        write()
        return Runner(read, _heads)
    return Runner(write, lambda _: {name: np.minimum(array[:100], 1 - array[:100]) for name, array in read().items()})


def _is(*what: str) -> Callable[[Case], bool]:
    return lambda case: case["what"] in what and case["rows"] > 1000


WORKLOAD = Workload(
    "checkpoint",
    "a table of 1,000,000 rows of 64 floats and its state, 512 MB, saved and restored",
    cases,
    ways=[
        Way(OURS, "benchmarks.workloads.checkpoint:ours"),
        Way("the disk", "benchmarks.workloads.checkpoint:plain"),
        Way(
            "torch.save",
            "benchmarks.peers.checkpoint_torch:prepare",
            needs="torch",
            serves=lambda case: case["what"] != "map",
        ),
    ],
    bars=[
        Bar(("the disk",), 0.7, holds=_is("save")),
        Bar(("the disk",), 2.0, holds=_is("increment")),
        Bar(("the disk",), 0.5, holds=_is("restore")),
        Bar(("the disk",), 20.0, holds=_is("map")),
    ],
)
