"""Writes reads and bindings of values in a recorder: names, tuples, lists, dicts, attributes and items."""

import ast
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import freeze
from autobatch.facts.types import is_stored
from autobatch.lazy.array import LazyArray
from autobatch.lazy.deferred_lookups import rows_signature
from autobatch.rewrite.recorders.block_writer import BlockWriter, is_ids
from autobatch.rewrite.recorders.line_writer import Unreachable, is_temporary
from autobatch.rewrite.recorders.recorded_kinds import (
    NOTHING,
    PLAIN,
    UNKNOWN,
    Closure,
    Const,
    DictKind,
    IterKind,
    ListKind,
    NotCovered,
    Parts,
    RaggedNode,
    RecordedNode,
    RecorderKind,
    Seen,
    Term,
    constants_of,
    join,
)

_SHAPES = frozenset(("shape", "ndim", "size", "dtype"))


def _is_lasting(value: Term) -> bool:
    """True if the source of a value means the same anywhere later."""
    return isinstance(value.kind, Const) or (
        value.parts is None and value.text.startswith(("_ab_k", "_ab_n", "(_ab_n"))
    )


def _item_seen(seen: Seen, at: RecorderKind) -> Seen:
    """What is known of the item at a constant index or key."""
    if type(seen.value) not in (dict, list, tuple) or not isinstance(at, Const):
        return UNKNOWN
    try:
        return seen.part(seen.value[at.value], freeze(at.value))
    except (LookupError, TypeError):
        return UNKNOWN


class ValueWriter(BlockWriter):
    """Writes reads and bindings."""

    def _constant(self, node: ast.Constant) -> Term:
        return self.literal(node.value)

    def _name(self, node: ast.Name) -> Term:
        name, version = node.id, self.version
        found = self.env.names.get(name)
        if found is not None:
            return found
        if name in version.local:
            raise NotCovered(f"{name} may be unbound")
        owner = version
        while owner.owner is not None:
            owner = owner.owner
            if name in owner.local:
                raise NotCovered(f"{name} of an enclosing function may be unbound")
        constants = self.written.constants
        function = owner.function
        if function is not None and name in function.__code__.co_freevars:
            return self.read(constants.cell, owner.origin, function.__code__.co_freevars.index(name))
        return self.read(constants.global_, version.scope, name)

    def _namedexpr(self, node: ast.NamedExpr) -> Term:
        if not is_temporary(node.target.id):
            raise NotCovered("an assignment in an expression")
        value = self.expr(node.value)
        self.bind(node.target, value)
        return self.env.names[node.target.id]

    def bind(self, target: ast.expr, value: Term) -> None:
        """Assign a value to a name, its parts to names, or it to an item of a list or dict that the function made."""
        value = self.as_node(value)
        if isinstance(target, ast.Name):
            name = target.id
            self.env.checked.discard(name)
            if isinstance(value.kind, Closure):
                self.env.names[name] = value
            elif is_temporary(name):
                lasting = all(map(_is_lasting, [value] if value.parts is None else value.parts))
                self.env.names[name] = value if lasting else self.let(value)
            else:
                if not isinstance(value.kind, Const) or value.kind.is_scalar:
                    self.emit(f"{name} = {self.text(value)}")
                self.env.names[name] = Term(value.kind, name, seen=value.seen)
            return
        if isinstance(target, ast.Subscript):
            self._store_item(target, value)
            return
        if not isinstance(target, ast.Tuple | ast.List):
            raise NotCovered("an assignment to an attribute")
        kind = value.kind
        if isinstance(kind, Const):
            if type(kind.value) not in (tuple, list) or len(kind.value) != len(target.elts):
                raise NotCovered("unpacking of a shared value")
            parts = [self.read(self.written.constants.item, kind.number, i) for i in range(len(kind.value))]
            for each, part in zip(target.elts, parts, strict=True):
                self.bind(each, part)
            return
        if (isinstance(kind, Parts) and kind.is_tuple) or (kind is PLAIN or isinstance(kind, ListKind)):
            value = self.check(value)
            names, stores = self._targets(target, value.kind)
            if value.parts is not None and all(map(_is_lasting, value.parts)):  # no part reads a name bound here
                for each, part in zip(target.elts, value.parts, strict=True):
                    self.bind(each, part)
                return
            self.emit(f"{names} = {self.text(value)}")
            self._stored(stores)
            return
        raise NotCovered("unpacking of what is no tuple")

    def _store_item(self, target: ast.Subscript, value: Term) -> None:
        value = self.let(value)
        base = self.expr(target.value)
        if not isinstance(base.kind, ListKind):
            raise NotCovered("an assignment to an item")
        index = self._key(self.expr(target.slice))
        self.add(base.kind, value.kind)
        self.emit(f"{base.text}[{index}] = {self.converted(value, base.kind.item)}")

    def _key(self, value: Term) -> str:
        """The source of a dict key: a number, text, or a tuple of these."""
        if isinstance(value.kind, Parts) and value.kind.make is None:
            parts = [self.part(value, at) for at in range(len(value.kind.parts))]
            return f"({', '.join(map(self._key, parts))},)"
        if not self.are_plain(value):
            raise NotCovered("a key that is no number and no text")
        value = self.check(value)
        return self.text(value)

    def _dict(self, node: ast.Dict) -> Term:
        names = [each.value if isinstance(each, ast.Constant) else None for each in node.keys]
        if names and all(type(each) is str for each in names) and len(set(names)) == len(names):
            return self.parts([self.as_node(self.expr(each)) for each in node.values], dict, tuple(map(str, names)))
        kind = self.listed(node, DictKind)
        texts = []
        for key, each in zip(node.keys, node.values, strict=True):
            if key is None:
                raise NotCovered("a dict in a dict")
            name, value = self._key(self.expr(key)), self.as_node(self.expr(each))
            self.add(kind, value.kind)
            texts.append(f"{name}: {self.converted(value, kind.item)}")
        return self.let(Term(kind, f"{{{', '.join(texts)}}}"))

    def _stored(self, stores: Sequence[tuple[str, str, RecorderKind]]) -> None:
        for name, text, kind in stores:
            self.env.checked.discard(text)
            self.env.names[name] = Term(kind, text)

    def _targets(
        self, target: ast.expr, kind: RecorderKind, mark: str = ""
    ) -> tuple[str, list[tuple[str, str, RecorderKind]]]:
        """The source of a target, and (name, its source, its kind) for each name in it.

        Args:
            mark: a suffix for the names, so that a comprehension has its own.
        """
        if isinstance(target, ast.Name):
            return target.id + mark, [(target.id, target.id + mark, kind)]
        if isinstance(target, ast.Starred) and kind is PLAIN:
            text, stores = self._targets(target.value, kind, mark)
            return f"*{text}", stores
        if not isinstance(target, ast.Tuple | ast.List):
            raise NotCovered("an assignment to an item or an attribute")
        if kind is PLAIN:
            kinds: Sequence[RecorderKind] = [PLAIN] * len(target.elts)
        elif isinstance(kind, ListKind):
            kinds = [kind.item] * len(target.elts)
        elif isinstance(kind, Parts) and kind.is_tuple and len(kind.parts) == len(target.elts):
            kinds = kind.parts
        else:
            raise NotCovered("unpacking of what is no tuple of that length")
        if NOTHING in kinds:
            raise Unreachable
        parts = [self._targets(each, part, mark) for each, part in zip(target.elts, kinds, strict=True)]
        return f"({', '.join(text for text, _ in parts)},)", [each for _, stores in parts for each in stores]

    def _tuple(self, node: ast.Tuple) -> Term:
        if any(isinstance(each, ast.Starred) for each in node.elts):
            raise NotCovered("a tuple with a starred part")
        return self.parts([self.expr(each) for each in node.elts])

    def parts(self, values: Sequence[Term], make: Any = None, names: tuple[str, ...] = ()) -> Term:
        return Term(Parts(tuple(value.kind for value in values), make, names), "", list(values))

    def listed(self, place: Any, make: type[ListKind] = ListKind) -> ListKind:
        """The kind of the lists or dicts made at one place."""
        found: ListKind = self.version.lists.setdefault(place if isinstance(place, tuple) else id(place), make())
        return found

    def add(self, into: ListKind, kind: RecorderKind) -> None:
        if into.add(kind):
            self.written.changed = True

    def _list(self, node: ast.List) -> Term:
        kind = self.listed(node)
        texts = []
        for each in node.elts:
            if isinstance(each, ast.Starred):
                value = self.expr(each.value)
                self.add(kind, self._items_of(value.kind))
                texts.append(f"*{self.text(value)}")
            else:
                value = self.as_node(self.expr(each))
                self.add(kind, value.kind)
                texts.append(self.converted(value, kind.item))
        return self.let(Term(kind, f"[{', '.join(texts)}]"))

    def _items_of(self, kind: RecorderKind) -> RecorderKind:
        """The kind of the items of an iterable.

        Raises:
            Unreachable: it is empty, as far as is known.
        """
        if kind is PLAIN:
            return PLAIN
        if type(kind) is DictKind:
            return PLAIN
        if isinstance(kind, ListKind | IterKind):
            return kind.item
        if isinstance(kind, Parts) and kind.is_tuple:
            out: RecorderKind = NOTHING
            for part in kind.parts:
                out = join(out, part)
            return out
        if isinstance(kind, Const) and type(kind.value) in (range, str):
            return PLAIN
        raise NotCovered("going through what is no list")

    def _attribute(self, node: ast.Attribute) -> Term:
        base = self.expr(node.value)
        if isinstance(base.kind, RecordedNode | RaggedNode) and node.attr == "T":
            return self.apply(operator.attrgetter("T"), [base], ("T",))
        return self.attribute(base, node.attr)

    def attribute(self, base: Term, name: str) -> Term:
        kind = base.kind
        if isinstance(kind, Const):
            value = kind.value
            if type(value) is LazyArray:
                if name in _SHAPES:
                    return self.read(
                        self.written.constants.compute, name, lambda array: getattr(array.aval, name, None)
                        if name != "size" else int(np.prod(array.aval.shape)), kind.number
                    )  # fmt: skip
                raise NotCovered(f".{name} of a shared array")
            return self.read(self.written.constants.attribute, kind.number, name)
        if isinstance(kind, RecordedNode):
            if name not in _SHAPES:
                raise NotCovered(f".{name} of an array")
            aval = kind.aval
            return self.literal(int(np.prod(aval.shape)) if name == "size" else getattr(aval, name))
        if isinstance(kind, Parts) and kind.make is not dict and name in kind.names:
            at = kind.names.index(name)
            return self.part(base, at)
        if kind is PLAIN:
            base = self.check(base)
            self.written.attributes.add(name)
            whole = base.seen.value
            found = getattr(whole, name, None) if is_stored(type(whole), name) else None
            return Term(PLAIN, f"{base.text}.{name}", seen=base.seen.part(found, name))
        raise NotCovered(f".{name} of {kind!r}")

    def part(self, base: Term, at: int) -> Term:
        """One part of a tuple."""
        assert isinstance(base.kind, Parts)
        if base.parts is not None:
            return self._evaluated(base).parts[at]
        part = base.kind.parts[at]
        if part is NOTHING:
            raise Unreachable
        return Term(part, f"{self.text(base)}[{at}]")

    def _evaluated(self, value: Term) -> Any:
        """A tuple that is not created: its parts are bound to names first, since even unread parts may raise."""
        if value.parts is None:
            return self.let(value)
        value.parts = [self._evaluated(each) for each in value.parts]
        return value

    def _subscript(self, node: ast.Subscript) -> Term:
        base = self.expr(node.value)
        if isinstance(node.slice, ast.Slice):
            bounds = [
                self.literal(None) if each is None else self.expr(each)
                for each in (node.slice.lower, node.slice.upper, node.slice.step)
            ]
            if (constants := constants_of(bounds)) is not None:
                at = slice(*[each.value for each in constants])
                if isinstance(base.kind, RecordedNode | RaggedNode):
                    return self.apply(operator.itemgetter(at), [base], ("slice", at.start, at.stop, at.step))
                if isinstance(base.kind, Parts) and base.kind.is_tuple:
                    count = range(len(base.kind.parts))
                    return self.parts([self.part(base, i) for i in count[at]])
            texts = [self.text(each) for each in map(self.check, bounds)]
            if base.kind is PLAIN or isinstance(base.kind, ListKind):
                base = self.check(base)
                return self.let(Term(base.kind, f"{base.text}[{' : '.join(texts)}]"))
            raise NotCovered("a slice")
        return self.item(base, self.expr(node.slice))

    def item(self, base: Term, index: Term) -> Term:
        kind, at = base.kind, index.kind
        if isinstance(kind, Const) and isinstance(at, Const):
            if type(kind.value) is LazyArray:
                raise NotCovered("an item of a shared array")
            return self.read(self.written.constants.item, kind.number, at.value)
        if isinstance(kind, Parts) and kind.make is dict and isinstance(at, Const) and at.value in kind.names:
            return self.part(base, kind.names.index(at.value))
        if isinstance(kind, Parts):
            if not (
                kind.is_tuple
                and isinstance(at, Const)
                and type(at.value) is int
                and -len(kind.parts) <= at.value < len(kind.parts)
            ):
                raise NotCovered("an item of a tuple that is not known")
            return self.part(base, at.value % len(kind.parts))
        if isinstance(kind, RecordedNode | RaggedNode):
            return self.apply(operator.getitem, [base, self.check(index)], ("item",))
        if isinstance(kind, Const) and type(kind.value) is LazyArray and at is PLAIN:
            if is_ids(index.seen.value):
                return self.rows(kind, index)
            if (row := rows_signature(self.written.trace, kind.value, np.int64(0))) is not None:
                return self.row(kind, index, row.out)
            return self.apply(operator.getitem, [base, self.check(index)], ("item",))
        if isinstance(kind, DictKind) and isinstance(at, Parts):
            if kind.item is NOTHING:
                raise Unreachable
            return self.let(Term(kind.item, f"{base.text}[{self._key(index)}]"))
        if at is not PLAIN and not (isinstance(at, Const) and at.is_scalar):
            raise NotCovered("an item by what is no number or text")
        if kind is PLAIN or (isinstance(kind, Const) and type(kind.value) in (tuple, list, dict, str)):
            if isinstance(kind, Const):
                parts = kind.value.values() if type(kind.value) is dict else kind.value
                if not all(type(part) in (int, float, str, bool, type(None)) for part in parts):
                    raise NotCovered("one of several shared values")
                base = Term(kind, self.written.named(kind.number))
            base, index = self.check(base), self.check(index)
            return Term(PLAIN, f"{base.text}[{self.text(index)}]", seen=_item_seen(base.seen, at))
        if isinstance(kind, Const) and type(kind.value) is np.ndarray:  # a row of an array
            index = self.let(self.check(index))
            self.emit(f"if _ab_type({index.text}) not in _ab_keys: raise _ab_misfit")
            return self.let(Term(PLAIN, f"{self.written.named(kind.number)}[{index.text}]"))
        if isinstance(kind, ListKind):
            if kind.item is NOTHING:
                raise Unreachable
            index = self.check(index)
            return self.let(Term(kind.item, f"{base.text}[{self.text(index)}]"))
        raise NotCovered("an item of what is no list")

    def _gone_through(self, over: Term) -> str:
        if isinstance(over.kind, Const):
            return self.written.named(over.kind.number)
        return self.text(over)
