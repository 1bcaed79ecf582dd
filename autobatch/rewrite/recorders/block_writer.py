"""What the calls of blocks become in a recorder: one append of the signature and the references of the operands."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from autobatch.blocks.inputs import Key
from autobatch.core.abstract_eval import Aval
from autobatch.lazy.array import LazyArray
from autobatch.lazy.block_nodes import Block
from autobatch.rewrite.recorders.line_writer import Dead
from autobatch.rewrite.recorders.operation_writer import OperationWriter
from autobatch.rewrite.recorders.recorded_kinds import (
    PLAIN,
    Closure,
    Const,
    Items,
    Listed,
    NodeOrNumber,
    NotCovered,
    Parts,
    RecordedNode,
    RecorderKind,
    Term,
    constants_of,
    is_empty,
)
from autobatch.rewrite.recorders.versions import BlockSite, RowSite


class BlockWriter(OperationWriter):
    """Writes the calls of blocks."""

    # Lines.

    def attribute(self, base: Term, name: str) -> Term:
        """An attribute of a value."""
        raise NotCovered(f".{name} of {base.kind!r}")

    def item(self, base: Term, index: Term) -> Term:
        """An item of a value."""
        raise NotCovered(f"an item of {base.kind!r}, {index.kind!r}")

    # Blocks.

    def block(self, block: Block, args: Sequence[Term]) -> Term:
        """The outputs of a block; the constant None where it is none with these inputs.

        Raises:
            Dead: it has not been met with inputs that only examples know.
        """
        for at, arg in enumerate(args):
            if isinstance(arg.kind, NodeOrNumber):
                return self.either(arg, lambda each, at=at: self.block(block, [*args[:at], each, *args[at + 1 :]]))  # type: ignore[misc]
        if not all(guard.holds() for guard in block.guards):
            raise NotCovered("a global name that a block relies on means something else now")
        self.written.constants.rely(block.guards)
        try:
            inputs = [self._input(block, slot, args) for slot in block.slots]
            call = self._call_of(block, inputs)
        except NotCovered:
            return self.literal(None)
        if call is None:
            return self.literal(None)
        site, tail_and_refs = call
        if not tail_and_refs[0]:
            return self._shared(site)
        return self._recorded(site, *tail_and_refs)

    def _shared(self, site: BlockSite) -> Term:
        found = self.written.shared_block(site)
        if len(site.outs) == 1:
            return Term(found, "")
        reads = [self.read(self.written.constants.item, found.number, at) for at in range(len(site.outs))]
        return Term(Parts(tuple(each.kind for each in reads)), "", reads)

    def _follow(self, root: Any, steps: Sequence[tuple[str, Any]], args: Sequence[Term], scope: Any) -> Term:
        value = args[root] if type(root) is int else self.read(self.written.constants.global_, scope, root)
        for how, part in steps:
            value = self.item(value, self.literal(part)) if how == "key" else self.attribute(value, part)
        return value

    def _input(self, block: Block, slot: Any, args: Sequence[Term]) -> tuple[str, Any, Any]:
        """What one input is: (how it is given, what of, value), as `BlockSite` has it."""
        value = self._follow(slot.root, slot.steps, args, block.scope)
        if slot.index is None:
            return self._whole(value)
        if type(slot.index) is Key:
            parts = [self._follow(root, steps, args, block.scope) for root, steps in slot.index.paths]
            constants = constants_of(parts)
            if constants is not None:
                numbers = [part.number for part in constants]
                compute = self.written.constants.compute
                index = self.read(compute, ("key", slot.index.text), slot.index.function, *numbers)
            elif all(part.kind is PLAIN or isinstance(part.kind, Const) for part in parts):
                function = self.written.named(self.written.constants.literal(slot.index.function))
                texts = [self.text(self.check(part)) for part in parts]
                index = Term(PLAIN, f"{function}({', '.join(texts)})")
            else:
                raise NotCovered("a key that is computed of arrays")
        else:
            root, steps = slot.index
            index = self._follow(root, steps, args, block.scope)
        kind = value.kind
        if isinstance(kind, Const) and type(kind.value) is LazyArray:
            aval = kind.value.aval
            fits = index.kind is PLAIN or (isinstance(index.kind, Const) and type(index.kind.value) in (int, np.int64))
            if not fits or not aval.shared or aval.ndim != 2:
                raise NotCovered("an item of a shared array")
            return "row", kind, index
        if isinstance(kind, Const) and index.kind is PLAIN and type(kind.value) in (dict, list, tuple):
            return "item", kind, index
        return self._whole(self.item(value, index))

    def _whole(self, value: Term) -> tuple[str, Any, Any]:
        kind = value.kind
        if isinstance(kind, Const):
            return "const", kind, value
        if kind is PLAIN:
            return "plain", kind, value
        if is_empty(kind) and type(kind) is not Listed:  # a list may be one that stays empty
            raise Dead
        if isinstance(kind, Items | Closure) or (isinstance(kind, Listed) and _has_lists(kind.item)):
            raise NotCovered("an input that is no array and no list of arrays")
        return "built", kind, value

    def _call_of(self, block: Block, inputs: Sequence[tuple[str, Any, Any]]) -> Any:
        """The site of a call, the source of its operands, and that of its key; None where the block is none."""
        met = self._met(block, inputs)
        tried: list[tuple[list[Any], list[Any], Any]] = []
        for entry, outs in met:
            try:
                found = [_spec(how, kind, slot) for (how, kind, _), slot in zip(inputs, entry, strict=True)]
            except NotCovered:
                continue
            tried.append(([spec for spec, _ in found], [each for _, several in found for each in several], outs))
        for specs, samples, outs in tried:
            for key in _samples(samples):
                site = BlockSite(block, specs)
                try:
                    called = site.called(self.written.trace, self.written.constants.values, key)
                except (LookupError, TypeError, ValueError):
                    continue
                if called is None:
                    continue
                call = called[0].block
                assert call is not None
                if outs is not None and (len(outs) != len(call.outs) or any(map(_differ, outs, call.outs))):
                    continue
                site.kinds, site.outs = called[1], tuple(call.outs)
                if called[0].shared:
                    return site, ("", [])
                return site, self._operands(site, inputs)
        return None

    def _met(self, block: Block, inputs: Sequence[tuple[str, Any, Any]]) -> list[tuple[Any, Any]]:
        """What the inputs have been in calls like this one, and what its outputs were; the latest first.

        Raises:
            Dead: there was none, where that counts.
        """
        if not any(how in ("plain", "item") for how, *_ in inputs):
            return [([None] * len(inputs), None)]
        found = []
        for entry, outs in reversed(list(block.met.items())):
            if all(
                slot[0] not in ("array", "constant") if value.simple else _is_met(kind, slot)
                for (_, kind, value), slot in zip(inputs, entry, strict=True)
            ):
                found.append((entry, outs))
        if not found and block.has_refused:
            raise NotCovered("a block that is none with such inputs")
        if not found:
            raise Dead
        return found

    def _operands(self, site: BlockSite, inputs: Sequence[tuple[str, Any, Any]]) -> tuple[str, list[str]]:
        """The source of what a call adds to the signatures, and of its operands; what is checked comes before."""
        refs: list[str] = []
        key: list[str] = []
        outside: list[str] = []
        where: list[int] = []
        for (how, kind, value), slot, spec in zip(inputs, site.kinds, site.specs, strict=True):
            if how == "const":
                if slot == "number":
                    where.append(len(refs))
                    outside.append(self.text(value))
                    refs.append("")
                elif slot == "constant":
                    aval = self.written.trace.constant(kind.value)[0]
                    if aval is None:
                        raise NotCovered("a constant of no known kind")
                    if not aval.shared:
                        self.written.operands[kind.number] = aval
                        refs.append(f"_ab_d{kind.number}")
                continue
            value = self.kept(value)
            if how == "row":
                self._check_id(value, kind)
                where.append(len(refs))
                outside.append(self.text(value))
                refs.append("")
            elif how == "item":
                self.emit(f"if _ab_type({value.text}) not in _ab_keys: raise _ab_misfit")
                key.append(value.text)
                if slot in ("number", "constant"):
                    raise NotCovered("one of several shared numbers or arrays")
            elif how == "plain" and spec[0] in ("number", "static"):
                of = self.written.named(self.written.constants.literal(spec[1]))
                self.emit(f"if _ab_type({value.text}) is not {of}: raise _ab_misfit")
                if spec[0] == "static":
                    key.append(f"({value.text}, _ab_shown({value.text}))" if spec[1] is float else value.text)
                else:
                    where.append(len(refs))
                    outside.append(value.text)
                    refs.append("")
            elif how == "plain":
                of = self.written.named(self.written.constants.literal(spec[1].aval))
                name = self.fresh()
                self.emit(f"{name} = _ab_{spec[2]}({value.text}, {of})")
                refs.append(name)
            else:
                key += _lengths(kind, value.text)
                refs.append(_flat(kind, value.text))
        tail = f"_ab_t{len(self.written.sites)}"
        self.written.sites.append((site, bool(key)))
        if key:
            name = self.fresh()  # found before anything is added: it may have to be made
            self.emit(f"{name} = {tail}[{key[0] if len(key) == 1 else '(' + ', '.join(key) + ')'}]")
            tail = name
        if outside:
            if len(outside) == 1:
                self.emit(f"_ab_add_source({outside[0]})")
                self.emit("_ab_add_row(-1)")
            else:
                self.emit(f"_ab_add_sources(({', '.join(outside)},))")
                self.emit(f"_ab_add_rows(({'-1, ' * len(outside)}))")
            for i, at in enumerate(where):
                later = len(where) - 1 - i
                refs[at] = f"-_ab_len(_ab_rows) + {later}" if later else "-_ab_len(_ab_rows)"
        return tail, refs

    def row(self, table: Const, index: Term, out: Aval) -> Term:
        """A row of a shared table, by a number that only the example knows."""
        index = self.kept(index)
        self._check_id(index, table)
        self.written.operands[table.number] = table.value.aval.key
        self.emit(f"_ab_add_source({index.text})")
        self.emit("_ab_add_row(-1)")
        tail = f"_ab_t{len(self.written.sites)}"
        site = RowSite(table.number, out)
        self.written.sites.append((site, False))
        return self._recorded(site, tail, [f"_ab_d{table.number}", "-_ab_len(_ab_rows)"])

    def _check_id(self, value: Term, table: Const) -> None:
        """See that a number names a row of a table."""
        height = table.value.aval.shape[0]
        if value.kind is PLAIN:
            self.emit(f"if _ab_type({value.text}) is not _ab_int: _ab_index({value.text})")
            self.emit(f"if not 0 <= {value.text} < {height}: raise _ab_misfit")
        elif not (isinstance(value.kind, Const) and 0 <= value.kind.value < height):
            raise NotCovered("an id out of range")

    def _recorded(self, site: BlockSite | RowSite, tail: str, refs: Sequence[str]) -> Term:
        self.counter += 1
        node = f"_ab_n{self.counter}"
        if len(refs) == 1 and "," not in refs[0] and not refs[0].startswith("*"):
            self.emit(f"_ab_add_ref({refs[0]})")
        elif len(refs) == 1 and refs[0][1:].isidentifier():
            self.emit(f"_ab_add_refs({refs[0][1:]})")
        else:
            self.emit(f"_ab_add_refs(({', '.join(refs)},))")
        self.emit(f"{node} = _ab_len(_ab_sigs)")
        self.emit(f"_ab_add_sigs({tail})")
        self.emit(f"if {node} > _ab_most: raise _ab_full")
        outs = [Term(RecordedNode(aval), f"({node} + {i})" if i else node) for i, aval in enumerate(site.outs)]
        if len(outs) == 1:
            return outs[0]
        return Term(Parts(tuple(each.kind for each in outs)), "", outs)


def _is_met(kind: RecorderKind, slot: tuple[str, Any]) -> bool:
    return not isinstance(kind, RecordedNode) or slot == ("array", kind.aval) or slot == ("constant", kind.aval)


def _differ(a: Any, b: Any) -> bool:
    return a is not b


def _has_lists(kind: RecorderKind) -> bool:
    return isinstance(kind, Listed | Items) or (isinstance(kind, Parts) and any(map(_has_lists, kind.parts)))


def _spec(how: str, kind: Any, met: Any) -> tuple[tuple[Any, ...], list[list[Any]]]:
    """How a slot is given, as `BlockSite` has it, and for each part of the key that it takes what that may be."""
    if how == "const":
        return ("const", kind.number), []
    if how == "row":
        return ("row", kind.number), []
    if how == "item":
        return ("item", kind.number), [list(kind.value) if type(kind.value) is dict else list(range(len(kind.value)))]
    if how == "built":
        return ("built", kind), [[0] if is_empty(kind) else [2, 1, 3]] * len(_lengths(kind, ""))
    found, what = met
    if what is None:
        raise NotCovered("an input of another kind")
    if found == "number":
        return ("number", what), []
    if found == "static" and what[0] in (int, str):
        return ("static", what[0]), [[what[1]]]
    if found == "static" and what[0] is float:  # known by its text: 0.0 is not -0.0
        return ("static", what[0]), [[(what[1], repr(what[1]))]]
    if found in ("array", "constant") and what is not None and not what.shared:
        return ("built", RecordedNode(what), found), []
    raise NotCovered("an input of another kind")


def _samples(samples: Sequence[list[Any]]) -> Iterator[list[Any]]:
    """Some of the keys that a call may have."""
    if not samples:
        yield []
        return
    for first in samples[0][:_MOST_TRIED]:
        for rest in _samples(samples[1:]):
            yield [first, *rest]


_MOST_TRIED = 64


def _lengths(kind: RecorderKind, text: str) -> list[str]:
    """The source of the lengths of the lists in a value."""
    if isinstance(kind, Listed):
        return [f"_ab_len({text})"]
    if isinstance(kind, Parts):
        return [each for i, part in enumerate(kind.parts) for each in _lengths(part, f"{text}[{i}]")]
    return []


def _flat(kind: RecorderKind, text: str) -> str:
    """The source of the nodes in a value, as elements of a tuple."""
    if isinstance(kind, RecordedNode):
        return text
    if isinstance(kind, Listed) and isinstance(kind.item, RecordedNode):
        return f"*{text}"
    if isinstance(kind, Listed):
        return f"*[_ab_r for _ab_e in {text} for _ab_r in ({_flat(kind.item, '_ab_e')},)]"
    if isinstance(kind, Parts) and kind.make is None:
        return ", ".join(_flat(part, f"{text}[{i}]") for i, part in enumerate(kind.parts))
    raise NotCovered("an input that is no array and no list of arrays")
