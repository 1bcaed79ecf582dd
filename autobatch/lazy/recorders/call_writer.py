"""Writes calls in a recorder: of user functions and methods, of classes, and of Python's own functions."""

import bisect
import dataclasses
import heapq
import operator
import types
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.blocks.block_expressions import METHODS, is_pure
from autobatch.errors import NeedsLoop, Unreachable, Unsupported
from autobatch.facts.call_effects import Effect, effect_of, method_effect, method_names, mutators
from autobatch.facts.types import SCALARS, keeps_fields
from autobatch.lazy.array import LazyArray
from autobatch.lazy.callees import is_numpy
from autobatch.lazy.recorders import recorded_kinds as rk
from autobatch.lazy.recorders.guards import MISSING, method_of
from autobatch.lazy.recorders.recorder_functions import Definition, Version, Written, defined
from autobatch.lazy.recorders.statement_writer import StatementWriter
from autobatch.lazy.taped_forms import listed
from autobatch.program import normal_form as nf

_OF_PLAIN = frozenset((
    len, isinstance, int, float, bool, str, abs, min, max, sum, sorted, range, zip, enumerate, reversed, tuple, list,
    any, all, divmod, round, ord, chr, pow, iter, next,
))  # fmt: skip
_EXHAUSTING = (min, max, sum, sorted, tuple, list)  # these read all items of a generator before any other code runs
_WRITERS: dict[Any, bool] = {
    heapq.heapify: False, heapq.heappush: False, heapq.heappop: True, heapq.heappushpop: True, heapq.heapreplace: True,
    bisect.insort: False, bisect.insort_left: False, bisect.insort_right: False,
}  # fmt: skip
"""Functions that change a list, their first argument, and whether they return an item of it."""
_PLAIN_MODULES = frozenset(("_bisect", "_heapq", "_operator"))  # they only compare, and call operators
_VIEWS = frozenset(("items", "keys", "values"))
_OF_PLAIN_LISTS = frozenset(("sort", "count", "index", "remove"))  # these compare items
_DEFAULTS = frozenset((int, float, str, bool, type(None)))
_READERS = method_names(list, dict, str, tuple, int, float) - mutators(list, dict) - {"format", "format_map"}


def write_version(written: Written, version: Version) -> None:
    """Write one version as far as its kinds are known, and note the kind of its result.

    Raises:
        Unsupported: something in it cannot be written.
    """
    CallWriter(written, version).whole()


class CallWriter(StatementWriter):
    """Writes calls."""

    def of_call(self, node: nf.Call) -> rk.Term:
        function = node.function
        if node.symbol:
            return self.of_operator(node)
        if any(isinstance(value, nf.Spread) for _, value in node.keywords):
            raise Unsupported("a call with **arguments")
        if isinstance(function, nf.Name) and (block := self.version.of.blocks.get(function.id)) is not None:
            return self.block(block, self.several(node.args))
        if isinstance(function, nf.Read) and isinstance(function.key, str):
            base = self.value(function.base)
            if not (isinstance(base.kind, rk.Const) and type(base.kind.value) is types.ModuleType):
                return self._method(base, function.key, node)
        called = self.value(function).kind
        if isinstance(called, rk.ClosureKind):
            return self._closure_call(called, *self._arguments(node))
        if not isinstance(called, rk.Const):
            raise Unsupported("a call of a function that differs by example")
        marks = self.version.of.marks
        is_made, of_lists = [is_numpy(called.value) and node.at in each for each in (marks.maker, marks.listed)]
        first = node.args[0] if node.args else None
        finds = any(called.value is each for each in (any, all, next)) and len(node.args) == 1 + (called.value is next)
        if finds and isinstance(first, nf.Sugar) and first.how == "generator":
            other = self.value(node.args[1]) if called.value is next else self.literal(called.value is all)
            return self.found(first, called.value.__name__, self.as_node(other))
        found = None if of_lists else self._of_element(called, node)
        if found is not None:
            return found
        args, named = self._arguments(node, any(called.value is each for each in _EXHAUSTING))
        if is_made:
            if not all(map(self._is_own, (*args, *named.values()))):
                raise Unsupported("an array that is made to be written to")
            return self._of_own(self.written.named(called.number), args, named)
        return self.call_constant(called, args, named, of_lists)

    def _arguments(self, node: nf.Call, exhausts: bool = False) -> tuple[list[rk.Term], dict[str, rk.Term]]:
        """The arguments of a call, evaluated in order.

        Args:
            exhausts: the function reads all items of a generator before any other code runs.
        """
        args: list[rk.Term] = []
        for each in node.args:
            sugar = each if exhausts and isinstance(each, nf.Sugar) and each.how == "generator" else None
            args += self.several([each]) if sugar is None else [self.filled(sugar)]
        return args, {name: self.value(value) for name, value in node.keywords}

    def _of_element(self, function: rk.Const, node: nf.Call) -> rk.Term | None:
        """`float(array[i])`: for a short array the example waits once for all of it; None for any other call."""
        match node:
            case nf.Call(args=[nf.Read(base=base, key=nf.Value() as at)], keywords=[]) if not (
                isinstance(at, nf.Call) and at.symbol == "slice"
            ):
                if all(function.value is not each for each in (bool, int, float)):
                    return None
                array, index = self.value(base), self.value(at)
                if self.is_short(array, index):
                    number = self.element(array, index, exact=function.value is not bool)
                    return rk.Term(rk.PLAIN, f"{self.written.named(function.number)}({number.text})", simple=True)
                return self.call_constant(function, [self.item(array, index)], {})
        return None

    def _by_key(self, function: rk.Const, over: rk.Term, named: dict[str, rk.Term]) -> rk.Term:
        """`sorted`, `max` or `min` of a list by a key that a function of the user's computes."""
        over, value = self.let(over), function.value
        if type(over.kind) is not rk.ListKind or ("reverse" in named and value is not sorted):
            raise Unsupported(f"{value.__name__} of something that is not a list")
        order = self._order(over, named, self.written.named(function.number))
        if value is not sorted:
            return self.let(rk.Term(over.kind.item, f"{over.text}[{order}]"))
        made = self.listed(("sorted", self.counter))
        self.take(made, over.kind.item)
        return self.let(rk.Term(made, f"[{over.text}[_ab_i] for _ab_i in {order}]"))

    def _order(self, over: rk.Term, named: dict[str, rk.Term], function: str) -> str:
        """The source of the list's indices ordered by key; all keys are computed first, as in Python."""
        key, reverse = named["key"].kind, named.get("reverse", self.literal(False)).kind
        if not isinstance(key, rk.ClosureKind) or not isinstance(reverse, rk.Const) or set(named) - {"key", "reverse"}:
            raise Unsupported("a sort key that is not a function")
        assert isinstance(over.kind, rk.ListKind)
        if over.kind.item is rk.NOTHING:
            raise Unreachable
        keys, item = self.fresh(), self.fresh()
        self.emit(f"{keys} = []")
        self.emit(f"for {item} in {over.text}:")
        self.depth += 1
        found = self._closure_call(key, [rk.Term(over.kind.item, item)], {})
        if found.kind is rk.NOTHING:
            self.emit("raise _ab_misfit")
        else:
            is_tuple = isinstance(found.kind, rk.Parts) and found.kind.make is None
            parts = [self.part(found, at) for at in range(len(found.kind.parts))] if is_tuple else [found]  # type: ignore[attr-defined]
            if not all(rk.is_python(each.kind) for each in parts):
                raise Unsupported("a sort key whose values are not Python's")
            checked = [self.text(self.check(each)) for each in parts]
            self.env.checked.difference_update(checked)
            self.emit(f"{keys}.append({'(' + ', '.join(checked) + ',)' if is_tuple else checked[0]})")
        self.depth -= 1
        places = f"{self.written.named(self.written.constants.literal(range))}(_ab_len({keys}))"
        order = self.fresh()
        self.emit(f"{order} = {function}({places}, key={keys}.__getitem__{', reverse=True' * bool(reverse.value)})")
        return order

    def call_constant(
        self, function: rk.Const, args: list[rk.Term], named: dict[str, rk.Term], of_lists: bool = False
    ) -> rk.Term:
        constants = self.written.constants
        value = function.value
        if hasattr(type(value), "_ab_batch"):
            function = self.written.const(constants.unwrapped(function.number))
            value = function.value
        if value in nf.PARTS:
            return self._parts_of(function, *args)
        if type(value) is types.FunctionType:
            try:
                of = defined(value, function.number)
            except Unsupported:
                if is_pure(value):
                    return self._operation(function, args, named, of_lists)
                raise Unsupported(f"a call of {value.__qualname__}") from None
            return self._version_call(of, args, named)
        if isinstance(value, type) and value not in _OF_PLAIN:
            numbers = rk.constants_of(args)
            if issubclass(value, np.generic) and numbers is not None and not named:
                return self.read(
                    constants.compute, ("number", function.number), value, *[each.number for each in numbers]
                )
            return self._made(value, args, named)
        if any(value is each for each in _OF_PLAIN):
            return self._builtin(function, args, named)
        if is_pure(value):
            return self._operation(function, args, named, of_lists)
        if type(value) is types.BuiltinFunctionType and value.__module__ in _PLAIN_MODULES:
            found = self._python_call(function, args, named)
            if found is not None:
                return found
        start = type(value).__dict__.get("__call__")
        if start is not None:
            method = self.read(constants.method, function.number, "__call__")
            assert isinstance(method.kind, rk.Const)
            return self.call_constant(method.kind, [rk.Term(function, ""), *args], named)
        raise Unsupported(f"a call of {value!r}")

    def _parts_of(self, function: rk.Const, subject: rk.Term, *pattern: rk.Term) -> rk.Term:
        """What a pattern looks into (`nf.sequence_parts`, `nf.class_parts`)."""
        kind, given = subject.kind, [each.value for each in rk.constants_of(pattern) or ()]
        of_class = function.value is nf.class_parts
        if not given:
            raise Unsupported("a pattern of a class that differs by example")
        names = [*getattr(given[0], "__match_args__", ())[: given[1]], *given[2]] if of_class else []
        if kind is rk.PLAIN:
            self.written.attributes.update(names)
            texts = [self.text(self.check(subject)), *(self.written.named(each.kind.number) for each in pattern)]  # type: ignore[attr-defined]
            return self.let(rk.Term(rk.PLAIN, f"{self.written.named(function.number)}({', '.join(texts)})"))
        if isinstance(kind, rk.Const) and kind.is_scalar:
            found = function.value(kind.value, *given)
            return self.literal(None) if found is None else self.parts(list(map(self.literal, found)))
        own = kind.make or tuple if isinstance(kind, rk.Parts) else None
        if own is None or own is dict or (own is tuple and of_class) or (not of_class and given[1] >= 0):
            raise Unsupported("a pattern of something other than an object or tuple")
        fits = issubclass(own, given[0]) if of_class else issubclass(own, tuple) and len(kind.parts) == given[0]  # type: ignore[attr-defined]
        if not fits:
            return self.literal(None)
        places = map(kind.names.index, names) if of_class else range(len(kind.parts))  # type: ignore[attr-defined]
        return self.parts([self.part(subject, at) for at in places])

    def _operation(self, function: rk.Const, args: list[rk.Term], named: dict[str, rk.Term], of_lists: bool) -> rk.Term:
        """A NumPy function, or one of ours, without side effects."""
        _check_writes(effect_of(function.value), args, named)
        number = function.number
        if of_lists:
            number = self.written.constants.compute("listed", listed, number)
        called = self.written.constants.values[number]
        values = [self.check(each) for each in (*args, *named.values())]
        args, named = values[: len(args)], dict(zip(named, values[len(args) :], strict=True))
        if any(rk.constants_of([each]) is None for each in values) and all(map(self._is_own, values)):
            return self._of_own(self.written.named(number), args, named)
        return self.apply(called, args, ("call", number, *named), **named)

    def _is_own(self, value: rk.Term) -> bool:
        """True if a value is an example's own, or says how to compute: a number, a dtype, a tuple or list of such."""
        kind = value.kind
        if type(kind) is rk.ListKind:
            return kind.item is rk.PLAIN
        if isinstance(kind, rk.Parts):
            return kind.make is None and all(self._is_own(self.part(value, at)) for at in range(len(kind.parts)))
        return kind is rk.PLAIN or (isinstance(kind, rk.Const) and isinstance(kind.value, (*SCALARS, type, np.dtype)))

    def _own(self, value: rk.Term) -> str:
        """The source of such a value, which is a number, or an array that this example is noted to read."""
        kind = value.kind
        if isinstance(kind, rk.Parts):
            parts = [self._own(self.part(value, at)) for at in range(len(kind.parts))]
            return f"({', '.join(parts)},)"
        if isinstance(kind, rk.Const):
            return self.written.named(kind.number)
        value = self.let(value)
        each = value.text
        if type(kind) is rk.ListKind:
            each = self.fresh()
            self.emit(f"for {each} in {value.text}:")
        self.emit(f"{'    ' * (each != value.text)}if _ab_type({each}) not in _ab_scalars: _ab_read({each})")
        return value.text

    def _of_own(self, function: str, args: list[rk.Term], named: dict[str, rk.Term]) -> rk.Term:
        """A call of NumPy with an example's own arrays; an example in which it warns runs as Python."""
        texts = [self._own(each) for each in args]
        by_name = [f"{name}={self._own(each)}" for name, each in named.items()]
        made = self.fresh()
        self.emit(f"with _ab_errors(): {made} = {function}({', '.join(texts + by_name)})")
        return self.new(rk.Term(rk.PLAIN, made), *texts)

    def _made(self, cls: Any, args: list[rk.Term], named: dict[str, rk.Term]) -> rk.Term:
        """An object of a dataclass or a named tuple."""
        defaults: dict[str, Any] = {}
        if type(cls) is type and dataclasses.is_dataclass(cls) and keeps_fields(cls):
            fields = dataclasses.fields(cls)
            fits = all(each.init for each in fields)
            names = tuple([each.name for each in fields])
            defaults = {each.name: each.default for each in fields if type(each.default) in _DEFAULTS}
        else:
            fits = issubclass(cls, tuple) and cls.__base__ is tuple and hasattr(cls, "_fields")
            fits = fits and not vars(cls).keys() & {"__init__", "__getitem__", "__iter__"}
            names = tuple(getattr(cls, "_fields", ()))
        given = {name: self.literal(value) for name, value in defaults.items()}
        given |= dict(zip(names, args, strict=False)) | named
        if not fits or len(args) > len(names) or set(given) != set(names):
            raise Unsupported(f"an object of {cls.__name__}")
        self.written.constants.literal(cls)
        return self.parts([given[name] for name in names], cls, names)

    def _builtin(self, function: rk.Const, args: list[rk.Term], named: dict[str, rk.Term]) -> rk.Term:
        value = function.value
        first = args[0].kind if args else rk.NOTHING
        if value is len and len(args) == 1:
            if isinstance(first, rk.Const) and type(first.value) is LazyArray:
                shape = self.attribute(args[0], "shape")
                assert isinstance(shape.kind, rk.Const)
                return self.read(self.written.constants.item, shape.kind.number, 0)
            if isinstance(first, rk.RecordedNode) and first.aval.shape:
                return self.literal(first.aval.shape[0])
            if isinstance(first, rk.Parts) and first.is_tuple:
                return self.literal(len(first.parts))
            if isinstance(first, rk.Const):
                return self.read(self.written.constants.compute, "len", len, first.number)
            if isinstance(first, rk.ListKind):
                return self.counted(args[0])
        is_recorded = isinstance(first, rk.RecordedNode | rk.NodeOrNumber)
        if value in (bool, int, float) and is_recorded and len(args) == 1 and not named:
            number = self.waited(args[0], exact=value is not bool)
            return rk.Term(rk.PLAIN, f"{self.written.named(function.number)}({number.text})", simple=True)
        if value is isinstance and len(args) == 2 and isinstance(args[1].kind, rk.Const):
            return self._isinstance(function, args[0], args[1].kind)
        if value in (zip, enumerate, reversed, list, tuple) and args:
            return self._rearranged(function, args, named)
        if value in (sorted, min, max) and len(args) == 1 and "key" in named:
            return self._by_key(function, args[0], named)
        if value in (min, max, sum) and isinstance(first, rk.IterKind) and not rk.is_python(first):
            made = self.listed(("list", self.counter))
            args = [self.let(rk.Term(made, f"[*{self.poured(args[0], made)}]")), *args[1:]]
        start = [*args[1:], *named.values()]
        if value is sum and start and isinstance(first, rk.ListKind) and first.item is rk.NOTHING:  # as yet
            self.emit(f"if {self.text(args[0])}: raise _ab_misfit")
            return self.as_node(start[0])
        if value in (min, max, sum) and any(not self.are_plain(each) for each in args):
            return self.apply(value, args, ("builtin", function.number, *named), **named)
        found = self._python_call(function, args, named)
        if found is None:
            raise Unsupported(f"a call of {value.__name__}")
        return found

    def _python_call(self, function: rk.Const, args: list[rk.Term], named: dict[str, rk.Term]) -> rk.Term | None:
        """A call that computes with Python's values, of which none is recorded; None for any other call."""
        value, values = function.value, [*args, *named.values()]
        effect = effect_of(value)
        if effect is None or not effect.changes_nothing_outside or not all(rk.is_python(each.kind) for each in values):
            return None
        written = effect.written(args, named, _known)
        made: rk.RecorderKind = rk.PLAIN
        if value in (iter, next) and not named and isinstance(args[0].kind, rk.ListKind | rk.IterKind):
            made = self.item_kind(args[0].kind)
            made = rk.IterKind(made) if value is iter else self.joined(made, args[1].kind if len(args) > 1 else made)
        elif written:
            first = args[0].kind
            if type(first) is not rk.ListKind or written != args[:1] or value not in _WRITERS:
                return None
            made = first.item if _WRITERS[value] else self.literal(None).kind
            if len(args) > 1:
                self.add(first, args[1].kind)
        elif value is sorted:
            made = into = self.listed(("sorted", self.counter))
            self.take(into, self.item_kind(args[0].kind))
        texts = [self.text(self.check(each)) for each in args]
        texts += [f"{name}={self.text(self.check(each))}" for name, each in named.items()]
        text = f"{self.written.named(function.number)}({', '.join(texts)})"
        if isinstance(made, rk.Const):
            self.emit(text)
            return rk.Term(made, "")
        out = rk.Term(made, text, simple=value in (len, int, float, bool, str, abs, ord, chr))
        if value is sum:  # of arrays in a container, nobody would note that they are read
            out = self.let(out)
            self.emit(f"if _ab_type({out.text}) not in _ab_numbers: raise _ab_misfit")
        return out if made is rk.PLAIN and self.are_plain(*values) else self.let(out)

    def counted(self, value: rk.Term) -> rk.Term:
        """The length of a list at this point; later parts of the same expression may change it."""
        return rk.Term(rk.PLAIN, self.let(rk.Term(rk.PLAIN, f"_ab_len({self.text(value)})")).text, simple=True)

    def _isinstance(self, function: rk.Const, value: rk.Term, classes: rk.Const) -> rk.Term:
        each = classes.value if type(classes.value) is tuple else (classes.value,)
        if not all(isinstance(one, type) and type(one).__instancecheck__ is type.__instancecheck__ for one in each):
            raise Unsupported("isinstance with a class that overrides it")
        if value.kind is rk.PLAIN:
            value = self.check(value)
            text = f"{self.written.named(function.number)}({value.text}, {self.written.named(classes.number)})"
            return rk.Term(rk.PLAIN, text, simple=True)
        if isinstance(value.kind, rk.Parts) and value.kind.make is not None:
            return self.literal(issubclass(value.kind.make, each))
        if isinstance(value.kind, rk.Parts | rk.ListKind):
            return self.literal(issubclass(tuple if isinstance(value.kind, rk.Parts) else list, each))
        if isinstance(value.kind, rk.Const) and type(value.kind.value) is not LazyArray:
            return self.literal(isinstance(value.kind.value, each))
        raise Unsupported("isinstance of an array")

    def _rearranged(self, function: rk.Const, args: list[rk.Term], named: dict[str, rk.Term]) -> rk.Term:
        """`zip`, `enumerate`, `reversed`, `list` and `tuple` of iterables."""
        value = function.value
        if any(not self.are_plain(each) or not isinstance(each.kind, rk.Const) for each in named.values()):
            raise Unsupported(f"{value.__name__} with arguments")
        over = args[:1] if value is not zip else args
        kinds = [self.item_kind(each.kind) for each in over]
        texts = [self.gone_through(self.check(each)) for each in args]
        texts += [f"{name}={self.text(each)}" for name, each in named.items()]
        text = f"{self.written.named(function.number)}({', '.join(texts)})"
        if all(kind is rk.PLAIN for kind in kinds) and value is not list:
            several = rk.Parts((rk.PLAIN,) * (len(over) + (value is enumerate)))
            kind = rk.PLAIN if value is tuple else rk.IterKind(rk.PLAIN if value is reversed else several)
            return self.let(rk.Term(kind, text))
        if value in (zip, enumerate):
            return self.let(rk.Term(rk.IterKind(rk.Parts(tuple([rk.PLAIN] * (value is enumerate) + kinds))), text))
        if value is reversed:
            return self.let(rk.Term(rk.IterKind(kinds[0]), text))
        if value is list:
            made = self.listed(("list", self.counter))
            return self.let(rk.Term(made, f"[*{self.poured(over[0], made)}]"))
        raise Unsupported("a tuple whose number of arrays differs by example")

    def _closure_call(self, closure: rk.ClosureKind, args: list[rk.Term], named: dict[str, rk.Term]) -> rk.Term:
        owner: Version = closure.owner
        if not (self.version is owner or self.version.of.owner is owner):
            raise Unsupported("a call of a nested function from outside of the function that defines it")
        return self._version_call(
            dataclasses.replace(owner.of, form=closure.form, function=None, origin=None, owner=owner), args, named
        )

    def _version_call(self, of: Definition, args: list[rk.Term], named: dict[str, rk.Term]) -> rk.Term:
        env = self.written.given(of, args, named)
        if of.owner is not None:
            captured = {name: self.env.names.get(name) for name in sorted(of.owner.captured - set(env))}
            env |= {name: value for name, value in captured.items() if value is not None and not value.maybe}
        kinds = {name: value.kind for name, value in env.items()}
        if any(isinstance(kind, rk.IterKind) for kind in kinds.values()):
            raise Unsupported("an iterator as an argument")
        version = self.written.version(of, kinds)
        for name in version.given:
            seen = version.seen.get(name, env[name].seen).or_else(env[name].seen)
            self.written.is_outdated |= version.seen.get(name, seen).origin != seen.origin
            version.seen[name] = seen
        texts = [self.text(env[name]) for name in version.given]
        result = self.fresh()
        if version.waits and not self.version.waits:
            self.version.waits = self.written.changed = True
        self.emit(f"{result} = {'yield from ' * version.waits}{version.name}({', '.join(texts)})")
        return rk.Term(version.result, result)

    def _method(self, base: rk.Term, name: str, node: nf.Call) -> rk.Term:
        kind = base.kind
        if isinstance(kind, rk.ListKind):
            return self._method_of_list(base, kind, name, node)
        if isinstance(kind, rk.RecordedNode | rk.RaggedNode | rk.DeferredRows):
            if isinstance(kind, rk.RecordedNode) and name in ("item", "tolist") and not node.args and not node.keywords:
                return self.waited(base, shapes=name == "tolist")
            if name not in METHODS:
                raise Unsupported(f".{name} of an array")
            args, named = self._arguments(node)
            _check_writes(method_effect(np.ndarray, name), [base, *args], named)
            caller = operator.methodcaller
            constants = rk.constants_of([*args, *named.values()])
            if constants is None:
                raise Unsupported(f".{name} with arguments that differ by example")
            given = [each.value for each in constants[: len(args)]]
            keywords = dict(zip(named, [each.value for each in constants[len(args) :]], strict=True))
            key = ("method", name, *[each.number for each in constants], *named)
            return self.apply(caller(name, *given, **keywords), [base], key)
        if isinstance(kind, rk.Parts) and kind.make is dict:
            return self._method(self.as_dict(base), name, node)
        if isinstance(kind, rk.Parts) and kind.make is not None:
            found = method_of(kind.make, name)
            if found is MISSING:
                raise Unsupported(f".{name} of an object")
            function = self.written.const(self.written.constants.method_of(kind.make, name))
            args, named = self._arguments(node)
            return self.call_constant(function, [base, *args], named)
        if isinstance(kind, rk.Const) and type(kind.value) is str:
            base, kind = rk.Term(rk.PLAIN, self.text(base), simple=True), rk.PLAIN
        if kind is rk.PLAIN:
            return self._method_of_plain(base, name, node)
        if isinstance(kind, rk.Const):
            if type(kind.value) is LazyArray:
                raise Unsupported(f".{name} of a shared array")
            try:
                number = self.written.constants.method(kind.number, name)
            except NeedsLoop:
                return self._stored_call(base, name, node)
            args, named = self._arguments(node)
            return self.call_constant(self.written.const(number), [base, *args], named)
        raise Unsupported(f".{name}()")

    def _method_of_list(self, base: rk.Term, kind: rk.ListKind, name: str, node: nf.Call) -> rk.Term:
        """A method of a list or dict that the function made."""
        is_dict = type(kind) is rk.DictKind
        args, named = self._arguments(node)
        if name == "sort" and not is_dict and not args and "key" in named:
            order = self._order(base, named, self.written.named(self.written.constants.literal(sorted)))
            self.emit(f"{base.text}[:] = [{base.text}[_ab_i] for _ab_i in {order}]")
            return self.literal(None)
        call, fits = f"{base.text}.{name}", not named
        if is_dict and name in _VIEWS and fits and not args:
            items = {"items": rk.Parts((rk.PLAIN, kind.item)), "keys": rk.PLAIN, "values": kind.item}[name]
            return self.let(rk.Term(rk.IterKind(items), f"{call}()"))
        if is_dict and name == "get" and fits and 1 <= len(args) <= 2:
            key = self.let(rk.Term(rk.PLAIN, self.key(args[0]))).text
            found, other = rk.Term(kind.item, f"{base.text}[{key}]"), self.as_node((*args, self.literal(None))[1])
            return self.meet([(f"{key} in {base.text}", self.arm(lambda: found)), ("", ([], other))])
        if not is_dict and name in ("append", "insert", "extend") and fits and args:
            *before, value = args
            if name == "extend":
                text = self.poured(value, kind)
            else:
                value = self.as_node(value)
                self.add(kind, value.kind)
                text = self.converted(value, kind.item)
            if self.are_plain(*before):
                self.emit(f"{call}({', '.join([*[self.text(self.check(each)) for each in before], text])})")
                return self.literal(None)
        is_plain = self.are_plain(*args)
        if not is_dict and name == "pop" and fits and len(args) <= 1 and is_plain:
            if kind.item is rk.NOTHING:
                raise Unreachable
            return self.let(rk.Term(kind.item, f"{call}({', '.join(map(self.text, args))})"))
        compares = name in _OF_PLAIN_LISTS and rk.is_python(kind) and is_plain
        if not is_dict and fits and (compares or (name in ("reverse", "clear", "copy") and not args)):
            text = f"{call}({', '.join([self.text(self.check(each)) for each in args])})"
            if name in ("count", "index", "copy"):
                return self.let(rk.Term(kind if name == "copy" else rk.PLAIN, text, simple=name != "copy"))
            self.emit(text)
            return self.literal(None)
        raise Unsupported(f".{name} of a {'dict' if is_dict else 'list'}")

    def _stored_call(self, base: rk.Term, name: str, node: nf.Call) -> rk.Term:
        """A call of a function stored in a shared object, or of a method of a shared container."""
        kind = base.kind
        assert isinstance(kind, rk.Const)
        if type(kind.value) in (dict, list, tuple, str) and name in ("items", "keys", "values", "get", "index"):
            raise Unsupported(f".{name}() of a shared container")
        function = self.attribute(base, name)
        args, named = self._arguments(node)
        if not isinstance(function.kind, rk.Const):
            raise Unsupported(f".{name}()")
        return self.call_constant(function.kind, args, named)

    def _method_of_plain(self, base: rk.Term, name: str, node: nf.Call) -> rk.Term:
        base = self.check(base)
        users = [each for each in self.written.classes if method_of(each, name) is not MISSING]
        if users and not base.simple:
            return self._dispatched(base, name, users, node)
        args, named = self._arguments(node)
        of_arrays = name in METHODS and all(map(self._is_own, (*args, *named.values())))
        of_others = name in _READERS and not named and all(rk.is_python(each.kind) for each in args)
        if not of_arrays and not of_others:
            raise Unsupported(f".{name}() of an example's object")
        fitting = [
            f"_ab_type({base.text}) not in {each}"
            for each in ["_ab_arrays"] * of_arrays + ["_ab_containers"] * of_others
        ]
        self.emit(f"if {' and '.join(fitting)}: raise _ab_misfit")
        if of_arrays:
            _check_writes(method_effect(np.ndarray, name), [base, *args], named)
            return self._of_own(f"{base.text}.{name}", args, named)
        out = rk.Term(rk.PLAIN, f"{base.text}.{name}({', '.join([self.text(self.check(each)) for each in args])})")
        if name == "items":
            out.kind = rk.IterKind(rk.Parts((rk.PLAIN, rk.PLAIN)))
        return out if name != "items" and self.are_plain(*args) else self.let(out)

    def _dispatched(self, base: rk.Term, name: str, classes: Sequence[type], node: nf.Call) -> rk.Term:
        """A method of examples' objects, chosen by the class of each."""
        args, named = self._arguments(node)
        args = [self.let(each) if each.parts is None else each for each in args]
        arms = []
        for cls in classes:
            function = self.written.const(self.written.constants.method_of(cls, name))
            arm = self.arm(lambda function=function: self.call_constant(function, [base, *args], dict(named)))  # type: ignore[misc]
            of = self.written.named(self.written.constants.literal(cls))
            arms.append((f"_ab_type({base.text}) is {of}", arm))
        found = self.meet(arms)
        self.emit("else: raise _ab_misfit")
        return found


def _check_writes(effect: Effect | None, args: list[rk.Term], named: dict[str, rk.Term]) -> None:
    """Refuse a call that writes into an argument (`out=`): a recorder may run it once for all, or for none."""
    if effect is not None and effect.written(args, named, _known):
        raise Unsupported("a call that writes into an argument")


def _known(value: rk.Term) -> Any:
    return value.kind.value if isinstance(value.kind, rk.Const) else value
