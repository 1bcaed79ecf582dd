"""Writes the statements, operators, conditions and comprehensions of a user function in a recorder."""

import contextlib
import dataclasses
import enum
import functools
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any

from autobatch.errors import Unreachable, Unsupported
from autobatch.facts import operators
from autobatch.lazy.array import LazyArray
from autobatch.lazy.recorders import recorded_kinds as rk
from autobatch.lazy.recorders.line_writer import Arm, Env
from autobatch.lazy.recorders.recorder_functions import Version, Written
from autobatch.lazy.recorders.value_writer import ValueWriter
from autobatch.program import normal_form as nf
from autobatch.program.folding import unfolded
from autobatch.program.python_text import text_of

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{each.symbol: each.function for each in (*operators.ARITHMETIC, *operators.COMPARISONS)},
    **{each.name: each.function for each in operators.UNARY},
    "is": operator.is_, "is not": operator.is_not,
    "in": lambda a, b: a in b, "not in": lambda a, b: a not in b,
}  # fmt: skip
_SIGNS = {each.name: each.symbol for each in operators.UNARY}
_MISFIT = "raise _ab_misfit"


class StatementWriter(ValueWriter):
    """Writes the statements and expressions of one version.

    Attributes:
        env: what is known at the next statement; None if it cannot be reached.
    """

    def __init__(self, written: Written, version: Version) -> None:
        super().__init__(written, version)
        self.loops: list[tuple[list[Env], list[Env]]] = []  # environments at each loop's exits and continues

    def whole(self) -> None:
        version = self.version
        self.emit(f"def {version.name}({', '.join(version.given)}):")
        self.depth += 1
        for name, kind in version.env.items():
            self.env.names[name] = rk.Term(kind, name, seen=version.seen.get(name, rk.UNKNOWN))
            if isinstance(kind, rk.Const) and kind.is_scalar and name in version.local:
                self.emit(f"{name} = {self.text(self.env.names[name])}")
        if version.waits:
            self.emit("if 0: yield")  # makes it a generator, whatever is reached
            self.emit("_ab_lists = {}")
        if self.body(version.of.form.body):
            self._returned(self.literal(None))
        self.depth -= 1
        version.lines = self.lines

    def body(self, statements: Sequence[nf.Statement]) -> bool:
        """Write statements; True if code after them can be reached."""
        for each in statements:
            self.line = each.lineno
            try:
                goes_on = self.statement(each)
            except Unreachable:
                self.emit(_MISFIT)
                return False
            except Unsupported as error:
                raise error.at(self.version.filename, self.line) from None
            if not goes_on:
                return False
        return True

    def statement(self, node: nf.Statement) -> bool:
        """Write a statement; True if the next one can be reached."""
        match node:
            case nf.Bind(value=nf.Call(args=[read, more]) as update, target=str(name)) if update.symbol in nf.UPDATES:
                self.bind(name, self._updated(update.symbol, self.value(read), more))
            case nf.Bind(target=None, value=nf.Value() as value):
                self.let(self.value(value))  # evaluating it may raise
            case nf.Bind(target=nf.Unpack() as target, value=nf.Sugar(how="generator") as generator):
                self.bind(target, self.filled(generator))
            case nf.Bind(target=(str() | nf.Unpack()) as target, value=nf.Value() as value):
                self.bind(target, self.value(value))
            case nf.Write(value=nf.Call(args=[_, more]) as update, key=nf.Value() as key) if (
                update.symbol in nf.UPDATES
            ):
                base = self.let(self.value(node.base))
                index = self.let(self.index(base, key))
                self.store_item(base, index, self._updated(update.symbol, self.item(base, index), more))
            case nf.Write(value=nf.Value() as value, key=nf.Value() as key):
                made = self.let(self.as_node(self.value(value)))
                base = self.value(node.base)
                self.store_item(base, self.index(base, key), made)
            case nf.Write(value=None, key=nf.Value() as key):
                base = self.value(node.base)
                if not isinstance(base.kind, rk.ListKind):
                    raise Unsupported("`del` of an item", node)
                self.emit(f"del {base.text}[{self.key(self.value(key))}]")
            case nf.Return(value=value):
                self._returned(self.literal(None) if value is None else self.value(value))
                return False
            case nf.Branch():
                return self._branch(node)
            case nf.Loop():
                return self._for(node) if node.target is not None else self._while(node)
            case nf.Try() if not node.final or not any(isinstance(x, nf.Return | nf.Jump) for x in nf.walk(node)):
                return self.body([*node.body, *node.orelse, *node.final])  # an example that raises runs as Python
            case nf.Jump(to=to):
                ends, again = self.loops[-1]
                (ends if to == "break" else again).append(self.env)
                self.emit(to)
                return False
            case nf.Raise():
                self.emit(_MISFIT)
                return False
            case _:
                raise Unsupported(f"the statement `{text_of(node).partition(chr(10))[0]}`", node)
        return True

    def _returned(self, value: rk.Term) -> None:
        value = self.as_node(value)
        if isinstance(value.kind, rk.ClosureKind | rk.IterKind):
            raise Unsupported("a function that returns a function or an iterator")
        self.written.add_result_kind(self.version, value.kind)
        self.emit(f"return {self.converted(value, self.version.result)}")

    def _updated(self, symbol: str, left: rk.Term, more: nf.Value) -> rk.Term:
        """The value that `left += more` leaves there, if `left` is a number."""
        array = left.kind.node if isinstance(left.kind, rk.NodeOrNumber) else left.kind
        if left.kind is rk.PLAIN:
            left = self.let(left)
        right = self.value(more)
        if type(left.kind) is rk.ListKind and symbol == "+=":
            if right.kind is rk.PLAIN:  # to which an array adds the list
                right = self.let(right)
                self.emit(f"if _ab_type({right.text}) not in _ab_containers: {_MISFIT}")
            self.emit(f"{left.text}.extend({self.poured(right, left.kind)})")
            return left
        marks = self.version.of.marks
        if left.kind is rk.PLAIN and (self.written.writes or marks.made or marks.maker) and self.are_plain(right):
            self.may_write(left, f"if _ab_type({left.text}) not in _ab_numbers: ")
            changed, right = self.let(rk.Term(rk.PLAIN, f"({left.text})")), self.check(right)
            self.emit(f"{changed.text} {symbol} {self.text(right)}")
            return changed
        if left.kind is rk.PLAIN:
            self.emit(f"if _ab_type({left.text}) not in _ab_scalars: {_MISFIT}")
        elif not (self._is_scalar(left.kind) or (isinstance(array, rk.RecordedNode) and array.aval.scalar)):
            raise Unsupported("an array or a list that is written to")
        return self.binary(symbol[:-1], left, right)

    # Control flow.

    def _arm(self, statements: Sequence[nf.Statement], env: Env) -> tuple[list[str], Env | None]:
        """The lines of an arm, and the environment at its end; None if the end is not reached."""
        self.env = env
        with self.nested_lines() as lines:
            goes_on = self.body(statements)
            if not lines:
                self.emit("pass")
        return lines, self.env if goes_on else None

    def _branch(self, node: nf.Branch) -> bool:
        known, text = self.test(node.test)
        if known is not None:
            return self.body(node.body if known else node.orelse)
        before = self.env
        body, after_body = self._arm(node.body, before.copy())
        orelse, after_orelse = self._arm(node.orelse, before.copy())
        found = [each for each in (after_body, after_orelse) if each is not None]
        self.env = before if not found else found[0] if len(found) == 1 else self._joined(*found)
        if len(found) == 2:
            body += self._conversions(found[0], self.env)
            orelse += self._conversions(found[1], self.env)
        self.emit(f"if {text}:")
        self.lines += body
        self.emit("else:")
        self.lines += orelse
        return bool(found)

    def _conversions(self, before: Env, after: Env, further: int = 1) -> list[str]:
        """The lines that convert the values at the end of one branch to the kinds where branches meet."""
        lines = []
        for name, value in after.names.items():
            old = before.names.get(name)
            if old is None or value.kind is rk.MIXED:
                continue
            is_there = value.kind is rk.PLAIN and self._is_scalar(old.kind)  # the variable has it
            if old.kind != value.kind and not is_there:
                text = self.converted(old, value.kind)
                if text != name:
                    lines.append("    " * (self.depth + further) + f"{name} = {text}")
        return lines

    def _joined(self, a: Env, b: Env) -> Env:
        """The environment where two branches meet."""
        names: dict[str, rk.Term] = {}
        for name in {**a.names, **b.names}:
            value, other = a.names.get(name), b.names.get(name)
            if value is None or other is None:
                found: Any = value or other
                is_variable = found.text == name and (not isinstance(found.kind, rk.Const) or found.kind.is_scalar)
                if not self.version.is_temporary(name):
                    names[name] = rk.Term(found.kind if is_variable else rk.MIXED, name, maybe=True)
            elif value.kind == other.kind and value.text == other.text and value.parts == other.parts:
                maybe = value.maybe or other.maybe
                names[name] = dataclasses.replace(value, seen=value.seen.or_else(other.seen), maybe=maybe)
            elif not self.version.is_temporary(name):
                names[name] = rk.Term(rk.MIXED, name)
                if not (value.maybe or other.maybe):
                    with contextlib.suppress(Unsupported):
                        names[name] = rk.Term(self.joined(value.kind, other.kind), name)
        return Env(names, a.checked & b.checked)

    def _until_fixpoint(self, write: Callable[[], tuple[list[str], Env | None]]) -> tuple[list[str], list[Env]]:
        """The lines of a loop's body, written repeatedly until the environment at its head no longer changes.

        Returns:
            The lines, and the environments where it is left by `break`; `env` is that at the head.
        """
        before = head = self.env
        for _ in range(6):  # until the kinds settle
            ends: list[Env] = []
            again: list[Env] = []
            self.loops.append((ends, again))
            self.env = head.copy()
            try:
                lines, after = write()
            finally:
                self.loops.pop()
            joined = head
            for each in [*again, *([after] if after is not None else [])]:
                joined = self._joined(joined, each)
            if joined.names == head.names and joined.checked == head.checked:
                if after is not None:
                    lines += self._conversions(after, head)
                self.lines += self._conversions(before, head, 0)
                for each in again:
                    if self._conversions(each, head):
                        raise Unsupported("`continue` where a number may be an array by then")
                self.env = head
                return lines, ends
            head = joined
        raise Unsupported("a loop whose values keep changing type")

    def _left(self, exits: Sequence[Env]) -> bool:
        """Go on after a loop, given the environments where it is left; True if it is left at all."""
        joined = None
        for each in exits:
            joined = each if joined is None else self._joined(joined, each)
        if joined is None:
            return False
        if any(self._conversions(each, joined) for each in exits):
            raise Unsupported("`break` where a number may be an array by then")
        self.env = joined
        return True

    def _for(self, node: nf.Loop) -> bool:
        over = self.check(self.value(node.over))
        if isinstance(over.kind, rk.Const) and type(over.kind.value) in (list, tuple):
            return self._unrolled(node, over.kind)
        over = self.let(over)
        item = self.item_kind(over.kind)
        if item is rk.NOTHING:
            self.emit(f"if {self.text(over)}: {_MISFIT}")
            return self.body(node.orelse)
        target = node.target
        assert target is not None

        def write() -> tuple[list[str], Env | None]:
            self.store(self.targets(target, item)[1])
            return self._arm(node.body, self.env)

        lines, exits = self._until_fixpoint(write)
        self.emit(f"for {self.targets(target, item)[0]} in {self.gone_through(over)}:")
        self.lines += lines
        return self._ended(node, "else:", exits)

    def _ended(self, node: nf.Loop, start: str, exits: list[Env]) -> bool:
        """Write what runs after a loop that no `break` has left."""
        if not node.orelse:
            return self._left([self.env, *exits])
        lines, after = self._arm(node.orelse, self.env.copy())
        self.emit(start)
        self.lines += lines
        return self._left([*([] if after is None else [after]), *exits])

    def _unrolled(self, node: nf.Loop, over: rk.Const) -> bool:
        target = node.target
        assert target is not None
        if len(over.value) > 16:
            raise Unsupported("a loop over many shared values")
        if any(isinstance(each, nf.Jump) for each in nf.walk(node.body)):
            raise Unsupported("a loop over shared values with `break`, `continue` or `return`")
        for at in range(len(over.value)):
            self.bind(target, self.read(self.written.constants.item, over.number, at))
            if not self.body(node.body):
                return False
        return self.body(node.orelse)

    def _while(self, node: nf.Loop) -> bool:
        left: Env | None = None  # at the test; None if it never fails
        over = self.fresh()

        def write() -> tuple[list[str], Env | None]:
            nonlocal left
            with self.nested_lines() as lines:
                goes_on = self.body(node.head)
                known, text = self.test(node.over) if goes_on else (True, "")
                left = None if known else self.env.copy()
                if not known:
                    self.emit(f"if {'True' if known is False else f'not {text}'}:")
                    self.emit(f"    {over} = True" if node.orelse else "    break")
                    if node.orelse:
                        self.emit("    break")
                goes_on = goes_on and known is not False and self.body(node.body)
            return lines, self.env if goes_on else None

        lines, exits = self._until_fixpoint(write)
        if node.orelse:
            self.emit(f"{over} = False")
        self.emit("while True:")
        self.lines += lines
        if left is None:
            return self._left(exits)
        self.env = left
        return self._ended(node, f"if {over}:", exits)

    # Values.

    def of_closure(self, node: nf.Closure) -> rk.Term:
        if node.decorators or node.shared or node.outer or node.is_generator:
            raise Unsupported("a generator, or a function that assigns nonlocal names")
        if self.version.of.owner is not None:
            raise Unsupported("functions nested three deep")
        return rk.Term(rk.ClosureKind(node, self.version), "None")

    def of_operator(self, node: nf.Call) -> rk.Term:
        symbol = node.symbol
        if symbol in ("not", "truth"):
            known, text = self.test(node)
            if known is not None:
                return self.literal(known)
            return self.let(rk.Term(rk.PLAIN, f"(not not {text})", simple=True))
        if symbol == "tuple":
            return self.parts(self.several(node.args))
        if symbol in ("list", "dict", "format"):
            made: rk.Term = getattr(self, f"of_{symbol}")(node)
            return made
        if symbol not in _FUNCTIONS:
            raise Unsupported(f"`{text_of(node)}`", node)
        operands = [self.value(each) for each in node.args]
        if symbol in nf.COMPARED or symbol in nf.OF_OBJECTS:
            return self.compared(symbol, *operands)
        return self.single(symbol, *operands) if symbol in _SIGNS else self.binary(symbol, *operands)

    def _folded(self, symbol: str, *values: rk.Term) -> rk.Term | None:
        """Constant folding: a constant if all operands are constant scalars, else None."""
        constants = rk.constants_of(values)
        if constants is None or not all(each.is_scalar for each in constants):
            return None
        return self.read(
            self.written.constants.compute, symbol, _FUNCTIONS[symbol], *[each.number for each in constants]
        )

    def binary(self, symbol: str, left: rk.Term, right: rk.Term) -> rk.Term:
        folded = self._folded(symbol, left, right)
        if folded is not None:
            return folded
        if isinstance(left.kind, rk.NodeOrNumber):
            return self.either(left, lambda each: self.binary(symbol, each, right))
        if isinstance(right.kind, rk.NodeOrNumber):
            return self.either(right, lambda each: self.binary(symbol, left, each))
        if isinstance(left.kind, rk.ListKind) and isinstance(right.kind, rk.ListKind) and symbol == "+":
            return self.let(rk.Term(self.joined(left.kind, right.kind), f"({left.text} + {right.text})"))
        if type(left.kind) is rk.ListKind and self.are_plain(right) and symbol == "*":
            return self.let(rk.Term(left.kind, f"({left.text} * {self.text(self.check(right))})"))
        if self.are_plain(left, right):
            left, right = self.check(left), self.check(right)
            return self.new(rk.Term(rk.PLAIN, f"({self.text(left)} {symbol} {self.text(right)})"))
        return self.apply(_FUNCTIONS[symbol], [left, right], ("op", symbol))

    def single(self, symbol: str, value: rk.Term) -> rk.Term:
        """An operator of one operand."""
        folded = self._folded(symbol, value)
        if folded is not None:
            return folded
        if value.kind is rk.PLAIN:
            return rk.Term(rk.PLAIN, f"({_SIGNS[symbol]}{self.check(value).text})")
        return self.apply(_FUNCTIONS[symbol], [value], ("op", symbol))

    def compared(self, symbol: str, left: rk.Term, right: rk.Term) -> rk.Term:
        if symbol in ("is", "is not"):
            return self._same(symbol, left, right)
        folded = self._folded(symbol, left, right)
        if folded is not None:
            return folded
        if symbol in ("in", "not in") and type(right.kind) is rk.DictKind:
            return rk.Term(rk.PLAIN, f"({self.key(left)} {symbol} {right.text})", simple=True)
        texts = [self._operand_of_comparison(each) for each in (left, right)]
        if None not in texts:
            return rk.Term(rk.PLAIN, f"({texts[0]} {symbol} {texts[1]})", simple=True)
        if symbol in ("in", "not in"):
            raise Unsupported(f"`{symbol}` of arrays")
        return self.apply(_FUNCTIONS[symbol], [left, right], ("op", symbol))

    def _same(self, symbol: str, left: rk.Term, right: rk.Term) -> rk.Term:
        """`is`, or `is not`."""
        known = self._identity(left.kind, right.kind)
        if known is not None:
            return self.literal(known == (symbol == "is"))
        for one, other in ((left, right), (right, left)):
            if isinstance(one.kind, rk.NodeOrNumber) and isinstance(other.kind, rk.Const) and other.kind.value is None:
                one = self.let(one)
                text = f"(_ab_type({one.text}) is _ab_tuple and {one.text}[0] is None)"
                return rk.Term(rk.PLAIN, text if symbol == "is" else f"(not {text})", simple=True)
        named = right.kind.value if isinstance(right.kind, rk.Const) else None
        if left.kind is rk.PLAIN and isinstance(named, enum.Enum | type):
            return rk.Term(rk.PLAIN, f"({left.text} {symbol} {self.written.named(right.kind.number)})", simple=True)  # type: ignore[attr-defined]
        if left.kind is rk.PLAIN and (right.kind is rk.PLAIN or self._is_singleton(right.kind)):  # `is` runs no code
            return rk.Term(rk.PLAIN, f"({self.text(left)} {symbol} {self.text(right)})", simple=True)
        raise Unsupported(f"`{symbol}` of something that is not an object of the example")

    def _operand_of_comparison(self, value: rk.Term) -> str | None:
        kind = value.kind
        if isinstance(kind, rk.Const) and not kind.is_scalar and type(kind.value) is not LazyArray:
            if isinstance(kind.value, type | tuple | list | dict | set | frozenset | enum.Enum):
                return self.written.named(kind.number)
            return None
        if self.are_plain(value):
            return self.text(self.check(value))
        parts = kind.parts if isinstance(kind, rk.Parts) and kind.is_tuple else [rk.NOTHING]
        return self.text(value) if all(part is rk.PLAIN or self._is_scalar(part) for part in parts) else None

    @staticmethod
    def _is_singleton(kind: rk.RecorderKind) -> bool:
        return isinstance(kind, rk.Const) and type(kind.value) in (bool, type(None))

    @staticmethod
    def _is_scalar(kind: rk.RecorderKind) -> bool:
        return isinstance(kind, rk.Const) and kind.is_scalar

    @staticmethod
    def _identity(a: rk.RecorderKind, b: rk.RecorderKind) -> bool | None:
        """True or False if the kinds alone decide whether two values are one object; else None."""
        for one, other in ((a, b), (b, a)):
            if isinstance(one, rk.Const) and one.value is None and other is not rk.PLAIN:
                if isinstance(other, rk.NodeOrNumber):
                    return None
                return isinstance(other, rk.Const) and other.value is None
        if isinstance(a, rk.Const) and isinstance(b, rk.Const) and a.number == b.number and not a.is_scalar:
            return True
        return None

    def test(self, node: nf.Value) -> tuple[bool | None, str]:
        """The truth of a condition if it is known, else None; and its source, to be evaluated at once."""
        match node:
            case nf.Call(function=nf.Operator(symbol="not" | "truth" as symbol), args=[part]):
                known, text = self.test(part)
                if symbol == "truth":
                    return known, text
                return (None, f"(not {text})") if known is None else (not known, "")
            case nf.Sugar(how="and" | "or" as how, parts=[first, *rest]):
                more = [functools.partial(self._tested, each) for each in rest]
                return self.truth(self._decided(how, self._tested(first), more))
        return self.truth(self.value(node))

    def _tested(self, node: nf.Value) -> rk.Term:
        """The truth of a part of a condition."""
        known, text = self.test(node)
        return rk.Term(rk.PLAIN, text, simple=True) if known is None else self.literal(known)

    def truth(self, value: rk.Term) -> tuple[bool | None, str]:
        kind = value.kind
        if isinstance(kind, rk.Const):
            if kind.is_scalar or type(kind.value) in (tuple, list, dict):
                return bool(kind.value), ""
            if isinstance(kind.value, type | types.FunctionType):
                return True, ""
            raise Unsupported("a branch on a shared value")
        if kind is rk.PLAIN:
            return None, self.check(value).text
        if isinstance(kind, rk.ListKind):
            return None, self.text(value)
        if isinstance(kind, rk.Parts) and kind.is_tuple:
            return bool(kind.parts), ""
        return None, self.waited(value, exact=False).text

    def of_sugar(self, node: nf.Sugar) -> rk.Term:
        match node.how, node.parts:
            case "if", [test, body, orelse]:
                known, text = self.test(test)
                if known is not None:
                    return self.value(body if known else orelse)
                arms = [self.arm(functools.partial(self.value, each)) for each in (body, orelse)]
                return self.meet([(text, arms[0]), ("", arms[1])])
            case "and" | "or" as how, [first, *rest]:
                return self._decided(how, self.value(first), [functools.partial(self.value, each) for each in rest])
            case "compare", [left, *rest]:
                return self._chain(self.value(left), rest)
            case "keep", [nf.Name(id=name), value]:
                self.bind(name, self.value(value))
                return self.env.names[name]
            case "list" | "dict", _:
                return self.filled(node)
        raise Unsupported(f"`{text_of(node)}`, whose items are not read at once", node)

    def _decided(self, how: str, value: rk.Term, more: Sequence[Callable[[], rk.Term]]) -> rk.Term:
        """`and` or `or` of a value, and of what is evaluated if it does not decide."""
        if not more:
            return value
        value = self.check(value) if value.parts is None else value
        if isinstance(value.kind, rk.RecordedNode | rk.NodeOrNumber):
            value = self.let(value)
        known, text = self.truth(value)
        if known is not None:
            return value if known == (how == "or") else self._decided(how, more[0](), more[1:])
        lines, rest = self.arm(lambda: self._decided(how, more[0](), more[1:]))
        if not lines and rest is not None and self.are_plain(value, rest):
            is_simple = value.simple and (rest.simple or isinstance(rest.kind, rk.Const))
            return rk.Term(rk.PLAIN, f"({text} {how} {self.text(rest)})", simple=is_simple)
        arms: list[Arm] = [([], value), (lines, rest)]
        first, last = arms if how == "or" else arms[::-1]
        return self.meet([(text, first), ("", last)])

    def _chain(self, left: rk.Term, parts: Sequence[nf.Value]) -> rk.Term:
        """`left < b < c`: c is evaluated only if `left < b`."""
        operator, middle, *rest = parts
        assert isinstance(operator, nf.Operator)
        right = self.let(self.value(middle)) if rest else self.value(middle)
        value = self.compared(operator.symbol, left, right)
        return self._decided("and", value, [lambda: self._chain(right, rest)] if rest else [])

    def of_format(self, node: nf.Call) -> rk.Term:
        texts = []
        for each in node.args:
            match each:
                case nf.Constant(value=text):
                    texts.append(repr(text))
                case nf.Call(args=[value, nf.Constant(value=-1), nf.Constant(value="")]):
                    made = self.check(self.value(value))
                    if not self.are_plain(made):
                        raise Unsupported("a formatted string with something other than a number")
                    texts.append(f"_ab_shown({self.text(made)})")
                case _:
                    raise Unsupported("a formatted string with a format or a conversion")
        return rk.Term(rk.PLAIN, f"({' + '.join(texts) or repr('')})")

    def filled(self, node: nf.Sugar) -> rk.Term:
        """The list or dict that a comprehension fills, as the loop that it is."""
        kind = self.listed(node, rk.DictKind if node.how == "dict" else rk.ListKind)
        return self._looped(node, self.let(rk.Term(kind, "{}" if node.how == "dict" else "[]")))

    def found(self, node: nf.Sugar, how: str, other: rk.Term) -> rk.Term:
        """What `any`, `all` or `next` of a generator finds; `other`: if it finds nothing."""
        if len(node.loops) > 1:
            raise Unsupported(f"`{how}` of several loops", node)
        return self._looped(node, other, how)

    def _looped(self, node: nf.Sugar, start: rk.Term, how: str = "") -> rk.Term:
        """The value that a comprehension's loop gives a name, which is `start` before it."""
        loops = self.version.loops
        loop = loops.get(id(node)) or unfolded(node, f"{nf.TEMPORARY}filled{len(loops)}", how)
        loops[id(node)] = loop
        if how:
            self.bind(loop.fills, start)
        else:
            self.env.names[loop.fills] = start
        if not self.body([loop]):
            raise Unreachable
        if self.env.names[loop.fills].kind is rk.MIXED:
            raise Unsupported("a value of two types", node)
        return self.env.names.pop(loop.fills)
