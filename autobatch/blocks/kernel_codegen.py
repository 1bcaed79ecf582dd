"""Fused code: elementwise steps of batched code as kernels, and one Python function that calls the kernels.

Elementwise steps form clusters: all steps of a cluster have the same width (elements per example) and dtype, and no
step of another kind lies between two of them, which the steps' levels ensure (level: the number of other steps that
must come before). A read of a wide array may be a range of each row.
"""

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.blocks.batched_program import B
from autobatch.blocks.kernel_cache import CachedKernel, kernel_of
from autobatch.blocks.numpy_codegen import Code, NumpyWriter, executed
from autobatch.blocks.program import Step
from autobatch.core.abstract_eval import EXAMPLES, Aval, sizes_at
from autobatch.ops.numpy.indexing import getitem_p
from autobatch.ops.rules.sizes import reshape_p

_LANES = {"f4": 16, "f8": 8}
_HEAD = '''"""One pass over the examples, for each of them one over its row."""

from numba.core import types

from autobatch.kernels.jit import jit
from autobatch.kernels.simd_rows import VectorLayout, add, greater, lesser, load, put
from autobatch.kernels.vector_math import {}

'''
_OF_ROWS = frozenset(("add", "greater", "lesser"))
_CALLED = re.compile(r"(\w+)\(")


def has_batch_axis(kind: Aval) -> bool:
    """True if the first dimension is the batch axis, and no other depends on the batch size."""
    if not kind.shape or kind.shape[0] != B:
        return False
    return all(type(n) is int for n in kind.shape[1:])


def width_of(kind: Aval) -> int:
    """The number of elements per example."""
    return int(np.prod(kind.shape[1:], dtype=np.int64))


@dataclasses.dataclass(slots=True, eq=False)
class SlotRead:
    """An operand of a step in a cluster.

    Attributes:
        slot: the array that is read; offset: the first element that is read in each row.
        mode: "row" (a row for each example), "shared" (one row for all), "number" (a number, not an array).
    """

    slot: int
    offset: int = 0
    mode: str = "row"


@dataclasses.dataclass(slots=True, eq=False)
class Cluster:
    """Steps that run as one kernel.

    Attributes:
        steps: in execution order.
        stores: the results that are written to arrays.
    """

    width: int
    dtype: np.dtype
    steps: list[Step] = dataclasses.field(default_factory=list)
    stores: list[int] = dataclasses.field(default_factory=list)


class Plan:
    """The clusters of some code, and facts about its steps.

    Attributes:
        made: {slot: step}.
        reads: {slot of a step in a cluster: its operands}.
        rules: {slot of such a step: its rule}; sizes: {slot of such a step: (width, dtype) of its cluster}.
        clusters: in no order.
        cluster_of: {slot: cluster}.
    """

    def __init__(self, code: Code) -> None:
        self.code = code
        self.made = {step.out: step for step in code.steps}
        self.readers: dict[int, list[Step]] = {slot: [] for slot in code.kinds}
        for step in code.steps:
            for slot in set(step.args):
                self.readers[slot].append(step)
        self.returned = {slot for slot in code.outputs if slot is not None}
        self.views: dict[int, tuple[int, int]] = {}
        self.reads: dict[int, list[SlotRead]] = {}
        self.rules: dict[int, Rule] = {}
        self.sizes: dict[int, tuple[int, np.dtype]] = {}
        self.clusters: list[Cluster] = []
        self.cluster_of: dict[int, Cluster] = {}
        for step in code.steps:
            self._find_view(step)
            self._find_rule(step)
        self._form_clusters()
        for cluster in self.clusters:
            cluster.stores += [step.out for step in cluster.steps if self._is_stored(step.out, cluster)]

    def root(self, slot: int) -> tuple[int, int]:
        """The array of which a slot is a range of each row, and the first element of the range."""
        offset = 0
        while slot in self.views:
            slot, first = self.views[slot]
            offset += first
        return slot, offset

    def _find_view(self, step: Step) -> None:
        """Note a step that reads one contiguous range of each example's row."""
        kinds, params = self.code.kinds, step.params
        if step.op not in (getitem_p, reshape_p) or not has_batch_axis(kinds[step.out]):
            return
        source = kinds[step.args[0]]
        if not has_batch_axis(source) or any(slot not in self.code.constants for slot in step.args[1:]):
            return
        examples = 3  # in an array of positions, of which the step shows which it reads
        shape = (examples, *source.shape[1:])
        positions = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)
        params = {name: sizes_at(value, {EXAMPLES: examples}) for name, value in params.items()}
        taken = step.op.impl(positions, *(self.code.constants[slot] for slot in step.args[1:]), **params)
        width = width_of(kinds[step.out])
        if taken.size != examples * width or not width:
            return
        taken = taken.reshape(examples, width)
        first = int(taken[0, 0])
        rows = np.arange(examples)[:, None] * width_of(source) + first + np.arange(width)
        if np.array_equal(taken, rows):
            self.views[step.out] = (step.args[0], first)

    def _find_rule(self, step: Step) -> None:
        kind = self.code.kinds[step.out]
        # Shorter rows leave most lanes of a vector register empty.
        if not has_batch_axis(kind) or width_of(kind) < 4 or step.op.kind != "elementwise":
            return
        dtype = self._computed_in(step)
        rule = None if dtype is None or step.params or step.op.fused is None else Rule(**step.op.fused)
        rule = rule if rule is None or rule.exact or dtype == np.float32 else None
        if rule is None or dtype is None or rule.to_mask != (kind.dtype.kind == "b"):
            return
        reads = []
        for position, slot in enumerate(step.args):
            read = self._read(slot, kind, np.dtype(bool) if position in rule.masks else dtype)
            if read is None:
                return
            reads.append(read)
        if all(read.mode != "row" for read in reads):
            return
        self.rules[step.out], self.reads[step.out], self.sizes[step.out] = rule, reads, (width_of(kind), dtype)

    def _computed_in(self, step: Step) -> np.dtype | None:
        """The one dtype of a step's float arrays; if all are masks, the dtype in which they were computed."""
        kinds = self.code.kinds
        found = {kinds[slot].dtype for slot in (*step.args, step.out) if kinds[slot].weak is None}
        floats = {dtype for dtype in found if dtype.kind == "f"}
        if any(dtype.kind not in "fb" for dtype in found) or len(floats) > 1:
            return None
        if not floats:
            floats = {self.sizes[root][1] for slot in step.args if (root := self.root(slot)[0]) in self.sizes}
        one = next(iter(floats)) if len(floats) == 1 else None
        return one if one in (np.float32, np.float64) else None

    def _read(self, slot: int, like: Aval, dtype: np.dtype) -> SlotRead | None:
        kind = self.code.kinds[slot]
        if kind.weak is not None:
            return SlotRead(slot, mode="number") if kind.weak in (int, float, bool) and dtype.kind == "f" else None
        if kind.dtype != dtype:
            return None
        if has_batch_axis(kind):
            return SlotRead(*self.root(slot)) if kind.shape == like.shape else None
        if dtype.kind == "b":
            return None
        if not kind.shape:
            return SlotRead(slot, mode="number")
        return SlotRead(slot, mode="shared") if kind.shape == like.shape[1:] else None

    def is_inner(self, read: SlotRead, reader: int) -> bool:
        """True if an operand of a step in a cluster is a whole result of a step that the same cluster may have."""
        return read.mode == "row" and read.offset == 0 and self.sizes.get(read.slot) == self.sizes[reader]

    def _is_read_inside(self, slot: int, reader: int) -> bool:
        """True if a step is in a cluster, and each of its operands that a slot is may be inner."""
        return reader in self.sizes and all(
            self.is_inner(read, reader) for read in self.reads[reader] if read.slot == slot
        )

    def _form_clusters(self) -> None:
        levels = self._levels()
        groups: dict[Any, Cluster] = {}
        for step in self.code.steps:
            if (size := self.sizes.get(step.out)) is not None:
                groups.setdefault((levels[step.out], *size), Cluster(*size)).steps.append(step)
        self.clusters += [cluster for cluster in groups.values() if len(cluster.steps) > 1]
        self.cluster_of.update((step.out, cluster) for cluster in self.clusters for step in cluster.steps)

    def _levels(self) -> dict[int, int]:
        levels: dict[int, int] = dict.fromkeys([*self.code.inputs, *self.code.constants], 0)
        for step in self.code.steps:
            slot = step.out
            if slot in self.sizes:
                found = [
                    levels[read.slot] + (read.slot in self.made) - self.is_inner(read, slot)
                    for read in self.reads[slot]
                ]
                levels[slot] = max(found, default=0)
            elif slot in self.views:
                levels[slot] = levels[step.args[0]]
            else:
                levels[slot] = max((levels[root] + 1 for root, _ in map(self.root, step.args)), default=0)
        for step in reversed(self.code.steps):  # move each to the level of its readers, so that it need not be stored
            slot, readers = step.out, [reader.out for reader in self.readers[step.out]]
            if slot not in self.sizes or slot in self.returned or not readers:
                continue
            if all(
                self.sizes.get(reader) == self.sizes[slot] and self._is_read_inside(slot, reader) for reader in readers
            ):
                levels[slot] = min(levels[reader] for reader in readers)
        return levels

    def _is_stored(self, slot: int, cluster: Cluster) -> bool:
        """True if a result is read outside its cluster."""
        return slot in self.returned or not all(
            self.cluster_of.get(reader.out) is cluster and self._is_read_inside(slot, reader.out)
            for reader in self.readers[slot]
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """How one op is written in a kernel.

    Attributes:
        text: the expression, in functions of `kernels.vector_math`; `{0}` and `{1}` are the operands, `{lanes}` is
            their layout.
        masks: the positions of operands that are masks.
        to_mask: True if the result is a mask.
        exact: True if it is cheap, and equal to NumPy's result to the bit.
        keeps: True if a non-finite operand makes the result non-finite.
        bound: computes a bound of the result's absolute value from bounds of the operands'.
        quiet: True if NumPy never warns about it, whatever the operands.
    """

    text: str
    masks: tuple[int, ...] = ()
    to_mask: bool = False
    exact: bool = True
    keeps: bool = True
    quiet: bool = False
    bound: Callable[..., float] = lambda *_: math.inf


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
        if self.plan.cluster_of.get(slot) is self.cluster and (read.mode, read.offset) == ("row", 0):
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
