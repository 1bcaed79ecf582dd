"""Blocks: straight-line runs of array expressions that are recorded as one node.

A `Block` knows how its inputs are read from the user's names, and holds the run as a function of those inputs. The
first call of a kind goes the long way (`Block.record`): the run is traced, and a recorder for calls of that kind is
generated (`lazy.block_codegen`). What cannot be one node gives None, and the user's own statements run instead.
"""

import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.blocks.block_inputs import CONTAINERS, FAULTS, KEYS, Guard, Key, Slot
from autobatch.blocks.program import interned
from autobatch.blocks.tracing import trace
from autobatch.core.abstract_eval import WEAK, Aval, Weak, aval_of, freeze, known_aval
from autobatch.core.op import rank_of
from autobatch.facts.types import is_stored
from autobatch.lazy.array import LazyArray
from autobatch.lazy.block_codegen import Tree, flattened, recorder, signature
from autobatch.lazy.fibers import taken
from autobatch.ops.rules.aliasing import view
from autobatch.tables.lookup import lookup_p

_LIMIT = 512  # kinds of calls that one block is traced for; one that meets more runs op by op
_PATIENCE = 32  # calls that are no block
_MET = 64  # kinds of calls that are noted
_RECORDERS = 16  # kinds of calls that recorders are generated for
_ID = aval_of((), np.dtype(np.int64), True)
_STATIC = (int, bool, str, type(None), type(Ellipsis), type, np.dtype)
_SEQUENCES = (list, tuple, LazyArray)


class _CannotRead(Exception):  # noqa: N818  (a signal inside of this file)
    """An input cannot be read without running code of the user's."""


class Row:
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
        met: what its inputs have been, slot by slot: for an array its `Aval`, for a number its type, else the value;
            and what its outputs then were; has_refused: calls of it were none.
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
        "has_refused",
        "met",
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
        self.met: dict[tuple[tuple[str, Any], ...], tuple[Aval, ...]] = {}
        self.has_refused = False
        self._refused = 0
        self._tags: dict[tuple[str, ...], object] = {}
        self._programs: dict[Any, Any] = {}
        self._recorders: dict[Any, Any] = {}
        self._by_types: dict[Any, Any] = {}
        self.cell = types.CellType(self.record)

    def record(self, *arguments: Any) -> Any:
        """Record one call; the outputs (one, or a tuple), or None if the user's statements have to run."""
        outputs = self._recorded(arguments)
        if outputs is None:
            self.has_refused = True
        return outputs

    def _recorded(self, arguments: Sequence[Any]) -> Any:
        try:
            values = self._read(arguments)
        except (_CannotRead, *FAULTS):  # what cannot be read raises again where the user reads it
            return None
        first = next((x for x in values if type(x) is LazyArray and not x.aval.shared), None)
        if first is None:
            first = next((x.table if type(x) is Row else x for x in values if type(x) in (LazyArray, Row)), None)
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
        if len(self.met) < _MET:
            self.met[tuple(map(_kind_met, kinds, values))] = tuple(sig.block.outs)
        self._quicken(arguments, values, kinds, len(sig.block.outs))
        return owner.append(sig, refs)

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
        value = taken(value, 1 if slot.index is None else 2)
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
        return Row(value, index)

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
        shared: list[LazyArray] = []
        for slot, value in zip(self.slots, values, strict=True):
            kind = type(value)
            if slot.several and kind not in (list, tuple):
                return None
            if kind is LazyArray:
                key.append(value.aval)
                if value.aval.shared:
                    if hasattr(value, "_ab_ids"):  # a table of keys, whose items are no parts of an array
                        return None
                    kinds.append("shared")
                    shared.append(value)
                else:
                    kinds.append("array")
                    refs.append(value.ref if value.segment is owner.segment else owner.external(value))
            elif kind is Row:
                if value.table.trace is not owner:
                    return None
                key += [value.table.aval, _ID]
                if value.table.aval.shared:
                    shared.append(value.table)
                kinds.append("row")
                refs.append(owner.segment.external(value.index))
            elif kind in WEAK and slot.number and not self.fixed:
                key.append(WEAK[kind])
                kinds.append("number")
                refs.append(owner.segment.external(value))
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
                kinds.append("constant")
                if aval.shared:
                    shared.append(owner.shared(value))
                else:
                    refs.append(ref)
            else:
                return None
        known = (self.tag_of(kinds), *key)
        sig = owner.of_blocks.get(known)
        if sig is None:
            program = self._program(key, kinds, values)
            if program is None:
                if not self.fixed and "number" in kinds:
                    self.fixed = True
                    self._tags.clear()
                    return self._call(owner, values)
                return None
            sig = owner.of_blocks[known] = signature(owner, program, _operands(key), shared, self.where)
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


def _kind_met(kind: str, value: Any) -> tuple[str, Any]:
    """What an input was, with nothing in it that is of one example or one trace."""
    if kind == "array":
        return kind, value.aval
    if kind == "constant":
        return kind, known_aval(value) if type(value) is np.ndarray else None
    if kind == "number":
        return kind, type(value)
    return kind, (type(value), value) if kind == "static" and type(value) in (int, str, float) else None


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
