"""The launches of one wave: for each group, gather the operands, apply the op's batching rule, keep the rows.

Where every operand and every result of the wave lies is known from its schedule, and found for all launches at once;
only whole values from outside that belong together are put into a buffer when they are first needed.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.blocks.launch import launch, launch_rows
from autobatch.core.batched import Batched, Packed
from autobatch.errors import UnsupportedError
from autobatch.kernels.buffers import CONSECUTIVE, MISSING, SAME, locate, place_launches
from autobatch.lazy.aval import Aval, Weak
from autobatch.lazy.gather import Buffers, gather_rows, row_p
from autobatch.lazy.schedule import Schedule
from autobatch.lazy.stats import Stats

__all__ = ["Launches"]

_NUMBERS = frozenset((int, np.int64, np.int32))


class Launches:
    """The state of the launches of a wave, which are made in order.

    A place is where a value of the wave is noted: the nodes, then the values from outside in reverse, so that a
    reference is the index of its place.

    Args:
        wave: what was recorded; plan: its schedule.
        sigs: for each launch its signature.
        offsets: (N + 1,) int64, where the references of each call begin in `refs`, (R,) int64.
        places: (N,) int64, the node that is the first output of each call.
    """

    __slots__ = (
        "_at", "_buffer_of", "_first", "_heads", "_how", "_number", "_offsets", "_order", "_refs",
        "_row_of", "_rows", "_starts", "_which", "buffers", "sources",
    )  # fmt: skip

    def __init__(
        self, wave: Any, plan: Schedule, sigs: Sequence[Any], offsets: np.ndarray, refs: np.ndarray, places: np.ndarray
    ) -> None:
        self.sources = wave.sources
        self._refs = refs
        self._offsets = offsets
        self._order = plan.order
        self._starts = plan.starts.tolist()
        self._buffer_of = np.full(len(wave.sigs) + len(wave.rows), -1, np.int64)
        self._row_of = np.zeros(len(self._buffer_of), np.int64)
        held = self._hold(wave.rows)
        outputs = np.array([1 if sig.block is None else len(sig.block.outs) for sig in sigs], np.int64)
        self._number = len(held)  # of the next buffer
        self.buffers = Buffers(wave.buffers, len(held) + int(outputs.sum()))
        for number, source in enumerate(held):
            self.buffers.put(number, source)
        self._which, self._rows = np.empty(len(refs), np.int64), np.empty(len(refs), np.int64)
        how, heads = np.empty((2, sum([len(sig.avals) for sig in sigs])), np.int64)
        where = self._buffer_of, self._row_of, self._which, self._rows
        place_launches(plan.order, plan.starts, offsets, refs, places, outputs, self._number, *where, how, heads)
        self._how, self._heads = how.tolist(), heads.tolist()
        self._first = self._at = 0  # of the next launch, in `_how` and in `_which`
        wave.buffer_of, wave.row_of = self._buffer_of, self._row_of

    def _hold(self, rows: list[int]) -> list[Any]:
        """Note the places of rows of buffers of earlier waves; these buffers."""
        numbers: dict[int, int] = {}
        held: list[Any] = []
        for i, row in enumerate(rows):
            if row >= 0:
                source = self.sources[i]
                number = numbers.setdefault(id(source), len(held))
                if number == len(held):
                    held.append(source)
                self._buffer_of[~i] = number
                self._row_of[~i] = row
        return held

    def run(self, k: int, sig: Any, stats: Stats) -> int:
        """Make launch number k, of calls of this signature; how many they are."""
        calls = self._order[self._starts[k] : self._starts[k + 1]]
        if sig.block is not None:
            outs = self._block(sig.block, sig.avals, calls, stats)
        else:
            outs = [self._op(sig, calls, stats)]
        for out in outs:
            self.buffers.put(self._number, out)
            self._number += 1
        self._first += len(sig.avals)
        self._at += len(sig.avals) * len(calls)
        return len(calls)

    def _op(self, sig: Any, calls: np.ndarray, stats: Stats) -> Any:
        op, n = sig.op, len(calls)
        operands = [
            self._operand(token, calls, position, position in op.ragged) for position, token in enumerate(sig.avals)
        ]
        if not any(isinstance(x, Batched | Packed) for x in operands):
            return _repeated(op(*operands, **sig.params), n, sig.out)
        if op.rule is None:
            stats.fallbacks[f"{op.name}: no batching rule"] += 1
        else:
            try:
                out = op.rule(op, operands, sig.params).data
            except UnsupportedError as error:
                stats.fallbacks[f"{op.name}: {error}"] += 1
            else:
                if tuple(out.shape) == (n, *sig.out.shape) and out.dtype == sig.out.dtype:
                    return out
                stats.fallbacks[f"{op.name}: {out.shape} {out.dtype}, expected {sig.out}"] += 1
        return np.stack([op(*[_example(x, i) for x in operands], **sig.params) for i in range(n)])

    def _block(self, call: Any, avals: Sequence[Any], calls: np.ndarray, stats: Stats) -> list[Any]:
        """Launch a group of calls of one block."""
        data = list(call.shared)
        rows = [False] * len(data)
        weak = False
        for position, (slot, token) in enumerate(zip(call.own, avals, strict=True)):
            operand = self._operand(token, calls, position, batched=True)
            if type(operand) is Batched:
                rows[slot] = True
                weak = weak or operand.scalar is not None
                operand = operand if weak else operand.data
            data[slot] = operand
        if weak:
            operands = [
                Batched(x, x.shape[1:]) if own and type(x) is not Batched else x
                for x, own in zip(data, rows, strict=True)
            ]
            return launch(call.program, operands, stats.fallbacks)
        outs = launch_rows(call.program, data, tuple(rows), stats.fallbacks)
        if True in rows:
            return outs
        return [_repeated(out, len(calls), aval) for out, aval in zip(outs, call.outs, strict=True)]

    def _operand(
        self, token: Any, calls: np.ndarray, position: int, ragged: bool = False, batched: bool = False
    ) -> Any:
        """One operand of a group: a shared value, or `Batched` rows, or `Packed` values of any length.

        Args:
            batched: rows also where there is one call only, so that it runs as a group of any size does.
        """
        head = self._heads[self._first + position]
        sources = self.sources
        is_weak = type(token) is Weak
        if not is_weak and token.shared:
            return sources[~head]
        n = len(calls)
        how = self._how[self._first + position]
        if is_weak or ragged or (how <= SAME and head < 0 and not token.ndim):
            refs = self._refs[self._offsets[calls] + position].tolist()
            if is_weak:
                return _weak([sources[~ref] for ref in refs], token.kind)
            if ragged:
                values = [self._value(ref) for ref in refs]
                return Packed(_concatenate(values), np.cumsum([0, *(len(value) for value in values)]))
            if max(refs) < 0:
                values = [sources[~ref] for ref in refs]
                if _NUMBERS.issuperset(map(type, values)):  # ids, say: not worth a pool
                    return Batched(np.array(values, token.dtype), ())
        begin = self._at + position * n
        which, rows = self._which[begin : begin + n], self._rows[begin : begin + n]
        if how == SAME:
            number = which.item(0)
            if n > 1 or not batched:
                if n > 1 or head < 0 or not hasattr(self.buffers.arrays[number], "_ab_rank"):
                    return self._value(head)
            elif number < 0:
                value = sources[~head]
                return Batched(value[None], token.shape) if type(value) is np.ndarray else value
            how = CONSECUTIVE
        if how == MISSING:
            found = self._refs, self._offsets, calls, position, self._buffer_of, self._row_of, which, rows
            how = locate(*found)
            if how == MISSING:
                refs = self._refs[self._offsets[calls] + position]
                self._pool(np.unique(refs[self._buffer_of[refs] < 0]), token)
                how = locate(*found)
        return Batched(gather_rows(self.buffers, which, rows, how), token.shape)

    def _value(self, ref: int) -> Any:
        """The value at one place, of the kind that the op's own implementation takes."""
        number = self._buffer_of.item(ref)
        if number < 0:
            return self.sources[~ref]
        return row_p(self.buffers.arrays[number], row=self._row_of.item(ref))

    def _pool(self, places: np.ndarray, aval: Aval) -> None:
        """Put whole external values of one kind into one buffer."""
        values = [self.sources[~place] for place in places.tolist()]
        if set(map(type, values)) != {np.ndarray} and any(hasattr(value, "_ab_rank") for value in values):
            pool = np.stack(values)
        elif aval.ndim:
            pool = np.concatenate(values).reshape((len(values), *aval.shape))
        else:
            pool = np.array(values, aval.dtype)
        self._buffer_of[places] = self.buffers.append(pool)
        self._row_of[places] = np.arange(len(values))


def _repeated(out: Any, n: int, aval: Aval) -> Any:
    """One value as the row of n calls, which all have it."""
    rows = out.reshape((1, *aval.shape)) if hasattr(out, "_ab_rank") else np.asarray(out)[None]
    return rows if n == 1 else np.broadcast_to(rows, (n, *aval.shape))


def _concatenate(values: Sequence[Any]) -> Any:
    return np.concatenate(values)


def _weak(values: Sequence[Any], kind: type) -> Any:
    """Python numbers: the number itself where all agree (to the sign of zero), else one for each example."""
    first = values[0]
    if values.count(first) == len(values) and (first != 0 or kind in (int, bool) or len(set(map(str, values))) == 1):
        return first
    return Batched(np.array(values), (), kind)


def _example(operand: Any, index: int) -> Any:
    if isinstance(operand, Packed):
        return operand.values[operand.offsets[index] : operand.offsets[index + 1]]
    if isinstance(operand, Batched):
        value = operand.data[index]
        return value.item() if operand.scalar is not None and hasattr(value, "item") else value
    return operand
