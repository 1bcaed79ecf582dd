"""One signature for recorded calls of any length, generalised from a few sample lengths.

A program is traced at some `SAMPLES` of the lengths that it depends on. A size that differs between the samples must be
a function of the lengths: `n` itself, a linear function of it, or a sum of two. At the launch the lengths are read from
the operands, and the calls run by the batching rules for ragged data, like calls that differ in sizes (`ragged`).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.blocks.program import Program
from autobatch.core.abstract_eval import SHORTEST, WEAK, Aval, freeze
from autobatch.core.batched import Batched, Lengths, Size
from autobatch.errors import ShapeError, Unsupported
from autobatch.lazy.grouping.buffers import ragged_rows
from autobatch.lazy.grouping.ragged import Sizes, run_ragged, run_steps

LONGEST = 512  # of the lengths recorded this way, from `SHORTEST` on
SAMPLES = (
    (68, LONGEST + 1, SHORTEST, 131), (74, LONGEST + 10, SHORTEST, 140),
    (91, LONGEST + 3, SHORTEST, 158), (83, LONGEST + 18, SHORTEST, 122),
)  # fmt: skip
"""Sample lengths for up to four independent lengths, one tuple each: even and odd, the shortest and a longer one than
the longest, so that a size with a bend in between is no linear function; no two tuples differ by a constant."""
Column = tuple[int, ...]


class AnyLength:
    """Extra information of a signature that serves calls with operands of any length.

    Attributes:
        avals: for each operand, its `Aval` at each sample; outs: the same for each output.
    """

    __slots__ = ("_covered", "_op", "_params", "_programs", "avals", "outs")

    def __init__(self, sigs: Sequence[Any]) -> None:
        first = sigs[0]
        self.avals = tuple(zip(*[sig.avals for sig in sigs], strict=True))
        if first.block is None:
            self._programs: list[Program] = []
            self.outs: tuple[tuple[Aval, ...], ...] = (tuple([sig.out for sig in sigs]),)
        else:
            self._programs = [sig.block.program for sig in sigs]
            self.outs = tuple(zip(*[sig.block.outs for sig in sigs], strict=True))
            if any(sig.block.views for sig in sigs):  # writes through them are followed by exact shapes
                raise Unsupported
            skeleton = self._programs[0].skeleton()
            if skeleton is None or any(each.skeleton() is not skeleton for each in self._programs):
                raise Unsupported
        self._covered: dict[Any, bool] = {}
        self._op, self._params = first.op, [sig.params for sig in sigs]

    def run(
        self, operands: Sequence[Any], sizes_of: "SizesByLength", shared: Sequence[Any], fallbacks: Counter[str]
    ) -> list[Any]:
        """The results of a group of calls, one for each output: `Batched`, or one value for all.

        Args:
            operands: the per-example operands; shared: for each input of a block, the shared value or None.

        Raises:
            Unsupported: some op has no rule for such operands.
        """
        if not self._programs:
            return [run_ragged(self._op, operands, self._params, self.outs[0], sizes_of)]
        given = iter(operands)
        inputs = [next(given) if value is None else value for value in shared]
        return run_steps(self._programs, inputs, sizes_of, fallbacks)

    def covers(self, sig: Any) -> bool:
        """True if calls of one length, of the same family, may run as calls of this any-length signature."""
        if sig.any_length is not None:
            return False
        key = (None if sig.block is None else sig.block.program, *sig.avals)
        if key not in self._covered:
            if len(self._covered) > LONGEST:
                self._covered.clear()
            try:
                self._covered[key] = self._covers(sig)
            except (Unsupported, ShapeError):
                self._covered[key] = False
        return self._covered[key]

    def _covers(self, sig: Any) -> bool:
        sizes_of = SizesByLength({})
        for avals, aval in zip(self.avals, sig.avals, strict=True):
            sizes_of.add_operand(avals, aval.shape, 1)
        if sig.block is None:
            return sizes_of.match(self.outs[0], sig.out)
        program = sig.block.program
        slots = zip(*[each.avals for each in self._programs], strict=True)
        if not all(map(sizes_of.match, slots, program.avals)):
            return False
        columns = zip(*[each.constants for each in self._programs], strict=True)
        for constant, values in zip(program.constants, columns, strict=True):
            found = sizes_of.constant(values)
            if type(found) is Batched:
                found = found.data[0].item()
            is_same = (
                freeze(found) == freeze(constant) if type(found) in WEAK else found.tobytes() == constant.tobytes()
            )
            if not is_same:
                return False
        return True

    def run_samples(self, shared: Sequence[Any]) -> None:
        """Check the results' sizes by running calls of the sample lengths on dummy values.

        Args:
            shared: as for `run`; only shapes and dtypes matter.

        Raises:
            Exception: of any kind, if such calls have no any-length form.
        """
        sizes_of = SizesByLength({})
        operands = [self._sample(avals, sizes_of) for avals in self.avals]
        for out, avals in zip(self.run(operands, sizes_of, shared, Counter()), self.outs, strict=True):
            if type(out) is not Batched:
                raise Unsupported
            for size, column in zip(out.sizes, zip(*[aval.shape for aval in avals], strict=True), strict=True):
                values = size.values.tolist() if isinstance(size, Lengths) else [size] * len(column)
                if values != list(column):
                    raise Unsupported

    def _sample(self, avals: Sequence[Aval], sizes_of: "SizesByLength") -> Any:
        first = avals[0]
        if first.shared:
            return first.key.dummy()
        sizes_of.add_operand(avals, [Lengths(column) for column in zip(*[aval.shape for aval in avals], strict=True)])
        sizes = sizes_of(avals)
        values = [aval.dummy() for aval in avals]
        data = ragged_rows(values, sizes).data if Lengths in map(type, sizes) else np.stack(values)
        return Batched(data, sizes)


class SizesByLength(Sizes):
    """The sizes of the values of a group of calls, derived from their sizes at the samples.

    Args:
        known: as for `Sizes`.
    """

    __slots__ = ("_found",)

    def __init__(self, known: dict[bytes, Lengths]) -> None:
        super().__init__(np.zeros(0, np.int64), known)
        self._found: dict[Column, np.ndarray] = {}

    def add_operand(self, avals: Sequence[Aval], sizes: Sequence[Size], n: int = len(SAMPLES[0])) -> None:
        """Add the sizes of an operand of the n calls; they define lengths, or must match known ones.

        Raises:
            ShapeError: they contradict those of an earlier operand.
        """
        for column, size in zip(zip(*[aval.shape for aval in avals], strict=True), sizes, strict=True):
            values = size.values if isinstance(size, Lengths) else np.full(n, size, np.int64)
            if _is_constant(column):
                expected: Any = column[0]
            elif column in self._found:
                expected = self._found[column]
            else:
                self._found[column] = values
                continue
            if not (values == expected).all():
                raise ShapeError(f"operands of lengths {values.tolist()}, expected {expected}")

    def match(self, avals: Sequence[Aval], aval: Aval) -> bool:
        """True if a value of one call has the shape that follows from the lengths."""
        sizes = [size.values.item(0) if isinstance(size, Lengths) else size for size in self(avals)]
        return sizes == list(aval.shape)

    def constant(self, values: Sequence[Any]) -> Any:
        first = values[0]
        if type(first) in WEAK:
            if all(type(each) is type(first) and each == first for each in values):
                return first
            return Batched(self._values(tuple(values)), (), type(first))
        content = first.tobytes()
        if not all(each.shape == first.shape and each.tobytes() == content for each in values):
            raise Unsupported
        return first

    def _size(self, column: Sequence[int]) -> Size:
        if _is_constant(column):
            return column[0]
        values = self._values(tuple(column))
        return self._known.setdefault(values.tobytes(), Lengths(values))

    def _values(self, column: Column) -> np.ndarray:
        """The value for each call, given its values at the samples.

        Raises:
            Unsupported: the value is no known function of the lengths.
        """
        found = self._found.get(column)
        if found is None:
            found = self._found[column] = _from_lengths(column, self._found)
        return found


def _is_constant(column: Sequence[Any]) -> bool:
    return column.count(column[0]) == len(column)


def _from_lengths(column: Column, known: dict[Column, np.ndarray]) -> np.ndarray:
    """Compute a size from known lengths: a linear function of one, or a sum of two plus a constant."""
    if any(type(each) is not int for each in column):
        raise Unsupported
    for other, values in known.items():
        factor, left = divmod(column[1] - column[0], other[1] - other[0])
        if not left and _is_constant([a - factor * b for a, b in zip(column, other, strict=True)]):
            return factor * values + (column[0] - factor * other[0])
    for one, first in known.items():
        for other, second in known.items():
            rest = [a - b - c for a, b, c in zip(column, one, other, strict=True)]
            if _is_constant(rest):
                return first + second + rest[0]
    raise Unsupported


def of_any_length(make: Callable[[int], Any]) -> AnyLength:
    """Make the any-length information of a signature.

    Args:
        make: returns the signature of the call at a sample, by the sample's number.

    Raises:
        Exception: of any kind, if the call has no any-length form.
    """
    sigs = [make(sample) for sample in range(len(SAMPLES[0]))]
    out, call = AnyLength(sigs), sigs[0].block
    kinds = () if call is None else zip(call.program.inputs, call.shared, strict=True)
    out.run_samples([None if value is None else kind.key.dummy() for kind, value in kinds])
    return out
