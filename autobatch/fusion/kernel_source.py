"""The source of one cluster's kernel: one pass over the examples, a few vector registers at a time."""

import math
from typing import Any

import numpy as np

from autobatch.fusion.plan import Cluster, Plan, Read, width_of

__all__ = ["KernelSource"]

_LANES = {"f4": 16, "f8": 8}
_HEAD = '''"""One pass over the examples, for each of them one over its row."""

from numba.core import types

from autobatch.kernels.jit import jit
from autobatch.kernels.vector_math import (
    absolute, choose, divide, equal, exp, fill, inverse, less, less_equal, logical_and, logical_or, multiply, negative,
    normal_cdf, not_equal, sigmoid, sqrt, subtract, tanh, unbounded,
)
from autobatch.kernels.vectors import Lanes, add, greater, lesser, load, put

'''


class KernelSource:
    """The text of a kernel, and what it is called with.

    Args:
        checked: the kernel returns 1 if a computation gave infinity or NaN, of which NumPy might have complained.

    It returns 2, and does nothing, if an array has another shape than the one it was written for; else 0.

    Attributes:
        text: a module with `kernel`, the lanes that it takes first, and its `SIGNATURE`.
        arguments: for each argument after the lanes and the number of examples (what, slot): "array", "number",
            "out" (an array that is filled) or "sum" (one that is added to).
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
            f'WIDE, MASKS = Lanes("{self.code}", {lanes}), Lanes("u1", {lanes})',
            f'TAIL, TAIL_MASKS = Lanes("{self.code}", {rest or 1}), Lanes("u1", {rest or 1})',
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
        return _HEAD + "\n".join(lines) + "\n"

    def _shape_checks(self) -> list[str]:
        """A kernel reads as far as the shapes that it was written for say, so it looks at those that it is given."""
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
        kind = self.plan.code.kinds[slot]
        return f'types.Array(types.{"boolean" if kind.dtype.kind == "b" else kind.dtype.name}, {len(kind.shape)}, "C")'

    def _argument(self, what: str, slot: int) -> str:
        """The name of an argument."""
        name = self._names.get((what, slot))
        if name is None:
            name = self._names[what, slot] = f"x{len(self._names)}"
            self.arguments.append((what, slot))
        return name

    def _address(self, what: str, slot: int) -> str:
        return "p" + self._argument(what, slot)[1:]

    def _body(self, lanes: str, masks: str) -> list[str]:
        """The lines for one step over a row."""
        self._values, self._lines, self._bounds = {}, [], {}
        stored = self.cluster.stores.keys() | self.cluster.sums.keys()
        for step in self.cluster.steps:
            if step.out in stored:
                self._value(step.out, 0, lanes, masks)
        for slot, places in self.cluster.stores.items():
            size = self.plan.code.kinds[slot].dtype.itemsize
            for target, offset in places:
                row = width_of(self.plan.code.kinds[target]) * size
                address = self._address("out", target)
                self._lines.append(f"put({address} + i * {row}, {_plus('j', offset)}, {self._values[slot, 0]})")
        for slot, places in self.cluster.sums.items():
            for target, offset in places:
                address, at = self._address("sum", target), _plus("j", offset)
                old = f"load({lanes}, {address}, {at}, 0)"
                self._lines.append(f"put({address}, {at}, add({old}, {self._values[slot, 0]}))")
        return self._lines

    def _let(self, key: Any, text: str, bound: float) -> str:
        name = self._values[key] = f"v{len(self._values)}"
        self._lines.append(f"{name} = {text}")
        self._bounds[name] = bound
        return name

    def _value(self, slot: int, offset: int, lanes: str, masks: str) -> str:
        """The name of a result from column j + offset on, computed before if it was."""
        found = self._values.get((slot, offset))
        if found is not None:
            return found
        rule, reads = self.plan.rules[slot], self.plan.reads[slot]
        args = [
            self._operand(read, offset, lanes if position not in rule.masks else masks, lanes, masks)
            for position, read in enumerate(reads)
        ]
        bound = rule.bound(*(self._bounds[arg] for arg in args)) if not rule.to_mask else math.inf
        name = self._let((slot, offset), rule.text(lanes, *args), bound)
        if self.checked and not rule.quiet and bound == math.inf and not self._passed_on(slot):
            self._lines.append(f"bad |= unbounded({name})")
        return name

    def _passed_on(self, slot: int) -> bool:
        """Whether a result that is not finite makes another one so, which is looked at."""
        for reader in self.plan.readers[slot]:
            rule = self.plan.rules.get(reader.out)
            inside = reader in self.cluster.steps or reader.out in self.plan.inlined
            if rule is not None and inside and rule.keeps and not rule.quiet and self._computed(reader.out):
                return True
        return False

    def _computed(self, slot: int) -> bool:
        """Whether the kernel computes all of this step's result that it computes of its operands'."""
        return slot not in self.plan.inlined and self.plan.cluster_of.get(slot) is self.cluster

    def _operand(self, read: Read, offset: int, own: str, lanes: str, masks: str) -> str:
        slot, kinds = read.slot, self.plan.code.kinds
        if read.mode == "row":
            at = read.offset + offset
            inner = slot in self.plan.inlined or (
                self.plan.cluster_of.get(slot) is self.cluster
                and self.plan.is_inner(read, self.cluster.width, self.cluster.dtype)
            )
            if inner:
                return self._value(slot, at, lanes, masks)
            key: Any = ("row", slot, at)
            if key in self._values:
                return self._values[key]
            row = width_of(kinds[slot]) * kinds[slot].dtype.itemsize
            return self._let(
                key, f"load({own}, {self._address('array', slot)} + i * {row}, {_plus('j', at)}, 0)", math.inf
            )
        key = (read.mode, slot, read.offset, own, offset if read.mode == "shared" else 0)
        if key in self._values:
            return self._values[key]
        if read.mode == "shared":
            return self._let(key, f"load({own}, {self._address('array', slot)}, {_plus('j', offset)}, 0)", math.inf)
        if read.mode == "number":
            value = self.plan.code.constants.get(slot)
            if value is not None and np.isfinite(float(value)):
                return self._let(key, f"fill({own}, {float(value)!r})", abs(float(value)))
            return self._let(key, f"fill({own}, {self._argument('number', slot)})", math.inf)
        name = self._argument("array", slot)
        if read.mode == "one":
            return self._let(key, f"fill({own}, {name}{_at_zero(len(kinds[slot].shape))})", math.inf)
        rank, position = len(kinds[slot].shape), read.offset
        index = ["i"]
        for n in reversed(kinds[slot].shape[1:]):
            index.insert(1, str(position % n))
            position //= n
        assert len(index) == rank
        return self._let(key, f"fill({own}, {name}[{', '.join(index)}])", math.inf)


def _plus(name: str, offset: int) -> str:
    return f"{name} + {offset}" if offset else name


def _at_zero(rank: int) -> str:
    return f"[{', '.join(['0'] * rank)}]"
