"""Run a form for gradients: cotangents of the results go in, cotangents of the differentiated arguments come out."""

import dataclasses
import functools
import itertools
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from autobatch.blocks.kernel_cache import kernel_of
from autobatch.compiled.compiled_call import CompiledCall, packed_arguments
from autobatch.compiled.compiled_map import MIN_PARALLEL, CompiledForm, KernelForm, recursion_depth
from autobatch.compiled.module import table_of
from autobatch.compiled.python_calls import call_kernel
from autobatch.compiled.taping.taped_module import TapedModule, write_taped
from autobatch.compiled.translation.exact_types import Array, List, LookedUp, Scalar, Struct, Text, Tuple, Type
from autobatch.compiled.value_layout import columns, rows_of, split
from autobatch.core.config import current
from autobatch.core.cotangent import are_finite
from autobatch.core.threads import run_together, thread_count
from autobatch.errors import Unsupported, reason_of
from autobatch.kernels.compiled_code import gradient_tape as tape
from autobatch.tables.sparse import SparseRows

_ROWS = 1 << 10  # rows looked up in differentiated tables, for a form that has not run
_LEAST, _MOST = 16, 64  # examples whose gradients are summed first, so that sums do not depend on the threads
_ZERO = {name: np.zeros(1, name) for name in ("float32", "float64")}
_SIZE, _DTYPE, _ROWS_OF = map(operator.attrgetter, ("size", "dtype", "rows"))
_BYTES = 73  # of the tape for each node, at most


@dataclasses.dataclass(eq=False)
class TapedCode(KernelForm):
    """A compiled form for the gradients of some arguments."""

    module: TapedModule | None = None
    nodes: int = 1 << 12  # length of the tape, in nodes, for a form that has not run
    rows: int = _ROWS
    has_checked_results: bool = False  # those of the function; `checked` is about gradients
    is_alike: bool = True  # the cotangents of the results of each call so far were all the same
    gives_losses: bool = False  # the result of an example is one float, with a gradient
    seconds: float = 0.0  # per example, in the last run
    unused: "list[TapeMemory]" = dataclasses.field(default_factory=list)


def taped_form(form: CompiledForm, differentiated: Sequence[bool]) -> TapedCode:
    """The form for gradients of these arguments, written on first use."""
    key = tuple(differentiated)
    if form.module is None:
        return TapedCode(form.reason)
    if key not in form.taped:
        try:
            module = write_taped(form.module, key)
            table = np.append(table_of(form.module.program.ufuncs), 0)
            kind = form.module.result
            is_loss = isinstance(kind, Scalar) and kind.kind == "f" and module.seeded == (0,)
            form.taped[key] = TapedCode(kernel=kernel_of(module.text), table=table, module=module, gives_losses=is_loss)
        except (Unsupported, RuntimeError, RecursionError, SyntaxError) as error:
            form.taped[key] = TapedCode(reason_of(error))
    return form.taped[key]


def differentiable(kind: Type) -> bool:
    """True if compiled code gives the gradient of an argument of this type as the loop does."""
    match kind:
        case Scalar():
            return kind.kind in "fnb"
        case Array():
            return np.dtype(kind.dtype).kind == "f"
        case LookedUp():
            return differentiable(kind.weights)
        case Text():
            return True
        case Tuple():
            return all(map(differentiable, kind.items))
        case Struct():
            return (kind.cls is dict or issubclass(kind.cls, tuple)) and all(map(differentiable, kind.items))
        case List():
            return kind.elem is None or differentiable(kind.elem)
    return False


@dataclasses.dataclass
class Cotangents:
    """The cotangents of the results of a call.

    Attributes:
        flat: for each array of results that has cotangents, these one after the other.
        starts: where those of each example begin in it; -1 if the example has none.
    """

    flat: dict[int, np.ndarray]
    starts: dict[int, np.ndarray]


class TableRows(NamedTuple):
    """The gradient of a table.

    Attributes:
        examples: (n,) ascending, with the ids (n,) in the order of the look-ups, and rows (n, dim).
    """

    examples: np.ndarray
    ids: np.ndarray
    rows: np.ndarray

    def of_example(self, index: int, num_rows: int) -> SparseRows:
        """The gradient of one example."""
        first, last = np.searchsorted(self.examples, (index, index + 1))
        return SparseRows.trusted(self.ids[first:last].copy(), self.rows[first:last].copy(), num_rows)


@dataclasses.dataclass
class Backward:
    """The outcome of a backward run.

    Attributes:
        outs: the arrays of results; failed: the examples without a result, which Python has to run.
        leaves: the cotangents of the packed arrays, in the order of `TapedModule.leaves`. For shared arguments they are
            summed over the examples, or have a row for each.
        shared: if summed, those of shared arguments, one after the other, of which the leaves are views; else empty.
        tables: what differentiated tables were asked for, in the order of `TapedModule.tables`.
        scale: what all cotangents are still to be multiplied by.
        inexact: the examples among which are some whose gradient Python's tape may not find equal, because it is not
            finite, or a partial derivative is not that no cotangent reaches here: Python may multiply it by zero.
    """

    outs: Any
    failed: list[int]
    leaves: list[np.ndarray]
    shared: np.ndarray
    tables: list[TableRows]
    scale: float = 1.0
    inexact: Sequence[int] = ()


def run_backward(
    call: CompiledCall, form: CompiledForm, taped: TapedCode, cotangents: Cotangents, first: int, last: int, rows: bool
) -> Backward:
    """Run the examples `first` to `last - 1` forward and back: chunks with a tape each, on threads if that pays.

    Args:
        cotangents: for all of these examples; those of an example that fails are not used.
        rows: shared arguments get a cotangent for each example, not the sum.
    """
    assert form.module is not None
    captured = [np.ascontiguousarray(each.read()) for each in form.module.program.captured.values()]
    depth, budget = recursion_depth(), current().memory_budget
    step = min(max(_LEAST, -(-(last - first) // 2)), _MOST)
    chunks = list(itertools.pairwise([*range(first, last, step), last]))
    threads = min(thread_count(), len(chunks)) if taped.seconds * (last - first) > MIN_PARALLEL else 1

    def share(number: int) -> list[Backward]:
        own = chunks[len(chunks) * number // threads : len(chunks) * (number + 1) // threads]
        try:
            memory = taped.unused.pop()
        except IndexError:
            memory = TapeMemory(taped)
        most = budget // _BYTES  # nodes; an example that needs a longer tape is left to Python
        parts = [_part(call, form, taped, cotangents, first, a, b, rows, captured, depth, memory, most) for a, b in own]
        if taped.nodes < most // 8:  # else it is long, and its memory soon found
            taped.unused.append(memory)
        return parts

    if threads == 1:
        parts = share(0)
    else:
        shares = run_together([functools.partial(share, number) for number in range(threads)])
        parts = [part for each in shares for part in each]
    if len(parts) == 1:
        return parts[0]
    assert taped.module is not None
    shared = np.sum([part.shared for part in parts], axis=0)
    summed = [] if rows else split(shared, [leaf.size for leaf in parts[0].leaves[: taped.module.shared]])
    own = zip(*[part.leaves[len(summed) :] for part in parts], strict=True)
    joined = [*summed, *map(np.concatenate, own)]
    kept = [part.outs for part in parts]
    outs = tuple(map(np.concatenate, zip(*kept, strict=True))) if isinstance(kept[0], tuple) else sum(kept)
    tables = [
        TableRows(*map(np.concatenate, zip(*own, strict=True)))
        for own in zip(*[part.tables for part in parts], strict=True)
    ]
    failed, inexact = ([i for part in parts for i in getattr(part, name)] for name in ("failed", "inexact"))
    return Backward(outs, failed, joined, shared, tables, inexact=inexact)


class TapeMemory:
    """The memory of tapes, for one after the other of the same form: `adjoints` and `seen` are zero between them.

    Attributes:
        head: as `kernels.compiled_code.gradient_tape` describes it; `found` and `found_rows` are for table look-ups.
    """

    def __init__(self, taped: TapedCode) -> None:
        assert taped.module is not None
        self.taped, self.real = taped, np.dtype(taped.module.real)
        self.head = np.zeros(tape.HEAD_SIZE, np.int64)
        self.address = self.head.ctypes.data
        self.adjoints = self.turned = self.numbers = np.zeros(0, self.real)
        self.places = np.zeros(0, np.int64)

    def hold(self, leaves: int, width: int) -> None:
        """Make room for the lengths that the form has learned.

        Args:
            leaves: how many `numbers` of the leaves there are, by place; width: of the widest table.
        """
        taped, head = self.taped, self.head
        if head[tape.NUM_NODES] != taped.nodes or self.adjoints.size < leaves + taped.nodes:
            many = head[tape.NUM_NODES] = head[tape.NUM_VALUES] = taped.nodes
            head[tape.NUM_RECORDS] = 2 * many
            self.adjoints, self.seen = _aligned(np.zeros, leaves + many, self.real), np.zeros(leaves + many, np.uint8)
            self.parents, self.records = np.zeros((2, 2 * many), np.int64)  # no notes (`note_of`) of another tape
            self.partials, self.values = np.empty(2 * many, self.real), np.empty(many, self.real)
            for place, array in (
                (tape.ADJOINTS, self.adjoints), (tape.SEEN, self.seen), (tape.PARENTS, self.parents),
                (tape.RECORDS, self.records), (tape.PARTIALS, self.partials), (tape.VALUES, self.values),
            ):  # fmt: skip
                head[place] = array.ctypes.data
        if head[tape.NUM_ROWS] != taped.rows or head[tape.ROW_WIDTH] < width:
            head[tape.NUM_ROWS], head[tape.ROW_WIDTH] = taped.rows, width
            self.found = np.empty((taped.rows if width else 0, 3), np.int64)
            self.found_rows = np.empty((len(self.found), width), self.real)
            head[tape.NUM_ROWS] = len(self.found)
            head[tape.FOUND], head[tape.FOUND_ROWS] = self.found.ctypes.data, self.found_rows.ctypes.data
        if self.numbers.size != leaves:
            self.numbers = _aligned(np.empty, leaves, self.real)
            head[tape.LEAVES] = self.numbers.ctypes.data
        if self.places.size != self.adjoints.size:
            self.places = _numbers_up_to(self.adjoints.size)
            head[tape.PLACES], head[tape.NUM_PLACES] = self.places.ctypes.data, self.places.size
        if self.turned.size != leaves:
            self.turned, self.turns = _aligned(np.empty, leaves, self.real), np.zeros((64, 4), np.int64)
            head[tape.TURNED], head[tape.TURNS] = self.turned.ctypes.data, self.turns.ctypes.data
        self.turns[:] = head[tape.TURNED_USED] = 0
        head[tape.FIRST], head[tape.ROWS_FOUND], head[tape.SKIPPED] = leaves, 0, 0


def _part(
    call: CompiledCall, form: CompiledForm, taped: TapedCode, cotangents: Cotangents, start_of_all: int, first: int,
    last: int, rows: bool, captured: Sequence[np.ndarray], depth: int, memory: TapeMemory, most: int,
) -> Backward:  # fmt: skip
    """`run_backward` for one chunk of the examples."""
    module = taped.module
    assert module is not None
    assert form.module is not None
    assert taped.kernel is not None
    entry = taped.kernel.entry
    assert entry is not None
    began = time.perf_counter()
    arrays, steps = packed_arguments(call, form.module.root.kinds, form.module.varying, first, last)
    count = last - first
    widths = [int(arrays[leaf + 1][1]) for leaf in module.tables]
    given = list(map(arrays.__getitem__, module.leaves))
    ends = list(itertools.accumulate(map(_SIZE, given), initial=0))
    shared = ends[module.shared]
    each_shared = np.zeros((count, shared if rows else 0), memory.real)
    own = slice(first - start_of_all, last - start_of_all)
    seeds = [array for k in module.seeded for array in (cotangents.flat[k], cotangents.starts[k][own])]
    width = max(widths, default=0)
    while True:
        nodes = taped.nodes = min(taped.nodes, most)
        memory.hold(ends[-1] + 1, width)
        np.concatenate([_ZERO[module.real], *given], out=memory.numbers)
        for leaf, (a, b) in zip(module.leaves, itertools.pairwise(ends), strict=True):
            if arrays[leaf].dtype == memory.real:  # the same memory forward and back
                arrays[leaf] = memory.numbers[a + 1 : b + 1]
        status = np.zeros(count + 1, np.uint8)
        outs = call_kernel(
            entry, count, 1, taped.table, depth, status, *arrays, *steps, *captured,
            memory.address, nodes >= most, each_shared, *seeds,
        )  # fmt: skip
        adjoints = memory.adjoints
        summed = adjoints[1 : 1 if rows else shared + 1].copy()
        own_leaves = [adjoints[a + 1 : b + 1].copy() for a, b in itertools.pairwise(ends[module.shared :])]
        adjoints[: ends[-1] + 1] = memory.seen[: ends[-1] + 1] = 0
        many = int(memory.head[tape.ROWS_FOUND])
        if status[count]:
            taped.nodes = max(taped.nodes, min(2 * nodes, most))
        elif many <= len(memory.found):
            break
        else:
            taped.rows = max(taped.rows, 2 * many)
    taped.seconds = (time.perf_counter() - began) / count
    each = each_shared.T if rows else summed
    leaves = [each[a:b].T.ravel() for a, b in itertools.pairwise(ends[: module.shared + 1])] + own_leaves
    dtypes = map(_DTYPE, map(arrays.__getitem__, module.tables))
    looked_up = _looked_up(memory, first, list(zip(dtypes, widths, strict=True))) if widths else []
    out = Backward(outs, (first + status[:count].nonzero()[0]).tolist(), leaves, summed, looked_up)
    is_finite = are_finite([each_shared, summed, *own_leaves, *map(_ROWS_OF, looked_up)])
    out.inexact = range(first, last) if memory.head[tape.SKIPPED] or not is_finite else ()
    return out


def _aligned(make: Callable[..., np.ndarray], count: int, dtype: np.dtype) -> np.ndarray:
    """An array for numbers by place, the first leaf's at the start of a cache line: a matrix is read by whole lines."""
    line = 64 // dtype.itemsize
    made = make(count + line, dtype)
    start = -(made.ctypes.data // dtype.itemsize + 1) % line
    return made[start : start + count]


def _numbers_up_to(count: int) -> np.ndarray:
    """`np.arange(count)`, which nobody writes into."""
    global _numbers
    numbers = _numbers
    if numbers.size < count:
        numbers = _numbers = np.arange(max(count, 2 * numbers.size))
    return numbers[:count]


_numbers = np.arange(0)  # another thread may see the old one, or make its own


def _looked_up(memory: TapeMemory, first: int, like: Sequence[tuple[np.dtype, int]]) -> list[TableRows]:
    """What the tables, of these dtypes and widths, were asked for, from records which the kernel's next run changes."""
    many = int(memory.head[tape.ROWS_FOUND])
    numbers, ids, examples = memory.found[:many].T.copy()
    examples += first
    rows = memory.found_rows[:many]
    if len(like) == 1:
        return [TableRows(examples, ids, rows[:, : like[0][1]].astype(like[0][0]))]
    mine = [np.flatnonzero(numbers == number) for number in range(1, len(like) + 1)]
    return [
        TableRows(examples[own], ids[own], rows[own, :dim].astype(dtype))
        for own, (dtype, dim) in zip(mine, like, strict=True)
    ]


def gradients_of(
    kind: Type, values: Sequence[Any], leaves: Iterator[np.ndarray], tables: Iterator[TableRows]
) -> list[Any]:
    """The gradient of each value, in the value's form, from the cotangents of the packed arrays and tables."""
    match kind:
        case Scalar():
            if kind.kind != "f":
                return [None] * len(values)
            flat = next(leaves)
            return flat.tolist() if kind.python else list(flat.astype(kind.name))
        case Array():
            parts = split(next(leaves).astype(kind.dtype), [value.size for value in values])
            return [part.reshape(value.shape).copy() for value, part in zip(values, parts, strict=True)]
        case LookedUp():
            rows = next(tables)
            return [rows.of_example(index, len(table)) for index, table in enumerate(values)]
        case Tuple() | Struct():
            found = [gradients_of(item, column, leaves, tables) for item, column in columns(kind, values)]
            return rows_of(kind, found, len(values))
        case List():
            inner = gradients_of(kind.elem, list(itertools.chain.from_iterable(values)), leaves, tables)
            return split(inner, map(len, values))
    return [None] * len(values)
