"""The ways that are ours, and the plain loop, for any function of one example."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.blocks.kernel_cache import wait_for_kernels
from autobatch.core.config import WayName
from benchmarks.declare import Case, Runner

BATCH = 64
_LINE = 64  # bytes
_SETTLING = 40  # calls after which the way is chosen
WAYS: tuple[WayName, ...] = ("compiled", "fly")  # which compile something


@dataclasses.dataclass(frozen=True)
class Data:
    """Examples and parameters, as NumPy arrays and Python objects.

    Attributes:
        columns: one list of examples for each argument of the user's function.
        params: arrays by name; those named in `tables` are looked up, and get a sparse gradient.
    """

    columns: tuple[Sequence[Any], ...]
    params: dict[str, np.ndarray]
    tables: tuple[str, ...] = ()

    @property
    def examples(self) -> list[tuple[Any, ...]]:
        return list(zip(*self.columns, strict=True))

    def with_tables(self) -> dict[str, Any]:
        """The parameters as a user of this library holds them."""
        return {name: ab.EmbeddingTable(x) if name in self.tables else x for name, x in self.params.items()}


@dataclasses.dataclass(frozen=True)
class Model:
    """A user's functions of one example, and the ways that need nothing more.

    Attributes:
        forward: `forward(*example, params)`, its result; `loss`: `loss(*example, params)`, a number.
        data: what a case is of.
    """

    forward: Callable[..., Any]
    loss: Callable[..., Any]
    data: Callable[[Case], Data]

    def _mapped(self, case: Case) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
        """`ab.map` over the examples, and the form of what it gives: the results, or the mean loss and its gradient."""
        data = self.data(case)
        params = data.with_tables()
        if not case.train:
            return lambda: ab.map(self.forward, *data.columns, params=params), list
        step = ab.value_and_grad(lambda p: np.mean(np.stack(ab.map(self.loss, *data.columns, params=p))))
        return lambda: step(params), training

    def on_the_fly(self, case: Case) -> Runner:
        """`ab.map` over the examples, traced."""
        run, form = self._mapped(case)
        return Runner(pinned("fly", run), form)

    def by_choice(self, case: Case) -> Runner:
        """`ab.map` over the examples as it stands, once what is compiled for it is there and the ways were tried."""
        run, form = self._mapped(case)
        for way in WAYS:
            pinned(way, run)()
        wait_for_kernels()
        for _ in range(_SETTLING):
            run()
        return Runner(run, form)

    def lock_step(self, case: Case) -> Runner:
        """A call of the `ab.batch` functions on padded batches, which are made of the examples each time."""
        data = self.data(case)
        params = data.with_tables()

        def batches() -> list[ab.MaskedBatch]:
            return [ab.MaskedBatch.from_examples(column) for column in data.columns]

        if not case.train:
            return Runner(pinned("lockstep", lambda: self.forward(*batches(), params)), ab.examples)
        step = ab.value_and_grad(lambda p: ab.mean(self.loss(*batches(), p)))
        return Runner(pinned("lockstep", lambda: step(params)), training)

    def loop(self, case: Case) -> Runner:
        """The user's function on one example at a time, and the sum of its gradients."""
        data = self.data(case)
        forward, loss = (getattr(f, "__wrapped__", f) for f in (self.forward, self.loss))
        examples = data.examples
        if not case.train:
            return Runner(lambda: [forward(*example, data.params) for example in examples])
        params = data.with_tables()
        step = ab.value_and_grad(lambda p, example: loss(*example, p))

        def run() -> tuple[Any, dict[str, Any]]:
            values, gradients = zip(*(step(params, example) for example in examples), strict=True)
            return np.mean(values), {name: total([g[name] for g in gradients]) / len(examples) for name in params}

        return Runner(run, training)


def pinned(way: WayName, run: Callable[[], Any]) -> Callable[[], Any]:
    """The run by this way: what an engine takes is measured, not what the library would choose."""

    def call() -> Any:
        with ab.options(way=way):
            return run()

    return call


def total(parts: Sequence[Any]) -> Any:
    """The sum of dense or sparse gradients."""
    if isinstance(parts[0], ab.SparseRows):
        ids, rows = (np.concatenate([getattr(part, name) for part in parts]) for name in ("ids", "rows"))
        return ab.SparseRows(ids, rows, parts[0].num_rows)
    out = parts[0].copy()
    for part in parts[1:]:
        out += part
    return out


def training(out: tuple[Any, dict[str, Any]]) -> dict[str, Any]:
    """(loss, gradients) in the form that all ways share; tables' gradients dense."""
    loss, gradients = out
    dense = {name: g.to_dense() if isinstance(g, ab.SparseRows) else g for name, g in gradients.items()}
    return {"loss": np.asarray(loss), "gradients": dense}


def on_a_line(rows: int, dim: int) -> np.ndarray:
    """Room for a float32 table (rows, dim) that starts where a line of the cache does.

    Where an array starts is chance, and another in each process; a row that lies across lines costs every way more.
    """
    room = np.empty(rows * dim + _LINE, np.float32)
    first = -(room.ctypes.data // 4) % (_LINE // 4)
    return room[first : first + rows * dim].reshape(rows, dim)


def weights(rng: np.random.Generator, **shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Random float32 parameters, scaled by the length of what they multiply."""
    return {name: (rng.normal(0, 1, shape) * shape[0] ** -0.5).astype(np.float32) for name, shape in shapes.items()}


def sizes(small: Sequence[int], full: Sequence[int], **options: Any) -> Callable[[str], list[Case]]:
    """Forward and training cases at states of these sizes; small ones are of a few examples."""

    def cases(size: str) -> list[Case]:
        return [
            Case(
                f"H={hidden} {'training' if train else 'forward'}",
                {"hidden": hidden, "train": train, "batch": BATCH if size == "full" else 5, **options},
            )
            for train in (False, True)
            for hidden in (full if size == "full" else small)
        ]

    return cases


def with_batches(cases: Callable[[str], list[Case]], *batches: int) -> Callable[[str], list[Case]]:
    """The cases, and each full one with other numbers of examples: "H=64 forward, batch 16"."""

    def several(size: str) -> list[Case]:
        found = cases(size)
        others = [
            Case(f"{case.name}, batch {batch}", {**case.options, "batch": batch})
            for batch in (batches if size == "full" else ())
            for case in found
        ]
        return found + others

    return several
