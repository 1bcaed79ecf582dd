"""The trace: records ops in flat lists with interned signatures; `Trace.value` launches them and returns a value.

A recorded op is one entry in `GraphSegment.sigs`, and for each operand one reference in `GraphSegment.refs`: a node
of the segment (>= 0), or an external value (~i is `sources[i]`): a constant, an input, a shared value, or a row of an
earlier segment's buffer.
"""

import copy
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.autodiff.tape import WITHOUT_GRADIENT, off_tape
from autobatch.blocks.launch import launch
from autobatch.core.abstract_eval import (
    WEAK,
    Aval,
    abstract_eval,
    aval_of,
    check_plain,
    freeze_params,
    known_aval,
    shared_aval,
    without_length,
)
from autobatch.core.config import config
from autobatch.core.diagnostics import catches_warnings, handling, user_errors, user_filters, user_line, warn_fallback
from autobatch.core.op import BATCH_RANK, Op, is_boxed, next_level, rank_of
from autobatch.core.pytree import leaves, map_tree, replace_leaves
from autobatch.core.recorded_array import is_recorded
from autobatch.errors import NeedsLoop
from autobatch.facts.call_effects import effect_of
from autobatch.lazy import deferred_lookups
from autobatch.lazy.array import LazyArray, link_views
from autobatch.lazy.example_state import Inputs
from autobatch.lazy.grouping.buffers import row_p
from autobatch.lazy.grouping.plans import Plans
from autobatch.lazy.grouping.signatures import BlockCall, Signature
from autobatch.lazy.launching import GraphSegment, LargeConstant, Stats, launch_segment
from autobatch.ops.rules.aliasing import unclear_view, write
from autobatch.ops.rules.dispatch import no_rule_message
from autobatch.tables.sparse import SparseRows

_STATE = ("_ab_index", "_ab_value", "segment", "ref", "source")


def _same_state(a: Any, b: Any) -> bool:
    """True if two handles of another interpreter still stand for the same value."""
    return all(getattr(a, name, None) is getattr(b, name, None) for name in _STATE)


class Trace:
    """The recorder of one map: records calls into a segment, and launches it when a value is needed.

    Attributes:
        level: its rank among interpreters.
        segment: the calls recorded since the last launch.
        table: all signatures, by number; interned: the same by (op, operand kinds, params); of_blocks: those of
            blocks, by the kinds of the block's inputs; of_rows: those of one row of a table, by its kind.
        consts: references of constants in this segment, by content or id.
        memo: cached results of calls whose operands are all shared.
        plans: what plans the launches.
        example: index of the running example, -1 outside `ab.map`.
        park: called if a value is needed (False) or the memory budget is spent (True); None: launch at once.
        failed: the error that makes the whole run repeat as a loop, or None.
        stats: counts so far.
        errors: NumPy's floating-point error state (`np.geterr`) around the whole run.
        inputs: the arguments of the examples, and the writes to them.
        reached: by id, the float arrays and tables that all examples share and none changes.
        wanted: the nodes that examples wait for.
    """

    __slots__ = (
        "_budget", "_filters", "_handling", "_room", "_shared", "consts", "errors", "example", "failed",
        "inputs", "interned", "level", "memo", "of_blocks", "of_rows", "park", "plans", "reached", "segment", "stats",
        "table", "wanted",
    )  # fmt: skip

    def __init__(self) -> None:
        self.level = next_level()
        self.example = -1
        self.park: Callable[[bool], None] | None = None
        self.failed: BaseException | None = None
        self.stats = Stats()
        self.errors = user_errors()
        self.inputs = Inputs()
        self.reached: dict[int, Any] = {}
        self._handling = handling()
        self._filters = user_filters()
        self.interned: dict[tuple[Any, ...], Signature | None] = {}
        self.table: list[Signature] = []
        self.of_blocks: dict[tuple[Any, ...], Signature] = {}
        self.of_rows: dict[Aval, Signature] = {}
        self.memo: dict[Any, Any] = {}
        self.plans = Plans()
        self._shared: dict[int, LazyArray] = {}
        self._budget = config.memory_budget
        self.wanted: list[int] = []
        self._start_segment()

    def _start_segment(self) -> None:
        self.segment = GraphSegment()
        self._room = self._budget
        self.consts: dict[Any, int] = {}

    def append(self, sig: Signature, refs: Sequence[int]) -> Any:
        """Record a call of a known signature, given operand references; returns its result or a tuple of results."""
        if handling() is not self._handling:
            sig = self._variant(sig)
        segment, call = self.segment, sig.block
        ref = len(segment.sigs)
        segment.refs.extend(refs)
        out: Any
        if call is None:
            segment.sigs.append(sig.index)
            out = LazyArray(self, sig.out, segment, ref)
        else:
            segment.sigs.extend(call.tail)
            outs = tuple([LazyArray(self, aval, segment, ref + i) for i, aval in enumerate(call.outs)])
            link_views(call.views, outs)
            out = outs if len(outs) > 1 else outs[0]
        self._room -= sig.nbytes
        if self._room < 0:
            self._overflow()
        return out

    def signature_of(self, handle: LazyArray) -> Signature:
        """The signature of a node of the current segment, under the error state of the whole run."""
        sig = self.table[self.segment.sigs[handle.ref]]
        return sig.base or sig

    def under_error_state(self, sig: Signature) -> Signature:
        """The variant of a signature for the current floating-point error state (`np.errstate`)."""
        return sig if handling() is self._handling else self._variant(sig)

    @property
    def is_full(self) -> bool:
        """True if the memory budget is spent."""
        return self._room < 0

    def refuse_caught_warnings(self) -> None:
        """Make the examples run as a loop if one records calls inside `warnings.catch_warnings`."""
        if self.park is not None and (why := catches_warnings(self._filters)) is not None:
            self.failed = why
            raise why

    def _variant(self, sig: Signature) -> Signature:
        """Like `under_error_state`, after the state was found to be another object (it may still be an equal state)."""
        errors = user_errors()
        key = (sig.index, *errors.values())
        found = sig if errors == sig.errors else self.interned.get(key)
        if found is None:
            found = self.interned[key] = sig.copied()
            found.errors, found.index, found.base = errors, len(self.table), sig.base or sig
            if sig.block is not None:
                found.block = BlockCall(sig.block.program, sig.block.shared, found.index)
            self.table.append(found)
        return found

    def record(self, op: Op, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """Record one call. Returns a handle whose shape and dtype are known at once."""
        for arg in args:
            if type(arg) is LazyArray and arg.segment is None and arg.source is None and arg.trace is self:
                bag = deferred_lookups.record_on_deferred(self, op, args, params)
                if bag is not None:
                    return bag
                self.record_deferred(arg)  # records the look-up, which may itself start a new segment
        segment = self.segment
        key: list[Any] = [op]
        refs: list[int] = []
        for arg in args:
            cls = type(arg)
            if cls is LazyArray and arg.trace is self:
                refs.append(arg.ref if arg.segment is segment else self.external(arg))
                key.append(arg.aval)
            elif cls in WEAK:
                key.append(WEAK[cls])
                refs.append(segment.external(arg))
            else:
                aval, ref = self.constant(arg)
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
                    key.append(freeze_params(params))
            except TypeError:  # an attribute that cannot be compared
                return self.run_now(op, args, params)
        interned, known = tuple(key), self.interned
        sig = known[interned] if interned in known else self._new_signature(interned, op, args, params)
        if sig is None:
            return self.run_now(op, args, params)
        return self.run_shared(sig, interned, args) if sig.shared else self.append(sig, refs)

    def _new_signature(
        self, key: tuple[Any, ...], op: Op, args: Sequence[Any], params: dict[str, Any]
    ) -> Signature | None:
        avals = key[1 : len(args) + 1]
        out = None
        self.refuse_caught_warnings()
        if not op.data_dependent:
            pairs = zip(avals, args, strict=True) if op.ragged else ()
            actual = [a if a.shared else aval_of(tuple(x.shape), np.dtype(x.dtype)) for a, x in pairs] or avals
            out = abstract_eval(op, params, key[len(args) + 1 :], actual)
        sig = None
        if out is not None:
            sig = Signature(op, dict(params), avals, out, len(self.table), user_line(), self.errors)
            self.table.append(sig)
        self.interned[key] = sig
        return sig

    def enter(self, handle: LazyArray) -> bool:
        """Make a computed value an external of this segment; False for a deferred look-up or another trace's handle."""
        if handle.trace is not self or (handle.source is None and handle.segment is None):
            return False
        self.external(handle)
        return True

    def constant(self, arg: Any) -> tuple[Aval | None, int]:
        """(`Aval`, reference) of an operand not made in this trace: a constant, a closure variable, a value of another
        interpreter; (None, 0) if it cannot be recorded.

        The user may write into the operand before the launch. So a small array is copied, and known by its content; a
        large one is compared with a copy at the launch; for a value of another interpreter, its current state is kept.
        """
        segment = self.segment
        if id(arg) in self.reached:
            return self._shared_operand(arg)
        if isinstance(arg, np.generic):
            return aval_of((), arg.dtype, True), segment.external(arg)
        known = self.consts.get(id(arg))
        if known is not None:
            large = segment.large[known]
            if type(arg) is np.ndarray or _same_state(arg, large.held):
                if large.example != self.example or self.example < 0:
                    large.common = True
                return large.aval, known
        if type(arg) is np.ndarray:
            return self._constant_array(arg)
        if is_boxed(arg):
            value = getattr(arg, "_ab_value", None)
            if type(value) is not float and getattr(arg, "_ab_lookup", None) is None:
                held = copy.copy(arg)  # a second handle of the current value: a write rebinds only `arg`
                return self._large_constant(arg, known_aval(arg), held, None)
        elif isinstance(arg, list | tuple | np.ndarray):
            check_plain(arg, "an operand")
            return self.constant(np.asarray(arg))
        return self._shared_operand(arg)

    def _shared_operand(self, arg: Any) -> tuple[Aval, int]:
        handle = self.shared(arg)
        return handle.aval, handle.ref if handle.segment is self.segment else self.external(handle)

    def _constant_array(self, arg: np.ndarray) -> tuple[Aval | None, int]:
        if arg.dtype.kind not in "biufc":
            return None, 0
        aval = known_aval(arg)
        if arg.nbytes >= 8192:  # bytes; constants of this size and more are known by identity, smaller ones by content
            return self._large_constant(arg, aval, arg, arg.copy() if arg.flags.writeable else None)
        key = (aval, arg.tobytes())
        ref = self.consts.get(key)
        if ref is None:
            ref = self.consts[key] = self.segment.external(arg.copy())
        return aval, ref

    def _large_constant(self, arg: Any, aval: Aval, held: Any, content: np.ndarray | None) -> tuple[Aval, int]:
        segment = self.segment
        ref = self.consts[id(arg)] = segment.external(held)
        segment.large[ref] = LargeConstant(held, self.example, aval, content)
        segment.keep.append(arg)
        return aval, ref

    def external(self, arg: LazyArray) -> int:
        """The reference of a value from outside this segment; the handle is rebound so that it is entered only once."""
        if arg.source is None:
            arg.segment.resolve(arg)
        arg.segment = segment = self.segment
        if arg.row >= 0:
            segment.rows[len(segment.sources)] = arg.row
        arg.ref = segment.external(arg.source)
        segment.entered.append(arg)
        return arg.ref

    def read_shared(self, table: LazyArray, index: Any) -> Any:
        """`table[index]` of a shared array or table; may be deferred (see `deferred_lookups`)."""
        return deferred_lookups.read(self, table, index)

    def read_row(self, rows: LazyArray, index: int) -> Any:
        """`rows[index]` of a deferred look-up."""
        return deferred_lookups.read_row(self, rows, index)

    def shared(self, value: Any) -> LazyArray:
        """The handle of a value that is the same object for all examples; one handle for each object."""
        handle = self._shared.get(id(value))
        if handle is None or handle.source is not value:
            handle = LazyArray(self, shared_aval(value), None, 0)
            handle.source, handle.row = value, -1
            self._shared[id(value)] = handle
        return handle

    def computed(self, value: Any) -> LazyArray:
        """A new handle of one example's value that is already computed."""
        handle = LazyArray(self, known_aval(value), None, 0)
        handle.source, handle.row = value, -1
        return handle

    def run_now(self, op: Op, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """Run an op immediately; waits for its operands' values."""
        values = [self.value(arg) if type(arg) is LazyArray and arg.trace is self else arg for arg in args]
        return self.wrap(op(*values, **params))

    def wrap(self, result: Any) -> Any:
        """A computed value as the example sees it: float arrays and values on a tape as handles, all else plain."""
        if type(result) is np.ndarray:
            return self.computed(result) if is_recorded(result) else result
        if isinstance(result, tuple):
            return tuple(map(self.wrap, result))
        return self.computed(result) if is_boxed(result) and hasattr(result, "dtype") else result

    def run_shared(self, sig: Signature, key: tuple[Any, ...], args: Sequence[Any]) -> Any:
        """The result of an op whose operands are all shared; computed once for all examples."""

        def compute() -> list[Any]:
            values = [arg.source if type(arg) is LazyArray and arg.trace is self else arg for arg in args]
            return [sig.op(*values, **sig.params)]

        weak = tuple(repr(arg) for arg in args if type(arg) in WEAK)
        return self._once((key, weak), compute)[0]

    def run_shared_block(self, sig: Signature) -> Any:
        """The output, or tuple of outputs, of a block whose operands are all shared; computed once."""
        call = sig.block
        assert call is not None
        results = self._once((sig, *np.geterr().values()), lambda: launch(call.program, call.shared))
        link_views(call.views, results)
        return tuple(results) if len(results) > 1 else results[0]

    def _once(self, key: Any, compute: Callable[[], Sequence[Any]]) -> list[Any]:
        """Cached results of shared operands, computed for the first example; each caller gets its own handles."""
        self.stats.reads += 1
        found = self.memo.get(key)
        if found is None:
            found = self.memo[key] = [self._shared_result(result) for result in compute()]
        return [copy.copy(each) if type(each) is LazyArray else each for each in found]

    def _shared_result(self, result: Any) -> Any:
        if type(result) is np.ndarray or is_boxed(result):
            result = self.shared(result)
            result.row = -2
        return result

    def record_deferred(self, handle: LazyArray) -> None:
        """Record a deferred look-up now."""
        handle._ab_rebind(deferred_lookups.record_deferred(handle))

    def place(self, *handles: LazyArray) -> None:
        """Wait until the values of handles have been launched, and set their `source` and `row`."""
        for handle in handles:
            if handle.source is None and handle.segment is None:
                self.record_deferred(handle)
        left = [each for each in handles if each.source is None]
        late = [each.ref for each in left if not each.segment.is_there(each.ref)]
        if late:
            self.wanted += late
            self.wait()
        for handle in left:
            handle.segment.resolve(handle)

    def value(self, handle: LazyArray) -> Any:
        """The value behind a handle; waits until it has been launched."""
        return self.read(handle, "")

    def read(self, handle: LazyArray, name: str) -> Any:
        """The value behind a handle for its method `name`; without its gradient if the method needs none."""
        self.stats.reads += 1
        if handle.source is None:
            self.place(handle)
        source, row = handle.source, handle.row
        if row < 0:
            return source
        is_exact = name in WITHOUT_GRADIENT or (name and handle.aval.dtype.kind not in "fc")
        if is_exact and type(source) is not np.ndarray:
            source = off_tape(source)
        at: Any = row if handle.aval.scalar else (row, ...)  # an array without dimensions is no scalar
        return source[at] if type(source) is np.ndarray else row_p(source, row=row)

    def wait(self) -> None:
        """Return when everything recorded has been launched; counts the user's line as one that forced it."""
        self.stats.forced[user_line()] += 1
        self._pause(urgent=False)

    def _overflow(self) -> None:
        """Launch everything recorded now, since the memory budget is spent."""
        self._pause(urgent=True)

    def _pause(self, urgent: bool) -> None:
        if self.park is None:
            self.launch()
        else:
            self.park(urgent)

    def unsupported(self, function: Any, args: Any, kwargs: Any, reason: str) -> Any:
        """Run a NumPy function without a rule on this example's values; where it writes, it is given copies.

        A function that writes only into plain arrays needs values now, like `array[i] = value`: not a fallback.
        """
        why = no_rule_message(function, reason)
        effect = effect_of(function)
        written = leaves([] if effect is None else effect.written(args, kwargs))
        is_store = bool(written) and all(isinstance(x, np.ndarray) for x in written)
        if not is_store:
            self.stats.fallbacks[why] += 1
        copies = {id(x): (x, self.value(x).copy()) for x in written if type(x) is LazyArray and x.trace is self}

        def leaf(x: Any) -> Any:
            if id(x) in copies:
                return copies[id(x)][1]
            return self.value(x) if type(x) is LazyArray and x.trace is self else x

        values, keywords = map_tree(leaf, list(args)), map_tree(leaf, dict(kwargs))
        result = function(*values, **keywords)
        if not is_store:
            warn_fallback(why)
        for handle, value in copies.values():
            write(handle, self.wrap(value))
            if result is value:
                return handle
        if type(result) is np.ndarray and any(x is result for x in leaves([args, kwargs])):  # out=
            return result
        handles = [x for x in leaves([args, kwargs]) if type(x) is LazyArray and x.trace is self]
        return map_tree(functools.partial(self._wrap_view, handles), result)

    def _wrap_view(self, handles: Sequence[LazyArray], result: Any) -> Any:
        """Like `wrap`, for a result that may be a view of one of these arrays with strides that are not tracked."""
        out = self.wrap(result)
        if type(result) is np.ndarray:
            for handle in handles:
                if result.ndim > 1 and handle.aval.non_c_order and handle.row != -1:
                    handle._ab_refuse(NeedsLoop("a result whose memory order may follow that of an array"))
                value = self.value(handle)
                if type(value) is np.ndarray and np.may_share_memory(result, value):
                    if type(out) is LazyArray:
                        unclear_view(out, handle)
                    else:
                        handle.expose()
                        out = out if self.park is None else self.inputs.lend(out)
        return out

    def references(self) -> int:
        """This trace's reference count: one for each handle, plus its users."""
        return sys.getrefcount(self)

    def close(self) -> None:
        """Clear the caches, so that no reference cycle keeps buffers alive; handles still held keep working."""
        for handle in self._shared.values():
            handle.segment = None
        entered = self.segment.entered
        for held in (entered, self.reached, self._shared, self.memo, self.interned, self.of_blocks):
            held.clear()

    def launch(self, everything: bool = False) -> None:
        """Launch what examples wait for, and all that is recorded if none waits; a new segment follows an empty one."""
        segment, wanted = self.segment, [] if everything or self.is_full or self.park is None else self.wanted
        self.wanted = []
        if segment.is_pending:
            try:
                self.run_segment(segment, wanted)
            finally:
                if segment.error is not None or not segment.is_pending:
                    self._start_segment()
                    segment.close()
            if segment is self.segment:
                self.keep_constants()

    def keep_constants(self, fixed: int = 0) -> None:
        """Keep the contents of constants of calls that wait, since the user may write into the arrays from now on.

        Args:
            fixed: the first external values, which are the same in all examples.
        """
        segment = self.segment
        for ref, constant in segment.large.items():
            if ~ref >= fixed and constant.content is not None:
                del self.consts[id(constant.held)]
                segment.sources[~ref] = constant.held = constant.content
                constant.content = None
                self._room -= constant.held.nbytes

    def run_segment(self, segment: GraphSegment, wanted: Sequence[int] = ()) -> None:
        """Launch a segment; see `launch_segment`."""
        self.run(functools.partial(launch_segment, segment, self.table, self.stats, self.plans, wanted))

    def run(self, launch: Callable[[], None]) -> None:
        """Call `launch`; an error is kept in `failed`, so that the whole run is repeated as a loop."""
        try:
            launch()
        except SystemError as error:
            cause: BaseException | None = error
            while isinstance(cause, SystemError):  # a compiled kernel turns a KeyboardInterrupt into this
                cause = cause.__cause__
            if isinstance(cause, KeyboardInterrupt):
                raise cause from None
            self.failed = error
            raise
        except Exception as error:
            self.failed = error  # no example may handle it: which one it belongs to is not known
            raise


# By id, structures in examples known to contain only numbers and strings, so that they need no wrapping.
plain_parts: dict[int, Any] = {}


def wrap_example(trace: Trace, value: Any, copies: list[Any] | None = None) -> Any:
    """Wrap one example's argument for the user's function: float arrays become lazy; ids and objects are kept."""
    found: list[Any] = []

    def leaf(x: Any) -> Any:
        if type(x) is np.ndarray:
            lazy = is_recorded(x)
        else:
            is_float = is_boxed(x) and rank_of(x) != BATCH_RANK and hasattr(type(x), "dtype") and x.dtype.kind in "fc"
            lazy = is_float and not (type(x) is LazyArray and x.trace is trace)
        if not lazy:
            return x
        found.append(x)
        is_weak = type(getattr(x, "_ab_value", None)) is float  # a Python number on a tape
        return trace.shared(x) if is_weak else trace.computed(x)

    out = replace_leaves(value, leaf, plain_parts, copies)
    if out is not value:  # else nothing was wrapped
        for each in found:
            trace.inputs.add(each, trace.example)
    return out


def wrap_shared(trace: Trace, value: Any, copies: list[Any] | None = None) -> Any:
    """Wrap a shared argument for the user's function: each array and table becomes one shared lazy array."""

    def leaf(x: Any) -> Any:
        if type(x) is np.ndarray:
            return trace.shared(x) if x.ndim and x.dtype.kind in "biufc" and x.dtype.isnative else x
        if (type(x) is LazyArray and x.trace is trace) or (is_boxed(x) and rank_of(x) == BATCH_RANK):
            return x  # a batch that was made outside is an object like any other
        return trace.shared(x) if is_boxed(x) or hasattr(type(x), "_ab_lookup") else x

    return replace_leaves(value, leaf, copies=copies)


def record_lookups(trace: Trace, value: Any) -> Any:
    """Record all deferred look-ups in a result, so that they are launched together."""

    def leaf(x: Any) -> Any:
        if type(x) is LazyArray and x.segment is None and x.source is None and x.trace is trace:
            trace.record_deferred(x)
        return x

    return replace_leaves(value, leaf)


def finish(trace: Trace, value: Any) -> Any:
    """Replace lazy arrays in a result by plain arrays and scalars (under a gradient, by arrays on the tape).

    Copies of the caller's containers, and what an example has written into, are replaced by the caller's own.
    """
    return replace_leaves(value, functools.partial(_finished, trace), originals=trace.inputs.originals)


def _finished(trace: Trace, x: Any) -> Any:
    if type(x) is np.ndarray and x.dtype.hasobject:  # NumPy keeps what it takes for objects
        for at, item in enumerate(x.flat if x.dtype == object else ()):
            if type(item) is LazyArray:
                x.flat[at] = _finished(trace, item)
    if type(x) is not LazyArray or x.trace is not trace:
        of_rows = isinstance(x, SparseRows)
        return x.map_arrays(functools.partial(_finished, trace)) if of_rows else trace.inputs.originals.get(id(x), x)
    if x.source is None:
        trace.place(x)
    if x.row != -1:  # stored in the handle, so that every other use of it gives the same object
        x.source, x.row = _unshared_value(x), -1
    return x.source if is_boxed(x.source) else trace.inputs.originals.get(id(x), x.source)


def _unshared_value(x: LazyArray) -> Any:
    """A handle's value with its own memory: copied out of a shared value (row -2) or a buffer of rows."""
    source, row = x.source, x.row
    if row == -2:
        return source.copy() if type(source) is np.ndarray else source
    if type(source) is not np.ndarray:
        return row_p(source, row=row)
    out = source[row]
    if x.aval.ndim == 0:
        return out if x.aval.scalar else np.array(out)
    return out if out.flags.writeable else out.copy()
