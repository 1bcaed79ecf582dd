"""Context managers for tests, which observe how a program runs, beyond its result, or force a mode.

Counts do not depend on the machine or its load, so a test of them fails only if the program does something else.
Observations are collected in a list during the context::

    with inspect.op_calls() as calls:
        ab.map(f, examples)
    assert [call.op for call in calls if call.computes].count("matmul") == 1

- seen: `python_calls`, `called_files`, `op_calls`, `products`, `block_launches`, `scans`, `bags`, `gathers`,
  `decisions`, `regions`; fallbacks to the loop: `noted_fallbacks`; a map's launches: `map_with_stats`; anything else:
  `watched`
- forced: `compiled_at_once`, `no_compiler`, `step_by_step`, `however_small`; anything else: `replaced`
- where a program is: `current_example`, `current_region`
"""

import collections
import contextlib
import dataclasses
import functools
import gc
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from autobatch.api.batch import small_calls
from autobatch.api.measured_costs import functions
from autobatch.api.run_record import ran_ways
from autobatch.api.transforms import map_with_stats
from autobatch.autodiff.tape import Tape
from autobatch.batches import unpadded
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.blocks import kernel_cache, launch
from autobatch.blocks.scan import Scan
from autobatch.core import diagnostics
from autobatch.core.current_region import Example, current_example, current_region, example
from autobatch.core.diagnostics import noted_fallbacks
from autobatch.core.op import Op
from autobatch.kernels.hash_table import EMPTY_KEY
from autobatch.lazy.recorders.generated_recorders import forget_recorders
from autobatch.lockstep import block_launch
from autobatch.lockstep import block_loops as lockstep_scans
from autobatch.lockstep.lanes.region import Prefix, Subset
from autobatch.lockstep.regions import branches, loops
from autobatch.ops.nn import softmax_and_norms
from autobatch.ops.numpy import contractions
from autobatch.ops.numpy.contractions import matmul_p
from autobatch.tables import lookup

__all__ = [
    "EMPTY_KEY",
    "BlockLaunch",
    "Example",
    "OpCall",
    "Tape",
    "bags",
    "block_launches",
    "called_files",
    "compiled_at_once",
    "current_example",
    "current_region",
    "decisions",
    "example",
    "forget_costs",
    "forget_recorders",
    "forget_warnings",
    "gathers",
    "however_small",
    "map_with_stats",
    "no_compiler",
    "noted_fallbacks",
    "op_calls",
    "products",
    "python_calls",
    "ran_ways",
    "regions",
    "replaced",
    "scans",
    "step_by_step",
    "watched",
]


def forget_warnings() -> None:
    """Forget which source lines have warned, so that each warns again."""
    diagnostics._warned.clear()


def forget_costs() -> None:
    """Forget what the calls of all functions have cost."""
    functions.clear()
    small_calls.clear()


def called_files(f: Callable[[], Any]) -> collections.Counter[str]:
    """Of each file the number of Python calls into it that a call of `f` makes, including that of `f` itself.

    Garbage collection is off meanwhile, so that finalisers and `gc.callbacks` of other code are not counted.

    >>> sum(called_files(lambda: abs(-1)).values())
    1
    """
    files = collections.Counter[str]()

    def on(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            files[frame.f_code.co_filename] += 1

    collects, before = gc.isenabled(), sys.getprofile()
    gc.disable()
    sys.setprofile(on)
    try:
        f()
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    return files


def python_calls(f: Callable[[], Any]) -> int:
    """The number of Python calls that a call of `f` makes, including itself, as `called_files` counts them.

    >>> python_calls(lambda: abs(-1))
    1
    """
    return sum(called_files(f).values())


@contextlib.contextmanager
def replaced(owner: Any, **attributes: Any) -> Iterator[None]:
    """Replace attributes of a module, class or object within the context.

    >>> import math
    >>> with replaced(math, pi=3):
    ...     math.pi
    3
    """
    own = {name: not isinstance(owner, type) or name in vars(owner) for name in attributes}
    before = {name: getattr(owner, name) for name in attributes}
    try:
        for name, value in attributes.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            if own[name]:
                setattr(owner, name, value)
            else:
                delattr(owner, name)  # inherited


@contextlib.contextmanager
def watched(
    owner: Any,
    *names: str,
    before: Callable[..., Any] | None = None,
    after: Callable[..., Any] | None = None,
) -> Iterator[list[Any]]:
    """Record each call of functions of a module, class or object.

    Args:
        owner: the module, class or object.
        names: the names of the functions.
        before: called with the arguments before each call; its result is recorded. By default the name is recorded.
        after: called with the result and the arguments after each call; its result is recorded instead.

    >>> import math
    >>> with watched(math, "sqrt", after=lambda out, x: (x, out)) as seen:
    ...     _ = math.sqrt(4.0)
    >>> seen
    [(4.0, 2.0)]
    """
    seen: list[Any] = []

    def watching(name: str) -> Callable[..., Any]:
        inner = getattr(owner, name)

        @functools.wraps(inner)
        def call(*args: Any, **kwargs: Any) -> Any:
            if after is None:
                seen.append(before(*args, **kwargs) if before else name)
            out = inner(*args, **kwargs)
            if after is not None:
                seen.append(after(out, *args, **kwargs))
            return out

        return call

    with replaced(owner, **{name: watching(name) for name in names}):
        yield seen


@dataclasses.dataclass(frozen=True)
class OpCall:
    """A call of an op.

    Attributes:
        op: the name of the op.
        shapes: the shapes of the operands; () for one that is not an array.
        computes: True if it computes arrays, that is, no operand is a batch, recorded or on a tape.
    """

    op: str
    shapes: tuple[tuple[int, ...], ...]
    computes: bool

    @property
    def lanes(self) -> int:
        """The longest first axis of the operands."""
        return max((shape[0] for shape in self.shapes if shape), default=0)


def _op_call(op: Op, *args: Any, **params: Any) -> OpCall:
    computes = all(isinstance(arg, np.ndarray | np.generic | int | float) for arg in args)
    shapes = tuple(arg.shape if isinstance(arg, np.ndarray) else () for arg in args)
    return OpCall(op.name, shapes, computes)


def op_calls() -> contextlib.AbstractContextManager[list[OpCall]]:
    """Record every call of an op, including calls made by batching rules."""
    return watched(Op, "__call__", before=_op_call)


def products() -> contextlib.AbstractContextManager[list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    """Record the shapes of x and y for each product x @ y that is computed outside compiled blocks."""
    return watched(matmul_p, "impl", before=lambda x, y, **params: (np.shape(x), np.shape(y)))


@dataclasses.dataclass(frozen=True)
class BlockLaunch:
    """A launch of a block in lock-step.

    Attributes:
        ops: the names of its ops, in order.
        rows: the number of rows it ran for.
        products: for each matrix product in it, the length of the first operand's rows.
        program: the block's program.
    """

    ops: tuple[str, ...]
    rows: int
    products: tuple[int, ...]
    program: Any


def _block_launch(out: Any, program: Any, *operands: Any) -> BlockLaunch:
    names = tuple(step.op.name for step in program.steps)
    widths = [program.avals[step.args[0]].shape[-1] for step in program.steps if step.op.name == "matmul"]
    return BlockLaunch(names, out[0].shape[0], tuple(widths), program)


def block_launches() -> contextlib.AbstractContextManager[list[BlockLaunch]]:
    """Record each launch of a block in lock-step."""
    return watched(block_launch, "launch", after=_block_launch)


@contextlib.contextmanager
def scans() -> Iterator[list[int]]:
    """Record for each loop that ran as one op its number of steps."""
    seen: list[int] = []
    run = Scan.run

    def counted(self: Any, *data: Any) -> Any:
        form, steps = self._form, 0

        def of_steps(count: int) -> Any:
            one, again = form.steps.of_steps(count)

            def step(*args: Any) -> Any:
                nonlocal steps
                steps += 1
                return one(*args)

            return step, again

        self._form = types.SimpleNamespace(steps=types.SimpleNamespace(of_steps=of_steps), wanted=form.wanted)
        try:
            return run(self, *data)
        finally:
            self._form = form
            seen.append(steps)

    with replaced(Scan, run=counted):
        yield seen


def bags() -> contextlib.AbstractContextManager[list[str]]:
    """Record the mode of each bag that was fused from a look-up and a reduction of its rows."""
    return watched(lookup, "bags", before=lambda *args, mode, **more: mode)


def gathers() -> contextlib.AbstractContextManager[list[int]]:
    """Record the number of lanes of each gather of lanes."""
    return watched(MaskedBatch, "_take", before=lambda batch, index, memo: len(index))


@contextlib.contextmanager
def decisions() -> Iterator[list[int]]:
    """Record for each evaluated condition the number of lanes."""
    seen: list[int] = []
    truth = branches.truth

    def counted(test: Any) -> Any:
        region: Any = current_region()
        seen.append(region.count)
        return truth(test)

    with replaced(branches, truth=counted), replaced(loops, truth=counted):
        yield seen


@contextlib.contextmanager
def regions() -> Iterator[list[tuple[int, int]]]:
    """Record for each region (its number of lanes, that of the enclosing region)."""
    seen: list[tuple[int, int]] = []

    def noting(start: Callable[..., None]) -> Callable[..., None]:
        def noted(self: Any, outer: Any, lanes: Any) -> None:
            start(self, outer, lanes)
            seen.append((self.count, outer.root.count if hasattr(outer, "root") else outer.size))

        return noted

    with replaced(Subset, __init__=noting(Subset.__init__)), replaced(Prefix, __init__=noting(Prefix.__init__)):
        yield seen


@contextlib.contextmanager
def compiled_at_once() -> Iterator[None]:
    """Run blocks compiled from the first run on, with kernels if they have any."""
    with replaced(launch, RUNS_BEFORE_A_FORM=0, RUNS_BEFORE_KERNELS=0):
        yield


def no_compiler() -> contextlib.AbstractContextManager[None]:
    """Start no background process that compiles kernels."""
    return replaced(kernel_cache._compiler, ask=lambda kernel: False)


def step_by_step() -> contextlib.AbstractContextManager[None]:
    """Launch every step of a loop in lock-step by itself."""
    return replaced(lockstep_scans, _MOST_TRIES=0)


_SIZES: dict[str, tuple[Any, dict[str, Any]]] = {
    "row kernels": (softmax_and_norms, {"_LEAST_ELEMENTS": 0}),
    "rows without padding": (unpadded, {"_LEAST_ELEMENTS": 0, "_MOST_FILLED": 1.0}),
    "products by lane": (contractions, {"_CALL": -(10**12)}),
}


def however_small(what: str) -> contextlib.AbstractContextManager[None]:
    """Apply optimisations to any amount of data, which otherwise need a minimum.

    Args:
        what: "row kernels" (softmax and layer_norm of rows), "rows without padding" (of ragged examples, however full)
            or "products by lane" (einsum).
    """
    owner, attributes = _SIZES[what]
    return replaced(owner, **attributes)
