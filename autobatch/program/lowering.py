"""From a syntax tree to the normal form: the one place where Python's sugar is removed.

An operand that needs statements (a ternary, say) puts them before the statement that it stands in, so the operands
before it are kept in temporary names, unless nothing in these statements can change what they are. What is read of a
module, or of the object whose method is called, stays where it is: `np.maximum(a if c else b, d)` reads `np.maximum`
after it has chosen.
"""

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from autobatch.errors import Unsupported
from autobatch.facts.operators import BINARY, UNARY
from autobatch.program import liveness
from autobatch.program import normal_form as nf
from autobatch.program.quote import located
from autobatch.program.scopes import binds, bound_names, local_nodes, parameters

_SYMBOLS = {getattr(ast, each.syntax): each.symbol for each in BINARY} | {
    ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip
_UNARY = {getattr(ast, each.syntax): each.name for each in UNARY} | {ast.Not: "not"}
_Binding = tuple[ast.Name, ast.expr]
_COMPREHENSIONS = {ast.ListComp: "list", ast.SetComp: "set", ast.DictComp: "dict"}


def lowered(tree: ast.FunctionDef) -> nf.Closure:
    """The normal form of a function, given its definition without decorators; the tree is not changed.

    >>> tree = ast.parse("def f(a, b): return a if a else b").body[0]
    >>> [type(each).__name__ for each in lowered(tree).body]
    ['Branch', 'Return']
    """
    scope = _Lowering(tree, _Numbers())
    made = scope.function(tree, tree.name)
    made.parameters.defaults = list(map(scope.shown, tree.args.defaults))
    made.parameters.keyword_defaults = [None if each is None else scope.shown(each) for each in tree.args.kw_defaults]
    return made


class _Numbers:
    """The numbers of temporary names, one after the other through a function and all inside of it."""

    def __init__(self) -> None:
        self.count = 0

    def fresh(self, word: str = "") -> str:
        self.count += 1
        return f"{nf.TEMPORARY}{self.count}_{word}" if word else f"{nf.TEMPORARY}{self.count}"


class _Lowering:
    """Lowers one scope."""

    def __init__(self, scope: ast.FunctionDef | ast.Lambda, numbers: _Numbers, renamed: dict[str, str] | None = None):
        self.scope = scope
        self.numbers = numbers
        self.renamed = renamed or {}  # variables of comprehensions around, whose names the function has, too
        self.given = parameters(scope)
        self.local = self.given | bound_names(scope.body) | _of_comprehensions(scope)
        self.elsewhere = {name for part in ast.walk(scope) if isinstance(part, ast.Nonlocal) for name in part.names}
        self.used = Counter(node.id for node in ast.walk(scope) if isinstance(node, ast.Name))
        self.out: list[nf.Statement] = []

    # functions

    def function(self, node: ast.FunctionDef | ast.Lambda, name: str) -> nf.Closure:
        """A function whose defaults were lowered in the scope around, where they are evaluated (`closure`)."""
        body = node.body if isinstance(node.body, list) else [ast.copy_location(ast.Return(node.body), node.body)]
        doc = ast.get_docstring(node, clean=False) if isinstance(node, ast.FunctionDef) else None
        declared: dict[type, set[str]] = {ast.Global: set(), ast.Nonlocal: set()}
        is_generator = False
        for part in local_nodes(body):
            if isinstance(part, ast.Global | ast.Nonlocal):
                declared[type(part)].update(part.names)
            is_generator = is_generator or isinstance(part, ast.Yield | ast.YieldFrom)
        args = node.args
        first, second, named = [[each.arg for each in part] for part in (args.posonlyargs, args.args, args.kwonlyargs)]
        rest, more = [each.arg if each else "" for each in (args.vararg, args.kwarg)]
        parts = nf.Parameters(first, second, rest, named, more, [], [None] * len(named))
        return nf.Closure(
            _place(node), name, parts, self.body(body), nf.Names(declared[ast.Global]),
            nf.Names(declared[ast.Nonlocal]), is_generator, doc,
        )  # fmt: skip

    def closure(self, node: ast.FunctionDef | ast.Lambda, name: str) -> nf.Closure:
        """A function that is made in this scope."""
        args = node.args
        named = [each for each in args.kw_defaults if each is not None]
        decorators = getattr(node, "decorator_list", [])
        values = self.values([*decorators, *args.defaults, *named])
        hidden = {key: value for key, value in self.renamed.items() if key not in _own_names(node)}
        made = _Lowering(node, self.numbers, hidden).function(node, name)
        rest = iter(values)
        made.decorators = [next(rest) for _ in decorators]
        made.parameters.defaults = [next(rest) for _ in args.defaults]
        made.parameters.keyword_defaults = [None if each is None else next(rest) for each in args.kw_defaults]
        return made

    # statements

    def body(self, statements: Sequence[ast.stmt]) -> list[nf.Statement]:
        """Lower statements to a list of their own."""
        outer, self.out = self.out, []
        for each in statements:
            self.statement(each)
        made, self.out = self.out, outer
        return made

    def apart(self, lower: Callable[[], None]) -> list[nf.Statement]:
        """The statements that `lower` makes, in a list of their own."""
        outer, self.out = self.out, []
        lower()
        made, self.out = self.out, outer
        return made

    def values_apart(self, nodes: Sequence[ast.expr]) -> tuple[list[nf.Value], list[nf.Statement]]:
        """Values, and the statements that they need, in a list of their own."""
        values: list[nf.Value] = []
        return values, self.apart(lambda: values.extend(self.values(nodes)))

    def statement(self, node: ast.stmt) -> None:
        """Lower a statement onto `out`."""
        at = _place(node)
        match node:
            case ast.Expr(value=ast.Constant()) | ast.Pass() | ast.Global() | ast.Nonlocal():
                pass
            case ast.Expr(value=value):
                self.out.append(nf.Bind(at, None, self.whole(value)))
            case ast.Assign(targets=targets, value=value):
                self.assign(targets, value, at)
            case ast.AnnAssign(target=target, value=value):
                if value is not None:
                    self.assign([target], value, at)
            case ast.AugAssign():
                self.update(node, at)
            case ast.Delete(targets=targets):
                for target in targets:
                    self.delete(target)
            case ast.Return(value=value):
                self.out.append(nf.Return(at, None if value is None else self.value(value)))
            case ast.Raise(exc=error, cause=cause):
                values = self.values([each for each in (error, cause) if each is not None])
                self.out.append(nf.Raise(at, *values))
            case ast.Assert(test=test, msg=message):
                if __debug__:
                    self.check(test, message, at)
            case ast.If(test=test, body=body, orelse=orelse):
                self.branch(test, body, orelse, at)
            case ast.For(target=target, iter=over, body=body, orelse=orelse):
                items = self.value(over)
                name, start = self.target(target)
                self.out.append(nf.Loop(at, name, items, [*start, *self.body(body)], self.body(orelse)))
            case ast.While(test=test, body=body, orelse=orelse):
                tests: list[nf.Value] = []
                head = self.apart(lambda: tests.append(self.test(test)))
                self.out.append(nf.Loop(at, None, tests[0], self.body(body), self.body(orelse), head))
            case ast.Break():
                self.out.append(nf.Jump(at, "break"))
            case ast.Continue():
                self.out.append(nf.Jump(at, "continue"))
            case ast.With():
                self.managers(node.items, node.body, at)
            case ast.Try():
                self.attempt(node, at)
            case ast.Match():
                self.match(node, at)
            case ast.FunctionDef(name=name) if not _is_annotated(node):
                self.assign([ast.copy_location(ast.Name(name, ast.Store()), node)], self.closure(node, name), at)
            case _:
                self.out.append(nf.OpaqueStatement(at, self.kept_syntax(node)))

    def assign(self, targets: list[ast.expr], value: ast.expr | nf.Value, at: nf.Place) -> None:
        """`a = b[i] = value`, from left to right."""
        if len(targets) == 1 and isinstance(targets[0], ast.Subscript | ast.Attribute):
            self.store(targets[0], value, at)
            return
        made = value if isinstance(value, nf.Value) else self.whole(value)
        if len(targets) > 1:
            made = self.named(made)
        for target in targets:
            if isinstance(target, ast.Subscript | ast.Attribute):
                self.store(target, made, at)
                continue
            name, stores = self.target(target)
            self.out.append(nf.Bind(at, name, made))
            self.out += stores

    def target(self, node: ast.expr) -> tuple[nf.Target, list[nf.Statement]]:
        """A target of names only, and the statements after it that store into items and attributes."""
        if isinstance(node, ast.Name):
            return self.renamed.get(node.id, node.id), []
        if not any(isinstance(part, ast.Subscript | ast.Attribute) for part in ast.walk(node)):
            return self.unpacked(node, lambda name: self.renamed.get(name.id, name.id)), []
        parts: list[tuple[ast.expr, str]] = []  # bound one after the other: an index may read the part before it

        def temporary(part: ast.expr) -> str:
            parts.append((part, self.numbers.fresh()))
            return parts[-1][1]

        target = temporary(node) if isinstance(node, ast.Subscript | ast.Attribute) else self.unpacked(node, temporary)

        def stores() -> None:
            for part, name in parts:
                self.assign([part], nf.Name(_place(part), name), _place(part))

        return target, self.apart(stores)

    def unpacked(self, node: ast.expr, name: Callable[[Any], str]) -> nf.Target:
        if not isinstance(node, ast.Tuple | ast.List):
            return name(node)
        starred = [place for place, part in enumerate(node.elts) if isinstance(part, ast.Starred)]
        parts = [part.value if isinstance(part, ast.Starred) else part for part in node.elts]
        return nf.Unpack(_place(node), [self.unpacked(part, name) for part in parts], *starred)

    def store(self, target: ast.Subscript | ast.Attribute, value: ast.expr | nf.Value, at: nf.Place) -> None:
        """`base[key] = value`: the value is evaluated first."""
        if isinstance(target, ast.Attribute):
            made, base = self.values([value, target.value])
            self.out.append(nf.Write(at, base, target.attr, made))
        else:
            made, base, key = self.values([value, target.value, target.slice])
            self.out.append(nf.Write(at, base, key, made))

    def update(self, node: ast.AugAssign, at: nf.Place) -> None:
        """`target += value`: base and key are evaluated once, and read and written in turn."""
        operator = nf.Operator(at, f"{_SYMBOLS[type(node.op)]}=")
        target = node.target
        if isinstance(target, ast.Name):
            values = self.values([ast.copy_location(ast.Name(target.id, ast.Load()), target), node.value])
            self.out.append(nf.Bind(at, self.renamed.get(target.id, target.id), nf.Call(at, operator, values)))
            return
        bound = {part.target.id for part in ast.walk(node.value) if isinstance(part, ast.NamedExpr)}
        key: nf.Value | str
        if isinstance(target, ast.Attribute):
            base, key = self.twice(self.value(target.value), bound), target.attr
        else:
            base, key = [self.twice(each, bound) for each in self.values([target.value, target.slice])]
        values = self.values([nf.Read(_place(target), base, key), node.value])
        self.out.append(nf.Write(at, base, key, nf.Call(at, operator, values)))

    def delete(self, target: ast.expr) -> None:
        at = _place(target)
        match target:
            case ast.Name(id=name):
                self.out.append(nf.Bind(at, self.renamed.get(name, name), None))
            case ast.Attribute(value=base, attr=name):
                self.out.append(nf.Write(at, self.value(base), name, None))
            case ast.Subscript(value=base, slice=key):
                made, index = self.values([base, key])
                self.out.append(nf.Write(at, made, index, None))
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    self.delete(part)

    def check(self, test: ast.expr, message: ast.expr | None, at: nf.Place) -> None:
        """`assert`."""
        made = self.test(test)

        def fail() -> None:
            words = [] if message is None else [self.value(message)]
            self.out.append(nf.Raise(at, nf.Call(at, nf.Operator(at, "assertion"), words)))

        self.out.append(nf.Branch(at, made, [], self.apart(fail)))

    def branch(self, test: ast.expr, body: Sequence[ast.stmt], orelse: Sequence[ast.stmt], at: nf.Place) -> None:
        """`if`; `if a and b` without an else is one `if` in another, without a name for the test."""
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) and not orelse:
            first, *rest = test.values
            more = rest[0] if len(rest) == 1 else ast.copy_location(ast.BoolOp(test.op, rest), rest[0])
            inner = ast.copy_location(ast.If(more, list(body), []), more)
            self.out.append(nf.Branch(at, self.test(first), self.body([inner]), []))
        else:
            self.out.append(nf.Branch(at, self.test(test), self.body(body), self.body(orelse)))

    def managers(self, items: list[ast.withitem], body: list[ast.stmt], at: nf.Place) -> None:
        first, *rest = items
        manager = self.value(first.context_expr)
        target, start = (None, []) if first.optional_vars is None else self.target(first.optional_vars)
        inner = self.apart(lambda: self.managers(rest, body, at)) if rest else self.body(body)
        self.out.append(nf.With(at, manager, target, [*start, *inner]))

    def attempt(self, node: ast.Try, at: nf.Place) -> None:
        handlers: list[nf.Handler] = []
        for each in node.handlers:
            types, before = self.values_apart([each.type] if each.type else [])
            if before:  # they would have to run when an exception is raised
                self.out.append(nf.OpaqueStatement(at, self.kept_syntax(node)))
                return
            caught = types[0] if types else None
            handlers.append(nf.Handler(_place(each), caught, each.name or "", self.body(each.body)))
        self.out.append(nf.Try(at, self.body(node.body), handlers, self.body(node.orelse), self.body(node.finalbody)))

    def match(self, node: ast.Match, at: nf.Place) -> None:
        """`match`: branches; a tuple that is written as the subject is looked at item by item."""
        parts = [node.subject]
        if isinstance(node.subject, ast.Tuple) and not any(isinstance(x, ast.Starred) for x in node.subject.elts):
            parts = node.subject.elts
        names = [ast.Name(self.numbers.fresh(), ast.Load()) for _ in parts]
        subject = names[0] if parts == [node.subject] else ast.Tuple([*names], ast.Load())
        chosen: list[ast.stmt] = []
        for case in reversed(node.cases):
            tests: list[ast.expr] = []
            bound: list[_Binding] = []
            try:
                self.pattern(case.pattern, subject, tests, bound)
            except Unsupported:
                self.out.append(nf.OpaqueStatement(at, self.kept_syntax(node)))
                return
            body: list[ast.stmt] = [ast.Assign([target], value) for target, value in bound]
            if case.guard is not None:  # it sees the names
                tests, body = [*tests, *map(_binding, bound), case.guard], []
            chosen = [ast.If(_all(tests), [*body, *case.body], chosen)] if tests else [*body, *case.body]
            for each in chosen:
                located(ast.copy_location(each, case.pattern) if not hasattr(each, "lineno") else each)
        for name, value in zip(names, self.values(parts), strict=True):
            self.out.append(nf.Bind(value.at, name.id, value))
        self.out += self.body(chosen)

    def pattern(self, node: ast.pattern, subject: ast.expr, tests: list[ast.expr], bound: list[_Binding]) -> None:
        """Add the tests of a pattern, in order, and what its names are bound to once all of them hold."""
        parts: Any = []
        called: list[ast.expr] = []
        match node:
            case ast.MatchValue(value=value):
                tests.append(ast.Compare(subject, [ast.Eq()], [value]))
            case ast.MatchSingleton(value=value):
                tests.append(ast.Compare(subject, [ast.Is()], [ast.Constant(value)]))
            case ast.MatchAs(name=name) | ast.MatchStar(name=name):
                bound += [(ast.Name(name, ast.Store()), subject)] if name else []
                parts = [(inner, subject)] if (inner := getattr(node, "pattern", None)) else []
            case ast.MatchOr(patterns=patterns):
                kept = {name: self.numbers.fresh(nf.PART) for name in sorted(bound_names(node))}
                bound += [(ast.Name(name, ast.Store()), ast.Name(held, ast.Load())) for name, held in kept.items()]
                tests.append(ast.BoolOp(ast.Or(), []))
                for each in patterns:
                    own: tuple[list[ast.expr], list[_Binding]] = [], []
                    self.pattern(each, subject, *own)
                    named = [_binding((ast.Name(kept[to.id], to.ctx), value)) for to, value in own[1]]
                    tests[-1].values.append(_all([*own[0], *named]))  # type: ignore[attr-defined]
            case ast.MatchSequence(patterns=patterns):
                star = next((place for place, each in enumerate(patterns) if isinstance(each, ast.MatchStar)), -1)
                keeps = star >= 0 and patterns[star].name is not None  # type: ignore[attr-defined]
                called = [ast.Constant(each) for each in (nf.sequence_parts, len(patterns), star, keeps)]  # type: ignore[arg-type]
                if isinstance(subject, ast.Tuple) and star < 0 and len(patterns) == len(subject.elts):
                    parts, called = zip(patterns, subject.elts, strict=True), []
            case ast.MatchClass(cls=cls, patterns=patterns, kwd_attrs=names, kwd_patterns=others):
                called = [ast.Constant(nf.class_parts), cls, ast.Constant(len(patterns)), ast.Constant((*names,))]  # type: ignore[arg-type]
                patterns = [*patterns, *others]
            case _:
                raise Unsupported("a pattern of keys")
        if called:
            name = self.numbers.fresh(nf.PART)
            part = ast.NamedExpr(ast.Name(name, ast.Store()), ast.Call(called[0], [subject, *called[1:]], []))
            tests.append(ast.Compare(part, [ast.IsNot()], [ast.Constant(None)]))
            read = ast.Name(name, ast.Load())
            parts = [(each, ast.Subscript(read, ast.Constant(k), ast.Load())) for k, each in enumerate(patterns)]
        for inner, of in parts:
            self.pattern(inner, of, tests, bound)

    # values

    def shown(self, node: ast.expr) -> nf.Value:
        """A default, which is evaluated elsewhere: `...` for one that needs statements."""
        made: list[nf.Value] = []
        late = self.apart(lambda: made.append(self.value(node)))
        return nf.Constant(_place(node), ...) if late else made[0]

    def whole(self, node: ast.expr) -> nf.Value:
        """The value of a statement that is nothing else: it may be a `yield`."""
        match node:
            case ast.Yield(value=value):
                at = _place(node)
                return nf.Yield(at, nf.Constant(at, None) if value is None else self.value(value))
            case ast.YieldFrom(value=value):
                return nf.Yield(_place(node), self.value(value), True)
        return self.value(node)

    def values(self, nodes: Sequence[ast.expr | nf.Value], name_last: bool = False) -> list[nf.Value]:
        """Operands, evaluated in order; `name_last`: the last one is bound to a temporary name."""
        made: list[nf.Value] = []
        for place, node in enumerate(nodes, 1):
            before = len(self.out)
            value = node if isinstance(node, nf.Value) else self.value(node)
            if name_last and place == len(nodes):
                value = self.named(value)
            if len(self.out) > before:
                late = self.out[before:]
                del self.out[before:]
                made = [self.kept(each, late) for each in made]
                self.out += late
            made.append(value)
        return made

    def kept(self, value: nf.Value, late: list[nf.Statement]) -> nf.Value:
        """A value that the statements `late`, which come to run after it is evaluated, cannot change."""
        if isinstance(value, nf.Spread):
            return nf.Spread(value.at, self.kept(value.value, late), value.named)
        if isinstance(value, nf.Call) and value.symbol in ("item", "format", "formatted"):
            return nf.Call(value.at, value.function, [self.kept(each, late) for each in value.args])
        if isinstance(value, nf.Read) and isinstance(value.key, str) and self.is_global_path(value):
            return value
        if isinstance(value, nf.Name) and (value.id not in self.local or self.is_steady(value, liveness.binds(late))):
            return value
        return self.named(value)

    def twice(self, value: nf.Value, bound: Iterable[str]) -> nf.Value:
        """A value that may be evaluated twice, while the names `bound` are bound in between."""
        if isinstance(value, nf.Call) and value.symbol in ("tuple", "slice"):  # an index of several axes
            return nf.Call(value.at, value.function, [self.twice(each, bound) for each in value.args])
        steady = isinstance(value, nf.Name) and value.id in self.local and self.is_steady(value, bound)
        return value if steady else self.named(value)

    def is_steady(self, name: nf.Name, bound: Iterable[str]) -> bool:
        """True if a local variable, certainly bound, is the same after statements that bind the names `bound`."""
        return name.id.startswith(nf.TEMPORARY) or (name.id not in self.elsewhere and name.id not in bound)

    def is_global_path(self, value: nf.Value) -> bool:
        while isinstance(value, nf.Read) and isinstance(value.key, str):
            value = value.base
        return isinstance(value, nf.Name) and value.id not in self.local and not value.id.startswith(nf.TEMPORARY)

    def named(self, value: nf.Value) -> nf.Value:
        """A value that may be evaluated twice: a constant, or a temporary name bound here."""
        is_temporary = isinstance(value, nf.Name) and value.id.startswith(nf.TEMPORARY)
        if is_temporary or isinstance(value, nf.Constant | nf.Operator):
            return value
        name = self.numbers.fresh()
        self.out.append(nf.Bind(value.at, name, value))
        return nf.Name(value.at, name)

    def value(self, node: ast.expr) -> nf.Value:
        """Lower an expression; what needs statements puts them onto `out`."""
        at = _place(node)
        match node:
            case ast.Name(id=name):
                return nf.Name(at, self.renamed.get(name, name))
            case ast.Constant(value=value):
                return nf.Constant(at, value)
            case ast.Attribute(value=base, attr=name):
                return nf.Read(at, self.value(base), name)
            case ast.Subscript(value=base, slice=key):
                return nf.Read(at, *self.values([base, key]))
            case ast.Slice(lower=lower, upper=upper, step=step):
                none = ast.copy_location(ast.Constant(None), node)
                return self.operation("slice", [lower or none, upper or none, step or none], at)
            case ast.BinOp(left=left, op=op, right=right):
                return self.operation(_SYMBOLS[type(op)], [left, right], at)
            case ast.UnaryOp(op=op, operand=operand):
                return self.operation(_UNARY[type(op)], [operand], at)
            case ast.Compare():
                return self.comparison(node, at)
            case ast.BoolOp(op=op, values=parts):
                return self.choice(parts, isinstance(op, ast.And), at)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.ternary(test, body, orelse, at)
            case ast.NamedExpr(target=target, value=value):
                self.out.append(nf.Bind(at, target.id, self.value(value)))  # of the function, also in a comprehension
                return nf.Name(at, target.id)
            case ast.Call():
                return self.call(node, at)
            case ast.Starred(value=value):
                return nf.Spread(at, self.value(value))
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                return self.operation(type(node).__name__.lower(), parts, at)
            case ast.Dict(keys=keys, values=values):
                return self.dictionary(keys, values, at)
            case ast.JoinedStr(values=parts):
                return self.operation("format", parts, at)
            case ast.FormattedValue(value=value, conversion=conversion, format_spec=spec):
                form = nf.Constant(at, "") if spec is None else spec
                return self.operation("formatted", [value, nf.Constant(at, conversion), form], at)
            case ast.Lambda():
                made = self.closure(node, "<lambda>")
                return made if len(made.body) == 1 else self.named(made)
            case ast.Yield() | ast.YieldFrom():
                return self.named(self.whole(node))
            case ast.ListComp() | ast.SetComp() | ast.DictComp() if self.can_fill(node):
                return self.comprehension(node, at)
            case ast.GeneratorExp() if self.can_fill(node) and not binds(node):
                return self.generator(node, at)
        return nf.Opaque(at, self.kept_syntax(node))

    def operation(self, symbol: str, operands: Sequence[ast.expr | nf.Value], at: nf.Place) -> nf.Call:
        return nf.Call(at, nf.Operator(at, symbol), self.values(operands))

    def comparison(self, node: ast.Compare, at: nf.Place) -> nf.Value:
        """`a < b < c`: b is evaluated once, and c only if `a < b`."""
        operators = [_SYMBOLS[type(op)] for op in node.ops]
        if len(operators) == 1:
            return self.operation(operators[0], [node.left, node.comparators[0]], at)
        name = self.numbers.fresh()

        def link(left: ast.expr | nf.Value, place: int) -> None:
            last = place + 1 == len(operators)
            values = self.values([left, node.comparators[place]], name_last=not last)
            self.out.append(nf.Bind(at, name, nf.Call(at, nf.Operator(at, operators[place]), values)))
            if not last:
                more = self.apart(lambda: link(values[1], place + 1))
                self.out.append(nf.Branch(at, nf.Name(at, name), more, [], choice=name))

        link(node.left, 0)
        return nf.Name(at, name)

    def test(self, node: ast.expr) -> nf.Value:
        """A test, of which only the truth counts."""
        match node:
            case ast.BoolOp(op=op, values=parts):
                return self.choice(parts, isinstance(op, ast.And), _place(node), tested=True)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                at = _place(node)
                return nf.Call(at, nf.Operator(at, "not"), [self.test(operand)])
        return self.value(node)

    def choice(self, parts: Sequence[ast.expr], both: bool, at: nf.Place, tested: bool = False) -> nf.Value:
        """`a and b`: b is evaluated only if a is true; `a or b`: only if it is not. `tested`: the truth of that."""
        name = self.numbers.fresh()

        def part(node: ast.expr) -> nf.Value:
            if not tested:
                return self.value(node)
            made = self.test(node)
            is_bool = isinstance(made, nf.Call) and made.symbol in ("not", "is", "is not", "in", "not in")
            return made if is_bool else nf.Call(made.at, nf.Operator(made.at, "truth"), [made])

        def decide(place: int) -> None:
            self.out.append(nf.Bind(_place(parts[place]), name, part(parts[place])))
            if place + 1 < len(parts):
                more = self.apart(lambda: decide(place + 1))
                arms = (more, []) if both else ([], more)
                self.out.append(nf.Branch(_place(parts[place]), nf.Name(at, name), *arms, choice=name))

        decide(0)
        return nf.Name(at, name)

    def ternary(self, test: ast.expr, body: ast.expr, orelse: ast.expr, at: nf.Place) -> nf.Value:
        made = self.test(test)
        name = self.numbers.fresh()

        def arm(node: ast.expr) -> list[nf.Statement]:
            return self.apart(lambda: self.out.append(nf.Bind(_place(node), name, self.value(node))))

        self.out.append(nf.Branch(at, made, arm(body), arm(orelse), choice=name))
        return nf.Name(at, name)

    def call(self, node: ast.Call, at: nf.Place) -> nf.Value:
        """A call: of the function only its object is kept before arguments that need statements."""
        function = node.func
        place = _place(function)
        parts: list[ast.expr | nf.Value] = [*node.args]
        for each in node.keywords:
            parts.append(each.value)
        if isinstance(function, ast.Attribute):
            base, *values = self.values([function.value, *parts])
            called: nf.Value = nf.Read(place, base, function.attr)
        else:
            called, *values = self.values([function, *parts])
        args, named = values[: len(node.args)], values[len(node.args) :]
        keywords: list[tuple[str, nf.Value]] = []
        for each, value in zip(node.keywords, named, strict=True):
            keywords.append(("", nf.Spread(value.at, value, True)) if each.arg is None else (each.arg, value))
        return nf.Call(at, called, args, keywords)

    def dictionary(self, keys: Sequence[ast.expr | None], values: Sequence[ast.expr], at: nf.Place) -> nf.Call:
        """`{key: value, **more}`."""
        parts = [part for pair in zip(keys, values, strict=True) for part in pair if part is not None]
        made = iter(self.values(parts))
        items: list[nf.Value] = []
        for key in keys:
            if key is None:
                value = next(made)
                items.append(nf.Spread(value.at, value, True))
            else:
                pair = [next(made), next(made)]
                items.append(nf.Call(pair[0].at, nf.Operator(pair[0].at, "item"), pair))
        return nf.Call(at, nf.Operator(at, "dict"), items)

    # comprehensions

    def can_fill(self, node: Any) -> bool:
        """True if a comprehension is a loop: it is not asynchronous, and makes no function that keeps its variables."""
        bound = {each.id for part in node.generators for each in ast.walk(part.target) if isinstance(each, ast.Name)}
        for part in ast.walk(node):
            if isinstance(part, ast.Await | ast.Yield | ast.YieldFrom) or getattr(part, "is_async", False):
                return False
            if isinstance(part, ast.Lambda):
                kept = bound - {each.arg for each in ast.walk(part.args) if isinstance(each, ast.arg)}
                if any(isinstance(each, ast.Name) and each.id in kept for each in ast.walk(part)):
                    return False
        return True

    def comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp, at: nf.Place) -> nf.Value:
        """`[f(x) for x in xs if p(x)]`: a loop that fills a temporary list."""
        display = _COMPREHENSIONS[type(node)]
        name = self.numbers.fresh()

        def add() -> None:
            if isinstance(node, ast.DictComp):
                key, value = self.values([node.key, node.value])
                self.out.append(nf.Write(at, nf.Name(at, name), self.named(key), value))
                return
            method = nf.Read(at, nf.Name(at, name), "add" if display == "set" else "append")
            self.out.append(nf.Bind(at, None, nf.Call(at, method, [self.value(node.elt)])))

        def start() -> None:
            self.out.append(nf.Bind(at, name, nf.Call(at, nf.Operator(at, display), [])))

        self.loops(node, None, start, add, name)
        return nf.Name(at, name)

    def generator(self, node: ast.GeneratorExp, at: nf.Place) -> nf.Value:
        """`(f(x) for x in xs)`: a generator function of the first iterable, which is evaluated here, and its call."""
        first = self.value(node.generators[0].iter)
        items = self.numbers.fresh("items")
        args = ast.arguments([], [ast.arg(items)], None, [], [], None, [])
        scope = ast.copy_location(ast.Lambda(args, node), node)
        hidden = _Lowering(scope, self.numbers, self.renamed)

        def add() -> None:
            hidden.out.append(nf.Bind(at, None, nf.Yield(at, hidden.value(node.elt))))

        body = hidden.apart(lambda: hidden.loops(node, nf.Name(first.at, items), lambda: None, add, ""))
        made = nf.Closure(at, "<genexpr>", nf.Parameters([], [items], "", [], "", [], []), body, is_generator=True)
        return nf.Call(at, self.named(made), [first])

    def loops(
        self, node: Any, first: nf.Value | None, start: Callable[[], None], add: Callable[[], None], fills: str
    ) -> None:
        """The loops of a comprehension, around what `add` makes; `first`: the first iterable, if it is known."""
        outer = self.renamed
        inside = Counter(part.id for part in ast.walk(node) if isinstance(part, ast.Name))
        generators: list[ast.comprehension] = node.generators
        over = self.value(generators[0].iter) if first is None else first  # before the container is made
        start()
        self.renamed = dict(outer)
        for part in generators:
            for name in {each.id for each in ast.walk(part.target) if isinstance(each, ast.Name)}:
                if inside[name] < self.used[name] or name in self.renamed or name in self.given:
                    self.renamed[name] = self.numbers.fresh(name)

        def loop(place: int, over: nf.Value) -> None:
            part = generators[place]
            target, stores = self.target(part.target)
            body = [*stores, *self.apart(lambda: tests(place, 0))]
            self.out.append(nf.Loop(_place(part.target), target, over, body, [], fills=fills))

        def tests(place: int, number: int) -> None:
            part = generators[place]
            if number < len(part.ifs):
                made = self.test(part.ifs[number])
                self.out.append(nf.Branch(made.at, made, self.apart(lambda: tests(place, number + 1)), []))
            elif place + 1 < len(generators):
                loop(place + 1, self.value(generators[place + 1].iter))
            else:
                add()

        loop(0, over)
        self.renamed = outer

    def kept_syntax(self, node: Any) -> Any:
        """A copy of syntax that stays, in the names of this scope."""
        made = copy.deepcopy(node)
        for part in ast.walk(made):
            if isinstance(part, ast.Name):
                part.id = self.renamed.get(part.id, part.id)
        return made


def _binding(pair: _Binding) -> ast.expr:
    """A test that holds, and binds a name."""
    return ast.Tuple([ast.NamedExpr(*pair)], ast.Load())


def _all(tests: list[ast.expr]) -> ast.expr:
    """The test that all tests hold."""
    return ast.BoolOp(ast.And(), tests) if len(tests) > 1 else tests[0] if tests else ast.Constant(True)


def _place(node: Any) -> nf.Place:
    end = node.end_lineno, node.end_col_offset
    return nf.Place(node.lineno, node.col_offset, end[0] or node.lineno, end[1] or node.col_offset)


def _is_annotated(node: ast.FunctionDef) -> bool:
    """True if annotations of a nested function call something, or it is generic: then it stays as it is."""
    args = node.args
    each = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    found = [node.returns, *(arg.annotation for arg in each if arg is not None)]
    calls = any(isinstance(part, ast.Call) for each in found if each is not None for part in ast.walk(each))
    return calls or bool(getattr(node, "type_params", ()))


def _of_comprehensions(scope: ast.AST) -> set[str]:
    """The variables of all comprehensions in a scope."""
    parts = (part for part in ast.walk(scope) if isinstance(part, ast.comprehension))
    return {each.id for part in parts for each in ast.walk(part.target) if isinstance(each, ast.Name)}


def _own_names(node: ast.FunctionDef | ast.Lambda) -> set[str]:
    return parameters(node) | bound_names(node.body)
