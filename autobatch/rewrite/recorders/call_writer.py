"""Writes calls in a recorder: of user functions and methods, of classes, and of Python's own functions."""

import ast
import dataclasses
import operator
import types
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.blocks.block_expressions import METHODS, is_pure
from autobatch.errors import NeedsLoop, Unreachable, Unsupported
from autobatch.facts.call_effects import Effect, effect_of, method_effect, method_names, mutators
from autobatch.facts.types import keeps_fields
from autobatch.lazy.array import LazyArray
from autobatch.rewrite.block_forms import block_tree
from autobatch.rewrite.recorders.guards import MISSING, method_of
from autobatch.rewrite.recorders.recorded_kinds import (
    NOTHING,
    PLAIN,
    ClosureKind,
    Const,
    DictKind,
    IterKind,
    ListKind,
    NodeOrNumber,
    Parts,
    RaggedNode,
    RecordedNode,
    RecorderKind,
    Term,
    constants_of,
    join,
)
from autobatch.rewrite.recorders.recorder_functions import Definition, Version
from autobatch.rewrite.recorders.value_writer import ValueWriter
from autobatch.rewrite.taped_forms import listed

_OF_PLAIN = frozenset((
    len, isinstance, int, float, bool, str, abs, min, max, sum, sorted, range, zip, enumerate, reversed, tuple, list,
    any, all, divmod, round, ord, chr,
))  # fmt: skip
_EXHAUSTING = (min, max, sum, sorted, tuple, list)  # these read all items of a generator before any other code runs
_READERS = method_names(list, dict, str, tuple) - mutators(list, dict) - {"format", "format_map"}


class CallWriter(ValueWriter):
    """Writes calls."""

    def _call(self, node: ast.Call) -> Term:
        if any(each.arg is None for each in node.keywords):
            raise Unsupported("a call with unpacked arguments by name")
        function = node.func
        match function:
            case ast.Name(id=name) if name in self.version.blocks:
                return self.block(self.version.blocks[name], self._arguments(node)[0])
            case ast.BoolOp(values=[_, ast.Call(func=ast.Name(id="_ab_form"), args=[called])]):
                return self.call(called, node)
            case ast.Call(func=ast.Name(id="_ab_form" | "_ab_number"), args=[called]):
                return self.call(called, node)
            case ast.Call(func=ast.Name(id="_ab_listed"), args=[called]):
                return self.call(called, node, of_lists=True)
            case ast.Call(func=ast.Name(id="_ab_maker" | "_ab_total")):
                raise Unsupported("an array that is created to be written into")
        return self.call(function, node)

    def _arguments(self, node: ast.Call) -> tuple[list[Term], dict[str, Term]]:
        """The arguments of a call, evaluated in order."""
        args: list[Term] = []
        for each in node.args:
            if isinstance(each, ast.Starred):
                args += self._unpacked(self.expr(each.value))
            else:
                args.append(self.expr(each))
        return args, {str(each.arg): self.expr(each.value) for each in node.keywords}

    def _unpacked(self, value: Term) -> list[Term]:
        """The parts of a tuple that is passed as several arguments (`*args`)."""
        kind = value.kind
        if not isinstance(kind, Parts) or not kind.is_tuple:
            raise Unsupported("a call with unpacked arguments of any number")
        value = self.let(value) if value.parts is None else value
        return [self.part(value, at) for at in range(len(kind.parts))]

    def call(self, called: ast.expr, node: ast.Call, of_lists: bool = False) -> Term:
        """Call the value of an expression."""
        if isinstance(called, ast.Attribute):
            base = self.expr(called.value)
            if not (isinstance(base.kind, Const) and type(base.kind.value) is types.ModuleType):
                return self._method(base, called.attr, node)
        function = self.expr(called)
        if isinstance(function.kind, Const) and not of_lists:
            found = self._of_element(function.kind, node) or self._by_key(function.kind, node)
            if found is not None:
                return found
        if isinstance(function.kind, Const) and any(function.kind.value is each for each in _EXHAUSTING):
            self.exhausted.update(id(arg) for arg in node.args)
        args, named = self._arguments(node)
        if isinstance(function.kind, ClosureKind):
            return self._closure_call(function.kind, args, named)
        if not isinstance(function.kind, Const):
            raise Unsupported("a call of a function that differs by example")
        return self.call_constant(function.kind, args, named, of_lists)

    def _of_element(self, function: Const, node: ast.Call) -> Term | None:
        """`float(array[i])`: for a short array the example waits once for all of it; None for any other call."""
        match node:
            case ast.Call(args=[ast.Subscript(slice=at) as read], keywords=[]) if not isinstance(at, ast.Slice):
                if all(function.value is not each for each in (bool, int, float)):
                    return None
                array, index = self.expr(read.value), self.expr(at)
                if self.is_short(array, index):
                    number = self.element(array, index, exact=function.value is not bool)
                    return Term(PLAIN, f"{self.written.named(function.number)}({number.text})", simple=True)
                return self.call_constant(function, [self.item(array, index)], {})
        return None

    def _by_key(self, function: Const, node: ast.Call) -> Term | None:
        """`sorted`, `max` or `min` of a list, with the key function written inline; None for any other call."""
        value = function.value
        if all(value is not each for each in (sorted, max, min)) or len(node.args) != 1:
            return None
        key, reverse = self._ordering(node)
        if key is None or isinstance(node.args[0], ast.GeneratorExp | ast.Starred):
            return None
        over = self.let(self.expr(node.args[0]))
        if not isinstance(over.kind, ListKind) or type(over.kind) is DictKind or (reverse and value is not sorted):
            raise Unsupported(f"{value.__name__} of a value that is not a list")
        order = self._order(over, key, self.written.named(function.number), reverse)
        if value is not sorted:
            return self.let(Term(over.kind.item, f"{over.text}[{order}]"))
        made = self.listed(node)
        self.add(made, over.kind.item)
        return self.let(Term(made, f"[{over.text}[_ab_i] for _ab_i in {order}]"))

    @staticmethod
    def _ordering(node: ast.Call) -> tuple[ast.Lambda | None, bool]:
        """The key function of a call, and whether the order is reversed; no key if called in another way."""
        named = {each.arg: each.value for each in node.keywords}
        key, reverse = named.pop("key", None), named.pop("reverse", ast.Constant(False))
        if named or not isinstance(key, ast.Lambda) or not isinstance(reverse, ast.Constant):
            return None, False
        names = key.args
        if (
            len(names.args) != 1
            or names.posonlyargs
            or names.kwonlyargs
            or names.vararg
            or names.kwarg
            or names.defaults
        ):
            return None, False
        return key, bool(reverse.value)

    def _order(self, over: Term, key: ast.Lambda, function: str, reverse: bool) -> str:
        """The source of the list's indices ordered by key; all keys are computed first, as in Python."""
        assert isinstance(over.kind, ListKind)
        if over.kind.item is NOTHING:
            raise Unreachable
        keys, item = self.fresh(), self.fresh()
        self.emit(f"{keys} = []")
        self.emit(f"for {item} in {over.text}:")
        before = self.env
        self.env = before.copy()
        name = key.args.args[0].arg
        self.env.names[name] = Term(over.kind.item, item)
        self.env.checked.discard(item)
        self.depth += 1
        found = self.expr(key.body)
        if found.parts is not None:
            parts = [self.check(each) for each in found.parts]
            if not self.are_plain(*parts):
                raise Unsupported("a key that is not a number")
            found = Term(PLAIN, f"({', '.join(map(self.text, parts))},)", simple=True)
        if not self.are_plain(found):
            raise Unsupported("a key that is not a number")
        self.emit(f"{keys}.append({self.text(self.check(found))})")
        self.depth -= 1
        self.env = before
        places = f"{self.written.named(self.written.constants.literal(range))}(_ab_len({keys}))"
        order = self.fresh()
        self.emit(f"{order} = {function}({places}, key={keys}.__getitem__{', reverse=True' * reverse})")
        return order

    def call_constant(self, function: Const, args: list[Term], named: dict[str, Term], of_lists: bool = False) -> Term:
        constants = self.written.constants
        value = function.value
        if hasattr(type(value), "_ab_batch"):
            function = self.written.const(constants.unwrapped(function.number))
            value = function.value
        if type(value) is types.FunctionType:
            try:
                tree, blocks = block_tree(value)
            except Unsupported:
                if is_pure(value):
                    return self._operation(function, args, named, of_lists)
                raise Unsupported(f"a call of {value.__qualname__}") from None
            return self._user_call(tree, blocks, value, function.number, args, named)
        if isinstance(value, type) and value not in _OF_PLAIN:
            numbers = constants_of(args)
            if issubclass(value, np.generic) and numbers is not None and not named:
                return self.read(
                    constants.compute, ("number", function.number), value, *[each.number for each in numbers]
                )
            return self._made(value, args, named)
        if any(value is each for each in _OF_PLAIN):
            return self._builtin(function, args, named)
        if is_pure(value):
            return self._operation(function, args, named, of_lists)
        start = type(value).__dict__.get("__call__")
        if start is not None:
            method = self.read(constants.method, function.number, "__call__")
            assert isinstance(method.kind, Const)
            return self.call_constant(method.kind, [Term(function, ""), *args], named)
        raise Unsupported(f"a call of {value!r}")

    def _operation(self, function: Const, args: list[Term], named: dict[str, Term], of_lists: bool) -> Term:
        """A NumPy function, or one of ours, without side effects."""
        _check_writes(effect_of(function.value), args, named)
        number = function.number
        if of_lists:
            number = self.written.constants.compute("listed", listed, number)
        called = self.written.constants.values[number]
        values = [self.check(each) for each in (*args, *named.values())]
        args, named = values[: len(args)], dict(zip(named, values[len(args) :], strict=True))
        own = any(each.kind is PLAIN for each in values)
        if own and all(each.kind is PLAIN or isinstance(each.kind, Const) for each in values):
            raise Unsupported("an operation on an example's own arrays outside of blocks")
        return self.apply(called, args, ("call", number, *named), **named)

    def _made(self, cls: Any, args: list[Term], named: dict[str, Term]) -> Term:
        """An object of a dataclass or a named tuple."""
        if type(cls) is type and dataclasses.is_dataclass(cls):
            fields = dataclasses.fields(cls)
            if not keeps_fields(cls) or not all(each.init for each in fields):
                raise Unsupported(f"an object of {cls.__name__}")
            names = tuple([each.name for each in fields])
            if len(args) > len(names):
                raise Unsupported("too many arguments")
            given = dict(zip(names, args, strict=False)) | named
            for each in fields:
                if each.name not in given:
                    if type(each.default) not in (int, float, str, bool, type(None)):
                        raise Unsupported("a default that is not a number")
                    given[each.name] = self.literal(each.default)
            if set(given) != set(names):
                raise Unsupported("an argument that is not a field")
            self.written.constants.literal(cls)
            return self.parts([given[name] for name in names], cls, names)
        if isinstance(cls, type) and issubclass(cls, tuple) and cls.__base__ is tuple and hasattr(cls, "_fields"):
            names = tuple(cls._fields)
            given = dict(zip(names, args, strict=False)) | named
            if set(given) == set(names) and not vars(cls).keys() & {"__init__", "__getitem__", "__iter__"}:
                return self.parts([given[name] for name in names], cls, names)
        raise Unsupported(f"an object of {cls.__name__}")

    def _builtin(self, function: Const, args: list[Term], named: dict[str, Term]) -> Term:
        value = function.value
        first = args[0].kind if args else NOTHING
        if value is len and len(args) == 1:
            if isinstance(first, Const) and type(first.value) is LazyArray:
                shape = self.attribute(args[0], "shape")
                assert isinstance(shape.kind, Const)
                return self.read(self.written.constants.item, shape.kind.number, 0)
            if isinstance(first, RecordedNode) and first.aval.shape:
                return self.literal(first.aval.shape[0])
            if isinstance(first, Parts) and first.is_tuple:
                return self.literal(len(first.parts))
            if isinstance(first, Const):
                return self.read(self.written.constants.compute, "len", len, first.number)
            if isinstance(first, ListKind):
                return self.counted(args[0])
        if (
            value in (bool, int, float)
            and len(args) == 1
            and not named
            and isinstance(first, RecordedNode | NodeOrNumber)
        ):
            number = self.waited(args[0], exact=value is not bool)
            return Term(PLAIN, f"{self.written.named(function.number)}({number.text})", simple=True)
        if value is isinstance and len(args) == 2 and isinstance(args[1].kind, Const):
            return self._isinstance(function, args[0], args[1].kind)
        if value in (zip, enumerate, reversed, list, tuple) and args:
            return self._rearranged(function, args, named)
        if value in (min, max, sum) and any(not self.are_plain(each) for each in args):
            return self.apply(value, args, ("builtin", function.number, *named), **named)
        if named or not self.are_plain(*args):
            raise Unsupported(f"a call of {value.__name__}")
        texts = [self.text(self.check(each)) for each in args]
        text = f"{self.written.named(function.number)}({', '.join(texts)})"
        return Term(PLAIN, text, simple=value in (len, int, float, bool, str, abs, ord, chr))

    def counted(self, value: Term) -> Term:
        """The length of a list at this point; later parts of the same expression may change it."""
        return Term(PLAIN, self.let(Term(PLAIN, f"_ab_len({self.text(value)})")).text, simple=True)

    def _isinstance(self, function: Const, value: Term, classes: Const) -> Term:
        each = classes.value if type(classes.value) is tuple else (classes.value,)
        if not all(isinstance(one, type) and type(one).__instancecheck__ is type.__instancecheck__ for one in each):
            raise Unsupported("isinstance with a class that decides it itself")
        if value.kind is PLAIN:
            value = self.check(value)
            text = f"{self.written.named(function.number)}({value.text}, {self.written.named(classes.number)})"
            return Term(PLAIN, text, simple=True)
        if isinstance(value.kind, Parts) and value.kind.make is not None:
            return self.literal(issubclass(value.kind.make, each))
        if isinstance(value.kind, Parts | ListKind):
            return self.literal(issubclass(tuple if isinstance(value.kind, Parts) else list, each))
        if isinstance(value.kind, Const) and type(value.kind.value) is not LazyArray:
            return self.literal(isinstance(value.kind.value, each))
        raise Unsupported("isinstance of an array")

    def _rearranged(self, function: Const, args: list[Term], named: dict[str, Term]) -> Term:
        """`zip`, `enumerate`, `reversed`, `list` and `tuple` of iterables."""
        value = function.value
        if any(not self.are_plain(each) or not isinstance(each.kind, Const) for each in named.values()):
            raise Unsupported(f"{value.__name__} with arguments")
        over = args[:1] if value is not zip else args
        kinds = [self._items_of(each.kind) for each in over]
        texts = [self._gone_through(self.check(each)) for each in args]
        texts += [f"{name}={self.text(each)}" for name, each in named.items()]
        text = f"{self.written.named(function.number)}({', '.join(texts)})"
        if all(kind is PLAIN for kind in kinds) and value is not list:
            several = Parts((PLAIN,) * (len(over) + (value is enumerate)))
            kind = PLAIN if value is tuple else IterKind(PLAIN if value is reversed else several)
            return self.let(Term(kind, text))
        if value in (zip, enumerate):
            return self.let(Term(IterKind(Parts(tuple([PLAIN] * (value is enumerate) + kinds))), text))
        if value is reversed:
            return self.let(Term(IterKind(kinds[0]), text))
        if value is list:
            made = self.listed(("list", self.counter))
            self.add(made, kinds[0])
            return self.let(Term(made, text))
        raise Unsupported("a tuple of as many arrays as the example has")

    def _closure_call(self, closure: ClosureKind, args: list[Term], named: dict[str, Term]) -> Term:
        owner: Version = closure.owner
        if not (self.version is owner or self.version.owner is owner):
            raise Unsupported("a call of an inner function outside of the function that defines it")
        env = self._bound_arguments(closure.tree, None, None, args, named)
        own = set(env)
        for name in sorted(owner.captured - own):
            value = self.env.names.get(name)
            if value is not None:
                env[name] = value
        return self._version_call(Definition(closure.tree, self.version.blocks, self.version.scope, owner=owner), env)

    def _user_call(
        self, tree: Any, blocks: Any, function: types.FunctionType, origin: int | None, args: Any, named: Any
    ) -> Term:
        env = self._bound_arguments(tree, function, origin, args, named)
        return self._version_call(Definition(tree, blocks, function.__globals__, function, origin), env)

    def _bound_arguments(
        self, tree: ast.FunctionDef, function: Any, origin: int | None, args: list[Term], named: dict[str, Term]
    ) -> dict[str, Term]:
        """The value given to each parameter."""
        if tree.args.vararg or tree.args.kwarg:
            raise Unsupported("a function with *args or **kwargs")
        positional = [each.arg for each in (*tree.args.posonlyargs, *tree.args.args)]
        only = {each.arg for each in tree.args.posonlyargs}
        if len(args) > len(positional) or only & set(named):
            raise Unsupported("a call with arguments that do not fit")
        env = dict(zip(positional, args, strict=False))
        if set(env) & set(named):
            raise Unsupported("a call with arguments that do not fit")
        env.update(named)
        every = [*positional, *[each.arg for each in tree.args.kwonlyargs]]
        defaults = len(tree.args.defaults)
        for name in every:
            if name in env:
                continue
            if function is None:
                raise Unsupported("a default of a function that is defined in another")
            if name in positional and positional.index(name) >= len(positional) - defaults:
                env[name] = self.read(self.written.constants.default, origin, positional.index(name) - len(positional))
            elif name not in positional and name in (function.__kwdefaults__ or {}):
                env[name] = self.read(self.written.constants.default, origin, name)
            else:
                raise Unsupported("a call with too few arguments")
        if set(env) - set(every):
            raise Unsupported("a call with arguments that do not fit")
        return {name: env[name] for name in every}

    def _version_call(self, of: Definition, env: dict[str, Term]) -> Term:
        kinds = {name: value.kind for name, value in env.items()}
        if any(isinstance(kind, IterKind) for kind in kinds.values()):
            raise Unsupported("an iterator as an argument")
        version = self.written.version(of, kinds)
        for name in version.given:
            seen = version.seen.get(name, env[name].seen).or_else(env[name].seen)
            self.written.changed |= version.seen.get(name, seen).origin != seen.origin
            version.seen[name] = seen
        texts = [self.text(env[name]) for name in version.given]
        result = self.fresh()
        if version.waits and not self.version.waits:
            self.version.waits = self.written.changed = True
        self.emit(f"{result} = {'yield from ' * version.waits}{version.name}({', '.join(texts)})")
        return Term(version.result, result)

    def _method(self, base: Term, name: str, node: ast.Call) -> Term:
        kind = base.kind
        if type(kind) is DictKind:
            if name not in ("items", "keys", "values") or node.args or node.keywords:
                raise Unsupported(f".{name} of a dict")
            items = {"items": Parts((PLAIN, kind.item)), "keys": PLAIN, "values": kind.item}[name]
            return self.let(Term(IterKind(items), f"{base.text}.{name}()"))
        if isinstance(kind, ListKind):
            if name == "append" and len(node.args) == 1 and not node.keywords:
                value = self.as_node(self.expr(node.args[0]))
                self.add(kind, value.kind)
                self.emit(f"{base.text}.append({self.converted(value, kind.item)})")
                return self.literal(None)
            if name == "sort" and not node.args and type(kind) is ListKind:
                by, is_reversed = self._ordering(node)
                if by is None:
                    raise Unsupported("sort without a key")
                order = self._order(base, by, self.written.named(self.written.constants.literal(sorted)), is_reversed)
                self.emit(f"{base.text}[:] = [{base.text}[_ab_i] for _ab_i in {order}]")
                return self.literal(None)
            if name == "pop" and not node.keywords and len(node.args) <= 1:
                args, _ = self._arguments(node)
                if kind.item is NOTHING:
                    raise Unreachable
                if not self.are_plain(*args):
                    raise Unsupported("pop")
                return self.let(Term(kind.item, f"{base.text}.pop({', '.join(map(self.text, args))})"))
            raise Unsupported(f".{name} of a list")
        if isinstance(kind, RecordedNode | RaggedNode):
            if isinstance(kind, RecordedNode) and name in ("item", "tolist") and not node.args and not node.keywords:
                return self.waited(base, shapes=name == "tolist")
            if name not in METHODS:
                raise Unsupported(f".{name} of an array")
            args, named = self._arguments(node)
            _check_writes(method_effect(np.ndarray, name), [base, *args], named)
            caller = operator.methodcaller
            constants = constants_of([*args, *named.values()])
            if constants is None:
                raise Unsupported(f".{name} with arguments of the example")
            given = [each.value for each in constants[: len(args)]]
            keywords = dict(zip(named, [each.value for each in constants[len(args) :]], strict=True))
            key = ("method", name, *[each.number for each in constants], *named)
            return self.apply(caller(name, *given, **keywords), [base], key)
        if isinstance(kind, Parts) and kind.make is not None:
            found = method_of(kind.make, name)
            if found is MISSING:
                raise Unsupported(f".{name} of an object")
            function = self.written.const(self.written.constants.method_of(kind.make, name))
            args, named = self._arguments(node)
            return self.call_constant(function, [base, *args], named)
        if isinstance(kind, Const):
            if type(kind.value) is LazyArray:
                raise Unsupported(f".{name} of a shared array")
            try:
                number = self.written.constants.method(kind.number, name)
            except NeedsLoop:
                return self._stored_call(base, name, node)
            args, named = self._arguments(node)
            return self.call_constant(self.written.const(number), [base, *args], named)
        if kind is PLAIN:
            return self._method_of_plain(base, name, node)
        raise Unsupported(f".{name}()")

    def _stored_call(self, base: Term, name: str, node: ast.Call) -> Term:
        """A call of a function stored in a shared object, or of a method of a shared container."""
        kind = base.kind
        assert isinstance(kind, Const)
        if type(kind.value) in (dict, list, tuple, str) and name in ("items", "keys", "values", "get", "index"):
            raise Unsupported(f".{name}() of a shared container")
        function = self.attribute(base, name)
        args, named = self._arguments(node)
        if not isinstance(function.kind, Const):
            raise Unsupported(f".{name}()")
        return self.call_constant(function.kind, args, named)

    def _method_of_plain(self, base: Term, name: str, node: ast.Call) -> Term:
        base = self.check(base)
        users = [each for each in self.written.classes if method_of(each, name) is not MISSING]
        if users:
            return self._dispatched(base, name, users, node)
        if name not in _READERS:
            raise Unsupported(f".{name}() of an example's object")
        args, named = self._arguments(node)
        if named or not self.are_plain(*args):
            raise Unsupported(f".{name}() of an example's object")
        texts = [self.text(self.check(each)) for each in args]
        self.emit(f"if _ab_type({base.text}) not in _ab_containers: raise _ab_misfit")
        out = Term(PLAIN, f"{base.text}.{name}({', '.join(texts)})")
        return self.let(Term(IterKind(Parts((PLAIN, PLAIN))), out.text)) if name == "items" else out

    def _dispatched(self, base: Term, name: str, classes: Sequence[type], node: ast.Call) -> Term:
        """A method of examples' objects, chosen by the class of each."""
        args, named = self._arguments(node)
        args = [self.let(each) if each.parts is None else each for each in args]
        result = self.fresh()
        kind: RecorderKind = NOTHING
        arms: list[tuple[list[str], Term | None]] = []
        for cls in classes:
            function = self.written.const(self.written.constants.method_of(cls, name))
            before = self.env
            self.env = before.copy()
            with self.nested_lines() as lines:
                try:
                    value = self.call_constant(function, [base, *args], dict(named))
                    if value.kind is NOTHING:
                        raise Unreachable
                    arms.append((lines, value))
                    kind = join(kind, value.kind)
                except Unreachable:
                    self.emit("raise _ab_misfit")
                    arms.append((lines, None))
            self.env = before
        for i, (cls, (lines, given)) in enumerate(zip(classes, arms, strict=True)):
            of = self.written.named(self.written.constants.literal(cls))
            self.emit(f"{'elif' if i else 'if'} _ab_type({base.text}) is {of}:")
            self.lines += lines
            if given is not None:
                self.emit(f"    {result} = {self.converted(given, kind)}")
        self.emit("else: raise _ab_misfit")
        return Term(kind, result)


def _check_writes(effect: Effect | None, args: list[Term], named: dict[str, Term]) -> None:
    """Refuse a call that writes into an argument (`out=`): a recorder may run it once for all, or for none."""
    if effect is not None and effect.written(args, named, _known):
        raise Unsupported("a call that writes into an argument")


def _known(value: Term) -> Any:
    return value.kind.value if isinstance(value.kind, Const) else value
