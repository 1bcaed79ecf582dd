"""A compiled map inside of a differentiated function: one op on the outer tape, for all examples.

The examples run one after the other, each with a tape of its own in compiled memory, so memory is bounded by the
operations of one example. Where each result is one number, as a loss is, their gradients are added up with cotangents
of 1 while the call runs, since most losses are means: backward only scales what is there. Otherwise, or if the
cotangents then differ, forward is a run without a tape, and backward a second run.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from autobatch.autodiff import tape as tapes
from autobatch.autodiff.grad import batch_data, with_data
from autobatch.autodiff.tape import TapeArray
from autobatch.batches.any_batch import Batch
from autobatch.batches.packed_batch import PackedBatch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.compiled import compiled_call, compiled_map
from autobatch.compiled.compiled_call import Arguments, ColumnPlace, CompiledCall
from autobatch.compiled.compiled_map import CompiledForm, call_of, in_common, is_close, known_form, prepared, run_kernel
from autobatch.compiled.taping.backward import Backward, Cotangents, TapedCode, run_backward, taped_form
from autobatch.compiled.translation import exact_types as types
from autobatch.compiled.value_layout import columns, flattened, rows_of, split, unpack
from autobatch.core.batched import Batched
from autobatch.core.cotangent import SparseCotangent, total
from autobatch.core.current_region import current_region
from autobatch.core.op import Op, is_boxed
from autobatch.core.pytree import is_node, leaves_of_kind, map_tree
from autobatch.errors import Unsupported
from autobatch.tables.sparse import SparseRows
from autobatch.tables.table import EmbeddingTable


class _Leaf(NamedTuple):
    """A value of the outer tape with its node, and where its cotangent lies: in a packed array, or that of a table."""

    value: Any
    node: int
    array: int
    first: int = 0
    last: int = 0
    is_table: bool = False


class _TapedCall:
    """A call whose arguments hold values of the outer tape.

    Attributes:
        given: the call as it was made; plain: the same, each `TapeArray` replaced by what it holds.
        boxes: for each column that is a list of values, the `TapeArray`s in it.
        parts: for each argument what `plain.leaves` has; None if that is not known.
        form, taped: the compiled forms, forward and for gradients; None if there is nothing to run or differentiate.
        kernels: those of these forms that run; that for gradients gives losses, too.
    """

    def __init__(
        self, function: Any, form_of: Callable[[Any], Any], columns: Sequence[Any], shared: dict[str, Any],
        arguments_of: Arguments | None, first: int,
    ) -> None:  # fmt: skip
        tape = tapes.active_tape()
        assert tape is not None
        self.tape, self.form_of = tape, form_of
        self.taped: TapedCode | None = None
        self.parts: list[list[list[Any]]] | None = None
        self.kernels: list[CompiledForm | TapedCode] = []
        self.plain = self.call = call = call_of(function, columns, shared, arguments_of, first)
        self.form = known_form(call) if call.count else None
        if self.form is None or not self._read_at_a_glance(call, self.form) or self._compares(self.form):
            self._read_in_full(function)

    @functools.cached_property
    def given(self) -> CompiledCall:
        call: Any = self.call
        in_python = lambda *args, **named: self.form_of(call.function)(*args, **named)
        return dataclasses.replace(call, function=in_python, lists=[None] * len(call.columns), leaves=None, packed=None)

    def _compares(self, form: CompiledForm) -> bool:
        """Set `taped` and `kernels`; true if results are to be compared with Python's, which runs on plain values."""
        taped = None
        if any(self.differentiated):
            if form.module is None:
                raise Unsupported(form.reason)
            taped = taped_form(form, self.differentiated)
            if taped.is_alike and taped.gives_losses:
                self.taped, self.kernels = taped, [taped]
                return not taped.has_checked_results
        self.taped, self.kernels = taped, [form] if taped is None else [taped, form]
        return not form.checked

    def _read_at_a_glance(self, call: CompiledCall, form: CompiledForm) -> bool:
        """Set the attributes from what `known_form` found; False if that is not enough."""
        if form.module is None or call.leaves is None:
            return False
        read, differentiated = list[Any](), [False] * len(call.leaves)
        for place, parts in enumerate(call.leaves):
            for each in itertools.chain.from_iterable(parts):
                if type(each) is TapeArray:
                    if form.module.varying[place] or each._ab_tape is not self.tape:
                        return False
                    read.append((each, each._ab_index, each._ab_value))
                    differentiated[place] = differentiated[place] or each._ab_index >= 0
        self.read, self.differentiated, self.parts = read, differentiated, call.leaves
        return True

    def _read_in_full(self, function: Any) -> None:
        given, self.parts = self.given, None
        self.boxes = [[] if isinstance(each, Batch) else leaves_of_kind(each, TapeArray) for each in given.columns]
        self.read = self.tape.read_in([*self.boxes, *given.shared.values()])
        plain_columns = [
            self._untaped(column) if boxes or isinstance(column, Batch) else column
            for column, boxes in zip(given.columns, self.boxes, strict=True)
        ]
        plain_shared = {name: self._untaped(value) for name, value in given.shared.items()}
        self.plain, self.form = prepared(function, plain_columns, plain_shared, given.arguments_of, given.first)
        self.differentiated = list(map(self._is_taped, given.values))
        if self.form is not None:
            self._compares(self.form)

    def _untaped(self, value: Any) -> Any:
        """A value in which each `TapeArray` is replaced by the number or array that it holds."""
        if isinstance(value, Batch):
            data = batch_data(value) if isinstance(value, Batched | PackedBatch) else None
            if type(data) is np.ndarray:
                return value
            if isinstance(data, Batch):  # of lists of arrays
                plain = self._untaped(data)
                return value if plain is data else with_data(value, plain)
            return with_data(value, np.ascontiguousarray(self._untaped(data))) if is_boxed(data) else value
        if is_node(value):
            return map_tree(self._untaped, value)
        if type(value) is not TapeArray:
            if is_boxed(value):
                raise Unsupported("values of another recorder than the gradient's")
            return value
        if value._ab_tape is not self.tape or is_boxed(value._ab_value):
            raise Unsupported("values of several gradients, one within the other")
        return value._ab_value

    def _is_taped(self, value: Any) -> bool:
        """True if an argument holds a value that carries a gradient."""
        if type(value) is TapeArray:
            return value._ab_index >= 0
        if isinstance(value, ColumnPlace):
            column, plain = self.given.columns[value.column], self.plain.columns[value.column]
            if not isinstance(column, Batch):
                return _holds_tape(self.boxes[value.column])
            if plain is not column and not compiled_call.is_contiguous(plain):
                raise Unsupported("a batch with a gradient whose examples are not contiguous in memory")
            return plain is not column
        if isinstance(value, dict | list | tuple) and compiled_call.is_varying(value):
            return any(map(self._is_taped, value.values() if isinstance(value, dict) else value))
        return _holds_tape(value)

    def leaves(self) -> list[_Leaf]:
        """The values that carry a gradient, in the order of the packed arrays."""
        assert self.form is not None
        assert self.form.module is not None
        module = self.form.module
        shared: list[Sequence[Any]] = []
        own: list[Sequence[Any]] = []
        tables: list[Any] = []
        for place, (value, kind) in enumerate(zip(self.call.values, module.root.kinds, strict=True)):
            if not self.differentiated[place]:
                continue
            if module.varying[place]:
                own += self._objects(kind, value)
            elif self.parts is not None:
                for part in self.parts[place]:
                    plain = part[0]._ab_value if type(part[0]) is TapeArray else part[0]
                    if type(plain) is EmbeddingTable:
                        tables += part
                    elif type(plain) is float or (type(plain) is np.ndarray and plain.dtype.kind == "f"):
                        shared.append(part)
            else:
                for leaf, objects in flattened(kind, [value]):
                    if isinstance(leaf, types.LookedUp):
                        tables += objects
                    elif _is_real(leaf):
                        shared.append(objects)
        out = [
            _Leaf(each._ab_value, each._ab_index, number, is_table=True)
            for number, each in enumerate(tables)
            if type(each) is TapeArray and each._ab_index >= 0
        ]
        for array, objects in enumerate([*shared, *own]):
            first = 0
            for each in objects:
                value = each._ab_value if type(each) is TapeArray else each
                last = first + (value.size if type(value) is np.ndarray else getattr(value, "size", 1))
                if type(each) is TapeArray and each._ab_index >= 0:
                    out.append(_Leaf(value, each._ab_index, array, first, last))
                first = last
        return out

    def _objects(self, kind: types.Type, value: Any) -> list[Sequence[Any]]:
        """For each packed array of floats of an argument that differs by example, the values that lie in it."""
        if isinstance(value, ColumnPlace):
            column = self.given.columns[value.column]
            if isinstance(column, Batch) and is_boxed(batch_data(column)):
                return [[batch_data(column)]]
            return _objects(kind, self.given.examples(value.column))
        if not compiled_call.is_varying(value):
            return _objects(kind, [value] * self.given.count)
        parts = zip(value.values() if isinstance(value, dict) else value, kind.items, strict=True)
        return [each for part, item in parts for each in self._objects(item, part)]


def _holds_tape(value: Any) -> bool:
    return any(leaf._ab_index >= 0 for leaf in leaves_of_kind(value, TapeArray))


def _objects(kind: types.Type, values: Sequence[Any]) -> list[Sequence[Any]]:
    """For each packed array of floats, the parts of these values that lie in it, in order."""
    return [own for leaf, own in flattened(kind, values) if not isinstance(leaf, types.LookedUp) and _is_real(leaf)]


def _is_real(kind: types.Type) -> bool:
    """True if values of a type without parts lie in an array of floats."""
    return isinstance(kind, types.Union) or getattr(kind, "dtype", getattr(kind, "name", "")).startswith("float")


class _Results:
    """Collects the results of a call; numbers that carry a gradient become values of the outer tape.

    Attributes:
        outs: those numbers and arrays; slots: for each array of results, (example, index in `outs`) of what lies in it.
    """

    def __init__(self, seeded: Sequence[int]) -> None:
        self.seeded = frozenset(seeded)
        self.outs: list[Any] = []
        self.slots: dict[int, list[tuple[int, int]]] = {k: [] for k in seeded}
        self.trees: list[Any] = []
        self._next = 0

    def add(self, kind: types.Type, values: list[Any], owners: list[int]) -> list[Any]:
        """Add values of one type, `owners` being their examples; numbers with a gradient are replaced by `_Out`s."""
        match kind:
            case None | types.Scalar(name="none"):
                return values
            case types.Scalar():
                return self._leaf(values, owners)
            case types.Union():
                self._next += 2
                return self._leaf(values, owners)
            case types.Array():
                self._next += kind.ndim
                return self._leaf(values, owners)
            case types.Text():
                self._next += 2
                return values
            case types.Maybe():
                self._next += 1
                there = [k for k, value in enumerate(values) if value is not None]
                made = iter(self.add(kind.inner, [values[k] for k in there], [owners[k] for k in there]))
                return [None if value is None else next(made) for value in values]
            case types.Tuple():
                return rows_of(
                    kind, [self.add(item, column, owners) for item, column in columns(kind, values)], len(values)
                )
            case types.List():
                self._next += 1
                lengths = list(map(len, values))
                owners = [owner for owner, length in zip(owners, lengths, strict=True) for _ in range(length)]
                items = self.add(kind.elem, list(itertools.chain.from_iterable(values)), owners)
                return split(items, lengths)
        raise Unsupported(f"a result that is a {kind}, with a gradient")

    def _leaf(self, values: list[Any], owners: list[int]) -> list[Any]:
        k = self._next
        self._next += 1
        if k not in self.seeded:
            return values
        out: list[Any] = []
        for value, owner in zip(values, owners, strict=True):
            self.slots[k].append((owner, len(self.outs)))
            if isinstance(value, float | np.floating | np.ndarray):
                out.append(_Out(len(self.outs)))
            else:
                out.append(value)
            self.outs.append(value)
        return out

    def cotangents(self, cts: Sequence[Any], count: int) -> Cotangents:
        """The cotangents of the arrays of results; an example has none if nothing depends on its results."""
        reached = {owner for slots in self.slots.values() for owner, at in slots if cts[at] is not None}
        flat: dict[int, np.ndarray] = {}
        starts: dict[int, np.ndarray] = {}
        for k, slots in self.slots.items():
            parts: list[Any] = []
            start, used = np.full(count, -1), 0
            for owner, at in slots:
                size = getattr(self.outs[at], "size", 1)
                if start[owner] < 0 and owner in reached:
                    start[owner] = used
                used += size
                parts.append(np.zeros(size) if cts[at] is None else np.asarray(cts[at], np.float64).reshape(-1))
            flat[k] = np.concatenate(parts) if parts else np.zeros(0)
            starts[k] = start
        return Cotangents(flat, starts)


@dataclasses.dataclass
class _Out:
    """A placeholder, in a result, for an entry of `_Results.outs`."""

    at: int


def kernels_on_tape(
    function: Any, form_of: Callable[[Any], Any], columns: Sequence[Any], shared: dict[str, Any],
    arguments_of: Arguments | None,
) -> Sequence[CompiledForm | TapedCode]:  # fmt: skip
    """What has to be compiled before `compiled_map_on_tape` with the same arguments can run."""
    return _TapedCall(function, form_of, columns, shared, arguments_of, 0).kernels


def compiled_map_on_tape(
    function: Any, form_of: Callable[[Any], Any], columns: Sequence[Any], shared: dict[str, Any],
    arguments_of: Arguments | None = None, first: int = 0, stacked: bool = False,
) -> list[Any] | MaskedBatch:  # fmt: skip
    """`compiled_map` for arguments that hold values of the active tape.

    Args:
        form_of: the form of a function in which Python runs an example on that tape.
        function, columns, shared, arguments_of, first: as for `compiled_map`.
        stacked: allow a batch as the result if it is a number for each example.

    Raises:
        Unsupported, Exception: as `compiled_map`.
    """
    call = _TapedCall(function, form_of, columns, shared, arguments_of, first)
    form, taped = call.form, call.taped
    if form is None:
        return []
    for each in call.kernels:
        each.require_ready()
    assert form.module is not None
    kind, count, tape, ready = form.module.result, call.plain.count, call.tape, None
    values: Any
    if taped is not None and call.kernels == [taped]:
        ready = run_backward(call.plain, form, taped, _of_ones(count), 0, count, False)
        values, failed = ready.outs[0], ready.failed
        if failed or not stacked or not taped.has_checked_results:
            found, bad = iter(unpack(kind, ready.outs, count - len(failed))), set(failed)
            values = [None if index in bad else next(found) for index in range(count)]
        if not taped.has_checked_results:
            done = compiled_map.Run(values, failed, lambda first, last: None)
            name, approximate = function.__qualname__, form.module.program.approximate
            taped.has_checked_results = compiled_map.check(call.plain, taped, done, name, approximate)
    else:
        done = run_kernel(call.plain, form)
        values, failed = done.results, done.failed
        if taped is None:
            done.finish(call.given.in_python)
            return values
        if stacked and not failed and taped.gives_losses:
            values = np.array(values, kind.name)
    held = call.leaves()
    parents = [(place, leaf.node) for place, leaf in enumerate(held)]
    if isinstance(values, np.ndarray):
        backward = _Backward(call, form, taped, held, values, None, ready, len(tape.nodes))
        tape.nodes.append((_compiled_p, [values], [], {"backward": backward}, parents))
        return MaskedBatch.of_data(tape.leaf(values), (), current_region(), float if kind.python else None)
    bad = set(failed)
    good = [index for index in range(count) if index not in bad]
    assert taped is not None
    assert taped.module is not None
    results = _Results(taped.module.seeded)
    trees = results.add(kind, [values[index] for index in good], good)
    backward = _Backward(call, form, taped, held, None, results, ready, len(tape.nodes))
    tape.nodes.append((_compiled_p, results.outs, [], {"backward": backward}, parents))
    boxes = [tape.leaf(out) for out in results.outs]
    for at, box in enumerate(boxes):
        tape.asked_later[box._ab_index] = functools.partial(backward.is_constant, at)
    made = [_filled(tree, boxes) for tree in trees]
    for index, each in zip(good, made, strict=True):
        values[index] = each
    for index in failed:
        values[index] = call.given.in_python(index)
    return values


@functools.lru_cache(maxsize=64)
def _of_ones(count: int) -> Cotangents:
    return Cotangents({0: np.ones(count)}, {0: np.arange(count)})


def _filled(tree: Any, boxes: Sequence[TapeArray]) -> Any:
    """A result with the values of the tape in the places of the `_Out`s."""
    if type(tree) is _Out:
        return boxes[tree.at]
    if type(tree) in (tuple, list):
        return type(tree)([_filled(each, boxes) for each in tree])
    return tree


@dataclasses.dataclass
class _Backward:
    """The backward step of a call: the cotangents of its arguments from those of its results.

    Attributes:
        losses: the results, if they are one batch of numbers; else `collected` has them.
        ready: the gradient for cotangents of 1, if it is known; at: the node of the call.
    """

    call: _TapedCall
    form: CompiledForm
    taped: TapedCode
    held: list[_Leaf]
    losses: np.ndarray | None
    collected: _Results | None
    ready: Backward | None
    at: int

    @property
    def results(self) -> _Results:
        """All results, one by one."""
        if self.collected is None:
            assert self.losses is not None
            self.collected = _Results((0,))
            self.collected.add(self.form.module.result, list(self.losses), list(range(self.losses.size)))  # type: ignore[union-attr]
        return self.collected

    def cotangents(self, cts: Sequence[Any]) -> list[Any]:
        """The cotangents of `held`, from those of the results."""
        recorded = any(map(is_boxed, cts))  # by another tape, for a derivative along a direction
        if self.losses is not None:
            cts = list(cts[0]) if recorded else np.asarray(cts[0])  # type: ignore[assignment]
        done = None if recorded else self._scaled(cts)
        if done is not None and not done.failed and self.taped.checked:
            return [self._part(done, leaf) for leaf in self.held]
        examples = sorted({owner for slots in self.results.slots.values() for owner, _ in slots})
        if recorded:
            return self._by_python(cts, examples)
        cotangents = self.results.cotangents(cts, self.call.plain.count)
        try:
            if not self.taped.checked:
                self._check(cotangents, cts, examples)
            done = done or self._run(cotangents)
        except Unsupported:
            done = None
        if done is None or done.inexact:
            return self._by_python(cts, examples)
        failed = [index for index in done.failed if index in set(examples)]
        found = [self._part(done, leaf) for leaf in self.held]
        if not failed:
            return found
        return [[one, two] for one, two in zip(found, self._by_python(cts, failed), strict=True)]

    def _scaled(self, cts: Sequence[Any]) -> Backward | None:
        """The gradient for cotangents that are all the same number, from that for ones."""
        ready, self.ready = self.ready, None
        if ready is None:
            return None
        given = (
            cts if isinstance(cts, np.ndarray) else np.array([np.nan if ct is None else ct for ct in cts], np.float64)
        )
        scale = given[0] if given.size else 0
        if scale == 0 or not np.isfinite(scale) or np.logical_or.reduce(given != scale):
            self.taped.is_alike = False
            return None
        if ready.inexact:
            return None  # with smaller cotangents it may not overflow
        ready.scale = scale
        return ready

    def is_constant(self, at: int) -> bool:
        """True if a result does not depend on what is differentiated: a cotangent of NaN then reaches no argument."""
        cts: list[Any] = [None] * len(self.results.outs)
        cts[at] = np.full(np.shape(self.results.outs[at]), np.nan)
        cotangents = self.results.cotangents(cts, self.call.plain.count)
        owner = next(owner for slots in self.results.slots.values() for owner, each in slots if each == at)
        starts = {k: start[owner : owner + 1] for k, start in cotangents.starts.items()}
        one = Cotangents(cotangents.flat, starts)
        try:
            done = run_backward(self.call.plain, self.form, self.taped, one, owner, owner + 1, False)
        except Unsupported:
            return False
        rows = [each.rows for each in done.tables]
        return not done.failed and not any(np.isnan(leaf).any() for leaf in (*done.leaves, *rows))

    def _run(self, cotangents: Cotangents) -> Any:
        return run_backward(self.call.plain, self.form, self.taped, cotangents, 0, self.call.plain.count, False)

    def _part(self, done: Backward, leaf: _Leaf) -> Any:
        value = leaf.value
        if leaf.is_table:
            _, ids, rows = done.tables[leaf.array]
            return SparseRows.trusted(ids, np.multiply(rows, rows.dtype.type(done.scale), out=rows), len(value))
        flat = done.leaves[leaf.array][leaf.first : leaf.last]
        if type(value) is float:
            return np.float64(flat[0] * flat.dtype.type(done.scale))
        out = np.multiply(flat.reshape(value.shape), flat.dtype.type(done.scale))
        return out if type(out) is np.ndarray and out.dtype == value.dtype else np.array(out, value.dtype)

    def _by_python(self, cts: Sequence[Any], examples: Sequence[int]) -> list[Any]:
        """The cotangents of the arguments for some of the examples, by a tape in Python."""
        given, slots = self.call.given, dict[tuple[int, int], list[int]]()
        for k, own in self.results.slots.items():
            for owner, at in own:
                slots.setdefault((k, owner), []).append(at)

        def record() -> list[tuple[Any, Any]]:
            pairs, call = [], dataclasses.replace(given, lists=[None] * len(given.columns))
            for index in examples:
                found = _Results(self.taped.module.seeded)  # type: ignore[union-attr]
                found.add(self.form.module.result, [call.in_python(index)], [0])  # type: ignore[union-attr]
                for k, own in found.slots.items():
                    for (_, at), outer_at in zip(own, slots.get((k, index), ()), strict=True):
                        out, ct = found.outs[at], cts[outer_at]
                        if ct is not None and type(out) is TapeArray:
                            pairs.append((out, ct if is_boxed(ct) else np.asarray(ct, out.dtype)))
            return pairs

        found = self.call.tape.recorded_again(record, self.at, self.call.read)
        # a value that occurs twice has one total
        parts = [found.pop(leaf.node, None) for leaf in self.held]
        return [
            part.to_dense() if isinstance(part, SparseCotangent) and not leaf.is_table else part
            for part, leaf in zip(parts, self.held, strict=True)
        ]

    def _check(self, cotangents: Cotangents, cts: Sequence[Any], examples: Sequence[int]) -> None:
        """Compare the gradients of the first and the last example with Python's.

        Raises:
            Unsupported: they differ; the form is not used again.
        """
        reached = [index for index in examples if any(start[index] >= 0 for start in cotangents.starts.values())]
        # When a form is first used, the gradient of two examples is also taken in Python.
        for index in list(dict.fromkeys((reached[0], reached[-1])))[:2] if reached else []:
            alone = {k: np.where(np.arange(start.size) == index, start, -1) for k, start in cotangents.starts.items()}
            done = self._run(Cotangents(cotangents.flat, alone))
            if index in done.failed or done.inexact:
                continue
            parts = [self._part(done, leaf) for leaf in self.held]
            for leaf, expected in zip(self.held, self._by_python(cts, [index]), strict=True):
                if expected is None:
                    continue
                same = [each.node == leaf.node for each in self.held]
                own = total(list(itertools.compress(parts, same)))
                if isinstance(own, SparseRows):
                    own, expected = in_common(own, expected)
                if not is_close(own, np.asarray(expected)):
                    name = self.call.plain.function.__qualname__
                    raise self.taped.refuse(f"the gradient of {name}", own, expected)
            self.taped.checked = True


_compiled_p = Op(
    "compiled", lambda: None, joint=lambda wanted, cts, outs, args, params: params["backward"].cotangents(cts)
)
