"""The normal form written back as Python: a definition that does what the function does, to read and to run."""

import ast
import dataclasses
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any

from autobatch.facts.operators import ARITHMETIC, BINARY, UNARY
from autobatch.program import normal_form as nf
from autobatch.program.liveness import all_names
from autobatch.program.quote import definition, located

_BINARY = {each.symbol: getattr(ast, each.syntax) for each in BINARY}
_COMPARED = {"is": ast.Is, "is not": ast.IsNot, "in": ast.In, "not in": ast.NotIn}
_UNARY = {each.name: getattr(ast, each.syntax) for each in UNARY} | {"not": ast.Not}
_UPDATES = {f"{each.symbol}=": getattr(ast, each.syntax) for each in ARITHMETIC}
_COMPREHENSIONS: dict[str, Any] = {
    "list": ast.ListComp, "set": ast.SetComp, "dict": ast.DictComp, "generator": ast.GeneratorExp,
}  # fmt: skip
_DISPLAYS = {"list": ast.List, "set": ast.Set, "tuple": ast.Tuple}


class Writer:
    """Writes programs as Python; a subclass may write some values or statements in another way."""

    def definition(self, function: nf.Closure, name: str = "") -> ast.FunctionDef:
        """The definition of a function.

        >>> from autobatch.program.lowering import lowered
        >>> tree = ast.parse("def f(a, b): return [x if x else b for x in a]").body[0]
        >>> print(ast.unparse(Writer().definition(lowered(tree))))
        def f(a, b):
            _ab_1 = []
            for x in a:
                if x:
                    _ab_2 = x
                else:
                    _ab_2 = b
                _ab_1.append(_ab_2)
            return _ab_1
        """
        body = self.statements(function.body)
        for names, syntax in ((function.shared, ast.Global), (function.outer, ast.Nonlocal)):
            if names:
                body.insert(0, _at(syntax(sorted(names)), function))
        if function.doc is not None:
            body.insert(0, _at(ast.Expr(_at(ast.Constant(function.doc), function)), function))
        if function.is_generator and not any(
            isinstance(n, ast.Yield | ast.YieldFrom) for s in body for n in ast.walk(s)
        ):
            body.append(_at(ast.Expr(_at(ast.Yield(None), function)), function))
        out = definition(name or function.name, self.arguments(function.parameters, function), body, body[0])
        out.decorator_list = [self.value(each) for each in function.decorators]
        return _at(out, function)

    def statements(self, body: Sequence[nf.Statement]) -> list[ast.stmt]:
        """Statements as Python; `pass` if there are none."""
        out = [line for each in body for line in self.statement(each)]
        return out or [ast.Pass(lineno=1, col_offset=0, end_lineno=1, end_col_offset=0)]

    def target(self, node: nf.Target, at: nf.Node, ctx: ast.expr_context | None = None) -> ast.expr:
        """A target as Python."""
        ctx = ctx or ast.Store()
        if isinstance(node, str):
            return _at(ast.Name(node, ctx), at)
        parts = [self.target(each, node, ctx) for each in node.targets]
        if node.starred >= 0:
            parts[node.starred] = _at(ast.Starred(parts[node.starred], ctx), node)
        return _at(ast.Tuple(parts, ctx), node)

    def value(self, node: nf.Value) -> ast.expr:
        """A value as Python."""
        return _at(self.syntax_of(node), node)

    def optional(self, node: nf.Value | None = None) -> Any:
        """A value as Python, where there may be none."""
        return None if node is None else self.value(node)

    def statement(self, node: nf.Statement) -> list[ast.stmt]:
        """A statement as Python."""
        made: ast.stmt
        match node:
            case nf.Bind(target=str() as name, value=nf.Closure() as function) if not nf.is_lambda(function):
                return [self.definition(function, name)]
            case nf.Bind(target=None, value=nf.Value() as value):
                made = ast.Expr(self.value(value))
            case nf.Bind(value=None) | nf.Write(value=None):
                made = ast.Delete([self.place_of(node, ast.Del())])
            case (
                nf.Bind(value=nf.Call(args=[read, more]) as update)
                | nf.Write(value=nf.Call(args=[read, more]) as update)
            ) if update.symbol in _UPDATES:
                kept = isinstance(read, nf.Name) and read.id != getattr(node, "target", None)
                place: Any = self.target(read.id, node) if kept else self.place_of(node, ast.Store())  # type: ignore[attr-defined]
                made = ast.AugAssign(place, _UPDATES[update.symbol](), self.value(more))
                if kept:  # read before `more` was evaluated
                    return [_at(made, node), *self.statement(dataclasses.replace(node, value=read))]
            case nf.Bind(value=nf.Value() as value) | nf.Write(value=nf.Value() as value):
                made = ast.Assign([self.place_of(node, ast.Store())], self.value(value))
            case nf.Jump(to=to):
                made = ast.Break() if to == "break" else ast.Continue()
            case nf.Return(value=result):
                made = ast.Return(self.optional(result))
            case nf.Raise(value=nf.Call(function=nf.Operator(symbol="assertion"), args=words)):
                made = ast.Assert(_at(ast.Constant(False), node), self.optional(*words))
            case nf.Raise(value=error, cause=cause):
                made = ast.Raise(self.optional(error), self.optional(cause))
            case nf.Inner():
                return [_at(each, node) for each in self.compound(node)]
            case nf.OpaqueStatement():
                return [node.syntax]
            case _:
                raise TypeError(f"no statement: {node!r}")
        return [_at(made, node)]

    def compound(self, node: nf.Inner) -> list[ast.stmt]:
        """A statement with statements in it as Python."""
        match node:
            case nf.Branch(
                body=[], orelse=[nf.Raise(value=nf.Call(function=nf.Operator(symbol="assertion"), args=words))]
            ):
                return [ast.Assert(self.value(node.test), self.optional(*words))]
            case nf.Branch():
                orelse = self.statements(node.orelse) if node.orelse else []
                return [ast.If(self.value(node.test), self.statements(node.body), orelse)]
            case nf.Loop():
                return self.loop(node)
            case nf.Try():
                handlers = [
                    _at(ast.ExceptHandler(self.optional(x.types), x.name or None, self.statements(x.body)), x)
                    for x in node.handlers
                ]
                orelse, final = [self.statements(each) if each else [] for each in (node.orelse, node.final)]
                return [ast.Try(self.statements(node.body), handlers, orelse, final)]
            case nf.With():
                taken = None if node.target is None else self.target(node.target, node)
                return [ast.With([ast.withitem(self.value(node.manager), taken)], self.statements(node.body))]
        raise TypeError(f"no statement: {node!r}")

    def loop(self, node: nf.Loop) -> list[ast.stmt]:
        orelse = self.statements(node.orelse) if node.orelse else []
        if node.target is not None:
            over = self.target(node.target, node), self.value(node.over)
            return [_at(ast.For(*over, self.statements(node.body), orelse), node)]
        if not node.head:
            return [_at(ast.While(self.value(node.over), self.statements(node.body), orelse), node)]
        end: list[ast.stmt] = [_at(ast.Break(), node)]
        ended = f"{nf.TEMPORARY}ended_{node.at.line}_{node.at.column}"
        if orelse:
            end.insert(0, _at(ast.Assign([self.target(ended, node)], _at(ast.Constant(True), node)), node))
        stops = _at(ast.If(_at(ast.UnaryOp(ast.Not(), self.value(node.over)), node), end, []), node)
        true = _at(ast.Constant(True), node)
        loop = _at(ast.While(true, [*self.statements(node.head), stops, *self.statements(node.body)], []), node)
        if not orelse:
            return [loop]
        start = _at(ast.Assign([self.target(ended, node)], _at(ast.Constant(False), node)), node)
        return [start, loop, _at(ast.If(self.value(nf.Name(node.at, ended)), orelse, []), node)]

    def place_of(self, node: nf.Bind | nf.Write, ctx: ast.expr_context) -> ast.expr:
        if isinstance(node, nf.Bind):
            return self.target(node.target, node, ctx)  # type: ignore[arg-type]
        base = self.value(node.base)
        if isinstance(node.key, str):
            return _at(ast.Attribute(base, node.key, ctx), node)
        return _at(ast.Subscript(base, self.value(node.key), ctx), node)

    def syntax_of(self, node: nf.Value) -> ast.expr:
        """A value as Python, without its place."""
        match node:
            case nf.Name(id=name):
                return ast.Name(name, ast.Load())
            case nf.Constant(value=FunctionType() as ours):
                return ast.Name(f"{nf.TEMPORARY}{ours.__name__}", ast.Load())
            case nf.Constant(value=literal):
                return ast.Constant(literal)  # type: ignore[arg-type]
            case nf.Spread(value=part):
                return ast.Starred(self.value(part), ast.Load())
            case nf.Call(function=nf.Operator()):
                return self.operation(node.symbol, node.args, node)
            case nf.Call(args=args, keywords=keywords):
                return ast.Call(self.callee(node), [self.value(each) for each in args], self.keywords(keywords))
            case nf.Read(base=base, key=str(key)):
                return ast.Attribute(self.value(base), key, ast.Load())
            case nf.Read(base=base, key=nf.Value() as key):
                return ast.Subscript(self.value(base), self.value(key), ast.Load())
            case nf.Yield(value=part, every=every):
                return ast.YieldFrom(self.value(part)) if every else ast.Yield(self.value(part))
            case nf.Closure(parameters=parameters, body=[nf.Return(value=nf.Value() as result)]):
                return ast.Lambda(self.arguments(parameters, node), self.value(result))
            case nf.Sugar():
                return self.sugar(node)
            case nf.Opaque(syntax=syntax):
                return syntax
        raise TypeError(f"no value: {node!r}")

    def keywords(self, named: Sequence[tuple[str, nf.Value]]) -> list[ast.keyword]:
        """Arguments by name as Python."""
        values = [self.value(part.value if isinstance(part, nf.Spread) else part) for _, part in named]
        return [_at(ast.keyword(name or None, x), part) for (name, part), x in zip(named, values, strict=True)]

    @staticmethod
    def placed(syntax: Any, node: nf.Node) -> Any:
        """Syntax at the place of a node."""
        return _at(syntax, node)

    def callee(self, call: nf.Call) -> ast.expr:
        """The function of a call as Python."""
        return self.value(call.function)

    def sugar(self, node: nf.Sugar) -> ast.expr:
        parts = [self.value(each) for each in node.parts if not isinstance(each, nf.Operator)]
        match node.how:
            case "if":
                return ast.IfExp(*parts)
            case "and" | "or":
                return ast.BoolOp(ast.And() if node.how == "and" else ast.Or(), parts)
            case "keep":
                name = node.parts[0]
                assert isinstance(name, nf.Name)
                return ast.NamedExpr(self.target(name.id, name), parts[1])  # type: ignore[arg-type]
            case "compare":
                symbols = [each.symbol for each in node.parts if isinstance(each, nf.Operator)]
                compared: Any = [(_BINARY.get(symbol) or _COMPARED[symbol])() for symbol in symbols]
                return ast.Compare(parts[0], compared, parts[1:])
        return self.comprehension_of(node, parts, self)

    def comprehension_of(self, node: nf.Sugar, parts: list[ast.expr], writer: "Writer") -> ast.expr:
        """A comprehension of an element, or a key and a value; another writer may write its iterables and tests."""
        loops: list[ast.comprehension] = []
        for each in node.loops:
            tests = [writer.value(test) for test in each.tests]
            loops.append(ast.comprehension(self.target(each.target, each), writer.value(each.over), tests, 0))
        return _COMPREHENSIONS[node.how](*parts, loops)

    def operation(self, symbol: str, args: list[nf.Value], node: nf.Value) -> ast.expr:
        if symbol in _BINARY and len(args) == 2 and issubclass(_BINARY[symbol], ast.operator):
            return ast.BinOp(self.value(args[0]), _BINARY[symbol](), self.value(args[1]))
        if symbol in _BINARY or symbol in _COMPARED:
            syntax: Any = _BINARY.get(symbol) or _COMPARED[symbol]
            return ast.Compare(self.value(args[0]), [syntax()], [self.value(args[1])])
        if symbol == "truth":
            return ast.UnaryOp(ast.Not(), _at(ast.UnaryOp(ast.Not(), self.value(args[0])), node))
        if symbol in _UNARY:
            return ast.UnaryOp(_UNARY[symbol](), self.value(args[0]))
        if symbol == "slice":
            return ast.Slice(*[None if nf.is_none(each) else self.value(each) for each in args])
        if symbol == "dict":
            keys = [None if isinstance(each, nf.Spread) else self.value(each.args[0]) for each in args]  # type: ignore[attr-defined]
            items = [self.value(each.value if isinstance(each, nf.Spread) else each.args[1]) for each in args]  # type: ignore[attr-defined]
            return ast.Dict(keys, items)
        if symbol == "set" and not args:
            return ast.Set([_at(ast.Starred(_at(ast.Tuple([], ast.Load()), node), ast.Load()), node)])
        if symbol in _DISPLAYS:
            parts = [self.value(each) for each in args]
            return ast.Set(parts) if symbol == "set" else _DISPLAYS[symbol](parts, ast.Load())
        if symbol == "format":
            return ast.JoinedStr([self.value(each) for each in args])
        if symbol == "formatted":
            subject, conversion, form = args
            assert isinstance(conversion, nf.Constant)
            plain = isinstance(form, nf.Constant) and form.value == ""
            return ast.FormattedValue(self.value(subject), conversion.value, None if plain else self.value(form))  # type: ignore[arg-type]
        raise TypeError(f"no operator of values: {symbol!r}")

    def arguments(self, parameters: nf.Parameters, at: nf.Node) -> ast.arguments:
        def arg(name: str) -> ast.arg:
            return _at(ast.arg(name), at)

        return ast.arguments(
            [arg(each) for each in parameters.positional_only],
            [arg(each) for each in parameters.positional],
            arg(parameters.rest) if parameters.rest else None,
            [arg(each) for each in parameters.keyword_only],
            list(map(self.optional, parameters.keyword_defaults)),
            arg(parameters.named_rest) if parameters.named_rest else None,
            [self.value(each) for each in parameters.defaults],
        )


class _Noted(Writer):
    """Writes before each statement a name, by the number of the note on what is live; `known`: names of variables."""

    def __init__(self, known: nf.Names) -> None:
        self.known = known
        self.notes: list[str] = []

    def statement(self, node: nf.Statement) -> list[ast.stmt]:
        live = node.live_head if isinstance(node, nf.Inner) else node.live_after
        at = nf.Name(node.at, f"{_NOTE}{len(self.notes)}")
        self.notes.append(", ".join(sorted(self.known & live)))
        return [*super().statement(nf.Bind(node.at, None, at)), *super().statement(node)]


_NOTE = f"{nf.TEMPORARY}note_"


def printed(function: nf.Closure) -> str:
    """A function's normal form as text for people, with the variables that may be read after each statement.

    The line of a branch or loop says what may be read when an arm or a step begins.

    >>> from autobatch.program.liveness import annotate
    >>> from autobatch.program.lowering import lowered
    >>> function = lowered(ast.parse("def f(xs, w): return [x * w if x else w for x in xs]").body[0])
    >>> annotate(function)
    >>> print(printed(function))
    def f(xs, w):
        _ab_1 = []                                          # _ab_1, w, xs
        for x in xs:                                        # _ab_1, w
            if x:                                           # _ab_1, w, x
                _ab_2 = x * w                               # _ab_1, _ab_2, w
            else:
                _ab_2 = w                                   # _ab_1, _ab_2, w
            _ab_1.append(_ab_2)                             # _ab_1, w
        return _ab_1
    """
    writer, out, note = _Noted(all_names(function)), [], ""
    for line in filter(str.strip, ast.unparse(writer.definition(function)).splitlines()):
        _, is_note, number = line.partition(_NOTE)
        if not is_note:
            out.append(f"{line:<54}  # {note}" if note else line)
        note = writer.notes[int(number)] if is_note else ""
    return "\n".join(out)


def source_of(tree: ast.AST) -> str:
    """The source of a piece of syntax, for reading."""
    return ast.unparse(tree)


def executed(function: nf.Closure, filename: str, globals_: dict[str, Any]) -> Callable[..., Any]:
    """A function of the program as a function of Python."""
    space: dict[str, Any] = {}
    module = located(ast.Module([Writer().definition(function)], []))
    exec(compile(module, filename, "exec", dont_inherit=True), globals_, space)
    return space[function.name]


def _at(syntax: Any, node: nf.Node) -> Any:
    line, column, end_line, end_column = node.at
    syntax.lineno, syntax.col_offset, syntax.end_lineno, syntax.end_col_offset = line, column, end_line, end_column
    return syntax


def text_of(node: nf.Node) -> str:
    """A statement or value as source code, for messages.

    >>> from autobatch.program.lowering import lowered
    >>> tree = ast.parse("def f(a): return a[1:] + 2").body[0]
    >>> text_of(lowered(tree).body[0])
    'return a[1:] + 2'
    """
    if isinstance(node, nf.Closure):
        node = node.body[0] if len(node.body) == 1 else nf.Name(node.at, node.name)
    if isinstance(node, nf.Statement):
        return "\n".join(map(ast.unparse, Writer().statement(node)))
    return ast.unparse(Writer().value(node)) if isinstance(node, nf.Value) and not isinstance(node, nf.Operator) else ""


def code_of(function: nf.Closure, filename: str) -> CodeType:
    """The code of a function that another one makes; names that it declares as the other's are free in it."""
    tree = Writer().definition(function, function.name if function.name.isidentifier() else "_lambda")
    tree.decorator_list = []
    body = [*(ast.parse(f"{name} = None").body[0] for name in sorted(function.outer)), tree]
    around = ast.Module([definition("around", ast.arguments([], [], None, [], [], None, []), body, tree)], [])
    (made,) = [each for each in compile(around, filename, "exec").co_consts if isinstance(each, CodeType)]
    (code,) = [each for each in made.co_consts if isinstance(each, CodeType)]
    return code
