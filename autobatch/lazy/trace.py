"""The trace: ops as they were recorded, in flat lists, with signatures interned.

A recorded op is one entry in `Wave.sigs` and one reference per operand in `Wave.refs`: a node of the wave (>= 0), or
an external value (~i is entry i of the externals): a constant, an input, a shared value, a row of an earlier wave.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.config import config
from autobatch.core.fallback import fell_back, user_line
from autobatch.core.op import Op, next_level
from autobatch.core.pytree import leaves, map_tree
from autobatch.core.silence import users_filters
from autobatch.facts.calls import effect_of
from autobatch.lazy import lookups, shared_calls
from autobatch.lazy.array import LazyArray
from autobatch.lazy.aval import WEAK, foresee, frozen, known_aval, shared_aval, with_length, without_length
from autobatch.lazy.constants import constant
from autobatch.lazy.execute import BlockCall, Signature, Wave, launch_wave
from autobatch.lazy.gather import row_p
from autobatch.lazy.stats import Stats
from autobatch.lazy.surroundings import catches_warnings, handling
from autobatch.lazy.writing import Inputs
from autobatch.ops.inplace import write
from autobatch.ops.table import no_rule

__all__ = ["Trace"]

_new = object.__new__


class Trace:
    """What is being recorded, and how it gets launched.

    Attributes:
        level: its rank among interpreters.
        wave: what was recorded since the last launch.
        table: the signatures, by their number; interned: by what calls of them share.
        forget: what makes the recorders forget what their last calls in this trace found.
        memo: results of calls of shared operands.
        example: the index of the running example, -1 outside `ab.map`.
        park: called where a value is needed (False) or the budget is spent (True); None: launch at once.
        failed: why the whole run must be repeated as a loop, if it must.
        stats: what happened so far.
        errors: NumPy's handling of floating-point errors around the whole run.
        inputs: the arguments of the examples, and what was written to them.
    """

    __slots__ = (
        "_budget",
        "_filters",
        "_handling",
        "_room",
        "_shared",
        "consts",
        "errors",
        "example",
        "failed",
        "fast",
        "forget",
        "inputs",
        "interned",
        "level",
        "memo",
        "park",
        "stats",
        "table",
        "views",
        "wave",
    )  # fmt: skip

    def __init__(self) -> None:
        self.level = next_level()
        self.example = -1
        self.park: Callable[[bool], None] | None = None
        self.failed: BaseException | None = None
        self.stats = Stats()
        self.errors = np.geterr()
        self.inputs = Inputs()
        self._handling = handling()
        self._filters = users_filters()
        self.interned: dict[tuple[Any, ...], Signature | None] = {}
        self.table: list[Signature] = []
        self.fast: dict[tuple[Any, ...], Signature] = {}
        self.forget: list[Callable[[], None]] = []
        self.views: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self.memo: dict[Any, LazyArray] = {}
        self._shared: dict[int, LazyArray] = {}
        self._budget = config.memory_budget
        self._start_wave()

    def _start_wave(self) -> None:
        self.wave = Wave()
        self._room = self._budget
        self.consts: dict[Any, int] = {}

    def record(self, op: Op, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """Record one call; the result's shape and dtype are known at once."""
        if not params:
            wave = self.wave
            if len(args) == 2:
                a, b = args
                if type(a) is LazyArray and type(b) is LazyArray and a.wave is wave and b.wave is wave:
                    sig = self.fast.get((op, a.aval, b.aval))
                    if sig is not None:
                        return self.append_two(wave, sig, a.ref, b.ref)
            elif len(args) == 1 and args[0].wave is wave:
                a = args[0]
                sig = self.fast.get((op, a.aval))
                if sig is not None:
                    return self.append(wave, sig, a.ref)
        return self._record_any(op, args, params)

    def append(self, wave: Wave, sig: Signature, first: int) -> LazyArray:
        """Record a call of a known signature and one operand."""
        if handling() is not self._handling:
            sig = self._variant(sig)
        wave.refs.append(first)
        sigs = wave.sigs
        out = _new(LazyArray)  # without the call of its __init__
        out.trace = self
        out.aval = sig.out
        out.wave = wave
        out.ref = len(sigs)
        out.source = None
        sigs.append(sig.index)
        self._room -= sig.nbytes
        if self._room < 0:
            self._overflow()
        return out

    def append_two(self, wave: Wave, sig: Signature, first: int, second: int) -> LazyArray:
        """Record a call of a known signature and two operands."""
        if handling() is not self._handling:
            sig = self._variant(sig)
        refs = wave.refs
        refs.append(first)
        refs.append(second)
        sigs = wave.sigs
        out = _new(LazyArray)
        out.trace = self
        out.aval = sig.out
        out.wave = wave
        out.ref = len(sigs)
        out.source = None
        sigs.append(sig.index)
        self._room -= sig.nbytes
        if self._room < 0:
            self._overflow()
        return out

    def is_plain_call(self, out: LazyArray, operand: LazyArray) -> bool:
        """Whether `out` is the last node and reads `operand` and nothing else."""
        wave = self.wave
        return (
            out.ref == len(wave.sigs) - 1
            and len(self.table[wave.sigs[-1]].avals) == 1
            and wave.refs[-1] == operand.ref
            and self.table[wave.sigs[-1]].avals[0] is operand.aval
        )

    def signature_of(self, handle: LazyArray) -> Signature:
        """The signature of a node of the current wave."""
        sig = self.table[self.wave.sigs[handle.ref]]
        return sig.base or sig

    def in_force(self, sig: Signature) -> Signature:
        """The signature under the handling of floating-point errors that is in force."""
        return sig if handling() is self._handling else self._variant(sig)

    def spend(self, nbytes: int) -> None:
        """Count what a recorded call will take of the memory budget."""
        self._room -= nbytes
        if self._room < 0:
            self._overflow()

    def refuse_caught_warnings(self) -> None:
        """Let the examples run as a loop if one catches the warnings of what it records."""
        if self.park is not None and (why := catches_warnings(self._filters)) is not None:
            self.failed = why
            raise why

    def _variant(self, sig: Signature) -> Signature:
        """The signature under the handling of floating-point errors that is in force."""
        errors = np.geterr()
        key = (sig.index, *errors.values())
        found = sig if errors == sig.errors else self.interned.get(key)
        if found is None:
            found = self.interned[key] = copy.copy(sig)
            found.errors, found.index, found.base = errors, len(self.table), sig.base or sig
            if sig.block is not None:
                found.block = BlockCall(sig.block.program, sig.block.shared, found.index)
            self.table.append(found)
        return found

    def _record_any(self, op: Op, args: Sequence[Any], params: dict[str, Any]) -> Any:
        for arg in args:
            if type(arg) is LazyArray and arg.wave is None and arg.source is None and arg.trace is self:
                bag = lookups.reduced(self, op, args, params)
                if bag is not None:
                    return bag
                self.settle(arg)  # records the look-up, which may itself start a new wave
        wave = self.wave
        key: list[Any] = [op]
        refs: list[int] = []
        for arg in args:
            kind = type(arg)
            if kind is LazyArray and arg.trace is self:
                refs.append(arg.ref if arg.wave is wave else self.external(arg))
                key.append(arg.aval)
            elif kind in WEAK:
                key.append(WEAK[kind])
                refs.append(wave.external(arg, -1))
            else:
                aval, ref = constant(self, arg)
                if aval is None:
                    return self.run_now(op, args, params)
                key.append(aval)
                refs.append(ref)
        if op.ragged:
            for position in op.ragged:
                if position < len(args):
                    key[position + 1] = without_length(key[position + 1])
        if params:
            try:
                if op.kind == "index":  # specs and shapes: integers only
                    key.append(tuple(params.values()))
                else:
                    key.append(frozen(params))
            except TypeError:  # an attribute that cannot be compared
                return self.run_now(op, args, params)
        interned, known = tuple(key), self.interned
        sig = known[interned] if interned in known else self._new_signature(interned, op, args, params)
        if sig is None:
            return self.run_now(op, args, params)
        if sig.shared:
            return shared_calls.run_op(self, sig, interned, args)
        wave.refs.extend(refs[:-1])
        return self.append(wave, sig, refs[-1])

    def _new_signature(
        self, key: tuple[Any, ...], op: Op, args: Sequence[Any], params: dict[str, Any]
    ) -> Signature | None:
        avals = key[1 : len(args) + 1]
        out = None
        self.refuse_caught_warnings()
        if not op.data_dependent:
            actual = [with_length(aval, arg) for aval, arg in zip(avals, args, strict=True)] if op.ragged else avals
            out = foresee(op, params, key[len(args) + 1 :], actual)
        sig = None
        if out is not None:
            sig = Signature(op, dict(params), avals, out, len(self.table), user_line(), self.errors)
            self.table.append(sig)
        self.interned[key] = sig
        if sig is not None and not sig.shared and not params and not op.ragged:
            self.fast[key] = sig
        return sig

    def enter(self, handle: LazyArray) -> bool:
        """Give a value that is there a reference in this wave; False for a look-up that was put off."""
        if handle.trace is not self or (handle.source is None and handle.wave is None):
            return False
        self.external(handle)
        return True

    def external(self, arg: LazyArray) -> int:
        """The reference of a value from outside this wave, entered once."""
        if arg.source is None:
            arg.wave.resolve(arg)
        arg.wave = wave = self.wave
        wave.sources.append(arg.source)
        wave.rows.append(arg.row)
        arg.ref = ref = -len(wave.rows)
        wave.entered.append(arg)
        return ref

    def read_shared(self, table: LazyArray, index: Any) -> Any:
        """`table[index]` of a shared array."""
        return lookups.read(self, table, index)

    def bag(self, rows: LazyArray, mode: str) -> Any:
        """The reduction of a look-up that was put off; None if it is no bag."""
        return lookups.bag(self, rows, mode)

    def read_row(self, rows: LazyArray, index: int) -> Any:
        """`rows[index]` of a look-up that was put off."""
        return lookups.read_row(self, rows, index)

    def shared(self, value: Any) -> LazyArray:
        """The handle of a value that is one object for all examples."""
        handle = self._shared.get(id(value))
        if handle is None or handle.source is not value:
            handle = LazyArray(self, shared_aval(value), None, 0)
            handle.source, handle.row = value, -1
            self._shared[id(value)] = handle
        return handle

    def known(self, value: Any) -> LazyArray:
        """The handle of one example's value that is already there."""
        handle = LazyArray(self, known_aval(value), None, 0)
        handle.source, handle.row = value, -1
        return handle

    def run_now(self, op: Op, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """Run an op on real values, waiting for them."""
        values = [self.value(arg) if type(arg) is LazyArray and arg.trace is self else arg for arg in args]
        return self.wrap(op(*values, **params))

    def wrap(self, result: Any) -> Any:
        """A value that is there, as the example sees it: float arrays and values on a tape as handles, else plain."""
        if type(result) is np.ndarray:
            return self.known(result) if result.dtype.kind in "fc" and result.ndim else result
        if isinstance(result, tuple):
            return tuple(map(self.wrap, result))
        return self.known(result) if hasattr(result, "_ab_rank") and hasattr(result, "dtype") else result

    def settle(self, handle: LazyArray) -> None:
        """Record a look-up that was put off."""
        handle._ab_rebind(lookups.now(handle))

    def place(self, handle: LazyArray) -> None:
        """Wait until a value has been launched: `source` and `row` then say where it is."""
        if handle.source is None:
            if handle.wave is None:
                self.settle(handle)
            if handle.source is None:
                if not handle.wave.done:
                    self.wait()
                handle.wave.resolve(handle)

    def value(self, handle: LazyArray) -> Any:
        """The value behind a handle: waits until it has been launched."""
        self.stats.reads += 1
        if handle.source is None:
            self.place(handle)
        source, row = handle.source, handle.row
        return source if row < 0 else source[row] if type(source) is np.ndarray else row_p(source, row=row)

    def wait(self) -> None:
        """Come back when everything recorded has been launched."""
        self.stats.forced[user_line()] += 1
        if self.park is None:
            self.launch()
        else:
            self.park(False)

    def _overflow(self) -> None:
        """The memory budget is spent: launch what there is, now."""
        if self.park is None:
            self.launch()
        else:
            self.park(True)

    def unsupported(self, function: Any, args: Any, kwargs: Any, reason: str) -> Any:
        """A NumPy function without a rule: runs on real values, example by example; it writes into copies of them."""
        why = no_rule(function, reason)
        self.stats.fallbacks[why] += 1
        effect = effect_of(function)
        written = leaves([] if effect is None else effect.written(args, kwargs))
        copies = {id(x): (x, self.value(x).copy()) for x in written if type(x) is LazyArray and x.trace is self}

        def leaf(x: Any) -> Any:
            if id(x) in copies:
                return copies[id(x)][1]
            return self.value(x) if type(x) is LazyArray and x.trace is self else x

        values, keywords = map_tree(leaf, list(args)), map_tree(leaf, dict(kwargs))
        result = function(*values, **keywords)
        fell_back(why)
        for handle, value in copies.values():
            write(handle, self.wrap(value))
            if result is value:
                return handle
        if type(result) is np.ndarray and any(x is result for x in leaves([args, kwargs])):  # out=
            return result
        return self.wrap(result)

    def close(self) -> None:
        """Forget what the caches hold, so that no cycle keeps buffers alive; values still held keep working."""
        for handle in self._shared.values():
            handle.wave = None
        for forget in self.forget:
            forget()
        for held in (self._shared, self.memo, self.interned, self.fast, self.forget, self.views):
            held.clear()

    def launch(self) -> None:
        """Launch what was recorded, and start afresh."""
        wave = self.wave
        if len(wave.sigs):
            self._start_wave()
            try:
                launch_wave(wave, self.table, self.stats)
            except SystemError as error:
                cause: BaseException | None = error
                while isinstance(cause, SystemError):  # what a kernel makes of an interrupt that came while it ran
                    cause = cause.__cause__
                if isinstance(cause, KeyboardInterrupt):
                    raise cause from None
                self.failed = error
                raise
            except Exception as error:
                self.failed = error  # of which example is not known, so none may handle it
                raise
