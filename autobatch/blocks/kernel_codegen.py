"""Fused code: writes each cluster of batched code as a kernel, and one Python function that calls the kernels."""

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.blocks.fusion import Cluster, Plan, SlotRead, width_of
from autobatch.blocks.kernel_cache import CachedKernel, kernel_of
from autobatch.blocks.numpy_codegen import Code, NumpyWriter, executed

_LANES = {"f4": 16, "f8": 8}
_HEAD = '''"""One pass over the examples, for each of them one over its row."""

from numba.core import types

from autobatch.kernels.jit import jit
from autobatch.kernels.simd_rows import VectorLayout, add, greater, lesser, load, put
from autobatch.kernels.vector_math import {}

'''
_OF_ROWS = frozenset(("add", "greater", "lesser"))
_CALLED = re.compile(r"(\w+)\(")


class KernelSource:
    """The source of a kernel, and its arguments.

    Args:
        checked: the kernel returns 1 if a result is infinite or NaN, about which NumPy might have warned.

    It returns 2, and does nothing, if an array does not have the shape that the kernel was written for; else 0.

    Attributes:
        text: the source of a module with `kernel`, its first arguments `LANES`, and its `SIGNATURE`.
        arguments: (kind, slot) of each argument after the lanes and the number of examples; kind is "array", "number"
            or "out" (an array to fill).
    """

    def __init__(self, plan: Plan, cluster: Cluster, *, checked: bool) -> None:
        self.plan = plan
        self.cluster = cluster
        self.checked = checked
        self.code = cluster.dtype.str[1:]
        self.arguments: list[tuple[str, int]] = []
        self._names: dict[tuple[str, int], str] = {}
        self._values: dict[Any, str] = {}
        self._lines: list[str] = []
        self._bounds: dict[str, float] = {}
        self._functions = {"any_nonfinite", "fill"}
        self.text = self._write()

    def _write(self) -> str:
        lanes, width = _LANES[self.code], self.cluster.width
        full, rest = width - width % lanes, width % lanes
        body = ["bad = 0", "for i in range(n):"]
        if full:
            body.append(f"    for j in range(0, {full}, {lanes}):" if full > lanes else "    j = 0")
            body += ["    " * (2 if full > lanes else 1) + line for line in self._body("wide", "masks")]
        if rest:
            body.append(f"    j = {full}")
            body += ["    " + line for line in self._body("tail", "tail_masks")]
        addresses = [f"p{name[1:]} = {name}.ctypes.data" for (what, _), name in self._names.items() if what != "number"]
        names = ", ".join(self._names.values())
        constants = [
            f'WIDE, MASKS = VectorLayout("{self.code}", {lanes}), VectorLayout("u1", {lanes})',
            f'TAIL, TAIL_MASKS = VectorLayout("{self.code}", {rest or 1}), VectorLayout("u1", {rest or 1})',
            "LANES = WIDE, MASKS, TAIL, TAIL_MASKS",
        ]
        kinds = ["*(lanes._numba_type_ for lanes in LANES)", "types.int64", *map(self._numba_type, self._names)]
        lines = [
            *constants,
            f"SIGNATURE = types.int64({', '.join(kinds)})",
            "",
            "",
            "@jit",
            f"def kernel(wide, masks, tail, tail_masks, n, {names}):",
            *(f"    {line}" for line in [*self._shape_checks(), *addresses, *body]),
            "    return bad",
        ]
        return _HEAD.format(", ".join(sorted(self._functions - _OF_ROWS))) + "\n".join(lines) + "\n"

    def _shape_checks(self) -> list[str]:
        """Checks of the arrays' shapes: the kernel reads as far as the shapes that it was written for say."""
        wrong = []
        for (what, slot), name in self._names.items():
            if what == "array":
                for axis, size in enumerate(self.plan.code.kinds[slot].shape):
                    wrong.append(f"{name}.shape[{axis}] != {size if type(size) is int else 'n'}")
        return [f"if {' or '.join(wrong)}:", "    return 2"]

    def _numba_type(self, argument: tuple[str, int]) -> str:
        what, slot = argument
        if what == "number":
            return "types.float64"
        aval = self.plan.code.kinds[slot]
        return f'types.Array(types.{"boolean" if aval.dtype.kind == "b" else aval.dtype.name}, {len(aval.shape)}, "C")'

    def _argument(self, what: str, slot: int) -> str:
        """The name of an argument, added if it is new."""
        name = self._names.get((what, slot))
        if name is None:
            name = self._names[what, slot] = f"x{len(self._names)}"
            self.arguments.append((what, slot))
        return name

    def _address(self, what: str, slot: int) -> str:
        return "p" + self._argument(what, slot)[1:]

    def _body(self, lanes: str, masks: str) -> list[str]:
        """The lines for one vector of each row."""
        self._values, self._lines, self._bounds = {}, [], {}
        for slot in self.cluster.stores:
            self._value(slot, lanes, masks)
        for slot in self.cluster.stores:
            row = width_of(self.plan.code.kinds[slot]) * self.plan.code.kinds[slot].dtype.itemsize
            self._lines.append(f"put({self._address('out', slot)} + i * {row}, j, {self._values[slot]})")
        return self._lines

    def _let(self, key: Any, text: str, bound: float) -> str:
        name = self._values[key] = f"v{len(self._values)}"
        self._lines.append(f"{name} = {text}")
        self._bounds[name] = bound
        return name

    def _value(self, slot: int, lanes: str, masks: str) -> str:
        """The name of the variable for a result; computes it unless it exists."""
        found = self._values.get(slot)
        if found is not None:
            return found
        rule, reads = self.plan.rules[slot], self.plan.reads[slot]
        args = [
            self._operand(read, lanes if position not in rule.masks else masks, lanes, masks)
            for position, read in enumerate(reads)
        ]
        bound = rule.bound(*(self._bounds[arg] for arg in args)) if not rule.to_mask else math.inf
        self._functions.update(_CALLED.findall(rule.text))
        name = self._let(slot, rule.text.format(*args, lanes=lanes), bound)
        if self.checked and not rule.quiet and bound == math.inf and not self._passed_on(slot):
            self._lines.append(f"bad |= any_nonfinite({name})")
        return name

    def _passed_on(self, slot: int) -> bool:
        """True if a non-finite result makes a later result non-finite, which is then checked instead."""
        readers = [each.out for each in self.plan.readers[slot] if self.plan.cluster_of.get(each.out) is self.cluster]
        return any(self.plan.rules[reader].keeps and not self.plan.rules[reader].quiet for reader in readers)

    def _operand(self, read: SlotRead, own: str, lanes: str, masks: str) -> str:
        slot, kinds = read.slot, self.plan.code.kinds
        if self.plan.cluster_of.get(slot) is self.cluster and self.plan.is_inner(
            read, self.cluster.width, self.cluster.dtype
        ):
            return self._value(slot, lanes, masks)
        key = read.mode, slot, read.offset, own
        if key in self._values:
            return self._values[key]
        if read.mode != "number":
            row = f" + i * {width_of(kinds[slot]) * kinds[slot].dtype.itemsize}" if read.mode == "row" else ""
            column = f"j + {read.offset}" if read.offset else "j"
            return self._let(key, f"load({own}, {self._address('array', slot)}{row}, {column}, 0)", math.inf)
        value = self.plan.code.constants.get(slot)
        if value is not None and np.isfinite(float(value)):
            return self._let(key, f"fill({own}, {float(value)!r})", abs(float(value)))
        return self._let(key, f"fill({own}, {self._argument('number', slot)})", math.inf)


@dataclasses.dataclass(slots=True, eq=False)
class Fused:
    """Code whose clusters run as kernels, once these are available.

    Attributes:
        text: its source; names: the values of the names in it, other than those of kernels.
        kernels: the kernels that it calls.
    """

    text: str
    names: dict[str, Any]
    kernels: list[CachedKernel]

    def ready(self) -> Callable[..., Any] | None:
        """The function; None while a kernel is missing, which is then requested."""
        found = [kernel.poll() for kernel in self.kernels]  # look at all of them, so that all are requested
        if not all(found):
            return None
        names = dict(self.names)
        for number, kernel in enumerate(self.kernels):
            names[f"kernel{number}"] = kernel.entry
            for lanes, name in zip(kernel.lanes, ("wide", "masks", "tail", "tail_masks"), strict=True):
                names[f"{name}{number}"] = lanes
        return executed(self.text, names)


def fuse(code: Code, *, checked: bool) -> Fused | None:
    """The code with kernels; None if it has no cluster to run as one.

    Args:
        checked: the function returns None if a kernel's result is infinite or NaN, about which NumPy might have warned;
            as it does if an operand has another shape than the code was traced for.
    """
    plan = Plan(code)
    return _FusedWriter(code, plan, checked).fused() if plan.clusters else None


class _FusedWriter(NumpyWriter):
    """Writes the code for the outputs: each step or kernel when it is first needed."""

    def __init__(self, code: Code, plan: Plan, checked: bool) -> None:
        super().__init__(code)
        self.plan = plan
        self.checked = checked
        self.there: set[int] = set(code.inputs) | set(code.constants)
        self.done: set[int] = set()
        self.kernels: list[CachedKernel] = []
        self.contiguous = set(code.constants)

    def fused(self) -> Fused:
        """Write all code."""
        self.start()
        for slot in self.code.outputs:
            if slot is not None:
                self._need(slot)
        return Fused(self.finish(), self.names, self.kernels)

    def _need(self, slot: int) -> None:
        """Write the code that computes a slot, unless it is already there."""
        if slot in self.there:
            return
        plan = self.plan
        cluster = plan.cluster_of.get(slot)
        step = plan.made[slot]
        if cluster is not None:
            self._run(cluster)
        else:
            for arg in step.args:
                self._need(arg)
            self.emit_step(step)
        self.there.add(slot)

    def _run(self, cluster: Cluster) -> None:
        """Write the call of a cluster's kernel, after the code of its operands."""
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
            if slot not in self.contiguous:
                made = f"v{slot} = contiguous(v{slot})"
                self.emit(made if what == "array" else self.allocation(slot, "empty"), [slot])
                self.contiguous.add(slot)
            if what == "out":
                self.there.add(slot)
            arguments.append(f"v{slot}")
        call = ", ".join([*(f"{name}{number}" for name in ("wide", "masks", "tail", "tail_masks")), "n", *arguments])
        self.emit(f"if kernel{number}({call}): return None", [slot for _, slot in source.arguments])
