"""Groups calls that differ only in sizes (lengths, say), and launches each group together.

Calls normally need equal signatures to run together. If an op has a batching rule for ragged data, the sizes of their
own operands may differ: signatures that are equal but for sizes form one family (`family_of`). A launch of several
signatures uses `Batched` operands with `Lengths`; if only the first dimension varies, their data has no padding (the
rows of all examples are concatenated). A result whose sizes differ is a `RaggedRows` buffer.
"""

import functools
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.batches.unpadded import padded
from autobatch.blocks.batched_program import run_op
from autobatch.blocks.program import Program, has_ragged_rule, without_sizes
from autobatch.core.abstract_eval import WEAK, Aval, freeze
from autobatch.core.batched import Batched, Lengths, Size, same_size
from autobatch.core.op import Op
from autobatch.errors import Unsupported, UnsupportedError
from autobatch.lazy.grouping.buffers import packed, ragged_rows, widths_of
from autobatch.lazy.grouping.launch_order import Schedule
from autobatch.ops.numpy.joining import concatenate_p, stack_p
from autobatch.ops.rules.padding import to_widths

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
        what = sig.block.program.skeleton
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
            earlier = first.setdefault(family, number)
            if earlier != number:
                kind_of[number] = earlier
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
    return Batched(to_widths(padded(out.data), widths_of(sizes)), sizes)


def run_steps(
    programs: Sequence[Program], operands: Sequence[Any], sizes_of: Sizes, fallbacks: Counter[str]
) -> list[Any]:
    """Run programs that differ in sizes and constants, step by step.

    Args:
        programs: the program of each signature of the group.
        operands: for each input `Batched`, or one value for all.

    Returns:
        For each output `Batched`, or one value for all.
    """
    slots = [*operands, *map(sizes_of.constant, zip(*[program.constants for program in programs], strict=True))]
    for steps in zip(*[program.steps for program in programs], strict=True):
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
    return [slots[slot] for slot in programs[0].outputs]
