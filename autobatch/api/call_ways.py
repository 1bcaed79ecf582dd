"""Runs a call in the mode that `api.chooser` picks, and falls back to the next one if that mode does not support it.

A call of a `@ab.batch` function with batches (`run_batch`) and an `ab.map` (`run_map`) come here. If `way` is pinned,
under `strict`, and inside other runs of the library, they run in the mode that the option pins or the call names: a
batched call names lock-step, a map tracing. Otherwise the costs of the function on inputs of this kind decide. By
the law all modes give equal results, and one that is stopped or refuses leaves no effects behind. So the examples of
one call may be divided between modes, in their order, and no example's effects happen twice.
"""

import contextlib
import contextvars
import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

import numpy as np

from autobatch.api import measured_costs as measured
from autobatch.api.batch import Begun, may_be_rows
from autobatch.api.chooser import LOOP, History, Portion
from autobatch.api.run_record import COMPILED, FLY, LOCKSTEP, by_line, note
from autobatch.autodiff.grad import batch_data
from autobatch.autodiff.tape import Tape, TapeArray, active_tape, off_tape
from autobatch.batches.any_batch import batches_in
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.packed_batch import PackedBatch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.batches.result_form import batched, normalised, view_columns
from autobatch.batches.stacking import lanes_of, stack_results
from autobatch.blocks.kernel_cache import pending_kernels
from autobatch.compiled.compiled_map import compiled_map, is_close, prepared, wait_for
from autobatch.compiled.taping.gradient_map import compiled_gradient_map, prepared_gradient
from autobatch.compiled.taping.taped_map import compiled_map_on_tape, kernels_on_tape
from autobatch.core import current_region as regions
from autobatch.core.batched import Batched, limited_padding
from autobatch.core.config import config, current
from autobatch.core.current_region import clock
from autobatch.core.diagnostics import warn_fallback, warn_user
from autobatch.core.op import is_boxed
from autobatch.core.pytree import is_node, leaves
from autobatch.core.snapshot import Snapshot
from autobatch.errors import NeedsLoop, OverTime, Reason, Unsupported, forget_example, is_noted, reason_of
from autobatch.lazy.block_forms import block_form, forget_forms
from autobatch.lazy.example_map import common_length, examples_in, map_with_stats
from autobatch.lazy.example_recorder import Recorders
from autobatch.lazy.example_state import shows_order
from autobatch.lazy.fibers import Joining, active_trace
from autobatch.lazy.launching import Stats
from autobatch.lazy.recorders.generated_recorders import recorders_of
from autobatch.lazy.taped_forms import call_form, per_example_form, taped_form
from autobatch.lockstep.calls.call_by_callee import call as call_in_region  # noqa: F401 - of `engines`
from autobatch.lockstep.example_columns import ExampleColumns, join, lanes_between, map_batches
from autobatch.lockstep.lockstep_call import batch_size_error, in_lock_step, run
from autobatch.lockstep.lockstep_forms import convert
from autobatch.program.purity import is_pure, only_computes

_NOTHING = Stats()  # of calls that traced nothing
NOT_NEEDED = "lock-step supports it"  # the reason that tracing is refused for a batched call


# Calls on batches.


def run_batch(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: tuple[Any, ...] = (),
    begun: Begun | None = None,
) -> Any:  # fmt: skip
    """Call a function of one example on batches; returns its batched result.

    `given` are the arguments by position with the marks of `ab.shared`, and () where there is nothing to warn of;
    `begun` the first examples, which have run.
    """
    numbering, tape = current().numbering, active_tape()
    if numbering is None and tape is None and regions.current_region() is None:
        return _run_batch(function, args, kwargs, given, begun)
    token = regions.number_examples(numbering, 1 if numbering is None else next(batches_in((args, kwargs))).batch_size)
    try:
        if tape is None:
            return _run_batch(function, args, kwargs, given, begun)
        before = tape.lengths(), tape.read_in((*args, *kwargs.values()))
        out = _run_batch(function, args, kwargs, given, begun)

        def by_loop() -> Any:
            batches = measured.read_call(args, kwargs, [])
            return _BatchCall(function, args, kwargs, batches, batches[0].batch_size).whole(LOOP)

        _keep_call(*before, function, (args, kwargs), out, by_loop)
        return out
    finally:
        token.var.reset(token)


def _run_batch(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: tuple[Any, ...], begun: Begun | None
) -> Any:
    options = current()
    way: str = options.way
    if way == LOCKSTEP or options.strict or regions.current_region() is not None or active_trace() is not None:
        _warn_of_rows(given, next(batches_in((args, kwargs))).batch_size)
        return _lockstep(function, args, kwargs)
    key: list[Any] = [LOCKSTEP, active_tape() is not None]
    batches = measured.read_call(args, kwargs, key)
    size, *others = [each.batch_size for each in batches]
    if others.count(size) < len(others):
        raise batch_size_error(function, args, kwargs)
    if not size:
        return _lockstep(function, args, kwargs)
    _warn_of_rows(given, size)
    kind = measured.history_of(function, tuple(key), measured.WAYS) if way == "auto" else None
    call = _BatchCall(function, args, kwargs, batches, size)
    if way != "auto":
        if way == FLY and measured.uses_debugger(measured.code_of(function)):
            way = LOOP
        piece, reason = _pinned(call, way, size)
        return _lockstep(function, args, kwargs, reason) if reason else call.result([piece], [size])
    if kind is None:
        return _lockstep(function, args, kwargs)
    fly, refused = kind.costs[FLY], kind.costs[LOCKSTEP].refused
    if not refused or fly.refused == NOT_NEEDED:  # tracing is refused while lock-step is not
        fly.refused = "" if refused else NOT_NEEDED
    if regions.watched.get() is not None:
        return _run_observed(kind, LOCKSTEP, call.whole, lambda: _lockstep(function, args, kwargs), call, function)
    pieces, counts = _run_portions(kind, size, call.run, LOCKSTEP, begun)
    return call.result(pieces, counts)


def _warn_of_rows(given: tuple[Any, ...], size: int) -> None:
    """Warn about an argument that is as long as the batch beside it: a row for each example may have been meant."""
    for at, arg in enumerate(given) if size > 1 else ():
        if type(arg) is dict and TapeArray in map(type, arg.values()):
            continue  # parameters, which are differentiated
        if type(arg) not in (MaskedBatch, PackedBatch) and may_be_rows(arg, size):
            listed = len(arg) if type(arg) is list else 0
            several = f"a {type(arg).__name__} of {listed or 'arrays'}"
            what = several if is_node(arg) else f"an array of shape {np.shape(arg)}"
            y = "y" if listed in (0, size) else "tuple(y)"  # a list holds examples
            warn_user(
                f"argument {at + 1}, {what}, is as long as the batch of {size} examples, but every example gets all of "
                f"it; to give each example its own element, write ab.collate({y}); if all of it is meant, write "
                "ab.shared(y), or pass it by keyword",
                f"argument {at + 1} is as long as the batch",
            )


def _pinned(call: "_BatchCall | _MapCall", way: str, count: int) -> tuple[Any, str]:
    """The results by a pinned way, and ""; or None, and why there is no compiled form: then no example has run."""
    reason: str = ""
    for _ in range(2):  # waits once for code that is being compiled
        try:
            out = call.run(Portion(way, count), 0)
        except Unsupported as refused:
            reason = why_not_compiled(call.function, *call.packed(0, count)) if refused.passing else refused.reason
            if reason:
                break
        else:
            note(way, f"way={way!r}", call.function, call.stats)
            return out, ""
    return None, reason or "it is being compiled"


def _keep_call(
    lengths: list[tuple[Tape, int]], read: list[Any], function: Any, given: tuple[Any, dict[str, Any]], out: Any,
    run: Callable[[], Any],
) -> None:  # fmt: skip
    """Have the tapes know how the examples of a call run by the loop.

    Args:
        lengths: the tapes before the call; read: values of the first in its arguments, as `Tape.read_in` gave them.
        given: its arguments, those by name last; out: its result; run: runs it by the loop.
    """
    if len(lengths[0][0].nodes) == lengths[0][1] or regions.current_region() is not None or active_trace():
        return
    kept = out.copy() if type(out) is list else out  # a map's, which its caller may change
    context = contextvars.copy_context()  # of its options and random numbers

    def by_loop(tape: Tape, first: int, cts: dict[int, Any]) -> dict[int, Any] | None:
        found, inner = _arrays(kept), lengths[0][0]
        places = [getattr(off_tape(x, tape), "_ab_index", -1) for x in found]
        before, closed = Snapshot([function, given], raw=True), inner.closed
        if not cts.keys() <= set(places) or shows_order(before):  # what it prints, say, would be seen twice
            return None

        def record() -> list[tuple[Any, Any]]:
            again = _arrays(context.copy().run(np.errstate(all="ignore")(run)))
            for one, two in zip(map(off_tape, again), map(off_tape, found), strict=True):
                if np.shape(one) != np.shape(two) or not is_close(one, np.asarray(two)):
                    raise Unsupported("it gives something else than before")
            return [(off_tape(x, tape), cts.pop(at)) for x, at in zip(again, places, strict=True) if at in cts]

        inner.closed = False  # an outer tape records what is recorded on the inner one
        try:
            return tape.recorded_again(record, first, read if tape is inner else [])
        except Exception:
            return None
        finally:
            before.restore()
            if closed:
                inner.close()

    for tape, first in lengths:
        if len(tape.nodes) > first:
            tape.calls.append((first, len(tape.nodes), functools.partial(by_loop, tape, first)))


def _arrays(out: Any) -> list[Any]:
    """The numbers and arrays of a result, of batches their data."""
    found = [each for x in leaves(out) for each in (leaves(x.examples()) if type(x) is ObjectBatch else [x])]
    found = [batch_data(x) if isinstance(x, Batched | PackedBatch) else x for x in found]
    return [x for x in found if isinstance(x, np.ndarray | np.floating | float)]


def why_not_compiled(
    function: Any, columns: Sequence[Any], shared: dict[str, Any], arguments_of: Any = None, seconds: float = 120.0
) -> str:
    """Wait for the compiled form; why there is none, or "" if it is ready. Arguments as for `compiled_map`."""
    gradient = measured.gradient_of(function)
    try:
        if gradient is not None:
            _, form, taped = prepared_gradient(gradient, columns, shared, arguments_of)
            if form is not None:
                wait_for(taped, seconds)
        elif active_tape() is not None:
            for each in kernels_on_tape(function, per_example_form, columns, shared, arguments_of):
                wait_for(each, seconds)
        else:
            wait_for(prepared(function, columns, shared, arguments_of)[1], seconds)
    except Unsupported as error:
        return error.reason
    except Exception as error:  # the compiler's: none of the user's code has run
        return reason_of(error)
    return ""


def _compiled(
    function: Any, columns: Sequence[Any], shared: dict[str, Any], arguments_of: Any, start: int, stacked: bool = False
) -> Any:
    """`compiled_map`, plain, on a tape or of a gradient; `Unsupported` also for errors that no example has raised."""
    gradient, on_tape = measured.gradient_of(function), active_tape() is not None
    try:
        if gradient is not None:
            if on_tape:
                raise Unsupported("a gradient within another one")
            return compiled_gradient_map(gradient, function, columns, shared, arguments_of, start)
        if on_tape:
            return compiled_map_on_tape(function, per_example_form, columns, shared, arguments_of, start, stacked)
        return compiled_map(function, columns, shared, arguments_of, start, stacked)
    except Exception as error:
        if isinstance(error, Unsupported) or is_noted(error):
            raise
        raise Unsupported(reason_of(error)) from error


def _lockstep(function: Any, args: Any, kwargs: Any, why: str = "the call asks for it") -> Any:
    """Run the call in lock-step; traced or as the loop where lock-step does not support it."""
    ran: list[Any] = []

    def map_columns(*given: Any) -> tuple[list[Any], bool]:
        results, stats = _on_the_fly(*given)
        together = stats.looped is None
        ran.append((FLY if together else LOOP, stats))
        return results, together

    out = run(function, args, kwargs, _convert, is_pure, map_columns)
    way, stats = ran[-1] if ran else (LOCKSTEP, Stats())
    note(way, why if way == LOCKSTEP else "lock-step does not support it", function, stats)
    return out


def _looped(function: Any, args: Any, kwargs: Any, batches: list[Any], own: ExampleColumns | None = None) -> list[Any]:
    """The results of all examples, one after the other; a short code path, since small calls end here."""
    found: list[Any] = []
    columns = view_columns(args, found)
    if columns is not None and len(found) == len(batches):
        return regions.run_loop(per_example_form(function), columns, kwargs)
    own = own or ExampleColumns(function, args, kwargs)
    return own.giving_back(_loop_over, function, own, own.values(), 0)


def _loop_over(function: Any, own: ExampleColumns, columns: list[list[Any]], start: int) -> list[Any]:
    """The results of the examples from `start` on, one after the other; `columns` holds their values by batch."""
    f, in_order = per_example_form(function), own.in_order(columns)
    if in_order is None:
        return regions.run_loop(f, columns, own.shared, own.arguments_of, start)
    return regions.run_loop(f, *in_order, None, start)


class _BatchCall:
    """One call on batches, whose examples may be divided between ways.

    Attributes:
        function: the function of one example; stats: launches of the last traced run.
    """

    __slots__ = ("_args", "_batches", "_columns", "_kwargs", "_size", "function", "stats")

    def __init__(self, function: Any, args: Any, kwargs: Any, batches: Any, size: int) -> None:
        self.function, self._args, self._kwargs = function, args, kwargs
        self._batches, self._size = batches, size
        self._columns: ExampleColumns | None = None
        self.stats = _NOTHING

    def run(self, step: Portion, start: int) -> Any:
        """The results of `step.count` examples from `start` on: a list, or `_Batched` if they are batched already."""
        stop = start + step.count
        if step.way == LOCKSTEP:
            return self._in_lock_step(start, stop, step.limit)
        if step.way == COMPILED:
            batches, shared, arguments_of = self.packed(start, stop)
            out = _compiled(self.function, batches, shared, arguments_of, start, step.count == self._size)
            return out if isinstance(out, list) else _Batched(normalised(out, self._size, self._batches))
        if step.way == LOOP and step.count == self._size:
            return _looped(self.function, self._args, self._kwargs, self._batches, self._columns)
        own = self._columns = self._columns or ExampleColumns(self.function, self._args, self._kwargs, self._batches)
        columns = own.values(start, None if stop == self._size else stop)
        if step.way == LOOP:
            return own.giving_back(_loop_over, self.function, own, columns, start)
        given = columns, own.shared, own.arguments_of, start, step.limit
        results, self.stats = own.giving_back(_on_the_fly, self.function, *given)
        return results

    def whole(self, way: str) -> Any:
        """The result of the call, all of it by one way."""
        return self.result([self.run(Portion(way, self._size), 0)], [self._size])

    def packed(self, start: int, stop: int) -> tuple[Any, ...]:
        """Arguments of the compiled way: batches, shared values, and the function that places both in a call."""
        own = self._columns = self._columns or ExampleColumns(self.function, self._args, self._kwargs, self._batches)
        whole = start == 0 and stop == self._size
        batches = own.batches if whole else [lanes_between(batch, start, stop) for batch in own.batches]
        return batches, own.shared, own.arguments_of

    def _in_lock_step(self, start: int, stop: int, limit: float | None) -> Any:
        args, kwargs = self._args, self._kwargs
        if start or stop < self._size:
            taken = functools.partial(map_batches, lambda batch: lanes_between(batch, start, stop))
            args, kwargs = tuple(taken(arg) for arg in args), {name: taken(arg) for name, arg in kwargs.items()}
        return _Batched(in_lock_step(self.function, args, kwargs, stop - start, _convert, is_pure, start, limit))

    def result(self, pieces: list[Any], counts: list[int]) -> Any:
        """The result of the call, from the results of its portions and the number of examples in each."""
        if len(pieces) == 1:
            return pieces[0].tree if type(pieces[0]) is _Batched else batched(pieces[0], self._batches)
        if any(type(piece) is _Batched for piece in pieces):
            tree = join([piece.tree if type(piece) is _Batched else stack_results(piece) for piece in pieces], counts)
            return normalised(tree, self._size, self._batches)
        return batched([result for piece in pieces for result in piece], self._batches)


class _Batched(NamedTuple):
    """Marks a result that is batched already, as opposed to a list of one result per example."""

    tree: Any


# Maps.


def run_map(
    function: Any, sequences: Sequence[Any], shared: dict[str, Any], fixed: dict[int, Any] | None = None,
    joining: Joining | None = None, begun: Begun | None = None,
) -> tuple[list[Any], Stats]:  # fmt: skip
    """Map a function of one example; returns the results and the statistics of launches.

    Args:
        function: of one example; sequences: of its arguments, one each; shared: keyword arguments for all examples.
        fixed: by position, arguments that are the same for all examples; `sequences` fill the other positions.
        joining: gives more examples while these are traced, as for `map_with_stats`; their results come last.
        begun: the first examples, which have run.
    """
    numbering, tape = current().numbering, active_tape()
    if numbering is None and tape is None and regions.current_region() is None:
        return _run_map(function, sequences, shared, fixed, joining, begun)
    sequences = [examples_in(each) for each in sequences]
    count, call = common_length(sequences), _MapCall(function, sequences, shared, fixed or {}, None)
    token = regions.number_examples(numbering, count)
    try:
        if tape is None:
            return _run_map(function, sequences, shared, fixed, joining, begun)
        before = tape.lengths(), tape.read_in((*sequences, *call.given.values()))
        results, stats = _run_map(function, sequences, shared, fixed, joining, begun)
        _keep_call(*before, function, (sequences, call.given), results, lambda: call.run(Portion(LOOP, count), 0))
        return results, stats
    finally:
        token.var.reset(token)


def _run_map(
    function: Any, sequences: Sequence[Any], shared: dict[str, Any], fixed: dict[int, Any] | None,
    joining: Joining | None, begun: Begun | None,
) -> tuple[list[Any], Stats]:  # fmt: skip
    options = current()
    way: str = options.way
    fixed = fixed or {}
    inner = regions.current_region() is not None or active_trace() is not None
    if way not in ("auto", LOOP) and not inner and measured.uses_debugger(measured.code_of(function)):
        way = LOOP
    if way in (LOCKSTEP, FLY) or options.strict or inner:
        call = _MapCall(function, sequences, shared, fixed, joining)
        return call.named(), call.stats
    columns = [examples_in(each) for each in sequences]
    count = common_length(columns)
    call = _MapCall(function, columns, shared, fixed, joining)
    if not count:
        return call.named(), call.stats
    if way != "auto":
        results, reason = _pinned(call, way, count)
        return call.named(reason) if reason else results, call.stats
    key = measured.map_key(columns, count, (*shared.values(), *fixed.values()))
    kind = measured.history_of(function, key, measured.WAYS)
    if kind is None:
        return call.run(Portion(LOOP, count), 0), call.stats
    if regions.watched.get() is not None:
        by = lambda way: call.run(Portion(way, count), 0)
        return _run_observed(kind, FLY, by, call.named, call, function), call.stats
    pieces, _ = _run_portions(kind, count, call.run, FLY, begun)
    if call.stats.looped is not None:
        kind.costs[FLY].refused = call.stats.looped
    return pieces[0] if len(pieces) == 1 else [result for piece in pieces for result in piece], call.stats


class _MapCall:
    """One map, whose examples may be divided between ways.

    Attributes:
        function: the function of one example; stats: launches of the last traced run.
    """

    __slots__ = ("_arguments_of", "_columns", "_fixed", "_joining", "_shared", "function", "given", "stats")

    def __init__(
        self, function: Any, columns: Any, shared: dict[str, Any], fixed: dict[int, Any], joining: Joining | None
    ) -> None:
        self.function, self._columns, self._shared, self._fixed = function, columns, shared, fixed
        self._joining, self.stats = joining, _NOTHING
        self.given = shared | {f"{at}": value for at, value in fixed.items()} if fixed else shared  # by "0", "1", ...
        self._arguments_of = self._placed if fixed else None

    def _placed(self, values: Sequence[Any], given: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """An example's positional and keyword arguments, from its own values and the shared ones (as in `_given`)."""
        own = iter(values)
        count = len(values) + len(self._fixed)
        positional = [given[f"{at}"] if at in self._fixed else next(own) for at in range(count)]
        return positional, {name: given[name] for name in self._shared}

    def packed(self, start: int, stop: int) -> tuple[Any, ...]:
        """Arguments of the compiled way: columns, shared values, and the function that places both in a call."""
        columns: list[Any] = self._columns
        if start or stop < len(columns[0]):
            columns = [column[start:stop] for column in columns]
        return columns, self.given, self._arguments_of

    def named(self, why: str = "") -> list[Any]:
        """The results of tracing."""
        given = self._columns, self.given, self._arguments_of, 0, None, self._joining
        results, self.stats = _on_the_fly(self.function, *given)
        looped = self.stats.looped
        note(FLY if looped is None else LOOP, looped or why or "the call asks for it", self.function, self.stats)
        return results

    def run(self, portion: Portion, start: int) -> list[Any]:
        """The results of `portion.count` examples from `start` on."""
        columns, given, arguments_of = self.packed(start, start + portion.count)
        if portion.way == COMPILED:
            return _compiled(self.function, columns, given, arguments_of, start)
        if portion.way == LOOP:
            if self._fixed:
                columns, _ = self._placed(columns, {name: itertools.repeat(value) for name, value in given.items()})
            return regions.run_loop(per_example_form(self.function), columns, self._shared, None, start)
        if portion.way == LOCKSTEP:
            return self._in_lock_step(columns, portion, start)
        whole = portion.count == len(self._columns[0])
        joining = self._joining if whole else None  # it numbers examples within the whole call
        results, self.stats = _on_the_fly(self.function, columns, given, arguments_of, start, portion.limit, joining)
        return results

    def _in_lock_step(self, columns: list[Any], portion: Portion, start: int) -> list[Any]:
        """The results of these examples, run as one batch; only for functions without side effects.

        Raises:
            Unsupported: the function has side effects, the examples cannot be stacked, or a result shares memory with
                an argument: in the loop a later write into it would reach the caller's array, here only the stack.
        """
        function, code = self.function, measured.code_of(self.function)
        where = (code.co_filename, code.co_firstlineno) if isinstance(code, CodeType) else ("<unknown>", 0)
        kinds = [set(map(type, column)) for column in columns]
        local = only_computes(function, self.given)
        if not (local and all(len(each) == 1 and not each.isdisjoint(_STACKED) for each in kinds)):
            raise Unsupported("no batch can be made of the examples", where=where)
        with regions.with_deadline(portion.limit):
            try:
                with limited_padding():
                    stacked = [stack_results(column) for column in columns]
            except NeedsLoop as error:
                raise Unsupported(error.reason, where=where) from None
            if not all(type(each) is MaskedBatch for each in stacked):
                raise Unsupported("no batch can be made of the examples", where=where)
            args, kwargs = self._placed(stacked, self.given) if self._fixed else (stacked, self._shared)
            out = in_lock_step(function, tuple(args), kwargs, portion.count, _convert, is_pure, start)
        arrays = [leaf.data if type(leaf) is MaskedBatch else leaf for leaf in leaves(out)]
        arrays = [each for each in arrays if isinstance(each, np.ndarray)]
        if any(np.may_share_memory(each, batch.unguarded()) for each in arrays for batch in stacked):
            raise Unsupported("an example returns memory of its argument", where=where)
        return lanes_of(out, portion.count)


def _convert(function: Any) -> Any:
    """The lock-step form of anything callable; None if it is not the user's own code."""
    while not isinstance(function, FunctionType):
        if hasattr(type(function), "_ab_batch") or isinstance(function, staticmethod | classmethod):
            function = function.__wrapped__
        elif isinstance(function, MethodType):
            inner = _convert(function.__func__)
            return None if inner is None else MethodType(inner, function.__self__)
        elif isinstance(function, functools.partial):
            inner = _convert(function.func)
            return None if inner is None else functools.partial(inner, *function.args, **function.keywords)
        elif isinstance(getattr(type(function), "__call__", None), FunctionType):  # noqa: B004  (not whether: which)
            function = MethodType(type(function).__call__, function)
        else:
            return None
    return convert(function)


_STACKED = frozenset((np.ndarray, bool, int, float, complex, np.float64, np.float32, np.int64, np.bool_))


# Gradients of one call.


def run_gradient(gradient: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function that `ab.grad` made, compiled if that has cost least.

    Args:
        gradient: the gradient function, which runs on a tape in Python; its attribute `_ab_differentiated` says for
            compiled code what is differentiated.
    """
    what, options = measured.gradient_of(gradient), current()
    code = None if what is None else measured.code_of(what.function)
    known = measured.functions.get(id(code))
    if what is None or (known is not None and not known.has_compiled_gradient):
        return gradient(*args, **kwargs)
    inner = regions.in_example() or not (regions.current_region() is active_tape() is active_trace() is None)
    if options.way not in ("auto", COMPILED) or options.strict or inner:
        return gradient(*args, **kwargs)
    key: list[Any] = ["gradient"]
    if measured.read_call((*args, *kwargs.values()), {}, key) or any(map(is_boxed, (*args, *kwargs.values()))):
        return gradient(*args, **kwargs)
    columns = [[arg] for arg in args]

    def run(portion: Portion, start: int) -> Any:
        if portion.way == LOOP:
            return gradient(*args, **kwargs)
        try:
            return _compiled(gradient, columns, kwargs, None, 0)[0]
        except Exception as error:
            forget_example(error)  # a call has one example: its index would mean nothing to the user
            raise

    kind = measured.history_of(gradient, tuple(key), (COMPILED,))
    if kind is None or kind.costs[COMPILED].refused:
        return gradient(*args, **kwargs)
    if options.way == COMPILED:
        kind.costs[COMPILED].refused = why_not_compiled(gradient, columns, kwargs)
        with contextlib.suppress(Unsupported):
            return run(Portion(LOOP if kind.costs[COMPILED].refused else COMPILED, 1), 0)
        return gradient(*args, **kwargs)
    (out,), _ = _run_portions(kind, 1, run, LOOP)
    if kind.costs[COMPILED].refused and (known := measured.functions.get(id(code))) is not None:
        known.has_compiled_gradient = False
    return out


# Carrying out.


def _run_portions(
    kind: History, count: int, run: Callable[[Portion, int], Any], named: str, done: Begun | None = None
) -> tuple[list[Any], list[int]]:
    """Run a call in portions, by the ways that the rule picks; returns the portions' results and their sizes.

    Args:
        named: the way that the call names; if it refuses, that is reported as a fallback.
        done: the first examples, which the loop has run already.
    """
    pending = pending_kernels()
    if pending != kind.pending:
        kind.compilation_ended(pending)
    turn, tape = kind.turn(count), active_tape()
    pieces, counts, refusals, start = list[Any](), list[int](), list[Reason](), 0
    if done is not None:
        pieces, counts, start = [done.results], [len(done.results)], len(done.results)
        turn.ran(LOOP, start, done.seconds)
    while start < count:
        step = turn.next()
        tick = clock if step.timed else float  # which gives 0.0
        first, begun = 0 if tape is None else len(tape.nodes), tick()
        try:
            piece = run(step, start)
        except OverTime:
            turn.stopped(step.way, tick() - begun or step.limit or 0.0)
            continue
        except Unsupported as refused:
            took, reason = tick() - begun, refused.reason
            if step.way not in (LOCKSTEP, COMPILED) or is_noted(refused):  # an example raised it
                raise
            if not refused.passing:
                turn.refused(step.way, took, reason)
            elif step.way == LOCKSTEP:
                turn.stopped(step.way, took)
            else:
                turn.not_ready(step.way, took)
            if step.way == named:
                refusals.append(reason)
            continue
        took = tick() - begun
        if type(piece) is list and len(piece) > step.count:  # other examples joined: leave out their share of the time
            took *= step.count / len(piece)
        turn.ran(step.way, step.count, took, pending > 0)
        if step.timed and tape is not None and len(tape.nodes) > first:  # the walk back over these is part of the cost
            report = functools.partial(kind.add_backward_time, step.way, kind.costs[step.way].timed, step.count)
            tape.timed.append((first, len(tape.nodes), report))
        pieces.append(piece)
        counts.append(step.count)
        start += step.count
    for each in refusals:
        warn_fallback(each)
    return pieces, counts


def _run_observed(
    kind: History, named: str, by: Callable[[str], Any], run_named: Callable[[], Any], call: Any, function: Any
) -> Any:
    """The result of a call that is observed (`ran_ways`); it is not timed, since observing takes time."""
    costs = kind.known_costs()
    has_run = any(cost.runs for cost in costs.values())
    way = kind.best() if has_run else named
    reason = "the fastest so far" if costs[way].runs else "no other mode was worth a try"
    if way != named:
        with contextlib.suppress(Unsupported):  # the compiled code was evicted meanwhile, or these examples differ
            out = by(way)
            looped = call.stats.looped if way == FLY else None
            note(LOOP if looped else way, looped or reason, function, call.stats, costs)
            return out
    out = run_named()
    collected = regions.watched.get()
    if collected:
        why = reason if has_run and collected[-1].way == named else collected[-1].why
        collected[-1] = dataclasses.replace(collected[-1], why=why, costs=costs)
    return out


def _on_the_fly(
    function: Any, columns: Sequence[Any], shared: dict[str, Any], arguments_of: regions.Arguments | None = None,
    first: int = 0, limit: float | None = None, joining: Joining | None = None,
) -> tuple[list[Any], Stats]:  # fmt: skip
    plain, by_op = per_example_form(function), call_form(function)
    form = block_form(function) if config.blocks else by_op

    def recorders(shared: dict[str, Any]) -> Recorders | None:  # none while a report observes the user's lines
        return recorders_of(function, shared, arguments_of) if config.blocks and not by_line.get() else None

    with regions.with_deadline(limit):
        return map_with_stats(plain, form, by_op, columns, shared, arguments_of, _forget, first, joining, recorders)


def _forget() -> None:
    """Drop the rewritten forms that a map has made, since they keep the user's closures alive."""
    forget_forms()
    taped_form.forget()
    call_form.forget()
