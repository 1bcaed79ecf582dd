"""Writes reads and bindings of values in a recorder (names, tuples, lists, attributes, items), and calls of blocks.

A block call appends the signature, and the references of the operands, to the segment.
"""

import contextlib
import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from autobatch.blocks.block_inputs import Key, Slot
from autobatch.core.abstract_eval import Affine, Aval, aval_of, freeze
from autobatch.errors import NeedsLoop, Unreachable, Unsupported
from autobatch.facts.types import is_stored
from autobatch.lazy.array import LazyArray
from autobatch.lazy.block_nodes import Block
from autobatch.lazy.deferred_lookups import rows_signature
from autobatch.lazy.recorders import recorded_kinds as rk
from autobatch.lazy.recorders.line_writer import LineWriter
from autobatch.lazy.recorders.recorder_functions import BlockEntry, check_lengths
from autobatch.program import normal_form as nf

_SHAPES = frozenset(("shape", "ndim", "size", "dtype"))


def _is_lasting(value: rk.Term) -> bool:
    """True if the source of a value means the same anywhere later."""
    return isinstance(value.kind, rk.Const) or (
        value.parts is None and value.text.startswith(("_ab_k", "_ab_n", "(_ab_n"))
    )


def _item_seen(seen: rk.Seen, at: rk.RecorderKind) -> rk.Seen:
    """What is known of the item at a constant index or key."""
    if type(seen.value) not in (dict, list, tuple) or not isinstance(at, rk.Const):
        return rk.UNKNOWN
    try:
        return seen.part(seen.value[at.value], freeze(at.value))
    except (LookupError, TypeError):
        return rk.UNKNOWN


class ValueWriter(LineWriter):
    """Writes reads, bindings and the calls of blocks."""

    def of_constant(self, node: nf.Constant) -> rk.Term:
        return self.literal(node.value)

    def of_name(self, node: nf.Name) -> rk.Term:
        name, version = node.id, self.version
        found = self.env.names.get(name)
        if found is not None and found.kind is rk.MIXED:
            raise Unsupported(f"{name} is of several types")
        if found is not None:
            if found.maybe:
                self.emit(name)  # raises if it is unbound
                found = self.env.names[name] = dataclasses.replace(found, maybe=False)
            return found
        if name in version.local:
            raise Unsupported(f"{name} is unbound")
        owner = version
        while owner.of.owner is not None:
            owner = owner.of.owner
            if name in owner.local:
                raise Unsupported(f"{name} of an enclosing function may be unbound")
        constants = self.written.constants
        function = owner.of.function
        if function is not None and name in function.__code__.co_freevars:
            return self.read(constants.cell, owner.of.origin, function.__code__.co_freevars.index(name))
        return self.read(constants.global_, version.of.scope, name)

    def bind(self, target: nf.Target, value: rk.Term) -> None:
        """Assign a value to a name, or its parts to names."""
        value = self.as_node(value)
        kind = value.kind
        if isinstance(target, str):
            self.env.checked.discard(target)
            if isinstance(kind, rk.ClosureKind):
                self.env.names[target] = value
            elif self.version.is_temporary(target):
                lasting = all(map(_is_lasting, [value] if value.parts is None else value.parts))
                self.env.names[target] = value if lasting else self.let(value)
            else:
                if not isinstance(kind, rk.Const) or kind.is_scalar:
                    self.emit(f"{target} = {self.text(value)}")
                self.env.names[target] = rk.Term(kind, target, seen=value.seen)
            return
        if isinstance(kind, rk.Const):
            if type(kind.value) not in (tuple, list):
                raise Unsupported("unpacking of a shared value")
            value = self.parts([self.read(self.written.constants.item, kind.number, i) for i in range(len(kind.value))])
        value = self.check(value)
        text, stores = self.targets(target, value.kind)
        if value.parts is not None and all(map(_is_lasting, value.parts)):  # no part reads a name bound here
            for each, part in zip(target.targets, value.parts, strict=True):
                self.bind(each, part)
            return
        self.emit(f"{text} = {self.text(value)}")
        self.store(stores)

    def store_item(self, base: rk.Term, index: rk.Term, value: rk.Term) -> None:
        """Write `base[index] = value`, of a list, dict or array that the function made."""
        if base.kind is rk.PLAIN and self.are_plain(value):
            self.may_write(base)
            self.emit(f"{base.text}[{self.key(index)}] = {self.text(self.check(value))}")
            return
        if not isinstance(base.kind, rk.ListKind):
            raise Unsupported("an assignment to an item")
        key = self.key(index)
        self.add(base.kind, value.kind)
        self.emit(f"{base.text}[{key}] = {self.converted(value, base.kind.item)}")

    def may_write(self, array: rk.Term, unless: str = "") -> None:
        """Write a check that the function has made an array; from here on, other code may change what it has read."""
        self.emit(f"{unless}_ab_written({array.text})")
        self.written.changed |= not self.written.writes
        self.written.writes = True

    def key(self, value: rk.Term) -> str:
        """The source of a dict key: a number, text, or a tuple of these."""
        if isinstance(value.kind, rk.Parts) and value.kind.make is None:
            parts = [self.part(value, at) for at in range(len(value.kind.parts))]
            return f"({', '.join(map(self.key, parts))},)"
        if not self.are_plain(value):
            raise Unsupported("a key that is neither a number nor a string")
        value = self.check(value)
        return self.text(value)

    def of_dict(self, node: nf.Call) -> rk.Term:
        """A dict: a tuple of named parts if all keys are text that is written out."""
        items = [each for each in node.args if isinstance(each, nf.Call)]
        if len(items) < len(node.args):
            raise Unsupported("a dict in a dict")
        keys = [each.args[0] for each in items]
        names = [each.value for each in keys if isinstance(each, nf.Constant) and type(each.value) is str]
        if names and len(set(names)) == len(keys):
            return self.parts([self.as_node(self.value(each.args[1])) for each in items], dict, tuple(names))
        kind = self.listed(node, rk.DictKind)
        texts = []
        for each in items:
            name, value = self.key(self.value(each.args[0])), self.as_node(self.value(each.args[1]))
            self.add(kind, value.kind)
            texts.append(f"{name}: {self.converted(value, kind.item)}")
        return self.let(rk.Term(kind, f"{{{', '.join(texts)}}}"))

    def as_dict(self, base: rk.Term) -> rk.Term:
        """A copy of a dict whose keys are written out, with items of one kind."""
        assert isinstance(base.kind, rk.Parts)
        kind = self.listed(("dict", self.counter), rk.DictKind)
        parts = [self.part(base, at) for at in range(len(base.kind.parts))]
        for each in parts:
            self.add(kind, each.kind)
        texts = [
            f"{name!r}: {self.converted(each, kind.item)}" for name, each in zip(base.kind.names, parts, strict=True)
        ]
        return self.let(rk.Term(kind, f"{{{', '.join(texts)}}}"))

    def store(self, stores: Sequence[tuple[str, rk.RecorderKind]]) -> None:
        """Note the kinds of names that the source binds."""
        for name, kind in stores:
            self.env.checked.discard(name)
            self.env.names[name] = rk.Term(kind, name)

    def targets(self, target: nf.Target, kind: rk.RecorderKind) -> tuple[str, list[tuple[str, rk.RecorderKind]]]:
        """The source of a target, and the kind of each name in it."""
        if isinstance(target, str):
            return target, [(target, kind)]
        if kind is rk.PLAIN:
            kinds: Sequence[rk.RecorderKind] = [rk.PLAIN] * len(target.targets)
        elif target.starred >= 0:
            raise Unsupported("unpacking with a star of what the function made")
        elif isinstance(kind, rk.ListKind):
            kinds = [kind.item] * len(target.targets)
        elif isinstance(kind, rk.Parts) and kind.is_tuple and len(kind.parts) == len(target.targets):
            kinds = kind.parts
        else:
            raise Unsupported("unpacking something that is not a tuple of that length")
        if rk.NOTHING in kinds:
            raise Unreachable
        parts = [self.targets(each, part) for each, part in zip(target.targets, kinds, strict=True)]
        texts = ["*" * (at == target.starred) + text for at, (text, _) in enumerate(parts)]
        return f"({', '.join(texts)},)", [each for _, stores in parts for each in stores]

    def several(self, nodes: Sequence[nf.Value]) -> list[rk.Term]:
        """Values in order, those of tuples in place of `*tuple`."""
        out: list[rk.Term] = []
        for each in nodes:
            if not isinstance(each, nf.Spread):
                out.append(self.value(each))
                continue
            value = self.value(each.value)
            if not isinstance(value.kind, rk.Parts) or not value.kind.is_tuple:
                raise Unsupported("unpacking a varying number of values", each)
            count = len(value.kind.parts)
            value = self.let(value) if value.parts is None else value
            out += [self.part(value, at) for at in range(count)]
        return out

    def parts(self, values: Sequence[rk.Term], make: Any = None, names: tuple[str, ...] = ()) -> rk.Term:
        return rk.Term(rk.Parts(tuple(value.kind for value in values), make, names), "", list(values))

    def listed(self, place: Any, make: type[rk.ListKind] = rk.ListKind) -> rk.ListKind:
        """The kind of the lists or dicts made at one place."""
        found: rk.ListKind = self.version.lists.setdefault(place if isinstance(place, tuple) else id(place), make())
        return found

    def add(self, into: rk.ListKind, kind: rk.RecorderKind) -> None:
        if into.add(kind):
            self.written.changed = True

    def of_list(self, node: nf.Call) -> rk.Term:
        kind = self.listed(node)
        texts = []
        for each in node.args:
            if isinstance(each, nf.Spread):
                texts.append(f"*{self.poured(self.value(each.value), kind)}")
            else:
                value = self.as_node(self.value(each))
                self.add(kind, value.kind)
                texts.append(self.converted(value, kind.item))
        return self.let(rk.Term(kind, f"[{', '.join(texts)}]"))

    def take(self, into: rk.ListKind, item: rk.RecorderKind) -> None:
        """Note that a list gets items as they are.

        Raises:
            Unsupported: the list has items of a wider kind.
        """
        self.add(into, item)
        if item != into.item and any(isinstance(each, rk.NodeOrNumber) for each in rk.within(into.item)):
            raise Unsupported("a list of numbers and arrays, made of another one")

    def poured(self, value: rk.Term, into: rk.ListKind) -> str:
        """The source of an iterable whose items go into a list as they are."""
        self.take(into, self.item_kind(value.kind))
        return self.gone_through(self.check(value))

    def item_kind(self, kind: rk.RecorderKind) -> rk.RecorderKind:
        """The kind of the items of an iterable.

        Raises:
            Unreachable: it is empty, as far as is known.
        """
        if kind is rk.PLAIN:
            return rk.PLAIN
        if type(kind) is rk.DictKind:
            return rk.PLAIN
        if isinstance(kind, rk.ListKind | rk.IterKind):
            return kind.item
        if isinstance(kind, rk.Parts) and kind.is_tuple:
            out: rk.RecorderKind = rk.NOTHING
            for part in kind.parts:
                out = rk.join(out, part)
            return out
        if isinstance(kind, rk.Const) and type(kind.value) in (range, str):
            return rk.PLAIN
        raise Unsupported("a loop over something that is not a list")

    def of_read(self, node: nf.Read) -> rk.Term:
        base, key = self.value(node.base), node.key
        if isinstance(key, str):
            if isinstance(base.kind, rk.RecordedNode | rk.RaggedNode) and key == "T":
                return self.apply(operator.attrgetter("T"), [base], ("T",))
            return self.attribute(base, key)
        if not (isinstance(key, nf.Call) and key.symbol == "slice"):
            return self.item(base, self.index(base, key))
        bounds = [self.value(each) for each in key.args]
        if (constants := rk.constants_of(bounds)) is not None:
            at = slice(*[each.value for each in constants])
            if isinstance(base.kind, rk.RecordedNode | rk.RaggedNode):
                return self.apply(operator.itemgetter(at), [base], ("slice", at.start, at.stop, at.step))
            if isinstance(base.kind, rk.Parts) and base.kind.is_tuple:
                return self.parts([self.part(base, i) for i in range(len(base.kind.parts))[at]])
        if self.are_plain(*bounds) and (base.kind is rk.PLAIN or isinstance(base.kind, rk.ListKind)):
            texts, base = [self.text(each) for each in map(self.check, bounds)], self.check(base)
            return self.let(rk.Term(base.kind, f"{base.text}[{' : '.join(texts)}]"))
        raise Unsupported("a slice")

    def index(self, base: rk.Term, key: nf.Value) -> rk.Term:
        """What is between the brackets of `base[key]`: of an example's own array also slices, in a tuple or alone."""
        if base.kind is rk.PLAIN and isinstance(key, nf.Call) and key.symbol in ("slice", "tuple"):
            parts = [self.index(base, each) for each in key.args]
            if key.symbol == "tuple":
                return self.parts(parts)
            if self.are_plain(*parts):
                texts = [self.text(self.check(each)) for each in parts]
                return rk.Term(rk.PLAIN, f"_ab_slice({', '.join(texts)})", simple=True)
        return self.value(key)

    def attribute(self, base: rk.Term, name: str) -> rk.Term:
        kind = base.kind
        if isinstance(kind, rk.Const):
            value = kind.value
            if type(value) is LazyArray:
                if name in _SHAPES:
                    return self.read(
                        self.written.constants.compute, name, lambda array: getattr(array.aval, name, None)
                        if name != "size" else int(np.prod(array.aval.shape)), kind.number
                    )  # fmt: skip
                raise Unsupported(f".{name} of a shared array")
            return self.read(self.written.constants.attribute, kind.number, name)
        if isinstance(kind, rk.RecordedNode):
            if name not in _SHAPES:
                raise Unsupported(f".{name} of an array")
            aval = kind.aval
            return self.literal(int(np.prod(aval.shape)) if name == "size" else getattr(aval, name))
        if isinstance(kind, rk.Parts) and kind.make is not dict and name in kind.names:
            at = kind.names.index(name)
            return self.part(base, at)
        if kind is rk.PLAIN:
            base = self.check(base)
            self.written.attributes.add(name)
            whole = base.seen.value
            found = getattr(whole, name, None) if is_stored(type(whole), name) else None
            return rk.Term(rk.PLAIN, f"{base.text}.{name}", seen=base.seen.part(found, name))
        raise Unsupported(f".{name} of {kind!r}")

    def part(self, base: rk.Term, at: int) -> rk.Term:
        """One part of a tuple."""
        assert isinstance(base.kind, rk.Parts)
        if base.parts is not None:
            return self._evaluated(base).parts[at]
        part = base.kind.parts[at]
        if part is rk.NOTHING:
            raise Unreachable
        return rk.Term(part, f"{self.text(base)}[{at}]")

    def _evaluated(self, value: rk.Term) -> Any:
        """A tuple that is not created: its parts are bound to names first, since even unread parts may raise."""
        if value.parts is None:
            return self.let(value)
        value.parts = [self._evaluated(each) for each in value.parts]
        return value

    def item(self, base: rk.Term, index: rk.Term) -> rk.Term:
        kind, at = base.kind, index.kind
        if isinstance(kind, rk.Const) and isinstance(at, rk.Const):
            if type(kind.value) is LazyArray:
                raise Unsupported("an item of a shared array")
            return self.read(self.written.constants.item, kind.number, at.value)
        if isinstance(kind, rk.Parts) and kind.make is dict and isinstance(at, rk.Const) and at.value in kind.names:
            return self.part(base, kind.names.index(at.value))
        if isinstance(kind, rk.Parts) and kind.make is dict:
            return self.item(self.as_dict(base), index)
        if isinstance(kind, rk.Parts):
            known = isinstance(at, rk.Const) and type(at.value) is int
            place = at.value if kind.is_tuple and known else len(kind.parts)  # type: ignore[attr-defined]
            if not -len(kind.parts) <= place < len(kind.parts):
                raise Unsupported("an item of a tuple that is not known")
            return self.part(base, place % len(kind.parts))
        if isinstance(kind, rk.RecordedNode | rk.RaggedNode):
            return self.apply(operator.getitem, [base, self.check(index)], ("item",))
        if isinstance(kind, rk.Const) and type(kind.value) is LazyArray and at is rk.PLAIN:
            if is_ids(index.seen.value):
                return self.rows(kind, index)
            with contextlib.suppress(Unsupported):
                return self.row(kind, index)
            return self.apply(operator.getitem, [base, self.check(index)], ("item",))
        if isinstance(kind, rk.DictKind) and isinstance(at, rk.Parts):
            if kind.item is rk.NOTHING:
                raise Unreachable
            return self.let(rk.Term(kind.item, f"{base.text}[{self.key(index)}]"))
        if kind is rk.PLAIN and isinstance(at, rk.Parts):
            base = self.check(base)
            return rk.Term(rk.PLAIN, f"{base.text}[{self.key(index)}]")
        if at is not rk.PLAIN and not (isinstance(at, rk.Const) and at.is_scalar):
            raise Unsupported("an index that is neither a number nor a string")
        if kind is rk.PLAIN or (isinstance(kind, rk.Const) and type(kind.value) in (tuple, list, dict, str)):
            if isinstance(kind, rk.Const):
                parts = kind.value.values() if type(kind.value) is dict else kind.value
                if not all(type(part) in (int, float, str, bool, type(None)) for part in parts):
                    raise Unsupported("a choice between shared values")
                base = rk.Term(kind, self.written.named(kind.number))
            base, index = self.check(base), self.check(index)
            return rk.Term(rk.PLAIN, f"{base.text}[{self.text(index)}]", seen=_item_seen(base.seen, at))
        if isinstance(kind, rk.Const) and type(kind.value) is np.ndarray:  # a row of an array
            index = self.let(self.check(index))
            self.emit(f"if _ab_type({index.text}) not in _ab_keys: raise _ab_misfit")
            return self.let(rk.Term(rk.PLAIN, f"{self.written.named(kind.number)}[{index.text}]"))
        if isinstance(kind, rk.ListKind):
            if kind.item is rk.NOTHING:
                raise Unreachable
            index = self.check(index)
            return self.let(rk.Term(kind.item, f"{base.text}[{self.text(index)}]"))
        raise Unsupported("an item of something that is not a list")

    def gone_through(self, over: rk.Term) -> str:
        """The source of an iterable, whose items are all of the same kind."""
        if isinstance(over.kind, rk.Const):
            return self.written.named(over.kind.number)
        if isinstance(over.kind, rk.Parts):
            return self.converted(over, rk.Parts((self.item_kind(over.kind),) * len(over.kind.parts)))
        return self.text(over)

    # Blocks.

    def block(self, block: Block, args: Sequence[rk.Term]) -> rk.Term:
        """The outputs of a block; the constant None if the block cannot run with these inputs.

        Raises:
            Unreachable: the block has not yet met inputs that only examples know.
        """
        for at, arg in enumerate(args):
            if isinstance(arg.kind, rk.NodeOrNumber):
                return self.either(arg, lambda each, at=at: self.block(block, [*args[:at], each, *args[at + 1 :]]))  # type: ignore[misc]
        if not all(guard.holds() for guard in block.guards):
            raise Unsupported("a global name that a block relies on means something else now")
        self.written.constants.rely(block.guards)
        if all(each.kind is rk.PLAIN for each in args) and all(type(each.root) is int for each in block.slots):
            return self.literal(None)  # an example's own work stays in Python
        try:
            inputs = [self._input(block, slot, args) for slot in block.slots]
            call = self._call_of(block, inputs)
        except Unsupported:
            return self.literal(None)
        if call is None:
            return self.literal(None)
        site, (tail, refs) = call
        return self.recorded(site, refs, tail)

    def of_any_length(self, function: Callable[..., Any], values: Sequence[rk.Term]) -> rk.Term:
        """An operation with some operands that are arrays of any length, written as a block of its own."""
        if any(each.kind is rk.PLAIN for each in values):
            raise Unsupported("an operation on arrays of varying length and a value that differs by example")
        where = self.version.filename, self.line, self.line
        slots = [Slot(at, (), None, False) for at in range(len(values))]
        found = self.block(Block(where, slots, (), function, self.version.of.scope), values)
        if isinstance(found.kind, rk.Const) and found.kind.value is None:
            raise Unsupported("an operation on arrays of varying length that is not a block")
        return found

    def _follow(self, root: Any, steps: Sequence[tuple[str, Any]], args: Sequence[rk.Term], scope: Any) -> rk.Term:
        value = args[root] if type(root) is int else self.read(self.written.constants.global_, scope, root)
        for how, part in steps:
            value = self.item(value, self.literal(part)) if how == "key" else self.attribute(value, part)
        return value

    def _input(self, block: Block, slot: Any, args: Sequence[rk.Term]) -> tuple[str, Any, Any]:
        """One input as (how it is given, kind, value), in the terms of `BlockEntry`."""
        value = self._follow(slot.root, slot.steps, args, block.scope)
        if slot.index is None:
            return self._whole(value)
        if type(slot.index) is Key:
            parts = [self._follow(root, steps, args, block.scope) for root, steps in slot.index.paths]
            constants = rk.constants_of(parts)
            if constants is not None:
                numbers = [part.number for part in constants]
                compute = self.written.constants.compute
                index = self.read(compute, ("key", slot.index.text), slot.index.function, *numbers)
            elif all(part.kind is rk.PLAIN or isinstance(part.kind, rk.Const) for part in parts):
                function = self.written.named(self.written.constants.literal(slot.index.function))
                texts = [self.text(self.check(part)) for part in parts]
                index = rk.Term(rk.PLAIN, f"{function}({', '.join(texts)})")
            else:
                raise Unsupported("a key that is computed from arrays")
        else:
            root, steps = slot.index
            index = self._follow(root, steps, args, block.scope)
        kind = value.kind
        if isinstance(kind, rk.Const) and type(kind.value) is LazyArray:
            if is_ids(index.seen.value):
                self._source(index, 0)  # else refused, before the ids are read
                return self._whole(self.rows(kind, index))
            aval = kind.value.aval
            fits = index.kind is rk.PLAIN or (
                isinstance(index.kind, rk.Const) and type(index.kind.value) in (int, np.int64)
            )
            if not fits or not aval.shared or aval.ndim != 2:
                raise Unsupported("an item of a shared array")
            return "row", kind, index
        if isinstance(kind, rk.Const) and index.kind is rk.PLAIN and type(kind.value) in (dict, list, tuple):
            return "item", kind, index
        return self._whole(self.item(value, index))

    def _whole(self, value: rk.Term) -> tuple[str, Any, Any]:
        kind = value.kind
        if isinstance(kind, rk.Const):
            return "const", kind, value
        if kind is rk.PLAIN:
            return "plain", kind, value
        if rk.is_empty(kind) and type(kind) is not rk.ListKind:  # except for lists, which may stay empty
            raise Unreachable
        parts = rk.within(kind.item) if isinstance(kind, rk.ListKind) else ()
        nested = any(isinstance(each, rk.ListKind | rk.IterKind) for each in parts)
        if nested or isinstance(kind, rk.IterKind | rk.ClosureKind):
            raise Unsupported("an input that is neither an array nor a list of arrays")
        return "built", kind, value

    def _call_of(self, block: Block, inputs: Sequence[tuple[str, Any, Any]]) -> Any:
        """The site of a call, and the source of its signature and operands; None if the block cannot run."""
        met = self._met(block, inputs)
        tried: list[tuple[list[Any], list[Any], Any]] = []
        for entry, outs in met:
            try:
                found = [_spec(how, kind, slot) for (how, kind, _), slot in zip(inputs, entry, strict=True)]
            except Unsupported:
                continue
            ragged = self._of_any_length(block, inputs, found, entry)
            if ragged is not None:
                tried.append((ragged, [each for _, several in found for each in several], None))
            tried.append(([spec for spec, _ in found], [each for _, several in found for each in several], outs))
        for specs, samples, outs in tried:
            for key in _samples(samples):
                try:
                    site = BlockEntry(block, specs)
                    called = site.called(self.written.trace, self.written.constants.values, key)
                except (LookupError, TypeError, ValueError, Unsupported):
                    continue
                if called is None or called[0].shared or (key and called[0].any_length is not None):  # each is a launch
                    continue
                call = called[0].block
                assert call is not None
                if outs is not None and (len(outs) != len(call.outs) or any(map(operator.is_not, outs, call.outs))):
                    continue
                site.kinds, site.outs = called[1], tuple(call.outs)
                with contextlib.suppress(NeedsLoop):
                    check_lengths(called[0])
                    return site, self._operands(site, inputs)
        return None

    def _of_any_length(self, block: Block, inputs: Any, found: Any, entry: Any) -> list[Any] | None:
        """How the slots are given if examples' own arrays have had several shapes; None if none has."""
        specs = [spec for spec, _ in found]
        for at, ((how, _, value), slot) in enumerate(zip(inputs, entry, strict=True)):
            if how != "plain" or slot is None or slot[0] != "array" or specs[at][0] != "built":
                continue
            aval = slot[1]
            arrays = [each[at][1] for each in block.met if each[at][0] == "array"]
            shapes = {each.shape for each in arrays if _is_alike(each, aval)}
            of_rows = {shape for shape in shapes if shape[1:] == aval.shape[1:]}
            shapes = of_rows if len(of_rows) > 1 else shapes
            varying = [axis for axis in range(aval.ndim) if len({shape[axis] for shape in shapes}) > 1]
            if not varying or aval.non_c_order:
                continue
            try:
                sources = {axis: self._source(value, axis) for axis in varying}
            except Unsupported:
                return None
            shape = [Affine({f"n{sources[i]}": 1}) if i in sources else n for i, n in enumerate(aval.shape)]
            specs[at] = ("built", rk.RaggedNode(aval_of(tuple(shape), aval.dtype)), "any_length")
        return specs if any(spec[2:] == ("any_length",) for spec in specs) else None

    def _met(self, block: Block, inputs: Sequence[tuple[str, Any, Any]]) -> list[tuple[Any, Any]]:
        """The inputs and outputs of earlier calls like this one, latest first.

        Raises:
            Unreachable: there was no such call, and the inputs depend on it.
        """
        if not any(how in ("plain", "item") for how, *_ in inputs):
            return [([None] * len(inputs), None)]

        def fits(slot: Any, kind: Any, value: rk.Term) -> bool:
            return slot[0] not in ("array", "constant") if value.simple else _is_met(kind, slot)

        found = [
            (entry, outs) for entry, outs in reversed(list(block.met.items()))
            if all(fits(slot, *given[1:]) for given, slot in zip(inputs, entry, strict=True))
        ]  # fmt: skip
        if not found and block.has_refused:
            raise Unsupported("a block that is not supported for these inputs")
        if not found:
            raise Unreachable
        return found

    def _operands(self, site: BlockEntry, inputs: Sequence[tuple[str, Any, Any]]) -> tuple[str, list[str]]:
        """The source of a call's signature entry and of its operands; writes the checks before it."""
        refs: list[str] = []
        key: list[str] = []
        outside: dict[int, str] = {}  # by their places among the references, values from outside the segment
        for (how, kind, value), slot, spec in zip(inputs, site.kinds, site.specs, strict=True):
            if how == "const":
                if slot == "number":
                    outside[len(refs)] = self.text(value)
                    refs.append("")
                elif slot == "constant":
                    aval = self.written.trace.constant(kind.value)[0]
                    if aval is None:
                        raise Unsupported("a constant of an unknown type")
                    self.written.operands[kind.number] = aval
                    refs.append(f"_ab_d{kind.number}")
                continue
            value = self.let(value)
            if how == "row":
                self._check_id(value, kind)
                outside[len(refs)] = self.text(value)
                refs.append("")
            elif how == "item":
                self.emit(f"if _ab_type({value.text}) not in _ab_keys: raise _ab_misfit")
                key.append(value.text)
                if slot in ("number", "constant", "shared constant"):
                    raise Unsupported("a choice between shared numbers or arrays")
            elif how == "plain" and spec[0] in ("number", "static"):
                of = self.written.named(self.written.constants.literal(spec[1]))
                self.emit(f"if _ab_type({value.text}) is not {of}: raise _ab_misfit")
                if spec[0] == "static":
                    key.append(f"({value.text}, _ab_shown({value.text}))" if spec[1] is float else value.text)
                else:
                    outside[len(refs)] = value.text
                    refs.append("")
            elif how == "plain":
                of = self.written.named(self.written.constants.literal(spec[1].aval))
                name = self.fresh()
                self.emit(f"{name} = _ab_{spec[2]}({value.text}, {of})")
                refs.append(name)
            else:
                key += _lengths(kind, value.text)
                refs.append(_flat(kind, value.text))
        tail = self.entry(site, key)
        if len(outside) == 1:
            self.emit(f"_ab_add_source({', '.join(outside.values())})")
        elif outside:
            self.emit(f"_ab_add_sources(({', '.join(outside.values())},))")
        for later, at in enumerate(reversed(outside)):
            refs[at] = f"{later} - _ab_len(_ab_sources)" if later else "-_ab_len(_ab_sources)"
        return tail, refs

    def row(self, table: rk.Const, index: rk.Term) -> rk.Term:
        """A row of a shared table, by an id that only the example knows."""
        index = self.let(index)

        def check() -> None:
            self._check_id(index, table)
            self.emit(f"_ab_add_source({index.text})")

        found = functools.partial(rows_signature, ids=np.int64(0))
        return self.looked_up(table.number, found, "-_ab_len(_ab_sources)", check)

    def _check_id(self, value: rk.Term, table: rk.Const) -> None:
        """Write a check that an id names a row of a table."""
        height = table.value.aval.shape[0]
        if value.kind is rk.PLAIN:
            self.emit(f"if _ab_type({value.text}) is not _ab_int: _ab_index({value.text})")
            self.emit(f"if not 0 <= {value.text} < {height}: raise _ab_misfit")
        elif not (isinstance(value.kind, rk.Const) and 0 <= value.kind.value < height):
            raise Unsupported("an id out of range")

    def _source(self, value: rk.Term, axis: int) -> int:
        """The number of the source of a length: a dimension of an example's own array.

        Raises:
            Unsupported: there is no single source.
        """
        sources, key = self.written.lengths, (value.seen.origin, axis)
        if value.seen.origin is None or self.written.is_waiting:  # several objects: no single source
            raise Unsupported("an array whose length is not that of one argument")
        return sources.setdefault(key, len(sources))

    def rows(self, table: rk.Const, index: rk.Term) -> rk.Term:
        """Rows of a shared table, by an array of any number of ids that only the example knows."""
        if table.value.aval.ndim != 2 or self.written.is_waiting:
            raise Unsupported("a look-up of a varying number of rows")
        index, height = self.let(index), table.value.aval.shape[0]
        if index.seen.origin is None:
            return self.let(rk.Term(rk.DeferredRows(table.number), f"_ab_ids({index.text}, {height}, 1)"))
        aval = aval_of((Affine({f"n{self._source(index, 0)}": 1}),), np.dtype(np.int64))
        name = self.fresh()

        def found(trace: Any, of: LazyArray) -> Any:
            return rows_signature(trace, of, LazyArray(trace, aval, trace.segment, 0))

        return self.looked_up(table.number, found, name, lambda: self.emit(f"{name} = _ab_ids({index.text}, {height})"))


def is_ids(seen: Any) -> bool:
    """True if an index seen in an example is an array of ids."""
    return type(seen) is np.ndarray and seen.ndim == 1 and seen.dtype.kind in "iu"


def _is_alike(a: Aval, b: Aval) -> bool:
    """True if arrays differ at most in their sizes."""
    return (a.ndim, a.dtype, a.shared, a.non_c_order) == (b.ndim, b.dtype, b.shared, b.non_c_order)


def _is_met(kind: rk.RecorderKind, slot: tuple[str, Any]) -> bool:
    return not isinstance(kind, rk.RecordedNode) or slot == ("array", kind.aval) or slot == ("constant", kind.aval)


def _spec(how: str, kind: Any, met: Any) -> tuple[tuple[Any, ...], list[list[Any]]]:
    """How a slot is given, in the terms of `BlockEntry`, and the possible values of each key part that it takes."""
    if how in ("const", "row"):
        return (how, kind.number), []
    if how == "item":
        return ("item", kind.number), [list(kind.value) if type(kind.value) is dict else list(range(len(kind.value)))]
    if how == "built":
        return ("built", kind), [[0] if rk.is_empty(kind) else [2, 1, 3]] * rk.list_count(kind)
    found, what = met
    if what is None:
        raise Unsupported("an input of another kind")
    if found == "number":
        return ("number", what), []
    if found == "static":  # a float is told apart by its text: 0.0 is not -0.0
        return ("static", what[0]), [[(what[1], repr(what[1])) if what[0] is float else what[1]]]
    if found in ("array", "constant") and not what.shared:
        return ("built", rk.RecordedNode(what), found), []
    raise Unsupported("an input of another kind")


def _samples(samples: Sequence[list[Any]]) -> Iterator[list[Any]]:
    """Some of the keys that a call may have."""
    if not samples:
        yield []
        return
    for first in samples[0][:64]:
        for rest in _samples(samples[1:]):
            yield [first, *rest]


def _lengths(kind: rk.RecorderKind, text: str) -> list[str]:
    """The source of the lengths of the lists in a value."""
    if isinstance(kind, rk.ListKind):
        return [f"_ab_len({text})"]
    if isinstance(kind, rk.Parts):
        return [each for i, part in enumerate(kind.parts) for each in _lengths(part, f"{text}[{i}]")]
    return []


def _flat(kind: rk.RecorderKind, text: str) -> str:
    """The source of the nodes in a value, as elements of a tuple."""
    if isinstance(kind, rk.RecordedNode | rk.RaggedNode):
        return text
    if isinstance(kind, rk.ListKind) and isinstance(kind.item, rk.RecordedNode | rk.RaggedNode):
        return f"*{text}"
    if isinstance(kind, rk.ListKind):
        return f"*[_ab_r for _ab_e in {text} for _ab_r in ({_flat(kind.item, '_ab_e')},)]"
    if isinstance(kind, rk.Parts) and kind.make is None:
        return ", ".join(_flat(part, f"{text}[{i}]") for i, part in enumerate(kind.parts))
    raise Unsupported("an input that is neither an array nor a list of arrays")
