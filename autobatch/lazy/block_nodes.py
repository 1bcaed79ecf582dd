"""Calls of blocks: the structure of their inputs, their signatures and their nodes.

An input may be a list or tuple of recorded arrays; its structure is part of what calls are alike in.
"""

import functools
import os
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from autobatch.blocks.inputs import CONTAINERS, FAULTS, KEYS, Guard, Key, Slot
from autobatch.blocks.launch import launch
from autobatch.blocks.program import Program, interned
from autobatch.blocks.tracing import trace
from autobatch.core.abstract_eval import WEAK, Aval, Weak, aval_of, freeze
from autobatch.core.op import Op, rank_of
from autobatch.lazy.array import LazyArray, link_views
from autobatch.lazy.block_codegen import recorder
from autobatch.lazy.launching import BlockCall, Signature
from autobatch.lazy.stored import is_stored
from autobatch.ops.rules.aliasing import view
from autobatch.tables.lookup import lookup_p

__all__ = ["Block", "Tree", "append", "flattened", "signature"]

Where = tuple[str, int, int]


def signature(
    trace: Any, program: Program, avals: Sequence[Any], shared: Sequence[LazyArray], where: Where
) -> Signature:
    """The signature of a call: the same for all blocks that do the same with the same shared values.

    Args:
        avals: the kind of each input of the program; shared: the handles of those that are shared, in order.
        where: (file, first line, last line).
    """
    trace.refuse_caught_warnings()
    given = iter(shared)
    values = [next(given).source if aval.shared and type(aval) is Aval else None for aval in avals]
    key = (program, *avals)
    found = trace.interned.get(key)
    if found is None:
        own = [aval for aval, value in zip(avals, values, strict=True) if value is None]
        found = Signature(_op(where), {}, own, program.results[0], len(trace.table), where[:2], trace.errors)
        found.block = BlockCall(program, values, found.index)
        found.shared = not own
        found.nbytes = sum(program.avals[step.out].nbytes for step in program.steps)
        found.text = f"{', '.join(map(repr, avals))}: {', '.join(step.op.name for step in program.steps)}"
        trace.table.append(found)
        trace.interned[key] = found
    return found


@functools.lru_cache(maxsize=4096)
def _op(where: Where) -> Op:
    """What reports call a block."""
    file, first, last = where
    lines = str(first) if first == last else f"{first}-{last}"
    return Op(f"block {os.path.basename(file)}:{lines}", launch, kind="block")


def append(trace: Any, sig: Signature, refs: Sequence[int]) -> Any:
    """Record a call; its outputs: one, or a tuple."""
    sig = trace.in_force(sig)
    segment, call = trace.segment, sig.block
    assert call is not None
    ref = len(segment.sigs)
    segment.refs.extend(refs)
    segment.sigs.extend(call.tail)
    outs = tuple([LazyArray(trace, aval, segment, ref + i) for i, aval in enumerate(call.outs)])
    link_views(call.views, outs)
    trace.spend(sig.nbytes)
    return outs if len(outs) > 1 else outs[0]


_MOST = 16  # arrays in one input; of more, each number of them would be a program of its own
_MOST_KNOWN = 1 << 12
_known_trees: dict[Any, "Tree"] = {}


class Tree:
    """The structure of one input, interned.

    Attributes:
        leaves: the `Aval` of each array, in order.
    """

    __slots__ = ("_structure", "leaves")

    def __init__(self, structure: Any) -> None:
        self._structure = structure
        self.leaves = tuple(_leaves(structure))

    def rebuilt(self, values: Iterator[Any]) -> Any:
        """The same structure around other arrays, taken one after the other."""
        return _rebuilt(self._structure, values)


def flattened(trace: Any, value: Any) -> tuple[Tree | None, list[int]]:
    """The structure of a list or tuple and the references of its arrays; (None, []) for what is no such input.

    An input holds arrays that were recorded in this trace, in lists and tuples, and nothing else.
    """
    refs: list[int] = []
    structure = _structure(trace, value, refs)
    if structure is None or len(refs) > _MOST:
        return None, []
    found = _known_trees.get(structure)
    if found is None:
        if len(_known_trees) > _MOST_KNOWN:
            _known_trees.clear()
        found = _known_trees.setdefault(structure, Tree(structure))
    return found, refs


def _structure(trace: Any, value: Any, refs: list[int]) -> Any:
    segment = trace.segment
    out: list[Any] = [type(value)]
    for part in value:
        kind = type(part)
        if kind is LazyArray:
            if part.segment is not segment and (part.aval.shared or not trace.enter(part)):
                return None
            refs.append(part.ref)
            out.append(part.aval)
        elif (kind is tuple or kind is list) and len(part) <= _MOST:
            inner = _structure(trace, part, refs)
            if inner is None:
                return None
            out.append(inner)
        else:
            return None
    return tuple(out)


def _leaves(structure: Any) -> Iterator[Aval]:
    for part in structure[1:]:
        if type(part) is tuple:
            yield from _leaves(part)
        else:
            yield part


def _rebuilt(structure: Any, values: Iterator[Any]) -> Any:
    kind, *parts = structure
    return kind([_rebuilt(part, values) if type(part) is tuple else next(values) for part in parts])


_LIMIT = 512  # kinds of calls that one block is traced for; one that meets more runs op by op
_PATIENCE = 32  # calls that are no block
_RECORDERS = 16  # kinds of calls that recorders are generated for
_ID = aval_of((), np.dtype(np.int64), True)
_STATIC = (int, bool, str, type(None), type(Ellipsis), type, np.dtype)
_SEQUENCES = (list, tuple, LazyArray)


class _CannotRead(Exception):  # noqa: N818  (a signal inside of this file)
    """An input cannot be read without running code of the user's."""


class _Row:
    """A row of a shared table, by its id: the two operands of a look-up that is part of the block."""

    __slots__ = ("index", "table")

    def __init__(self, table: LazyArray, index: int) -> None:
        self.table = table
        self.index = index


class Block:
    """A straight-line run of statements.

    Attributes:
        where: (file, first line, last line).
        slots, guards: its inputs, and the global names that it relies on.
        body: the run as a function of its inputs, which returns its outputs.
        scope: the globals of the user's function.
        cell: where the rewritten function finds the recorder.
        fixed: the values of Python numbers are needed when it is traced, too.
    """

    __slots__ = (
        "_by_types",
        "_programs",
        "_recorders",
        "_refused",
        "_tags",
        "body",
        "cell",
        "fixed",
        "guards",
        "scope",
        "slots",
        "where",
    )

    id_kind = _ID

    def __init__(
        self,
        where: tuple[str, int, int],
        slots: Sequence[Slot],
        guards: Sequence[Guard],
        body: Callable[..., Any],
        scope: dict[str, Any],
    ) -> None:
        self.where = where
        self.slots = tuple(slots)
        self.guards = tuple(guards)
        self.body = body
        self.scope = scope
        self.fixed = False
        self._refused = 0
        self._tags: dict[tuple[str, ...], object] = {}
        self._programs: dict[Any, Any] = {}
        self._recorders: dict[Any, Any] = {}
        self._by_types: dict[Any, Any] = {}
        self.cell = types.CellType(self.record)

    def record(self, *arguments: Any) -> Any:
        """Record one call; the outputs (one, or a tuple), or None if the user's statements have to run."""
        try:
            values = self._read(arguments)
        except (_CannotRead, *FAULTS):  # what cannot be read raises again where the user reads it
            return None
        first = next((x for x in values if type(x) is LazyArray and not x.aval.shared), None)
        if first is None:
            first = next((x.table if type(x) is _Row else x for x in values if type(x) in (LazyArray, _Row)), None)
            if first is None:
                return None
        owner = first.trace
        if any(type(x) is LazyArray and (x.trace is not owner or _is_put_off(x)) for x in values):
            return None
        call = self._call(owner, values)
        if call is None:
            self._refused += 1
            if self._refused > _PATIENCE and not self._by_types:  # not one call was a block
                self.cell.cell_contents = _no_block
            return None
        sig, refs, kinds = call
        if sig.shared:
            return owner.run_shared_block(sig)
        self._quicken(arguments, values, kinds, len(sig.block.outs))
        return append(owner, sig, refs)

    def _quicken(self, arguments: Sequence[Any], values: Sequence[Any], kinds: Sequence[str], outs: int) -> None:
        """Let the next call of this kind go the quick way."""
        kind = (self.tag_of(kinds), *map(type, values), *map(type, arguments))
        if kind not in self._recorders:
            if len(self._recorders) >= _RECORDERS:
                return
            make = recorder(self, arguments, values, kinds, outs)
            self._recorders[kind] = None if make is None else make(self.record)
            if make is not None and not self._by_types:  # most blocks only ever meet one kind of call
                self.cell.cell_contents = make(self._choose)
        if self._recorders[kind] is not None:
            self._by_types[tuple(map(type, arguments))] = self._recorders[kind]

    def tag_of(self, kinds: Sequence[str]) -> object:
        """What the signatures of calls with these kinds of inputs are found by: they differ in which are operands."""
        return self._tags.setdefault(tuple(kinds), object())

    def _choose(self, *arguments: Any) -> Any:
        """Record one call by the recorder for arguments of these types."""
        return self._by_types.get(tuple(map(type, arguments)), self.record)(*arguments)

    def _read(self, arguments: Sequence[Any]) -> list[Any]:
        if not all(guard.holds() for guard in self.guards):
            raise _CannotRead
        return [self._value(slot, arguments) for slot in self.slots]

    def _value(self, slot: Slot, arguments: Sequence[Any]) -> Any:
        value = self._follow(slot.root, slot.steps, arguments)
        if slot.index is None:
            return value
        index = self._index(slot.index, arguments)
        if type(value) in CONTAINERS:
            if type(index) not in KEYS:
                raise _CannotRead
            return value[index]
        if type(value) is not LazyArray:
            raise _CannotRead
        aval = value.aval
        if not aval.shared:
            if type(index) is not int or value.segment is value.source is None:
                raise _CannotRead
            return value[index]
        if not (aval.ndim == 2 and type(index) in (int, np.int64) and 0 <= index < aval.shape[0]):
            raise _CannotRead
        return _Row(value, index)

    def _index(self, index: Any, arguments: Sequence[Any]) -> Any:
        if type(index) is not Key:
            root, steps = index
            return self._follow(root, steps, arguments)
        values = [self._follow(root, steps, arguments) for root, steps in index.paths]
        if not index.suits(values):
            raise _CannotRead
        return index.function(*values)

    def _follow(self, root: Any, steps: Sequence[tuple[str, Any]], arguments: Sequence[Any]) -> Any:
        value = arguments[root] if type(root) is int else self.scope[root]
        for how, name in steps:
            if how == "key":
                if type(value) is not dict and not (type(name) is int and type(value) in _SEQUENCES):
                    raise _CannotRead
                value = value[name]
            elif type(value) is types.ModuleType:
                value = value.__dict__[name]
            elif is_stored(type(value), name):
                try:
                    value = getattr(value, name)
                except AttributeError:
                    raise _CannotRead from None
            else:
                raise _CannotRead
        return value

    def _call(self, owner: Any, values: Sequence[Any]) -> Any:
        """The signature of a call, the references of its operands and the kind of each slot; None if it has none."""
        key: list[Any] = []
        refs: list[int] = []
        kinds: list[str] = []
        for slot, value in zip(self.slots, values, strict=True):
            kind = type(value)
            if slot.several and kind not in (list, tuple):
                return None
            if kind is LazyArray:
                key.append(value.aval)
                if value.aval.shared:
                    kinds.append("shared")
                else:
                    kinds.append("array")
                    refs.append(value.ref if value.segment is owner.segment else owner.external(value))
            elif kind is _Row:
                if value.table.trace is not owner:
                    return None
                key += [value.table.aval, _ID]
                kinds.append("row")
                refs.append(owner.segment.external(value.index, -1))
            elif kind in WEAK and slot.number and not self.fixed:
                key.append(WEAK[kind])
                kinds.append("number")
                refs.append(owner.segment.external(value, -1))
            elif kind in _STATIC or kind in WEAK or _is_static(value):
                key.append(value if kind is int else (kind, freeze(value)))
                kinds.append("static")
            elif kind is list or kind is tuple:
                tree, each = flattened(owner, value)
                if tree is None:
                    return None
                key.append(tree)
                kinds.append("tree")
                refs += each
            elif kind is np.ndarray or issubclass(kind, np.generic) or 0 <= rank_of(value) < owner.level:
                aval, ref = owner.constant(value)
                if aval is None:
                    return None
                key.append(aval)
                if aval.shared:
                    kinds.append("shared")
                else:
                    kinds.append("constant")
                    refs.append(ref)
            else:
                return None
        known = (self.tag_of(kinds), *key)
        sig = owner.fast.get(known)
        if sig is None:
            program = self._program(key, kinds, values)
            if program is None:
                if not self.fixed and "number" in kinds:
                    self.fixed = True
                    self._tags.clear()
                    return self._call(owner, values)
                return None
            shared = [x.table if type(x) is _Row else x for x in values if type(x) in (LazyArray, _Row)]
            sig = owner.fast[known] = signature(
                owner, program, _operands(key), [x for x in shared if x.aval.shared], self.where
            )
        return sig, refs, kinds

    def _program(self, key: Sequence[Any], kinds: Sequence[str], values: Sequence[Any]) -> Any:
        """What the body does with operands of these kinds; traced once."""
        general = (self.fixed, *[getattr(part, "key", part) for part in key])
        if general not in self._programs:
            full = len(self._programs) >= _LIMIT
            self._programs[general] = None if full else self._trace(key, kinds, values)
        return self._programs[general]

    def _trace(self, key: Sequence[Any], kinds: Sequence[str], values: Sequence[Any]) -> Any:
        def body(*operands: Any) -> Any:
            given = iter(operands)
            trees = (part for part in key if type(part) is Tree)
            inputs = []
            for kind, value in zip(kinds, values, strict=True):
                if kind == "static":
                    inputs.append(value)
                elif kind == "tree":
                    inputs.append(next(trees).rebuilt(given))
                elif kind == "row":
                    table = next(given)
                    # of an array it is a view: not to be written to
                    inputs.append(view(lookup_p(table, next(given)), table, _no_view, None, ()))
                else:
                    inputs.append(next(given))
            return self.body(*inputs)

        program = trace(body, [part.key for part in _operands(key)], views=True)
        return None if program is None else interned(program)


def _no_block(*_: Any) -> None:
    """The recorder of a block that never is one."""


def _no_view(*_: Any) -> Any:
    raise AssertionError("a block with a look-up among its outputs was not refused")


def _operands(key: Sequence[Any]) -> list[Any]:
    out: list[Any] = []
    for part in key:
        if type(part) is Tree:
            out += part.leaves
        elif type(part) is Aval or type(part) is Weak:
            out.append(part)
    return out


def _is_put_off(x: LazyArray) -> bool:
    """Whether it is a look-up that may still become a bag."""
    return x.segment is None and x.source is None


def _is_static(value: Any) -> bool:
    return type(value) is tuple and all(type(part) in _STATIC for part in value)
