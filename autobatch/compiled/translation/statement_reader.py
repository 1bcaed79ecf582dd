"""Statements: each is read with the types of the variables before it, written as text, and gives the types after it.

A loop is read until the types at its head settle, then written. Where paths meet (after an arm, at a `break`, at the
head of a loop) a variable of several types gets the type that joins them. If there is none, reading the variable is
refused. A variable that may be unbound has a flag beside it.
"""

import builtins
import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, ClassVar, NoReturn

import numpy as np

from autobatch.compiled.translation import exact_types as types
from autobatch.compiled.translation import source_program, typed_text
from autobatch.compiled.translation.exact_types import NONE, STR
from autobatch.compiled.translation.source_program import Inline, Instance, Lines, SourceProgram
from autobatch.compiled.translation.typed_text import (
    ANY,
    NO_CONSTANT,
    Bounds,
    Value,
    assigned,
    code,
    convert,
    dummy,
    rep,
)
from autobatch.core.op import is_boxed
from autobatch.errors import Unreachable, Unsupported
from autobatch.program import normal_form as nf
from autobatch.program.liveness import binds

FAIL = code("return", "0", "@dummy@")
"""Leaves the example to Python. A function returns `1, value`; `0, dummy` (this); `exception's number, dummy`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Variable:
    """What is known about a variable at one point of the program.

    Attributes:
        bounds: those of an int. constant: the value, if it is known while compiling.
    """

    kind: types.Type
    maybe_unbound: bool = False
    bounds: Bounds = ANY
    constant: Any = NO_CONSTANT


Env = dict[str, Variable]
_OF_STEPS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@dataclasses.dataclass
class _Loop:
    """A loop that is being read: where `break` and `continue` leave its body, and with which variables."""

    breaks: list[tuple[Lines, Env]] = dataclasses.field(default_factory=list)
    continues: list[tuple[Lines, Env]] = dataclasses.field(default_factory=list)
    left_by_raise: bool = False


@dataclasses.dataclass
class Handlers:
    """The handlers of a `try` whose body is being read.

    Attributes:
        classes: what each catches; None if that is not known, or if the handler uses the exception.
        depth: how many loops are around the `try`, without the one that runs its body once.
        first: the value of `leave` for which the first handler runs.
        jumps: where the body goes to a handler: the handler's number, a place for lines, and the variables there.
    """

    classes: list[Any]
    depth: int
    first: int
    jumps: list[tuple[int, Lines, Env]] = dataclasses.field(default_factory=list)

    def which(self, error: type[BaseException]) -> int | None:
        """The handler that catches an exception; -1 if that cannot be told, None if none does."""
        for number, classes in enumerate(self.classes):
            if classes is None:
                return -1
            if issubclass(error, classes):
                return number
        return None


class Reader:
    """Reads one function, for the types of its arguments.

    Attributes:
        env: the variables at this point; None if the point is never reached.
        lines: where text is written.
        expr, condition, store, some, and others: an expression's value, its truth, `target = value`, a value that is
            not None; given by `ExpressionReader`.
        statements: the method that reads each kind of statement; given by `ExpressionReader`.
    """

    expr: Callable[[nf.Value], Value]
    condition: Callable[[nf.Value], Value]
    store: Callable[[nf.Target, Value, nf.Node], None]
    some: Callable[[Value], Value]
    exprs: Callable[[Sequence[nf.Value]], list[Value]]
    index: Callable[[Value, nf.Node], str]
    truth: Callable[[Value, nf.Node], str]
    binary: Callable[[str, Value, Value, nf.Node], Value]
    compared: Callable[[str, Value, Value, nf.Node], Value]
    connected: Callable[[Value, Callable[[], Value], bool, nf.Node], Value]
    choice: Callable[[str, Any, Any, nf.Node], Value]
    statements: ClassVar[dict[type[nf.Statement], Callable[..., None]]]

    def __init__(self, program: SourceProgram, instance: Instance) -> None:
        self.program, self.instance, self.function = program, instance, instance.function
        self.form = program.form(instance.function)
        self.env: Env | None = {}
        self.lines: Lines = []
        self.names: dict[tuple[str, str], str] = {}
        self.count = 0
        self.loops: list[_Loop | None] = []  # None: the body of a `try`, a loop that runs once
        self.handlers: list[Handlers] = []
        self.finals: list[tuple[int, Callable[[], None]]] = []  # what a jump runs, and how many loops are around that
        self.returns: list[tuple[Lines, Value]] = []
        self.heads: dict[Any, Env] = {}
        code = instance.function.__code__
        self.own_names = frozenset((*code.co_varnames, *code.co_cellvars))
        self.locals = set(self.own_names)
        self.kept = frozenset(name for name, _ in instance.outer)  # outer variables, which others read afterwards
        self.node: nf.Node = self.form
        self.given: dict[str, nf.Value] = {}  # the iterables of generators that are read in place
        self.yields: list[Callable[[Value], None]] = []  # what takes their items
        self.inside = 0  # how many functions are read in place around this point
        self.row_products: dict[nf.Node, Sequence[nf.Call]] = {}  # by the iterable of a loop
        self.ahead: dict[nf.Call, tuple[Value, str]] = {}  # made before this loop: an array, and which item it is

    # --- writing

    def emit(self, *lines: Any) -> None:
        """Write lines at this point."""
        self.lines.extend(lines)

    def temp(self, text: str, kind: types.Type, **facts: Any) -> Value:
        """A new variable with this value."""
        name = self.declared(kind)
        self.emit(assigned(name, text))
        return Value(kind, name, **facts)

    def declared(self, kind: types.Type) -> str:
        """The name of a new variable of this type, which the caller assigns."""
        name = self.fresh("t")
        self.typed(name, kind)
        return name

    def fresh(self, prefix: str) -> str:
        """A name that the function does not use yet."""
        self.count += 1
        return f"{prefix}{self.count}"

    def typed(self, name: str, kind: types.Type) -> None:
        """Record the type of a variable that is written here, and the user's line."""
        self.instance.variables[name] = kind
        self.instance.lines[name] = self.node.at.line

    def fail_if(self, condition: str, error: type[BaseException] | None = None) -> None:
        """Leave the example to Python if this condition holds.

        Args:
            error: what Python surely raises then; if the function has a handler for it, that runs instead.
        """
        self.emit(f"if {condition}:", self._leaving(error))

    def stop(self, error: type[BaseException] | None = None) -> NoReturn:
        """Leave the example to Python here, always."""
        self.emit(*self._leaving(error))
        raise Unreachable

    def _leaving(self, error: type[BaseException] | None) -> Lines:
        """The lines that leave this point: to a handler, to the caller, or to Python."""
        if error is None or self.instance.binds:  # the outer variables that it has bound would be lost
            return [FAIL]
        assert self.env is not None
        for handlers in reversed(self.handlers):
            which = handlers.which(error)
            if which == -1:
                return [FAIL]
            if which is not None:
                place: Lines = []
                handlers.jumps.append((which, place, dict(self.env)))
                for loop in self.loops[handlers.depth :]:
                    if loop is not None:
                        loop.left_by_raise = True
                return [Inline(place), f"leave = {handlers.first + which}", "break"]
        return [code("return", str(self.program.error_number(self.instance, error)), "@dummy@")]

    def propagate_error(self, status: str, raised: Sequence[type[BaseException]]) -> None:
        """After a call: an exception that it raised goes to a handler here, or on to this function's caller."""
        if any(handlers.which(error) is not None for handlers in self.handlers for error in raised):
            for error in raised:
                self.fail_if(f"{status} == {self.program.error_number(None, error)}", error)
            self.fail_if(f"{status} != 1")
            return
        if self.instance.binds:
            self.fail_if(f"{status} != 1")
            return
        for error in raised:
            self.program.error_number(self.instance, error)
        self.emit(f"if {status} != 1:", [code("return", status, "@dummy@")])

    def refuse(self, why: str, node: nf.Node | None = None, instead: str = "") -> Unsupported:
        """The exception to raise where there is no compiled form, with the user's line."""
        node = node if isinstance(node, nf.Node) else self.node
        code = self.function.__code__
        what = source_program.text_at(code, node)
        return Unsupported(f"{what}: {why}", node, instead=instead).at(code.co_filename, code.co_firstlineno)

    def site(self, node: nf.Node, container: Any, size: int = 1) -> Any:
        """The type of the containers that are made at this node."""
        site = self.program.site((self.instance.name, id(node), container.__name__), size)
        site.container = container
        return container(site)

    def join(self, a: types.Type, b: types.Type, node: nf.Node | None = None) -> types.Type:
        """The type of a value that has one of two types.

        Raises:
            Unsupported: no variable of compiled code can hold both.
        """
        try:
            return types.join(a, b)
        except Unsupported as error:
            raise self.refuse(f"here is {error}, which is not one type", node) from None

    # --- variables

    def variable(self, name: str, kind: types.Type) -> str:
        """The variable of compiled code that holds a name while the name has this type."""
        key = name, rep(kind)
        if key not in self.names:
            self.names[key] = (
                f"v_{name}_{len(self.names)}" if name.isascii() and "." not in name else f"v_{len(self.names)}"
            )
        self.typed(self.names[key], kind)
        return self.names[key]

    def assign(self, name: str, value: Value) -> None:
        """Bind a name to a value."""
        assert self.env is not None
        if isinstance(value.kind, types.Static):
            self.env[name] = Variable(value.kind)
            return
        self.emit(assigned(self.variable(name, value.kind), value.text))
        old = self.env.get(name)
        if old is not None and old.maybe_unbound:
            self.emit(f"b_{self.variable(name, None)} = True")
        self.env[name] = Variable(value.kind, bounds=value.bounds, constant=value.constant)

    def read(self, name: str, node: nf.Node, whole: bool = False) -> Value:
        """The value of a name.

        Args:
            whole: a `Maybe` is read as it is; otherwise its value is read, and None leaves the example to Python.
        """
        assert self.env is not None
        known = self.env.get(name)
        if known is not None:
            if known.kind is types.CONFLICT:
                raise self.refuse(f"{name} is {types.CONFLICT}", node)
            if isinstance(known.kind, types.Static):
                return self.constant(known.kind.value, node)
            if known.maybe_unbound:
                self.fail_if(f"not b_{self.variable(name, None)}")
            text = self.variable(name, known.kind)
            found = Value(known.kind, text, known.constant, known.bounds)
            return found if whole else self.some(found)
        local = self.instance.local
        if name in self.locals or (local is not None and name in local.around):
            self.stop()  # unbound on every path
        return self.outside(name, node)

    def outside(self, name: str, node: nf.Node) -> Value:
        """The value of a name of the function's closure, its module or Python's builtins."""
        function = self.instance.local.outer if self.instance.local is not None else self.function
        free = function.__code__.co_freevars
        if name in free:
            cell = function.__closure__[free.index(name)]  # type: ignore[index]
            read: Any = functools.partial(getattr, cell, "cell_contents")
        elif name in function.__globals__:
            read = functools.partial(function.__globals__.__getitem__, name)
        else:
            read, absent = functools.partial(getattr, builtins, name), f"no {name}"
            if all(each.name != absent for each in self.program.constants):
                has = functools.partial(function.__globals__.__contains__, name)
                self.program.constants.append(source_program.Captured(has, False, name=absent))
        try:
            found = read()
        except (ValueError, AttributeError):
            self.stop()
        return self.known_object(found, read, name, node)

    def known_object(self, found: Any, read: Any, name: str, node: nf.Node) -> Value:
        """An object known while compiling; the program is valid as long as the name has this object."""
        if is_boxed(found):
            raise self.refuse(f"{name}, from outside the function, is a recorded value", node)
        if isinstance(found, np.ndarray):
            return self.captured(found, read, name, node)
        if isinstance(found, list | dict | set | frozenset) and type(found) is not dict:
            raise self.refuse(f"{name} is a {type(found).__name__} from outside of the function", node)
        if not any(each.seen is found and each.name == name for each in self.program.constants):
            self.program.constants.append(source_program.Captured(read, found, name=name))
            if isinstance(found, FunctionType):  # a reload of its module changes these in place
                for part in ("__code__", "__defaults__", "__kwdefaults__"):
                    own = getattr(found, part)
                    self.program.constants.append(
                        source_program.Captured(functools.partial(getattr, found, part), own, name=part)
                    )
        return self.constant(found, node)

    def captured(self, found: np.ndarray, read: Any, name: str, node: nf.Node) -> Value:
        """A NumPy array from outside of the function."""
        try:
            kind = types.Array(types.of_dtype(found.dtype).name, found.ndim, types.FIXED)
        except Unsupported as error:
            raise self.refuse(f"{name} holds {error}", node) from None
        for text, known in self.program.captured.items():
            if known.seen is found:
                return Value(kind, text)
        text = f"g{len(self.program.captured)}"
        self.program.captured[text] = source_program.Captured(read, found, kind)
        return Value(kind, text)

    def constant(self, found: Any, node: nf.Node | None) -> Value:
        """The value of an object that is known while compiling; a `Static` if it is no number, string or tuple."""
        kind: Any
        match found:
            case None:
                return Value(NONE, "0", None)
            case bool():
                return Value(types.Scalar("bool", True), str(found), found)
            case np.bool_():
                return Value(types.Scalar("bool", False), str(bool(found)))
            case np.generic():
                try:
                    kind = types.Scalar(found.dtype.name, False)
                    np.dtype(kind.name)
                    text = _float(float(found)) if kind.kind == "f" else str(int(found))
                except (TypeError, ValueError):
                    raise self.refuse(f"a number of dtype {found.dtype}", node) from None
                return Value(kind, f"np.{kind.name}({text})")
            case int() if type(found) is int:
                if not -(2**63) < found < 2**63:
                    raise self.refuse("an int of more than 64 bits", node)
                return Value(types.Scalar("int64", True), f"int64({found})", int(found), typed_text.bounds_of(found))
            case float() if type(found) is float:
                return Value(types.Scalar("float64", True), _float(found), found)
            case str() if type(found) is str:
                codes = "".join(f"{ord(each)}, " for each in found)
                text = f"np.array(({codes}), np.int32)" if found else "np.empty(0, np.int32)"
                return Value(STR, text, found)
            case tuple():
                items = [self.constant(each, node) for each in found]
                return self.tuple_of(items)
        if type(found) is dict:
            found = self.program.dicts.setdefault(id(found), source_program.OutsideDict(found))
        return Value(types.Static(found), "0", found)

    def tuple_of(self, items: Sequence[Value]) -> Value:
        """A tuple of values."""
        constant = tuple(each.constant for each in items)
        known = NO_CONSTANT if any(each is NO_CONSTANT for each in constant) else constant
        if any(isinstance(each.kind, types.Static) for each in items):
            return Value(types.Static(constant), "0", known, parts=list(items))
        text = code("()", *(each.text for each in items))
        return Value(types.Tuple(tuple(each.kind for each in items)), text, known, parts=list(items))

    # --- where ways meet

    def merge_paths(self, ends: list[tuple[Lines, Env]], live: nf.Names | None) -> Env | None:
        """The variables where several paths merge; the conversions that a path needs are appended to its lines."""
        if not ends:
            return None
        out: Env = {}
        for name in dict.fromkeys(name for _, env in ends for name in env):
            if live is not None and name not in live and "." not in name and name not in self.kept:
                continue
            kind, maybe = None, any(name not in env or env[name].maybe_unbound for _, env in ends)
            try:
                for _, env in ends:
                    if name in env:
                        if env[name].kind is types.CONFLICT:
                            raise Unsupported
                        kind = types.join(kind, env[name].kind)
            except Unsupported:
                kind = types.CONFLICT
            if maybe and isinstance(kind, types.Static):
                kind = types.CONFLICT
            bounds = typed_text.joined_bounds(env[name].bounds for _, env in ends if name in env)
            out[name] = Variable(kind, maybe, bounds, _joined_constant([env.get(name) for _, env in ends]))
        for lines, env in ends:
            lines += self.conversions(env, out)
        return out

    def conversions(self, env: Env, to: Env) -> Lines:
        """The lines that convert variables from their types in `env` to those in `to`."""
        out: Lines = []
        for name, wanted in to.items():
            if isinstance(wanted.kind, types.Static) or wanted.kind is types.CONFLICT:
                continue
            target = self.variable(name, wanted.kind)
            known = env.get(name)
            flag = f"b_{self.variable(name, None)}" if wanted.maybe_unbound else ""
            if known is None:
                out += [assigned(target, dummy(wanted.kind)), f"{flag} = False"]
                continue
            source = self.variable(name, known.kind)
            if source != target:
                out.append(assigned(target, convert(source, known.kind, wanted.kind)))
            if flag and not known.maybe_unbound:
                out.append(f"{flag} = True")
        return out

    def conflicts(self) -> set[str]:
        """The variables that hold values of types which cannot be joined."""
        return {name for name, known in (self.env or {}).items() if known.kind is types.CONFLICT}

    def block(self, body: Sequence[nf.Statement]) -> None:
        """Read statements, one after the other."""
        for place, node in enumerate(body, 1):
            if self.env is None:
                return
            self.node = node
            rest = body[place:]
            branch = node if isinstance(node, nf.Branch) and rest else None
            try:
                if branch is not None and id(branch) in self.program.split:
                    arms = [*branch.body, *rest], [*branch.orelse, *rest]
                    self.conditional(branch.test, *arms, self.live(rest[-1].live_after))
                    return
                before = self.conflicts() if branch is not None else set()
                self.statement(node)
                if branch is not None and self.conflicts() - before and self.program.may_split(branch):
                    raise Unreachable
            except Unreachable:
                self.env = None
            except Unsupported as error:
                raise error if error.reason.where else self.refuse(error.reason, node, error.reason.instead) from None

    def arm(self, body: Any, env: Env | None) -> tuple[Lines, Env | None]:
        """Read statements, or run a function, from these variables: the lines written, and the variables afterwards."""
        lines, before = self.lines, self.env
        self.lines, self.env = [], None if env is None else dict(env)
        try:
            if callable(body):
                body()
            else:
                self.block(body)
        except Unreachable:
            self.env = None
        finally:
            if not self.lines:
                self.lines.append("pass")
            written, after = self.lines, self.env
            self.lines, self.env = lines, before
        return written, after

    def branch(self, condition: str, then: Any, other: Any, live: nf.Names | None = None) -> None:
        """Read both arms of a condition; their variables are merged after it."""
        (first, one), (second, two) = self.arm(then, self.env), self.arm(other, self.env)
        ends = [(lines, env) for lines, env in ((first, one), (second, two)) if env is not None]
        after = self.merge_paths(ends, live)
        self.emit(f"if {condition}:", first, "else:", second)
        self.env = after

    # --- statements

    def statement(self, node: nf.Statement) -> None:
        """Read one statement."""
        method = self.statements.get(type(node))
        if method is None:
            what = type(node.syntax).__name__ if isinstance(node, nf.OpaqueStatement) else type(node).__name__
            raise self.refuse(f"`{what.lower().removesuffix('from')}` statements are not compiled", node)
        method(self, node)

    def on_raise(self, node: nf.Raise) -> None:
        name = node.value.function if isinstance(node.value, nf.Call) else node.value
        found: Any = None
        if isinstance(name, nf.Operator):
            found = AssertionError
        elif isinstance(name, nf.Name | nf.Read) and node.cause is None:
            found = self.expr(name).constant
        self.stop(found if isinstance(found, type) and issubclass(found, Exception) else None)

    def held(self, value: Value) -> Value:
        """The value in a new variable, which nothing else binds."""
        if isinstance(value.kind, types.Static):
            return value
        return self.temp(value.text, value.kind, constant=value.constant, bounds=value.bounds, parts=value.parts)

    def once(self, value: Value) -> Value:
        """The value as a name (or a constant): an expression is computed into a variable first."""
        return value if value.text.isidentifier() or value.constant is not NO_CONSTANT else self.held(value)

    def on_return(self, node: nf.Return) -> None:
        if isinstance(node.value, nf.Name):
            value = self.read(node.value.id, node.value, whole=True)
        else:
            value = Value(NONE, "0", None) if node.value is None else self.expr(node.value)
        if self.finals:
            value = self.held(value)
            self.finish(0)
        self.emit_return(value, node)

    def finish(self, depth: int) -> None:
        """Run the `finally` of each `try` inside of so many loops, before these are left."""
        finals = self.finals
        try:
            while self.finals and self.finals[-1][0] >= depth:
                *self.finals, (_, final) = self.finals
                final()
                if self.env is None:
                    raise Unreachable
        finally:
            self.finals = finals

    def emit_return(self, value: Value, node: nf.Node) -> None:
        """Return a value, together with the variables of functions around this one that it may have bound."""
        if self.instance.binds:
            value = self.tuple_of([self.once(value), *(self.read(name, node, True) for name in self.instance.binds)])
        if isinstance(value.kind, types.Static):
            raise self.refuse(f"it returns {value.kind}", node)
        if not isinstance(value.kind, types.Scalar) or value.parts is not None:
            value = self.held(value)
        place: Lines = []
        self.lines.append(Inline(place))
        self.returns.append((place, value))
        self.env = None

    def on_branch(self, node: nf.Branch) -> None:
        match node.orelse:
            case [*_, nf.Raise(value=nf.Call(function=nf.Operator(symbol="assertion")))] if not node.body:
                self.fail_if(f"not {self.condition(node.test).text}", AssertionError)
            case _:
                self.conditional(node.test, node.body, node.orelse, self.live(node.live_out))

    def live(self, names: nf.Names) -> nf.Names | None:
        """The names that are live; None for all of them while another function is read in place."""
        return None if self.inside else names

    def conditional(self, test: nf.Value, then: Any, other: Any, live: nf.Names | None) -> None:
        """`if test: then else: other`; for a constant test one arm is read, a test for None narrows a variable."""
        match test:
            case nf.Call(function=nf.Operator(symbol="not"), args=[operand]):
                return self.conditional(operand, other, then, live)
            case nf.Call(
                function=nf.Operator(symbol="is" | "is not" as sign), args=[nf.Name(id=name), nf.Constant(value=None)]
            ):
                known = (self.env or {}).get(name)
                if known is not None and isinstance(known.kind, types.Union | types.Maybe) and not known.maybe_unbound:
                    return self.none_test(sign == "is", name, known, then, other, live)
        return self.decide(self.condition(test), then, other, live)

    def decide(self, value: Value, then: Any, other: Any, live: nf.Names | None) -> None:
        """Read one arm or the other, or only the one that runs, if that is known."""
        if value.constant is not NO_CONSTANT:
            chosen = then if value.constant else other
            lines, self.env = self.arm(chosen, self.env)
            self.emit("if True:", lines)
            return None
        return self.branch(value.text, then, other, live)

    def none_test(self, is_none_test: bool, name: str, known: Variable, then: Any, other: Any, live: Any) -> None:
        """`if name is None: then else: other`, or with `is not`; the name has another type in each arm."""
        assert self.env is not None
        source, kind = self.variable(name, known.kind), known.kind
        if isinstance(kind, types.Maybe):
            rest, is_none = kind.inner, self.temp(f"not {source}[0]", types.Scalar("bool", True))
        else:
            rest = types.union_of([each for each in kind.scalars if each != NONE])
            found = f"{source}[0] == 0" if NONE in kind.scalars else "False"
            is_none = self.temp(found, types.Scalar("bool", True))
        if not is_none_test:
            then, other = other, then
        arms = (NONE, "0", then), (rest, convert(source, kind, rest), other)
        self.narrowed(is_none.text, name, arms, live)

    def narrowed(self, condition: str, name: str, arms: Sequence[tuple[Any, str, Any]], live: nf.Names | None) -> None:
        """Like `branch`, for arms in each of which a name has another type: (the type, its value, what to read)."""

        def arm(kind: types.Type, text: str, body: Any) -> None:
            assert self.env is not None
            self.env[name] = Variable(kind)
            if text != self.variable(name, kind):
                self.emit(assigned(self.variable(name, kind), text))
            body() if callable(body) else self.block(body)

        first, second = (functools.partial(arm, *each) for each in arms)
        self.branch(condition, first, second, live)

    def on_jump(self, node: nf.Jump) -> None:
        if node.to == "break":
            loop, place = self._leave("break", 1)
            loop.breaks.append(place)
        else:
            loop, place = self._leave("continue", 2)
            loop.continues.append(place)

    def _leave(self, word: str, number: int) -> tuple[_Loop, tuple[Lines, Env]]:
        """Leave the user's innermost loop, or start its next pass; from the body of a `try` by way of its end."""
        depth, loop = [(depth, loop) for depth, loop in enumerate(self.loops, 1) if loop is not None][-1]
        self.finish(depth)
        assert self.env is not None
        place: Lines = []
        inside = self.loops[-1] is None
        self.lines += [Inline(place), *([f"leave = {number}", "break"] if inside else [word])]
        ended, self.env = self.env, None
        return loop, (place, ended)

    def while_(self, node: nf.Loop) -> None:
        """`while`, with the statements before its test."""

        def body() -> None:
            self.block(node.head)
            if self.env is None:
                raise Unreachable
            value = self.condition(node.over)
            if value.constant is NO_CONSTANT or not value.constant:
                place: Lines = []
                assert self.env is not None
                self.emit(f"if not {value.text}:", [Inline(place), "break"])
                exits.append((place, dict(self.env)))
            self.block(node.body)

        exits: list[tuple[Lines, Env]] = []
        self.loop(node, "while True:", body, exits, node.orelse)

    def loop(self, node: Any, head: str, body: Any, exits: list[tuple[Lines, Env]], orelse: Any) -> None:
        """Write a loop, after reading its body repeatedly until the types at its head no longer change.

        Args:
            head: its first line. A `for` ends at its head, a `while True` where `body` adds to `exits`.
            exits: for each end by the loop's own condition, a place for lines and the variables there.
        """
        assert self.env is not None
        live_head, live_out = self.live(node.live_head), self.live(node.live_out)

        def once(env: Env) -> tuple[Lines, list[tuple[Lines, Env]], _Loop]:
            exits.clear()
            self.loops.append(_Loop())
            written, after = self.arm(body, env)
            loop = self.loops.pop()
            assert loop is not None
            ends = list(loop.continues)
            if after is not None:
                ends.append((written, after))
            return written, ends, loop

        entry = dict(self.env)
        live = None if live_head is None else live_head | self.kept
        kept = isinstance(node, nf.Loop)  # a statement of the user's, not a loop of the library's
        start = {name: known for name, known in entry.items() if live is None or name in live or "." in name}
        for name in start.keys() & binds(node) if kept else ():  # its constant would have the body read once more
            start[name] = dataclasses.replace(start[name], constant=NO_CONSTANT)
        key = id(node), tuple(sorted((name, str(known), rep(known.kind)) for name, known in start.items()))
        env = self.heads.get(key, start) if kept else start
        returns, count = len(self.returns), self.count
        jumps = [len(handlers.jumps) for handlers in self.handlers]
        while True:
            _, ends, _ = once(env)
            joined = self.merge_paths([([], start), ([], env), *(([], each) for _, each in ends)], live_head) or {}
            del self.returns[returns:]
            for handlers, length in zip(self.handlers, jumps, strict=True):
                del handlers.jumps[length:]
            if joined == env:
                break
            env = joined
        if kept:
            self.heads[key] = env
        self.count = count
        self.emit(*self.conversions(entry, env))
        before: Lines = []
        self.lines.append(Inline(before))
        written, ends, loop = once(env)
        for lines, each in ends:
            lines += self.conversions(each, env)
        self.emit(head, written)
        if loop.left_by_raise:
            self.emit("if leave >= 10:", ["break"])
        tail: Lines = []
        ways = [(tail, env)] if head.startswith("for") else exits
        flag = self.fresh("ended")
        if orelse:
            normal = self.merge_paths(ways, None)
            lines, after = self.arm(orelse, normal)
            lines[:0] = tail
            self.env = self.merge_paths([*([] if after is None else [(lines, after)]), *loop.breaks], live_out)
            tail = lines
        else:
            self.env = self.merge_paths([*ways, *loop.breaks], live_out)
        if tail and loop.breaks:
            before.append(f"{flag} = True")
            for place, _ in loop.breaks:
                place.append(f"{flag} = False")
            self.emit(f"if {flag}:", tail)
        else:
            self.lines += tail

    # --- the whole function

    def whole(self) -> None:
        """Read the function, and write its text into its instance."""
        instance, form = self.instance, self.form
        names = form.parameters.names
        if form.parameters.named_rest:
            raise self.refuse("a function with *args or **kwargs", form)
        if self.function.__code__.co_flags & _OF_STEPS:
            raise self.refuse("a generator or a coroutine", form)
        if form.shared:
            raise self.refuse("a global name that is bound", form)
        local = instance.local
        if form.outer and (local is None or not local.around.issuperset(form.outer)):
            raise self.refuse("a variable of a function around it that is bound", form)
        texts = []
        self.locals.update(name for name, _ in instance.outer if "." in name)
        for name, kind in [*zip(names, instance.kinds, strict=True), *instance.outer]:
            assert self.env is not None
            self.env[name] = Variable(kind)
            if not isinstance(kind, types.Static) and kind is not types.CONFLICT:
                texts.append(self.variable(name, kind))
        self.block(form.body)
        if self.env is not None:
            with contextlib.suppress(Unreachable):
                self.emit_return(Value(NONE, "0", None), form)
        before = instance.result
        try:
            result = source_program.joined_results(instance, [value.kind for _, value in self.returns] + [before])
        except Unsupported as error:
            raise self.refuse(f"it returns {error}", form) from None
        if result != before:
            instance.result = result
            self.program.changes[0] += 1
        for place, value in self.returns:
            place.append(code("return", "1", convert(value.text, value.kind, result)))
        if not self.returns:
            self.lines.append(FAIL)
        body = _spread(self.lines)
        if self.program.recursive:
            body = [f"depth -= {self._frames()}", "if depth < 0:", [FAIL], *body]
        instance.parameters, instance.body = ["table", "depth", *texts], body

    def _frames(self) -> int:
        """The most that a call takes of Python's recursion limit: a memo and a generator have frames of their own."""
        is_memoised = self.instance.local is not None and bool(self.instance.local.memo)
        nodes = list(nf.walk(self.form.body))
        has_more = any(isinstance(x, nf.Closure) or (isinstance(x, nf.Loop) and x.fills) for x in nodes)
        return 3 if is_memoised or has_more else 1


def _joined_constant(found: Sequence[Variable | None]) -> Any:
    """The constant that a variable is on all paths, or `NO_CONSTANT`."""
    first, *rest = (NO_CONSTANT if each is None else each.constant for each in found)
    plain = type(first) in (int, bool, str)
    return first if all(x is first or (plain and type(x) is type(first) and x == first) for x in rest) else NO_CONSTANT


def _spread(lines: Lines) -> Lines:
    out: Lines = []
    for line in lines:
        if isinstance(line, Inline):
            out += _spread(line.place)
        else:
            out.append((_spread(line) or ["pass"]) if isinstance(line, list) else line)
    return out


def _float(number: float) -> str:
    return "NAN" if number != number else {np.inf: "INF", -np.inf: "(-INF)"}.get(number, f"({number!r})")
