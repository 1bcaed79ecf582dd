"""Batched code with its clusters as kernels, as one Python function."""

import re
from collections.abc import Callable
from typing import Any

from autobatch.fusion.code import Code, assemble_p, is_covered
from autobatch.fusion.emit import Writer, executed
from autobatch.fusion.kernel_source import KernelSource
from autobatch.fusion.kernels import Kernel, kernel_of
from autobatch.fusion.plan import Cluster, Plan

__all__ = ["Fused", "fuse"]

_VARIABLE = re.compile(r"\bv\d+\b")


class Fused:
    """Code whose clusters are kernels, once they are there.

    Attributes:
        kernels: what it needs.
        text: its source.
    """

    __slots__ = ("_names", "kernels", "text")

    def __init__(self, text: str, names: dict[str, Any], kernels: list[Kernel]) -> None:
        self.text = text
        self._names = names
        self.kernels = kernels

    @property
    def failed(self) -> bool:
        return any(kernel.failed for kernel in self.kernels)

    def ready(self) -> Callable[..., Any] | None:
        """The function; None as long as a kernel is missing, which is then asked for."""
        found = [kernel.look() for kernel in self.kernels]  # all of them, so that all are asked for
        if not all(found):
            return None
        names = dict(self._names)
        for number, kernel in enumerate(self.kernels):
            names[f"kernel{number}"] = kernel.entry
            for lanes, name in zip(kernel.lanes, ("wide", "masks", "tail", "tail_masks"), strict=True):
                names[f"{name}{number}"] = lanes
        return executed(self.text, names)


def fuse(code: Code, *, checked: bool) -> Fused | None:
    """The code with kernels; None if nothing in it makes one.

    Args:
        checked: where a kernel gave infinity or NaN, of which NumPy might have complained, the function returns None;
            as it does where an operand has another shape than the code was traced for.
    """
    plan = Plan(code)
    return _FusedWriter(code, plan, checked).fused() if plan.clusters else None


class _FusedWriter(Writer):
    """Writes what the outputs need, each step or kernel when it is first needed."""

    def __init__(self, code: Code, plan: Plan, checked: bool) -> None:
        super().__init__(code)
        self.plan = plan
        self.checked = checked
        self.there: set[int] = set(code.inputs) | set(code.constants)
        self.done: set[int] = set()
        self.kernels: list[Kernel] = []
        self.contiguous: set[int] = set()

    def fused(self) -> Fused:
        """Everything, written."""
        self.start()
        for slot in self.code.outputs:
            if slot is not None:
                self._need(slot)
        self._let_go()
        return Fused(self.finish(), self.names, self.kernels)

    def _let_go(self) -> None:
        """Drop what no later line reads, so that its memory serves again."""
        returned = {f"v{slot}" for slot in self.code.outputs}
        last: dict[str, int] = {}
        for at, line in enumerate(self.lines):
            for name in _VARIABLE.findall(line):
                last[name] = at
        dying: dict[int, list[str]] = {}
        for name, at in last.items():
            if name not in returned and name not in self.names:
                dying.setdefault(at, []).append(name)
        lines: list[str] = []
        for at, line in enumerate(self.lines):
            lines.append(line)
            if at in dying:
                lines.append(f"del {', '.join(dying[at])}")
        self.lines = lines

    def _need(self, slot: int) -> None:
        """Write what makes a slot, unless it is there."""
        if slot in self.there:
            return
        plan = self.plan
        cluster = plan.cluster_of.get(slot)
        step = plan.made[slot]
        if cluster is not None:
            self._run(cluster)
        elif slot in plan.written:
            for target in self._writers(slot):
                self._run(target)
        else:
            for arg in step.args:
                self._need(arg)
            self.lines.append(self.line(None, step))
        self.there.add(slot)

    def _writers(self, slot: int) -> list[Cluster]:
        return [
            cluster
            for cluster in self.plan.clusters
            if any(
                target == slot
                for places in (cluster.stores, cluster.sums)
                for at in places.values()
                for target, _ in at
            )
        ]

    def _allocate(self, slot: int, make: str) -> None:
        """An array for kernels to write to, once."""
        if slot not in self.contiguous:
            self.lines.append(self.allocation(slot, make))
            self.contiguous.add(slot)

    def _run(self, cluster: Cluster) -> None:
        """Write the call of a cluster's kernel, and before it what its operands need."""
        if id(cluster) in self.done:
            return
        self.done.add(id(cluster))
        source = KernelSource(self.plan, cluster, checked=self.checked)
        for what, slot in source.arguments:
            if what in ("array", "number"):
                self._need(slot)
        number = len(self.kernels)
        self.kernels.append(kernel_of(source.text))
        arguments = []
        for what, slot in source.arguments:
            if what == "number":
                arguments.append(f"float(v{slot})")
                continue
            if what == "array":
                if slot not in self.contiguous:
                    self.lines.append(f"v{slot} = contiguous(v{slot})")
                    self.contiguous.add(slot)
            else:
                self._allocate(slot, "zeros" if what == "sum" or not self._is_filled(slot) else "empty")
                if slot in self.plan.cluster_of:
                    self.there.add(slot)
            arguments.append(f"v{slot}")
        call = ", ".join([*(f"{name}{number}" for name in ("wide", "masks", "tail", "tail_masks")), "n", *arguments])
        self.lines.append(f"if kernel{number}({call}): return None")

    def _is_filled(self, slot: int) -> bool:
        """Whether kernels write every element of an array."""
        step = self.plan.made[slot]
        return step.op is not assemble_p or is_covered(step.params["places"], step.params["shape"])
