"""Blocks: straight-line runs of array expressions that are recorded as one node.

A `Block` knows how to read its inputs from the user's names, and holds the run as a function of those inputs. The first
call with inputs of a kind takes the slow path (`Block.record`): the run is traced, and a fast recorder for that kind is
generated (`lazy.block_codegen`). If a call cannot be one node, it returns None and the user's own statements run.
"""

import dataclasses
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.blocks.block_inputs import CONTAINERS, FAULTS, KEYS, Key, Slot
from autobatch.blocks.program import interned
from autobatch.blocks.tracing import trace
from autobatch.core.abstract_eval import WEAK, Aval, Weak, freeze, known_aval
from autobatch.core.current_region import check_time
from autobatch.core.op import rank_of
from autobatch.errors import Unsupported
from autobatch.facts.types import is_stored
from autobatch.lazy.array import LazyArray
from autobatch.lazy.block_codegen import ID_KIND, Tree, flatten, recorder, signature
from autobatch.lazy.fibers import shared_handle
from autobatch.ops.rules.aliasing import view
from autobatch.program.scopes import Guard
from autobatch.tables.lookup import lookup_p

_STATIC = (int, bool, str, type(None), type(Ellipsis), type, np.dtype)
_SEQUENCES = (list, tuple, LazyArray)


@dataclasses.dataclass(slots=True, eq=False)
class Row:
    """The two operands, table and id, of a row look-up in a shared table that becomes part of the block."""

    table: LazyArray
    index: int


@dataclasses.dataclass(slots=True, eq=False)
class Block:
    """A straight-line run of statements.

    Attributes:
        where: (file, first line, last line).
        slots, guards: its inputs; the global names that must keep their meaning.
        body: the run as a function from inputs to outputs.
        scope: the globals of the user's function.
        cell: closure cell in which the rewritten function finds the current recorder.
        fixed: the values of Python numbers are needed during tracing too, so they are part of the key.
        met: {input kinds, slot by slot: `Aval`s of the outputs}; the kind of an array is its `Aval`, of a number its
            type, else the value. has_refused: some call could not be recorded as one node.
    """

    where: tuple[str, int, int]
    slots: Sequence[Slot]
    guards: Sequence[Guard]
    body: Callable[..., Any]
    scope: dict[str, Any]
    fixed: bool = False
    met: dict[tuple[tuple[str, Any], ...], tuple[Aval, ...]] = dataclasses.field(default_factory=dict)
    has_refused: bool = False
    cell: types.CellType = dataclasses.field(init=False)
    _refused: int = 0
    _tags: dict[tuple[str, ...], object] = dataclasses.field(default_factory=dict)
    _programs: dict[Any, Any] = dataclasses.field(default_factory=dict)
    _recorders: dict[Any, Any] = dataclasses.field(default_factory=dict)
    _by_types: dict[Any, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cell = types.CellType(self.record)

    def record(self, *arguments: Any) -> Any:
        """Record one call (slow path); the output or tuple of outputs, or None if the user's statements have to run."""
        outputs = self._recorded(arguments)
        if outputs is None:
            self.has_refused = True
            self._refused += 1
            # After so many refused calls a block is given up.
            if self._refused > 32 and not self._by_types:  # no call was ever accepted
                self.cell.cell_contents = _no_block
        return outputs

    def _recorded(self, arguments: Sequence[Any]) -> Any:
        try:
            values = self._read(arguments)
        except (Unsupported, *FAULTS):  # an error is raised again by the user's own statement
            return None
        first = next((x for x in values if type(x) is LazyArray and not x.aval.shared), None)
        if first is None:
            first = next((x.table if type(x) is Row else x for x in values if type(x) in (LazyArray, Row)), None)
            if first is None:
                return None
        owner = first.trace
        if any(type(x) is LazyArray and (x.trace is not owner or _is_deferred(x)) for x in values):
            return None
        call = self._call(owner, values)
        if call is None:
            return None
        sig, refs, kinds = call
        if sig.shared:
            return owner.run_shared_block(sig)
        if len(self.met) < 64:  # kinds of calls kept in `met`
            self.met[tuple(map(_kind_met, kinds, values))] = tuple(sig.block.outs)
        self._quicken(arguments, values, kinds, len(sig.block.outs))
        return owner.append(sig, refs)

    def _quicken(self, arguments: Sequence[Any], values: Sequence[Any], kinds: Sequence[str], outs: int) -> None:
        """Install a fast recorder for the next calls of this kind."""
        kind = (self.kinds_key(kinds), *map(type, values), *map(type, arguments))
        if kind not in self._recorders:
            if len(self._recorders) >= 16:  # kinds of calls that fast recorders are generated for
                return
            make = recorder(self, arguments, values, kinds, outs)
            self._recorders[kind] = None if make is None else make(self.record)
            if make is not None and not self._by_types:  # most blocks meet one kind of call only
                self.cell.cell_contents = make(self._choose)
        if self._recorders[kind] is not None:
            self._by_types[tuple(map(type, arguments))] = self._recorders[kind]

    def kinds_key(self, kinds: Sequence[str]) -> object:
        """A unique key part for calls with these slot kinds, since the kinds decide which inputs are operands."""
        return self._tags.setdefault(tuple(kinds), object())

    def _choose(self, *arguments: Any) -> Any:
        """Record one call with the fast recorder for arguments of these types, or on the slow path."""
        return self._by_types.get(tuple(map(type, arguments)), self.record)(*arguments)

    def _read(self, arguments: Sequence[Any]) -> list[Any]:
        if not all(guard.holds() for guard in self.guards):
            raise Unsupported
        return [self._value(slot, arguments) for slot in self.slots]

    def _value(self, slot: Slot, arguments: Sequence[Any]) -> Any:
        value = self._follow(slot.root, slot.steps, arguments)
        value = shared_handle(value, 1 if slot.index is None else 2)
        if slot.index is None:
            return value
        index = self._index(slot.index, arguments)
        if type(value) in CONTAINERS:
            if type(index) not in KEYS:
                raise Unsupported
            return value[index]
        if type(value) is not LazyArray:
            raise Unsupported
        aval = value.aval
        if not aval.shared:
            if type(index) is not int or value.segment is value.source is None:
                raise Unsupported
            return value[index]
        if not (aval.ndim == 2 and type(index) in (int, np.int64) and 0 <= index < aval.shape[0]):
            raise Unsupported
        return Row(value, index)

    def _index(self, index: Any, arguments: Sequence[Any]) -> Any:
        if type(index) is not Key:
            root, steps = index
            return self._follow(root, steps, arguments)
        values = [self._follow(root, steps, arguments) for root, steps in index.paths]
        if not index.suits(values):
            raise Unsupported
        return index.function(*values)

    def _follow(self, root: Any, steps: Sequence[tuple[str, Any]], arguments: Sequence[Any]) -> Any:
        value = arguments[root] if type(root) is int else self.scope[root]
        for how, name in steps:
            if how == "key":
                if type(value) is not dict and not (type(name) is int and type(value) in _SEQUENCES):
                    raise Unsupported
                value = value[name]
            elif type(value) is types.ModuleType:
                value = value.__dict__[name]
            elif is_stored(type(value), name):
                try:
                    value = getattr(value, name)
                except AttributeError:
                    raise Unsupported from None
            else:
                raise Unsupported
        return value

    def _call(self, owner: Any, values: Sequence[Any]) -> Any:
        """(signature, operand references, kind of each slot) of a call; None if it cannot be one node."""
        key: list[Any] = []
        refs: list[int] = []
        kinds: list[str] = []
        shared: list[LazyArray] = []
        parts: list[Any]
        for slot, value in zip(self.slots, values, strict=True):
            cls, own = type(value), list[int]()
            if slot.is_list and cls not in (list, tuple):
                return None
            if cls is LazyArray and not value.aval.shared:
                kind, parts = "array", [value.aval]
                own = [value.ref if value.segment is owner.segment else owner.external(value)]
            elif cls is LazyArray:
                if hasattr(value, "_ab_ids"):  # a table of keys: indexing it is not array indexing
                    return None
                kind, parts = "shared", [value.aval]
                shared.append(value)
            elif cls is Row:
                if value.table.trace is not owner:
                    return None
                kind, parts, own = "row", [value.table.aval, ID_KIND], [owner.segment.external(value.index)]
                shared.append(value.table)
            elif cls in WEAK and slot.number and not self.fixed:
                kind, parts, own = "number", [WEAK[cls]], [owner.segment.external(value)]
            elif cls in _STATIC or cls in WEAK or _is_static(value):
                kind, parts = "static", [value if cls is int else (cls, freeze(value))]
            elif cls is list or cls is tuple:
                tree, own = flatten(owner, value)
                if tree is None:
                    return None
                kind, parts = "tree", [tree]
            elif cls is np.ndarray or issubclass(cls, np.generic) or 0 <= rank_of(value) < owner.level:
                aval, ref = owner.constant(value)
                if aval is None:
                    return None
                kind, parts = "shared constant" if aval.shared else "constant", [aval]
                if aval.shared:
                    shared.append(owner.shared(value))
                else:
                    own = [ref]
            else:
                return None
            kinds.append(kind)
            key += parts
            refs += own
        known = (self.kinds_key(kinds), *key)
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
        """The traced program of the body for operands of these kinds, cached; None if it cannot be traced."""
        general = (self.fixed, *[getattr(part, "key", part) for part in key])
        if general not in self._programs:
            full = len(self._programs) >= 512  # kinds of calls that one block is traced for; further kinds run op by op
            self._programs[general] = None if full else self._trace(key, kinds, values)
        return self._programs[general]

    def _trace(self, key: Sequence[Any], kinds: Sequence[str], values: Sequence[Any]) -> Any:
        check_time()  # a slice at each place of an array is a program of its own, and tracing one takes a millisecond

        def body(*operands: Any) -> Any:
            given = iter(operands)
            trees = (part for part in key if type(part) is Tree)
            inputs = []
            for kind, value in zip(kinds, values, strict=True):
                if kind == "static":
                    inputs.append(value)
                elif kind == "tree":
                    inputs.append(next(trees).unflatten(given))
                elif kind == "row":
                    table = next(given)
                    # marked as a view of the table, so that a write into it is refused
                    inputs.append(view(lookup_p(table, next(given)), table, _no_view, None, ()))
                else:
                    inputs.append(next(given))
            return self.body(*inputs)

        program = trace(body, [part.key for part in _operands(key)], views=True)
        return None if program is None else interned(program)


def _kind_met(kind: str, value: Any) -> tuple[str, Any]:
    """The kind of an input for `met`, without references to an example or a trace."""
    if kind == "array":
        return kind, value.aval
    if kind == "constant":
        return kind, known_aval(value) if type(value) is np.ndarray else None
    if kind == "number":
        return kind, type(value)
    return kind, (type(value), value) if kind == "static" and type(value) in (int, str, float) else None


def _no_block(*_: Any) -> None:
    """The recorder of a block that was given up: always refuses."""


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


def _is_deferred(x: LazyArray) -> bool:
    """True for a deferred look-up (it may still become a bag)."""
    return x.segment is None and x.source is None


def _is_static(value: Any) -> bool:
    return type(value) is tuple and all(type(part) in _STATIC for part in value)
