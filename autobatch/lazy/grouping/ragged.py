"""Groups calls that differ only in sizes (lengths, say), and launches each group together.

Calls normally need equal signatures to run together. If an op has a batching rule for ragged data, the sizes of their
own operands may differ: signatures that are equal but for sizes form one family (`family_of`). A launch of several
signatures uses `Batched` operands with `Lengths`; if only the first dimension varies, their data has no padding (the
rows of all examples are concatenated). A result whose sizes differ is a `RaggedRows` buffer.
"""

import functools
import itertools
import re
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.batches.unpadded import Unpadded, layout_of, segment_sums
from autobatch.blocks.batched_program import run_op
from autobatch.blocks.launch import launch
from autobatch.blocks.program import Program, has_ragged_rule, interned, without_sizes
from autobatch.core.abstract_eval import WEAK, Affine, Aval, freeze, shape_of, unknown_lengths
from autobatch.core.batched import Batched, Lengths, Size, same_size
from autobatch.core.op import Op
from autobatch.errors import Unsupported, UnsupportedError
from autobatch.lazy.grouping.buffers import packed, ragged_rows, widths_of
from autobatch.lazy.grouping.launch_order import Schedule
from autobatch.ops.numpy.joining import concatenate_p, stack_p
from autobatch.ops.rules.padding import to_widths
from autobatch.ops.rules.row_gather import rows_p
from autobatch.ops.rules.selected_operands import products_by_number_p
from autobatch.tables.lookup import lookup_p

_FLOAT_DTYPES = (np.float32, np.float64)  # dtypes in which NumPy both multiplies and sums, without an intermediate cast
_LARGE_BYTES = 1 << 18  # bytes of per-example operands; calls with more gain nothing by sharing a launch


_refused: set[Any] = set()  # families for which `Unsupported` was raised


def refuse(family: Any) -> None:
    """From now on, launch the signatures of this family separately."""
    if len(_refused) > 1 << 12:
        _refused.clear()
    _refused.add(_without_identity(family))


def _without_identity(family: Any) -> Any:
    what, operands, _, errors = family
    return what, tuple([each.key if type(each) is Aval else each for each in operands]), errors


def family_of(sig: Any) -> Any:
    """Key of a signature without its sizes: equal keys can be launched together; None if the signature stands alone.

    Args:
        sig: a `signatures.Signature`.
    """
    found = sig.family
    if found is False:
        found = sig.family = _family_of(sig)
    return found


def _family_of(sig: Any) -> Any:
    joined = _join_kind(sig)
    if joined is not None:
        return (sig.op, "first axis"), (joined,), (), tuple(sig.errors.values())
    if sig.block is not None:
        what = sig.block.program.skeleton()
    elif has_ragged_rule(sig.op):
        what = sig.op, without_sizes(sig.op, sig.params), sig.out.ndim
    else:
        what = None
    if what is None:
        return None
    operands = tuple(
        [aval if aval.shared else (aval.ndim, aval.dtype, aval.scalar, aval.non_c_order) for aval in sig.avals]
    )
    shared = () if sig.block is None else tuple(map(id, sig.block.shared))
    family = what, operands, shared, tuple(sig.errors.values())
    return None if _refused and _without_identity(family) in _refused else family


def _join_kind(sig: Any) -> Any:
    """(row shape, dtype) of the operands of a stack or concatenate along the first axis; None for any other call."""
    if sig.block is not None or sig.op not in (stack_p, concatenate_p) or sig.params["axis"] != 0:
        return None
    first = sig.avals[0]
    lead = 1 if sig.op is concatenate_p else 0
    if first.dtype != sig.out.dtype:
        return None
    for aval in sig.avals:
        if aval.shared or aval.non_c_order or aval.dtype != first.dtype or aval.shape[lead:] != first.shape[lead:]:
            return None
    return first.shape[lead:], first.dtype


def _is_worth_grouping(sigs: Sequence[Any], calls: int) -> bool:
    """True if one launch of these calls costs less than a launch for each signature."""
    if sigs[0].op is stack_p:  # it copies the rows in either case
        return True
    own = sum([aval.nbytes for sig in sigs for aval in sig.avals if not aval.shared])
    return own <= _LARGE_BYTES * len(sigs) or calls > 4 * len(sigs)


class Sizes:
    """The sizes of the values of a group of calls, given those of each signature in it.

    Args:
        inverse: (n,) int64, index of each call's signature.
        known: cache of `Lengths` by content, so that equal ones are the same object.
    """

    __slots__ = ("_inverse", "_known")

    def __init__(self, inverse: np.ndarray, known: dict[bytes, Lengths]) -> None:
        self._inverse = inverse
        self._known = known

    def __call__(self, avals: Sequence[Any]) -> tuple[Size, ...]:
        """One `Size` for each dimension.

        Args:
            avals: the value's `Aval` in each signature.
        """
        first = avals[0].shape
        if all(aval.shape == first for aval in avals):
            return first
        return tuple([self._size(column) for column in zip(*[aval.shape for aval in avals], strict=True)])

    def attributes(self, params: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], list[Batched]]:
        """The attributes of a group's calls: in `shape`, None stands for a size that differs, which is an operand."""
        first = params[0]
        shape = first.get("shape")
        if type(shape) is not tuple:
            return first, []
        sizes = [self._size(column) for column in zip(*[each["shape"] for each in params], strict=True)]
        counts = [Batched(size.values, ()) for size in sizes if isinstance(size, Lengths)]
        return {**first, "shape": tuple([None if isinstance(size, Lengths) else size for size in sizes])}, counts

    def constant(self, values: Sequence[Any]) -> Any:
        """One operand of the group from each signature's value of a constant."""
        first = values[0]
        if type(first) in WEAK:
            if all(each is first or freeze(each) == freeze(first) for each in values):
                return first
            return Batched(np.array(values)[self._inverse], (), type(first))
        content = first.tobytes()
        if all(each is first or (each.shape == first.shape and each.tobytes() == content) for each in values):
            return first
        sizes = self(values)
        if Lengths in map(type, sizes):
            return Batched(ragged_rows([values[k] for k in self._inverse.tolist()], sizes).data, sizes)
        return Batched(np.stack(values)[self._inverse], sizes)

    def _size(self, column: Sequence[int]) -> Size:
        if column.count(column[0]) == len(column):
            return column[0]
        values = np.array(column, np.int64)[self._inverse]
        return self._known.setdefault(values.tobytes(), Lengths(values))


class Group:
    """A launch of calls of several signatures.

    Attributes:
        sigs: the signatures; inverse: (n,) int64, index in `sigs` of each call's signature.
        text: text for reports.
        is_join: True for stack or concatenate calls, which may differ in their number of operands.
    """

    __slots__ = ("inverse", "is_join", "sigs", "text")

    def __init__(self, sigs: Sequence[Any], inverse: np.ndarray) -> None:
        self.sigs = sigs
        self.inverse = inverse
        self.is_join = _join_kind(sigs[0]) is not None
        sizes = [sum([aval.nbytes for aval in sig.avals]) for sig in sigs]
        self.text = _common_text(sigs[sizes.index(min(sizes))].text, sigs[sizes.index(max(sizes))].text)


@functools.lru_cache(maxsize=1024)
def _common_text(first: str, last: str) -> str:
    """Merge two texts that differ only in numbers: `a..b` for each number that differs."""
    parts = [_NUMBER.split(text) for text in (first, last)]
    if len(set(map(len, parts))) > 1:
        return first
    out = []
    for a, b in zip(*parts, strict=True):
        if a != b and not (a.isdigit() and b.isdigit()):
            return first
        out.append(a if a == b else f"{min(int(a), int(b))}..{max(int(a), int(b))}")
    return "".join(out)


_NUMBER = re.compile(r"(?<![a-z0-9])(\d+)")


def by_family(sigs: np.ndarray, used: Sequence[int], table: Sequence[Any]) -> tuple[np.ndarray, bool]:
    """The group of each node: its signature, or its family of signatures that differ only in sizes.

    Args:
        used: the numbers of the signatures that have nodes.

    Returns:
        (N,) the first signature number of each node's family; and whether a family has several signatures.
    """
    kind_of = np.arange(len(table))
    first: dict[Any, int] = {}
    is_mixed = False
    for number in used:
        family = family_of(table[number])
        if family is not None and table[number].any_length is None:
            kind = first.setdefault(family, number)
            if kind != number:
                kind_of[number] = kind
                is_mixed = True
    return (kind_of[sigs] if is_mixed else sigs), is_mixed


def split_mixed(plan: Schedule, sigs: np.ndarray, table: Sequence[Any]) -> tuple[Schedule, list[Group | None]]:
    """Split launches of several signatures where sharing does not pay; also a `Group` for each that stays mixed."""
    order, starts = plan.order.copy(), plan.starts.tolist()
    ordered = sigs[order]
    bounds = [0]
    groups: list[Group | None] = []
    for begin, end in itertools.pairwise(starts):
        part = ordered[begin:end]
        if (part == part[0]).all():
            groups.append(None)
            bounds.append(end)
            continue
        each, inverse = np.unique(part, return_inverse=True)
        several = [table[number] for number in each.tolist()]
        launch_of = np.arange(len(each))
        if _is_worth_grouping(several, end - begin):
            launch_of = _by_size(several, np.bincount(inverse))
        order[begin:end] = order[begin:end][np.argsort(launch_of[inverse], kind="stable")]
        for k in np.unique(launch_of).tolist():
            own = launch_of[inverse] == k
            used, of = np.unique(inverse[own], return_inverse=True)
            groups.append(None if len(used) == 1 else Group([several[at] for at in used.tolist()], of))
            bounds.append(bounds[-1] + len(of))
    return Schedule(order, np.array(bounds, np.int64), plan.bound), groups


def _by_size(sigs: Sequence[Any], calls: np.ndarray) -> np.ndarray:
    """A number for each signature, equal for all unless values that are padded to the largest would be mostly padding.

    Args:
        calls: the number of calls of each signature.
    """
    sizes = np.array([_largest_value(sig) for sig in sigs])
    padded = calls.sum() * sizes.max()
    # Where less of the padded values is inside the examples, large calls do not share a launch with small.
    if padded < _LARGE_BYTES * len(sigs) or calls @ sizes > 0.25 * padded:
        return np.zeros(len(sigs), np.int64)
    return np.log2(np.maximum(sizes, 1)).astype(np.int64) // 2  # sizes of one number differ by a factor of four at most


def _largest_value(sig: Any) -> int:
    """Bytes of the largest value that a call reads or computes."""
    avals = [*sig.avals, sig.out] if sig.block is None else sig.block.program.avals
    return max([getattr(aval, "nbytes", 0) for aval in avals if not getattr(aval, "shared", False)], default=0)


def _lookup_rows(operands: Sequence[Any], sizes: tuple[Size, ...]) -> Any:
    table, ids = operands
    if type(table) is Batched or type(ids.data) is not Unpadded:
        return None
    return Unpadded(lookup_p(table, ids.data.values), ids.data.layout)


def _broadcast_rows(operands: Sequence[Any], sizes: tuple[Any, ...]) -> Any:
    """`broadcast_to` a ragged first dimension, without padding; None if other sizes differ, too."""
    (x,), (first, *rest) = operands, sizes
    own = x.sizes if type(x) is Batched else shape_of(x)
    if Lengths in map(type, (*own, *rest)) or (len(own) == len(sizes) and own[0] != 1):
        return None
    layout = layout_of(first, widths_of(sizes)[0])
    data = x.data if type(x) is Batched else x
    if type(x) is Batched:
        tail = own[1:] if len(own) == len(sizes) else own
        data = rows_p(np.reshape(data, (len(first), *(1,) * (len(rest) - len(tail)), *tail)), layout.lanes)
    return Unpadded(np.broadcast_to(data, (layout.count, *rest)), layout)


def _matmul_rows(operands: Sequence[Any], sizes: tuple[Size, ...]) -> Any:
    """`matmul` of ragged rows and a vector per example, or of a ragged vector and rows of the same lengths."""
    if any(type(x) is not Batched or x.data.dtype not in _FLOAT_DTYPES for x in operands):
        return None
    left, right = operands[0].data, operands[1].data
    if left.dtype != right.dtype or type(left) is not Unpadded:
        return None
    layout = left.layout
    if type(right) is Unpadded:
        if len(operands[1].sizes) != 2 or right.layout is not layout:
            return None
        return segment_sums(np.expand_dims(left.values, 1) * right.values, layout)
    if len(operands[0].sizes) != 2 or operands[1].sizes != operands[0].sizes[1:]:
        return None
    return Unpadded(np.sum(left.values * rows_p(right, layout.lanes), axis=1), layout)


def _chosen_matmul_rows(operands: Sequence[Any], sizes: tuple[Size, ...]) -> Any:
    """`chosen_matmul` of ragged rows: each row times the matrix that its example selects."""
    x, index, *matrices = operands
    if type(x) is not Batched or type(index) is not Batched or type(x.data) is not Unpadded:
        return None
    layout = x.data.layout
    return Unpadded(products_by_number_p(x.data.values, rows_p(index.data, layout.lanes), *matrices), layout)


_PACKED_RULES = {
    "lookup": _lookup_rows,
    "broadcast_to": _broadcast_rows,
    "matmul": _matmul_rows,
    "chosen_matmul": _chosen_matmul_rows,
}


def run_ragged(
    op: Op, operands: Sequence[Any], params: Sequence[dict[str, Any]], avals: Sequence[Any], sizes_of: Sizes
) -> Any:
    """Run one op for a group of calls by its batching rule.

    Args:
        operands: `Batched`, or one value for all.
        params, avals: for each signature of the group, the attributes and the result's `Aval`.

    Returns:
        The results, `Batched`.

    Raises:
        Unsupported: the rule does not serve such operands.
    """
    sizes = sizes_of(avals)
    by_rows = _PACKED_RULES.get(op.name)
    data = None if by_rows is None else by_rows(operands, sizes)
    if data is not None:
        out = Batched(data, sizes)
    else:
        attributes, counts = sizes_of.attributes(params)
        try:
            out = op.rule(op, [*operands, *counts], attributes)  # type: ignore[misc]
        except UnsupportedError as error:
            if getattr(error, "passing", False):  # mostly padding
                raise
            raise Unsupported from error
    if len(out.sizes) != len(sizes) or out.data.dtype != avals[0].dtype or not all(map(same_size, out.sizes, sizes)):
        raise Unsupported
    if Lengths in map(type, sizes):
        return Batched(packed(out.data, sizes), sizes)
    data = out.data._ab_force() if type(out.data) is Unpadded else out.data
    return Batched(to_widths(data, widths_of(sizes)), sizes)


class _UniformRun:
    """Consecutive steps whose values have equal sizes in all programs, as a program that can be compiled.

    Attributes:
        inputs: the slots that it reads; outs: its results that are read later; stop: the number of the next step.
    """

    __slots__ = ("inputs", "outs", "program", "stop")

    def __init__(self, program: Program, start: int, stop: int) -> None:
        steps = program.steps[start:stop]
        own = {step.out for step in steps}
        constants = range(len(program.inputs), len(program.inputs) + len(program.constants))
        read = dict.fromkeys([slot for step in steps for slot in step.args if slot not in own])
        later = {slot for step in program.steps[stop:] for slot in step.args}.union(program.outputs)
        self.inputs = [slot for slot in read if slot not in constants]
        self.outs = [step.out for step in steps if step.out in later]
        self.program = interned(program.part(self.inputs, steps, self.outs))
        self.stop = stop


class _Family:
    """Programs with the same steps but different sizes and constants: those seen so far.

    Attributes:
        runs: {number of the first step: the steps that run compiled}.
    """

    __slots__ = ("_first", "_seen", "_uniform", "runs")

    def __init__(self, first: Program) -> None:
        self._first = first
        self._seen: weakref.WeakSet[Program] = weakref.WeakSet()
        self._uniform = [not unknown_lengths(aval.shape) for aval in first.avals]  # per slot: one size for all, and
        for slot, constant in enumerate(first.constants, len(first.inputs)):  # one value if constant
            self._uniform[slot] = self._uniform[slot] and type(constant) is not Affine
        self.runs: dict[int, _UniformRun] = {}

    def add_programs(self, programs: Sequence[Program]) -> None:
        """Add programs, and update `runs`."""
        new = {each for each in programs if each not in self._seen}
        if not new:
            return
        self._seen.update(new)
        first, count = self._first, len(self._first.inputs)
        for each in new:
            alike = [a is b for a, b in zip(first.avals, each.avals, strict=True)]
            for at, (a, b) in enumerate(zip(first.constants, each.constants, strict=True)):
                is_array = isinstance(a, np.ndarray) and isinstance(b, np.ndarray)
                is_same = a.tobytes() == b.tobytes() if is_array else freeze(a) == freeze(b)
                alike[count + at] = alike[count + at] and is_same
            self._uniform = [a and b for a, b in zip(self._uniform, alike, strict=True)]
        self.runs = self._find_runs()

    def _find_runs(self) -> dict[int, _UniformRun]:
        steps, found, start = self._first.steps, {}, 0
        suits = [all(self._uniform[slot] for slot in (*step.args, step.out)) for step in steps]
        for number, is_alike in enumerate([*suits, False]):
            if not is_alike:
                if number - start > 1:
                    found[start] = _UniformRun(self._first, start, number)
                start = number + 1
        return found


_families: dict[Any, _Family] = {}


def _runs_of(programs: Sequence[Program]) -> dict[int, _UniformRun]:
    kind = programs[0].skeleton()
    family = _families.get(kind)
    if family is None:
        if len(_families) >= 1 << 9:
            _families.clear()
        family = _families[kind] = _Family(programs[0])
    family.add_programs(programs)
    return family.runs


def run_steps(
    programs: Sequence[Program], operands: Sequence[Any], sizes_of: Sizes, fallbacks: Counter[str]
) -> list[Any]:
    """Run programs that differ in sizes and constants; stretches of steps with equal sizes run compiled.

    Args:
        programs: the program of each signature of the group.
        operands: for each input `Batched`, or one value for all.

    Returns:
        For each output `Batched`, or one value for all.
    """
    slots = [*operands, *map(sizes_of.constant, zip(*[program.constants for program in programs], strict=True))]
    first, runs = programs[0], _runs_of(programs)
    number = 0
    while number < len(first.steps):
        run = runs.get(number)
        if run is not None:
            given = [slots[slot] for slot in run.inputs]
            outs = launch(run.program, given, fallbacks)
            slots += [None] * (run.stop - number)
            is_own = any(type(x) is Batched for x in given)
            for slot, out in zip(run.outs, outs, strict=True):
                slots[slot] = Batched(out, first.avals[slot].shape) if is_own else out
            number = run.stop
            continue
        steps = [program.steps[number] for program in programs]
        number += 1
        step = steps[0]
        given = [slots[slot] for slot in step.args]
        own = [x for x in given if type(x) is Batched]
        avals = [program.avals[step.out] for program in programs]
        params = [each.params for each in steps]
        is_static = Lengths not in map(type, sizes_of(avals))
        if not own:
            if not is_static:  # a result of shared values whose size still differs, by an attribute
                raise Unsupported
            slots.append(step.op(*given, **step.params))
        elif is_static and not any(x.is_ragged for x in own):
            slots.append(run_op(step.op, given, step.params, avals[0], fallbacks))
        else:
            slots.append(run_ragged(step.op, given, params, avals, sizes_of))
    return [slots[slot] for slot in first.outputs]
