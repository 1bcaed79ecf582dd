"""How a function's changes to its arguments reach the user: compiled code changes copies, which are then written back.

So an example that Python has to run finds its arguments unchanged. No example may see what another has changed: arrays
that are written into must not share memory with others, and changed containers must be distinct objects.
"""

import dataclasses
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from autobatch.compiled.compiled_call import ColumnPlace, CompiledCall, is_varying
from autobatch.compiled.translation import exact_types as types
from autobatch.compiled.translation.source_program import SourceProgram
from autobatch.compiled.value_layout import columns, leaves, split
from autobatch.errors import Unsupported


@dataclasses.dataclass
class KernelChanges:
    """What a kernel returns besides results: which arguments are returned, and new contents of containers.

    Attributes:
        returned: for each item of a result tuple, or the result, how many ints say which argument it is; 0 if none.
        containers: the indices of the arguments that are lists or dicts and are changed.
    """

    returned: list[int]
    containers: list[int]

    def __bool__(self) -> bool:
        return any(self.returned) or bool(self.containers)


def argument_slots(result: types.Type, kinds: Sequence[types.Type], varying: Sequence[bool]) -> list[int]:
    """For each result item, the number of ints that say which argument it is, or is a view of.

    One for a container: the index of the argument. For an array also the byte offset of its start, and its strides.
    """
    items = result.items if isinstance(result, types.Tuple) else (result,)
    given = any(map(_given, kinds)) and any(varying)
    return [
        0 if not given or not _given(item) else 2 + item.ndim if isinstance(item, types.Array) else 1 for item in items
    ]


def _given(kind: types.Type) -> bool:
    return isinstance(kind, types.Array | types.List | types.Dict) and bool(kind.given & types.OWN)


def changed_containers(program: SourceProgram, kinds: Sequence[types.Type], varying: Sequence[bool]) -> list[int]:
    """The indices of the arguments that are containers and are changed.

    Raises:
        Unsupported: a changed container is shared or nested, or holds mutable objects, so it cannot be written back.
    """
    out = []
    for place, (kind, of_examples) in enumerate(zip(kinds, varying, strict=True)):
        holders = [each for each in types.within(kind) if isinstance(each, types.List | types.Set | types.Dict)]
        if of_examples and any(
            program.may_change(each) for holder in holders for each in types.within(holder) if each != holder
        ):
            raise Unsupported(f"it may change what is in a {holders[0]}")
        inner = [each for each in holders if program.may_change(each)]
        if not inner:
            continue
        plain = isinstance(kind, types.List | types.Dict) and not any(map(_can_change, kind.site.find().items))
        if not of_examples or not plain or len(inner) != 1:
            raise Unsupported(f"it changes a {inner[0]} in an argument")
        out.append(place)
    return out


def _can_change(kind: types.Type) -> bool:
    return any(isinstance(each, types.Struct) or types.objects_in(each) for each in types.within(kind))


def check_independent(call: CompiledCall, program: SourceProgram, kinds: Sequence[types.Type]) -> None:
    """Check that no example can see what another one changes.

    Raises:
        Unsupported: one can, or an array to be written into is read-only.
    """
    spans: list[tuple[int, int, bool]] = []
    seen: set[int] = set()
    for value, kind in zip(call.values, kinds, strict=True):
        varying = isinstance(value, ColumnPlace)
        if not varying and is_varying(value) and any(program.may_change(each) for each in types.within(kind)):
            raise Unsupported("an argument that is partly shared is changed")
        objects = call.examples(value.column) if isinstance(value, ColumnPlace) else [value]
        for each, each_kind in _objects(kind, objects):
            if isinstance(each_kind, types.Array):
                written = varying and program.may_change(each_kind)
                if written and not each.flags.writeable:
                    raise Unsupported("an array that is written into is read-only")
                if each.size:
                    spans.append((*np.lib.array_utils.byte_bounds(each), written))
            elif program.may_change(each_kind):
                if id(each) in seen:
                    raise Unsupported("a container that is changed is an argument of several examples")
                seen.add(id(each))
    for captured in program.captured.values():
        found = captured.read()
        if found.size:
            spans.append((*np.lib.array_utils.byte_bounds(found), False))
    last_of_all = last_written = -1
    for first, last, written in sorted(spans):
        if first < last_written or (written and first < last_of_all):
            raise Unsupported("an array that is written into shares memory with another argument")
        last_of_all = max(last_of_all, last)
        last_written = max(last_written, last) if written else last_written


def _objects(kind: types.Type, values: Sequence[Any]) -> Iterator[tuple[Any, types.Type]]:
    """The arrays and containers in values of a type, each with its own type."""
    match kind:
        case types.Array():
            yield from ((value, kind) for value in values)
        case types.LookedUp():
            yield from ((value.weights, kind.weights) for value in values)
        case types.List() | types.Set() | types.Dict():
            yield from ((value, kind) for value in values)
            inner = [each for value in values for each in (value.values() if isinstance(kind, types.Dict) else value)]
            yield from _objects(kind.site.find().items[-1], inner)
        case types.Tuple() | types.Struct():
            for item, column in columns(kind, values):
                yield from _objects(item, column)


def writes_back(
    program: SourceProgram,
    kind: types.Type,
    values: Sequence[Any],
    arrays: Iterator[np.ndarray],
    wanted: Sequence[bool],
) -> Iterator[tuple[Any, ...]]:
    """The calls, as for `call_all`, that copy packed arrays into the arrays of these values.

    Args:
        arrays: those that `pack` gave for the values, in its order.
        wanted: for each value, whether to copy it.
    """
    match kind:
        case types.Array():
            flat, _ = next(arrays), next(arrays)
            for value, part, is_wanted in zip(values, split(flat, [x.size for x in values]), wanted, strict=True):
                if is_wanted and program.may_change(kind):
                    yield operator.setitem, value, ..., part.reshape(value.shape)
        case types.Tuple() | types.Struct():
            for item, column in columns(kind, values):
                yield from writes_back(program, item, column, arrays, wanted)
        case _:
            for _ in leaves(kind):
                next(arrays)


def returned(
    kind: types.Type, changes: KernelChanges, arguments: Sequence[Any], result: Any, places: Sequence[int]
) -> Any:
    """A result, with the user's own arguments, and views of them, in the places of their copies.

    Raises:
        Unsupported: the result is a view of an array that is not in C order.
    """
    items = result if isinstance(kind, types.Tuple) else (result,)
    found, at = [], 0
    kinds = kind.items if isinstance(kind, types.Tuple) else (kind,)
    for item, item_kind, count in zip(items, kinds, changes.returned, strict=True):
        found.append(_one_returned(arguments, item, item_kind, places[at : at + count]))
        at += count
    return tuple(found) if isinstance(kind, types.Tuple) else found[0]


def _one_returned(arguments: Sequence[Any], item: Any, kind: types.Type, places: Sequence[int]) -> Any:
    if not places or places[0] < 0:
        return item
    whole = arguments[places[0]]
    if len(places) == 1:
        return whole
    _, offset, *strides = places
    if item.shape == whole.shape and not offset and item.strides == tuple(strides):
        return whole[...] if kind.given & types.PART else whole
    if not whole.flags.c_contiguous:
        raise Unsupported("a view of an array that is not in C order")
    return np.ndarray(item.shape, item.dtype, whole, offset, tuple(strides))
