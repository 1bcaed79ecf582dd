"""Recorded calls of any length: one signature, whose lengths are read from the operands at the launch.

The sizes of such a call are numbers, or `Affine` in the lengths that it depends on. At the launch, the calls run by the
batching rules for ragged data, like calls that differ in sizes (`ragged`).
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import SHORTEST, Affine, Aval, aval_of, sizes_at, unknown_lengths
from autobatch.core.batched import Batched, Lengths, Size
from autobatch.errors import ShapeError, Unsupported
from autobatch.lazy.grouping.buffers import ragged_rows
from autobatch.lazy.grouping.ragged import Sizes, run_ragged, run_steps

LONGEST = 512  # of the lengths recorded this way, from `SHORTEST` on


class AnyLength:
    """What a signature with unknown sizes can do.

    Args:
        sig: the signature.
    """

    __slots__ = ("_is_checked", "_sig")

    def __init__(self, sig: Any) -> None:
        self._sig = sig
        self._is_checked = False

    def run(
        self, operands: Sequence[Any], sizes_of: "SizesByLength", shared: Sequence[Any], fallbacks: Counter[str]
    ) -> list[Any]:
        """The results of a group of calls, one for each output: `Batched`, or one value for all.

        Args:
            operands: the per-example operands; shared: for each input of a block, the shared value or None.

        Raises:
            Unsupported: some op has no rule for such operands.
        """
        sig = self._sig
        if sig.block is None:
            return [run_ragged(sig.op, operands, [sig.params], [sig.out], sizes_of)]
        given = iter(operands)
        inputs = [next(given) if value is None else value for value in shared]
        return run_steps([sig.block.program], inputs, sizes_of, fallbacks)

    def check(self) -> None:
        """Check the results' sizes by running calls of several lengths on dummy values.

        Raises:
            Exception: of any kind, if such calls cannot run together.
        """
        if self._is_checked:
            return
        sig, sizes_of = self._sig, SizesByLength({})
        names = sorted(unknown_lengths(tuple([aval.shape for aval in sig.avals])))
        points = [{name: n + place for place, name in enumerate(names)} for n in (SHORTEST, 7, LONGEST + 1)]
        operands = []
        for aval in sig.avals:
            values = [aval_of(sizes_at(aval.shape, point), *aval.bits).dummy() for point in points]
            if aval.shared:
                operands.append(aval.key.dummy())
                continue
            sizes_of.add_operand(aval, [Lengths([value.shape[axis] for value in values]) for axis in range(aval.ndim)])
            sizes = sizes_of([aval])
            data = ragged_rows(values, sizes).data if Lengths in map(type, sizes) else np.stack(values)
            operands.append(Batched(data, sizes))
        shared: list[Any] = []
        if sig.block is not None:
            if sig.block.views or sig.block.program.skeleton is None:  # writes into views need exact shapes
                raise Unsupported
            kinds = zip(sig.block.program.inputs, sig.block.shared, strict=True)
            shared = [None if value is None else aval.key.dummy() for aval, value in kinds]
        outs = [sig.out] if sig.block is None else sig.block.outs
        for out, aval in zip(self.run(operands, sizes_of, shared, Counter()), outs, strict=True):
            for size, expected in zip(out.sizes, aval.shape, strict=True):
                found = size.values.tolist() if isinstance(size, Lengths) else [size] * len(points)
                if found != [sizes_at(expected, point) for point in points]:
                    raise Unsupported
        self._is_checked = True


class SizesByLength(Sizes):
    """The sizes of the values of a group of calls of any length.

    Args:
        known: as for `Sizes`.
    """

    __slots__ = ("_found",)

    def __init__(self, known: dict[bytes, Lengths]) -> None:
        super().__init__(np.zeros(0, np.int64), known)
        self._found: dict[Affine, np.ndarray] = {}

    def add_operand(self, aval: Aval, sizes: Sequence[Size], n: int = 3) -> None:
        """Add the sizes of an operand of the n calls; they define lengths, or must match known ones.

        Raises:
            ShapeError: they contradict those of an earlier operand.
        """
        for own, size in zip(aval.shape, sizes, strict=True):
            values = size.values if isinstance(size, Lengths) else np.full(n, size, np.int64)
            expected: Any = self._found.setdefault(own, values) if type(own) is Affine else own
            if not (values == expected).all():
                raise ShapeError(f"operands of lengths {values.tolist()}, expected {expected}")

    def constant(self, values: Sequence[Any]) -> Any:
        (value,) = values
        return Batched(self._values(value), (), int) if type(value) is Affine else value

    def __call__(self, avals: Sequence[Any]) -> tuple[Size, ...]:
        return tuple([self._size([size]) for size in avals[0].shape])

    def _size(self, column: Sequence[Any]) -> Size:
        (size,) = column
        if type(size) is not Affine:
            return size
        values = self._values(size)
        return self._known.setdefault(values.tobytes(), Lengths(values))

    def _values(self, size: Affine) -> np.ndarray:
        """The size in each call.

        Raises:
            Unsupported: it does not follow from the sizes of the operands.
        """
        found = self._found.get(size)
        if found is None:
            found = self._found[size] = _from_sizes(size, self._found)
        return found


def _from_sizes(size: Affine, known: dict[Affine, np.ndarray]) -> np.ndarray:
    """Compute a size from known ones: a multiple of one, or a sum of two, plus a number."""
    for other, values in known.items():
        name, own = next(iter(other.factors.items()))
        factor = size.factors.get(name, 0) // own
        rest = size - other * factor
        if type(rest) is int:
            return factor * values + rest
    for one, first in known.items():
        for other, second in known.items():
            rest = size - one - other
            if type(rest) is int:
                return first + second + rest
    raise Unsupported
