"""Where the time of our own runs goes, and what they launched; seen from outside, so that it costs nothing else.

Counts come from one run whose batching rules and vjps are wrapped. Shares of time come from a timer that looks, many
times a second, at which function is running: the library's folders are its phases.
"""

import contextlib
import linecache
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from autobatch.blocks.launch import LaunchCode
from autobatch.core.batched import Batched
from autobatch.core.op import Op
from autobatch.lazy.launching import Stats
from benchmarks.machine import peak_memory

PHASES = ("tracing", "scheduling", "gathering", "products", "elementwise", "backward", "other")

_EVERY = 1e-3  # seconds between two looks

_OF_OPS = ("gathering", "products", "elementwise")
_LAUNCHING = ("autobatch.lazy.launching", "autobatch.lazy.grouping.ragged")
_BLOCK = "blocks/numpy_codegen.py: block "
_PHASE_OF_CALL = {"matmul": "products", "concatenate": "gathering", "lookup": "gathering", "take": "gathering"}
_COMPUTING = ("_ab_apply", "_ab_apply_any")  # of a batch; a lazy array records through `Trace.record`

# The innermost of our modules that a stack is in says what is being done. The first match counts.
_PHASE_OF = (
    ("lazy.grouping.buffers", "gathering"),
    ("lazy.grouping", "scheduling"),
    ("kernels.rows", "gathering"),
    ("ops.numpy.indexing", "gathering"),
    ("ops.numpy.joining", "gathering"),
    ("ops.rules.index_rule", "gathering"),
    ("ops.rules.row_gather", "gathering"),
    ("ops.numpy.contractions", "products"),
    ("ops.rules.selected_operands", "products"),
    ("kernels", "elementwise"),
    ("ops", "elementwise"),
    ("tables", "gathering"),
    ("lazy.launching", "gathering"),
    ("blocks.block_expressions", "tracing"),
    ("blocks.finder", "tracing"),
    ("blocks.tracing", "tracing"),
    ("blocks", "elementwise"),
    ("lazy", "tracing"),
    ("core.diagnostics", "tracing"),
    ("lockstep", "tracing"),
    ("batches", "tracing"),
)


def account(run: Callable[[], Any], seconds: float) -> dict[str, Any]:
    """What one run launches, and the share of time of each phase over `seconds` of runs."""
    with counting() as counts:
        run()
    return {**counts.summary(), "shares": shares(run, seconds), "peak": peak_memory()}


class Counts:
    """Launches of one run.

    Attributes:
        groups: how many calls each forward launch covered.
        backward: how many vjps ran, on the same batches.
        filled, padded: elements of batched operands that are data, and all of them.
    """

    def __init__(self) -> None:
        self.groups: list[int] = []
        self.lazy_groups: list[int] = []
        self.backward = 0
        self.filled = 0
        self.padded = 0

    def operands(self, operands: Sequence[Any]) -> None:
        """Note one launch of a batching rule."""
        batched = [x for x in operands if isinstance(x, Batched)]
        self.groups.append(max((x.batch_size for x in batched), default=1))
        for x in batched:
            if x.is_ragged:
                self.filled += _filled(x)
                self.padded += x.data.size

    def summary(self) -> dict[str, Any]:
        groups = self.lazy_groups or self.groups
        return {
            "launches": len(groups),
            "calls": sum(groups),
            "mean_group": statistics.fmean(groups) if groups else None,
            "largest_group": max(groups, default=None),
            "backward_launches": self.backward,
            "padding": 1 - self.filled / self.padded if self.padded else 0.0,
        }


def _declared_ops() -> list[Op]:
    """The ops that modules hold by name or in their tables."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("autobatch.")]
    values = [value for module in modules for value in list(vars(module).values())]
    values += [entry for table in values if isinstance(table, dict) for entry in table.values()]
    return list({id(value): value for value in values if isinstance(value, Op)}.values())


def _filled(x: Batched) -> int:
    sizes: Any = 1
    for size in x.sizes:
        sizes = sizes * getattr(size, "values", size)
    return int(sizes.sum())


@contextlib.contextmanager
def counting() -> Iterator[Counts]:
    """Count what is launched: every op's batching rule and vjp and every compiled block is wrapped meanwhile, and the
    trace's own count read."""
    counts = Counts()
    depth = [0]  # a rule that calls another's is one launch

    def wrapped_rule(rule: Callable[..., Any]) -> Callable[..., Any]:
        def counted(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Any:
            if not depth[0]:
                counts.operands(operands)
            depth[0] += 1
            try:
                return rule(op, operands, params)
            finally:
                depth[0] -= 1

        return counted

    def wrapped_vjp(vjp: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            counts.backward += 1
            return vjp(*args)

        return counted

    def counted_block(form: LaunchCode, operands: Sequence[Any]) -> tuple[Any, ...]:
        counts.groups.append(max([len(x) for x in operands if getattr(x, "ndim", 0)], default=1))
        return forward(form, operands)

    launched, forward = Stats.launched, LaunchCode.forward

    def counted_launch(stats: Stats, name: str, signature: str, calls: int, *rest: Any) -> None:
        counts.lazy_groups.append(calls)
        launched(stats, name, signature, calls, *rest)

    ops = [(op, op.rule, op.vjp) for op in _declared_ops()]
    try:
        for op, rule, vjp in ops:
            op.rule = rule and wrapped_rule(rule)
            op.vjp = vjp and wrapped_vjp(vjp)
        Stats.launched = counted_launch  # type: ignore[method-assign,assignment]
        LaunchCode.forward = counted_block  # type: ignore[method-assign,assignment]
        yield counts
    finally:
        Stats.launched, LaunchCode.forward = launched, forward  # type: ignore[method-assign]
        for op, rule, vjp in ops:
            op.rule, op.vjp = rule, vjp


def count(run: Callable[[], Any]) -> dict[str, Any]:
    """Launches, group sizes and padding of one run."""
    with counting() as counts:
        run()
    return counts.summary()


def shares(run: Callable[[], Any], seconds: float) -> dict[str, float]:
    """The part of the time that each phase takes, over runs that fill `seconds`.

    On the main thread only, as signals are.
    """
    seen: Counter[str] = Counter()
    looking = False

    def look(number: int, frame: FrameType | None) -> None:
        nonlocal looking
        if looking:  # on a busy machine a look may last until the next one is due
            return
        looking = True
        seen[phase(frame)] += 1
        looking = False

    before = signal.signal(signal.SIGALRM, look)
    try:
        signal.setitimer(signal.ITIMER_REAL, _EVERY, _EVERY)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            run()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    total = sum(seen.values())
    return {name: seen[name] / total for name in PHASES} if total else {}


def phase(frame: FrameType | None) -> str:
    """What a stack is at.

    Backward if the tape is walking back anywhere in it. Else what the innermost module that has a phase says, which
    for an op or a kernel holds only while a batch is being computed: a call that is merely recorded is tracing.
    """
    innermost: str | None = None
    computing = False
    while frame is not None:
        module, function = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if module == "autobatch.autodiff.tape" and function == "backward":
            return "backward"
        filename = frame.f_code.co_filename
        if _BLOCK in filename:
            innermost = innermost or _phase_of_line(linecache.getline(filename, frame.f_lineno))
        elif module.startswith("autobatch."):
            innermost = innermost or _phase_of(module.removeprefix("autobatch."))
            computing = computing or module.startswith(_LAUNCHING) or function in _COMPUTING
        elif module.startswith("benchmarks.workloads"):
            innermost = innermost or "tracing"  # the user's own code
        frame = frame.f_back
    return "tracing" if innermost in _OF_OPS and not computing else innermost or "other"


def _phase_of_line(line: str) -> str:
    """What a line of a generated block does."""
    return next((name for word, name in _PHASE_OF_CALL.items() if word in line), "elementwise")


def _phase_of(module: str) -> str | None:
    return next((name for start, name in _PHASE_OF if module.startswith(start)), None)
