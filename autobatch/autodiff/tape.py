"""The tape: the ops that ran on differentiated values, in order; and `backward`, which walks it in reverse.

A value on a tape is a `TapeArray`. What it holds may itself be an array of an interpreter opened before (a batch, a
lazy array, an outer tape), so gradients nest with everything else.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.cotangent import total
from autobatch.core.op import Op, next_level
from autobatch.errors import ForcedValueError
from autobatch.ops.face import ArrayFace

__all__ = ["Tape", "TapeArray"]


class _Node:
    __slots__ = ("op", "out", "args", "params", "parents")

    def __init__(self, op: Op, out: Any, args: Sequence[Any], params: dict[str, Any], parents: list[tuple[int, int]]):
        self.op = op
        self.out = out
        self.args = args
        self.params = params
        self.parents = parents


class Tape:
    """Ops in the order they ran. Node i's parents come before it.

    >>> tape = Tape()
    >>> x = tape.leaf(np.array([1.0, 2.0]))
    >>> y = x * x + x
    >>> tape.backward(y, np.ones(2), [x])
    [array([3., 5.])]
    """

    __slots__ = ("level", "nodes")

    def __init__(self) -> None:
        self.level = next_level()
        self.nodes: list[_Node | None] = []

    def leaf(self, value: Any) -> "TapeArray":
        """A differentiated input."""
        self.nodes.append(None)
        return TapeArray(self, len(self.nodes) - 1, value)

    def record(
        self, op: Op, out: Any, args: Sequence[Any], params: dict[str, Any], parents: list[tuple[int, int]]
    ) -> "TapeArray":
        self.nodes.append(_Node(op, out, args, params, parents))
        return TapeArray(self, len(self.nodes) - 1, out)

    def backward(self, output: "TapeArray", ct: Any, leaves: Sequence["TapeArray"]) -> list[Any]:
        """The cotangent of each leaf, given that of `output`; None for a leaf that does not influence it.

        Contributions to a value are collected and summed once, when the walk reaches it.
        """
        pending: list[list[Any] | None] = [None] * (output.index + 1)
        pending[output.index] = [ct]
        wanted = {leaf.index for leaf in leaves}
        for index in range(output.index, -1, -1):
            parts, node = pending[index], self.nodes[index]
            if parts is None or node is None:
                continue
            if index not in wanted:
                pending[index] = None
            out_ct = total(parts)
            if hasattr(out_ct, "to_dense"):
                out_ct = out_ct.to_dense()
            for position, parent in node.parents:
                part = node.op.vjp(position, out_ct, node.out, node.args, node.params)  # type: ignore[misc]
                if part is None:
                    continue
                slot = pending[parent]
                if slot is None:
                    pending[parent] = [part]
                else:
                    slot.append(part)
        return [
            total(parts) if leaf.index <= output.index and (parts := pending[leaf.index]) is not None else None
            for leaf in leaves
        ]


class TapeArray(ArrayFace):
    """An array on a tape. Behaves as the array it holds; every op on it is recorded."""

    __slots__ = ("tape", "index", "value", "_ab_rank")

    def __init__(self, tape: Tape, index: int, value: Any) -> None:
        self.tape = tape
        self.index = index
        self.value = value
        self._ab_rank = tape.level

    def _ab_apply(self, op: Op, args: Sequence[Any], params: dict[str, Any]) -> Any:
        rank = self._ab_rank
        values: list[Any] = []
        parents: list[tuple[int, int]] = []
        for position, arg in enumerate(args):
            if type(arg) is TapeArray and arg._ab_rank == rank:
                parents.append((position, arg.index))
                arg = arg.value
            values.append(arg)
        out = op(*values, **params)
        if op.vjp is None or np.dtype(out.dtype).kind not in "fc":
            return out
        return self.tape.record(op, out, values, params, parents)

    @property
    def shape(self) -> Any:
        return self.value.shape

    @property
    def ndim(self) -> int:
        return self.value.ndim

    @property
    def dtype(self) -> np.dtype:
        return self.value.dtype

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise ForcedValueError(
            f"a plain array was needed from a value that carries a gradient (shape {self.shape}, {self.dtype}); "
            "use NumPy functions on it as it is, or return it as auxiliary output (has_aux=True)"
        )

    def __repr__(self) -> str:
        return f"TapeArray({self.value!r})"
