"""Fusion: decides which elementwise steps of batched code run as one kernel.

Elementwise steps form clusters: all steps of a cluster have the same width (elements per example) and dtype, and no
step of another kind lies between two of them, which the steps' levels ensure (level: the number of other steps that
must come before). A read of a wide array may be a range of each row.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.blocks.batched_program import B
from autobatch.blocks.numpy_codegen import Code
from autobatch.blocks.program import Step
from autobatch.core.abstract_eval import EXAMPLES, Aval, sizes_at
from autobatch.core.op import Op
from autobatch.ops.numpy.indexing import getitem_p
from autobatch.ops.rules.sizes import reshape_p


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
        rules: {slot of such a step: its rule}.
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
        self.dtypes: dict[int, np.dtype] = {}
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
        rule = None if dtype is None or step.params else _declared(step.op)
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
        self.rules[step.out], self.reads[step.out], self.dtypes[step.out] = rule, reads, dtype

    def _computed_in(self, step: Step) -> np.dtype | None:
        """The one dtype of a step's float arrays; if all are masks, the dtype in which they were computed."""
        kinds = self.code.kinds
        found = {kinds[slot].dtype for slot in (*step.args, step.out) if kinds[slot].weak is None}
        floats = {dtype for dtype in found if dtype.kind == "f"}
        if any(dtype.kind not in "fb" for dtype in found) or len(floats) > 1:
            return None
        if not floats:
            floats = {self.dtypes[root] for slot in step.args if (root := self.root(slot)[0]) in self.dtypes}
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

    def is_inner(self, read: SlotRead, width: int, dtype: np.dtype) -> bool:
        """True if an operand is a whole result of a cluster with this width and dtype."""
        slot = read.slot
        return (
            read.mode == "row"
            and read.offset == 0
            and slot in self.rules
            and self.dtypes[slot] == dtype
            and width_of(self.code.kinds[slot]) == width
        )

    def _form_clusters(self) -> None:
        levels = self._levels()
        groups: dict[Any, Cluster] = {}
        for step in self.code.steps:
            slot = step.out
            if slot not in self.rules:
                continue
            width, dtype = width_of(self.code.kinds[slot]), self.dtypes[slot]
            key = (levels[slot], width, dtype)
            if key not in groups:
                groups[key] = Cluster(width, dtype)
            groups[key].steps.append(step)
        for cluster in groups.values():
            if len(cluster.steps) < 2:
                continue
            self.clusters.append(cluster)
            for step in cluster.steps:
                self.cluster_of[step.out] = cluster

    def _levels(self) -> dict[int, int]:
        levels: dict[int, int] = dict.fromkeys([*self.code.inputs, *self.code.constants], 0)
        for step in self.code.steps:
            slot = step.out
            if slot in self.rules:
                width, dtype = width_of(self.code.kinds[slot]), self.dtypes[slot]
                found = [
                    levels[read.slot] + (read.slot in self.made) - self.is_inner(read, width, dtype)
                    for read in self.reads[slot]
                ]
                levels[slot] = max(found, default=0)
            elif slot in self.views:
                levels[slot] = levels[step.args[0]]
            else:
                levels[slot] = max((levels[root] + 1 for root, _ in map(self.root, step.args)), default=0)
        for step in reversed(self.code.steps):  # move each to the level of its readers, so that it need not be stored
            slot = step.out
            if slot not in self.rules or slot in self.returned or not self.readers[slot]:
                continue
            width, dtype = width_of(self.code.kinds[slot]), self.dtypes[slot]
            if all(
                reader.out in self.rules
                and width_of(self.code.kinds[reader.out]) == width
                and self.dtypes[reader.out] == dtype
                and all(self.is_inner(read, width, dtype) for read in self.reads[reader.out] if read.slot == slot)
                for reader in self.readers[slot]
            ):
                levels[slot] = min(levels[reader.out] for reader in self.readers[slot])
        return levels

    def _is_stored(self, slot: int, cluster: Cluster) -> bool:
        """True if a result is read outside its cluster."""
        if slot in self.returned:
            return True
        for reader in self.readers[slot]:
            if self.cluster_of.get(reader.out) is not cluster:
                return True
            if reader.out in self.reads and not all(
                self.is_inner(read, cluster.width, cluster.dtype)
                for read in self.reads[reader.out]
                if read.slot == slot
            ):
                return True
        return False


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


@functools.lru_cache(maxsize=256)
def _declared(op: Op) -> Rule | None:
    """How a kernel computes an op; None if it cannot."""
    return None if op.fused is None else Rule(**op.fused)
