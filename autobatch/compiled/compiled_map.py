"""The compiled way: compile a function of one example for its argument types, then loop over all examples.

If a guard fails in an example (an int overflows, an index is out of range, anything is raised, a float operation
sets a flag), that example runs again in Python from its start; compiled code has no effects outside of itself. Another
process compiles. Until it is done, or if there is no compiled form, `Unsupported` is raised before anything has run.
"""

import copy
import dataclasses
import functools
import itertools
import operator
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from autobatch.batches.any_batch import Batch
from autobatch.blocks.kernel_cache import CachedKernel, kernel_of
from autobatch.compiled import compiled_call
from autobatch.compiled.changed_arguments import check_independent, returned, writes_back
from autobatch.compiled.compiled_call import Arguments, ColumnPlace, CompiledCall, column_place
from autobatch.compiled.module import Module, new_program, table_of, write
from autobatch.compiled.python_calls import call_kernel
from autobatch.compiled.translation.exact_types import Type
from autobatch.compiled.translation.source_program import SourceProgram
from autobatch.compiled.value_layout import batch_of, unpack
from autobatch.core.diagnostics import underflow_is_ignored
from autobatch.core.memory import call_all, run_all
from autobatch.core.pytree import has_more_parts
from autobatch.core.snapshot import Snapshot, cell_value
from autobatch.core.threads import run_together, thread_count
from autobatch.errors import Unsupported, reason_of
from autobatch.program.bounded_caches import MOST_FUNCTIONS, BoundedDict
from autobatch.tables.sparse import SparseRows

MIN_PARALLEL = 2e-3  # seconds of estimated work above which several threads are used
_MOST_SHARED = 20_000  # items of the containers that examples share
_UNBOUND = object()
_READ, _SEEN = operator.methodcaller("read"), operator.attrgetter("seen")


@dataclasses.dataclass(eq=False)
class KernelForm:
    """A kernel that is compiled or being compiled, or the reason why there is none.

    Attributes:
        table: the addresses of NumPy's ufunc loops; checked: whether some results were compared with Python's.
    """

    reason: str = ""
    kernel: CachedKernel | None = None
    table: Any = None
    checked: bool = False

    def require_ready(self) -> None:
        """Check that the kernel can run now.

        Raises:
            Unsupported: there is no kernel, or it is not compiled yet.
        """
        if self.kernel is None or not self.kernel.poll(wait=False):
            raise self.refusal()

    def refusal(self) -> Unsupported:
        """Why the kernel cannot run now."""
        if self.reason or self.kernel is None or self.kernel.failed:
            return Unsupported(self.reason or "Numba could not compile it")
        return Unsupported("it is being compiled", passing=True)

    def refuse(self, name: str, given: Any, expected: Any) -> Unsupported:
        """Retire the kernel because `name` gave `given` where Python has `expected`; returns the exception."""
        self.reason, self.kernel = f"compiled, {name} gave {given!r} for {expected!r}", None
        return Unsupported(self.reason)


@dataclasses.dataclass(eq=False)
class CompiledForm(KernelForm):
    """A function compiled for one kind of examples (one list of argument types)."""

    module: Module | None = None
    careful: int = 0  # 1 once an example has set a floating-point flag; flags are then checked after each example
    seconds: float = 0.0  # per example, in the last run
    failures: int = 0
    taped: dict[tuple[bool, ...], Any] = dataclasses.field(default_factory=dict)  # forms for gradients


_forms: "BoundedDict[Any, tuple[FunctionType, dict[Any, CompiledForm]]]" = BoundedDict(MOST_FUNCTIONS)
_lock = threading.Lock()


def _forms_of(function: FunctionType) -> "dict[Any, CompiledForm]":
    """The compiled forms of a function, shared by all functions of the same code, globals, closure and defaults.

    By the types of its arguments as text, and by what says these types sooner (`compiled_call.quick_key`).
    """
    closure = tuple([id(cell_value(cell, _UNBOUND)) for cell in function.__closure__]) if function.__closure__ else ()
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    key = (function.__code__, id(function.__globals__), closure, tuple(map(id, defaults)))
    if key not in _forms:
        _forms[key] = (function, {})  # the function keeps the objects alive whose ids are in the key
    kept, forms = _forms[key]
    if kept is not function and any(
        cell_value(one, _UNBOUND) is not cell_value(two, _UNBOUND)
        for one, two in zip(kept.__closure__ or (), function.__closure__ or (), strict=True)
    ):  # a cell was bound again, so an id in the key may be that of a freed object
        _forms[key] = (function, forms := {})
    return forms


def _forget(function: FunctionType) -> None:
    """Let go of a function without a form: a step's lambda holds the step's data, and is another one each time."""
    for key in [key for key, (kept, _) in _forms.items() if kept is function]:
        del _forms[key]


def compiled_map(
    function: Callable[..., Any], columns: Sequence[Any], shared: dict[str, Any],
    arguments_of: Arguments | None = None, first: int = 0, stacked: bool = False,
) -> Any:  # fmt: skip
    """`[function(*values, **shared) for values in zip(*columns)]`, compiled.

    Args:
        columns: for each argument that differs by example, a sequence of B values or a batch.
        shared: the arguments that all examples share, by name.
        arguments_of: maps the values of an example and `shared` to the positional and keyword arguments of its call; by
            default the values are positional and `shared` is passed by keyword.
        first: the index of the first example in its batch.
        stacked: allow a batch, or a tuple of batches, as the result where that needs no object per example.

    Returns:
        B results, equal to those of the loop down to their types.

    Raises:
        Unsupported: there is no compiled form, or not yet; nothing has run.
        Exception: the exception of the first example that raises, with a note that names the example.
    """
    call, form = prepared(function, columns, shared, arguments_of, first)
    if call.count == 0:
        return []
    assert form is not None
    form.require_ready()
    done = run_kernel(call, form, stacked)
    if done.tree is not None:
        return done.tree
    done.finish(call.in_python)
    return done.results


def wait_for(form: KernelForm | None, seconds: float = 120.0) -> None:
    """Wait until the kernel of a form is compiled.

    Raises:
        Unsupported: it never will be, or not within `seconds`.
    """
    if form is None:
        return
    end = time.monotonic() + seconds
    while not (form.kernel is not None and form.kernel.poll()):
        refused = form.refusal()
        if not refused.passing or time.monotonic() > end:
            raise refused
        time.sleep(0.01)  # seconds between two checks whether a compilation is done


def prepared(
    function: Any, columns: Sequence[Any], shared: dict[str, Any], arguments_of: Arguments | None, first: int = 0
) -> tuple[CompiledCall, CompiledForm | None]:
    """The call's data, and the compiled form for its types; the form is None if there are no examples.

    Raises:
        Unsupported: the function, or this call of it, has no compiled form.
    """
    call = call_of(function, columns, shared, arguments_of, first)
    form = known_form(call) if call.count else None
    if form is not None or not call.count:
        return call, form
    values = call.values
    if has_more_parts(values, _MOST_SHARED):  # the kernel reads a copy of them, made at each call
        raise Unsupported(f"the examples share containers of more than {_MOST_SHARED} items; arrays have no such limit")
    program = new_program()
    try:
        kinds = [compiled_call.kind_of_value(program, call, value, f"argument {i}") for i, value in enumerate(values)]
    except Unsupported as error:
        raise Unsupported(f"{function.__qualname__} has an argument that cannot be compiled: {error}") from None
    varying = [compiled_call.is_varying(value) for value in values]
    key = f"{varying}{[compiled_call.describe(kind) for kind in kinds]}"
    with _lock:
        forms = _forms_of(function)
        form = forms.get(key)
        if form is None or not _globals_unchanged(form):
            if len(forms) >= 32:  # kinds of examples (lists of argument types) remembered for one function
                forms.clear()
            form = forms[key] = _write_form(program, function, kinds, varying)
        if call.key is not None:
            forms[call.key] = form
        if form.module is None and function.__closure__:
            _forget(function)
    return call, form


def call_of(
    function: Any, columns: Sequence[Any], shared: dict[str, Any], arguments_of: Arguments | None, first: int
) -> CompiledCall:
    """The data of a call.

    Raises:
        Unsupported: this call has no compiled form.
    """
    if not isinstance(function, FunctionType):
        raise Unsupported(f"{type(function).__name__} is not a plain Python function")
    if not underflow_is_ignored():
        raise Unsupported("np.errstate asks for underflow to be reported")
    counts = {column.batch_size if isinstance(column, Batch) else len(column) for column in columns}
    if len(counts) != 1:
        raise Unsupported("columns of several lengths, or none")
    places: list[Any] = list(map(column_place, range(len(columns))))
    given, named = (places, shared) if arguments_of is None else arguments_of(places, shared)
    values = compiled_call.bound_values(function, given, named)
    return CompiledCall(function, columns, shared, arguments_of, counts.pop(), first, values, [None] * len(columns))


def known_form(call: CompiledCall) -> CompiledForm | None:
    """The form of an earlier call with arguments whose types are the same at a glance; `call.leaves` are then known."""
    found: list[list[Any]] = [[] for _ in call.values]
    key = list(map(compiled_call.quick_key, itertools.repeat(call), call.values, found))
    if None in key:
        return None
    call.key = tuple(key)
    with _lock:
        form = _forms_of(call.function).get(call.key)
        if form is None or not _globals_unchanged(form):
            return None
    call.leaves = found
    return form


def _write_form(program: SourceProgram, function: Any, kinds: list[Type], varying: list[bool]) -> CompiledForm:
    try:
        module = write(program, function, kinds, varying)
        table = np.append(table_of(program.ufuncs), 0)
    except (Unsupported, RuntimeError, RecursionError) as error:
        return CompiledForm(reason_of(error))
    return CompiledForm(kernel=kernel_of(module.text), table=table, module=module)


def _globals_unchanged(form: CompiledForm) -> bool:
    """True if globals and closure values are as when compiled: the same objects; for arrays the dtype and rank."""
    if form.module is None:
        return True
    try:
        constants = form.module.program.constants
        if not all(map(operator.is_, map(_READ, constants), map(_SEEN, constants))):
            return False
        for each in form.module.program.captured.values():
            found = each.read()
            expected = np.dtype(each.kind.dtype), each.kind.ndim
            if type(found) is not np.ndarray or (found.dtype, found.ndim) != expected:
                return False
    except Exception:  # for example, a name that was deleted
        return False
    return True


@dataclasses.dataclass
class Run:
    """The outcome of running a kernel.

    Attributes:
        results: one per example; failed: the indices of examples without a result, which Python has to run.
        put: `put(first, last)` writes what the examples `first` to `last - 1` changed into the user's arguments.
        tree: all results as a batch, in which case `results` is empty.
    """

    results: list[Any]
    failed: list[int]
    put: Callable[[int, int], None]
    tree: Any = None

    def finish(self, in_python: Callable[[int], Any]) -> None:
        """Run the failed examples in Python; before each, write back what the examples before it have changed."""
        done = 0
        for index in self.failed:
            self.put(done, index)
            self.results[index] = in_python(index)
            done = index + 1
        self.put(done, len(self.results))


def recursion_depth() -> int:
    """How deep calls of compiled code may nest: as deep as Python's own from here, and as the stack of C allows."""
    # So many nested calls fit on a thread's stack, which Python's own calls do not need.
    return max(0, min(sys.getrecursionlimit() - open_calls() - 60, 3000))


class _Parts:
    """The examples of a call, divided into parts, of which each runs on a thread."""

    def __init__(self, call: CompiledCall, form: CompiledForm) -> None:
        assert form.module is not None
        self.call, self.form, self.module, self.program = call, form, form.module, form.module.program
        self.depth = recursion_depth()
        self.captured = [np.ascontiguousarray(each.read()) for each in self.program.captured.values()]
        self.packed: list[tuple[int, int, list[np.ndarray]]] = []

    def run(self) -> list[tuple[Any, np.ndarray]]:
        """Run the kernel: for each part result arrays, and for each example a status (1: Python has to run it)."""
        form, count = self.form, self.call.count
        try:
            threads = min(thread_count(), count) if form.seconds * count > MIN_PARALLEL else 1
            bounds = [count * i // threads for i in range(threads + 1)]
            return run_together([functools.partial(self._part, a, b) for a, b in itertools.pairwise(bounds)])
        except OverflowError:
            raise Unsupported("an int of more than 64 bits") from None
        except Unsupported as error:
            name = self.call.function.__qualname__
            raise Unsupported(f"{name} has an argument that cannot be compiled: {error}") from None

    def _part(self, first: int, last: int) -> tuple[Any, np.ndarray]:
        call, form, module = self.call, self.form, self.module
        assert form.kernel is not None
        assert form.kernel.entry is not None
        status = np.zeros(last - first + 1, np.uint8)
        start = time.perf_counter()
        for careful in (0, 1)[form.careful :]:  # flags are checked once at the end; on a second try, after each example
            if careful == form.careful or self.program.writes:
                arrays, steps = compiled_call.packed_arguments(call, module.root.kinds, module.varying, first, last)
            status[:] = 0
            given = form.table, self.depth, status, *arrays, *steps, *self.captured
            try:
                outs = call_kernel(form.kernel.entry, last - first, careful, *given)
            except Exception:  # no memory for an array, say: Python raises its own error
                return None, np.ones(last - first, np.uint8)
            if not status[-1]:
                break
            form.careful = 1
        form.seconds = (time.perf_counter() - start) / (last - first)
        self.packed.append((first, last, arrays))
        return outs if isinstance(outs, tuple) else (), status[:-1]

    def put(self, contents: Sequence[Any], bad: Collection[int], first: int, last: int) -> None:
        """`Run.put`; `contents`: for each example, what its changed containers hold now; `bad`: those that failed."""
        call, program = self.call, self.program
        if not program.writes or first == last:
            return
        calls: list[tuple[Any, ...]] = []
        for start, end, arrays in self.packed:
            wanted = [first <= index < last and index not in bad for index in range(start, end)]
            given = iter(arrays)
            for value, kind in zip(call.values, self.module.root.kinds, strict=True):
                varying = isinstance(value, ColumnPlace)  # nothing is written into shared arguments
                examples = call.examples(value.column)[start:end] if varying else [value]
                calls += writes_back(program, kind, examples, given, wanted if varying else [False])
        for index in range(first, last):
            for value, content in contents[index] if contents and index not in bad else ():
                if isinstance(value, list):
                    calls.append((operator.setitem, value, slice(None), content))
                else:
                    calls += [(value.clear,), (value.update, content)]
        call_all(calls)


def run_kernel(call: CompiledCall, form: CompiledForm, stacked: bool = False) -> Run:
    """Run a compiled form on all examples; `stacked` allows a batch as the result if none fails or changes an argument.

    Raises:
        Unsupported: the kernel does not take these values, or its results differ from Python's.
    """
    parts = _Parts(call, form)
    module, program = parts.module, parts.program
    if program.writes:
        check_independent(call, program, module.root.kinds)
    outcomes = parts.run()
    failed = np.flatnonzero(np.concatenate([status for _, status in outcomes])).tolist()
    if stacked and form.checked and not (failed or module.changes or program.writes):
        columns = zip(*(outs for outs, _ in outcomes), strict=True)
        tree = batch_of(module.kept, [np.concatenate(each) for each in columns])
        if tree is not None:
            return Run([], [], lambda first, last: None, tree)
    results: list[Any] = []
    for outs, status in outcomes:
        made = unpack(module.kept, outs, len(status) - int(np.count_nonzero(status))) if outs is not None else []
        good = iter(made)
        results += made if len(made) == len(status) else [None if bad else next(good) for bad in status.tolist()]
    contents: list[Any] = []
    if module.changes:
        results, contents = _with_arguments(call, module, results)
    run = Run(results, failed, functools.partial(parts.put, contents, frozenset(failed)))
    if not form.checked:
        name = call.function.__qualname__
        form.checked = check(call, form, run, name, program.approximate, bool(program.writes))
    form.failures += len(failed)
    return run


def _with_arguments(
    call: CompiledCall, module: Module, kept: list[Any]
) -> tuple[list[Any], list[list[tuple[Any, Any]]]]:
    """The results, with returned arguments put in; for each example its changed containers and their new contents."""
    changes = module.changes
    many = sum(changes.returned)
    results: list[Any] = []
    contents: list[list[tuple[Any, Any]]] = []
    for index, row in enumerate(kept):
        if row is None:
            results.append(None)
            contents.append([])
            continue
        arguments = [
            call.examples(value.column)[index] if isinstance(value, ColumnPlace) else None for value in call.values
        ]
        results.append(returned(module.result, changes, arguments, row[0], row[1 : 1 + many]))
        places = zip(changes.containers, row[1 + many :], strict=True)
        contents.append([(arguments[place], content) for place, content in places])
    return results, contents


def check(call: CompiledCall, form: KernelForm, run: Run, name: str, approximate: bool, writes: bool = False) -> bool:
    """Compare the results of the first and the last example with Python's, in type and bits; False if both failed.

    Args:
        name: what computed the results, for the message.
        approximate: allow differences from another order of sums.
        writes: the function changes arguments: Python then runs on copies, and the changed arguments are compared too.

    Raises:
        Unsupported: they differ; the form is not used again.
    """
    failed = set(run.failed)
    # When a module is first used, two examples also run in Python, for comparison.
    chosen = [index for index in dict.fromkeys((0, call.count - 1)) if index not in failed][:2]
    for index in chosen:
        given = [copy.deepcopy(value) for value in call.example(index)] if writes else None
        try:
            expected = call.in_python(index, given)
        except Exception as error:
            expected = error
        found = run.results[index]
        if given is not None:
            before = Snapshot(call.example(index), inside=True, raw=True)
            try:
                run.put(index, index + 1)
                found, expected = (found, *call.example(index)), (expected, *given)
                found = copy.deepcopy(found)
            finally:
                run_all([before.restore])
        if not same(found, expected, approximate):
            raise form.refuse(name, found, expected)
    return bool(chosen)


def same(a: Any, b: Any, approximate: bool) -> bool:
    """True if two results are equal in type and bits; `approximate` allows for another order of sums."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        is_float = a.dtype.kind == "f"
        return is_close(a, b) if approximate and is_float else np.array_equal(a, b, equal_nan=is_float)
    if isinstance(a, SparseRows):
        one, other = in_common(a, b)
        return same(one, other, approximate)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y, approximate) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key], approximate) for key in a)
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name), approximate) for f in dataclasses.fields(a))
    if isinstance(a, float | np.floating):
        return a == b or (a != a and b != b) or (approximate and bool(np.isclose(a, b, rtol=1e-3)))
    return bool(a == b)


def open_calls() -> int:
    """The number of Python frames on this thread's stack."""
    frame, depth = sys._getframe(), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1  # type: ignore[assignment]
    return depth


def is_close(one: Any, two: np.ndarray) -> bool:
    """True if two arrays differ by rounding: of elements that cancel out, by that of what is added up."""
    scale = float(np.abs(two[np.isfinite(two)]).max(initial=0.0))
    lost = 1e-4 if two.dtype == np.float32 else 1e-5  # a sum of hundreds of terms that cancel out loses as much
    return bool(np.allclose(one, two, rtol=1e-3, atol=lost * scale, equal_nan=True))


def in_common(one: SparseRows, other: SparseRows) -> list[np.ndarray]:
    """Two gradients of a table as rows of the same ids, those that either has."""
    ids, places = np.unique(np.concatenate([one.ids, other.ids]), return_inverse=True)
    out = [np.zeros((len(ids), each.shape[1]), each.dtype) for each in (one, other)]
    for rows, each, own in zip(out, (one, other), np.split(places, [len(one.ids)]), strict=True):
        np.add.at(rows, own, each.rows)
    return out
