"""Straight-line runs of array expressions into calls of their recorders.

    i, o, u = np.split(x @ w, 3)                  _ab_1 = _ab_record1(x, w, c)
    c = sigmoid(i) * np.tanh(u) + c               if _ab_1 is None:
    return sigmoid(o) * np.tanh(c), c      ->         (the same statements)
                                                  else:
                                                      _ab_2, c = _ab_1
                                                      return _ab_2, c

A run is as long as it can be; the statements that follow a None are made into smaller runs themselves. An expression
that stands in no such statement (a test, an argument) is a block of its own. Calls of the user's functions call their
block forms.
"""

import ast
import contextlib
import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from autobatch.facts.scopes import bound_names, captured, parameters, target_names
from autobatch.lazy.blocks import Guard
from autobatch.rewrite.block_expressions import BlockForm, Refused
from autobatch.rewrite.block_scope import Scope
from autobatch.rewrite.callees import through_form
from autobatch.rewrite.quote import placed, substituted

__all__ = ["Blocks"]

_LEAST = 2  # operations; fewer are as quick on their own, and group with their like anywhere
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_COMPUTED = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.Subscript, ast.Attribute)
_BODIES = ("body", "orelse", "finalbody")
Made = Callable[[BlockForm, list[ast.stmt], list[str], ast.AST], str]


class Blocks:
    """Rewrites one function; its liveness has been annotated.

    Args:
        make: makes a block of a form, the statements of its body, its outputs and its place, and gives the name that
            its recorder has in the rewritten code.
    """

    def __init__(self, scope: Scope, make: Made, numbers: Any = None) -> None:
        self.scope = scope
        self.make = make
        self.numbers = numbers or itertools.count(1)
        self.temporaries: frozenset[str] = frozenset()
        self.assignable: set[str] = set()
        self.lists = True

    def fresh(self) -> str:
        return f"_ab_{next(self.numbers)}"

    def _scope(self, sure: frozenset[str]) -> Scope:
        old = self.scope
        return old.with_names(old.own | self.temporaries, old.sure | sure | self.temporaries, old.shifting)

    def form(self, sure: frozenset[str]) -> BlockForm:
        return BlockForm(self._scope(sure), self.fresh, lambda node: self.expression(node, sure), self.lists)

    @contextlib.contextmanager
    def otherwise(self, form: BlockForm, lists: bool = False) -> Iterator[None]:
        """What runs where a block does not: it may read what was evaluated before, and goes through no list again."""
        outer = self.temporaries, self.lists
        self.temporaries = self.temporaries | set(form.replaced.values())
        self.lists = self.lists and (lists or not form.goes_through)
        try:
            yield
        finally:
            self.temporaries, self.lists = outer

    def function(self, tree: ast.FunctionDef) -> None:
        """Rewrite the body of a function."""
        outer = self.scope
        self._enter(tree)
        tree.body = self.body(tree.body)
        self.scope = outer

    def _enter(self, tree: ast.FunctionDef) -> None:
        own = parameters(tree) | bound_names(tree.body)
        declared = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
        outer, elsewhere = self.scope, _rebound(tree)
        self.assignable = own - declared - elsewhere
        around = outer.own - self.assignable
        self.scope = outer.with_names((outer.own | own) - declared, around, around | captured(tree) | elsewhere)

    def relies_on(self, tree: ast.FunctionDef) -> list[Guard] | None:
        """What a function relies on that does nothing but compute with its parameters; None for any other function."""
        args, names = tree.args, parameters(tree)
        if args.vararg or args.kwarg or not tree.body or not isinstance(tree.body[-1], ast.Return):
            return None
        self._enter(tree)
        first = tree.body[0]
        documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        run = _Run(self, tree.body[1:] if documented else tree.body)
        if not run.is_possible or run.is_partial or not run.outputs:
            return None
        guards = list(run.form.guards.values())
        for name in run.form.names():
            if name is None:
                return None
            if name not in names:
                value = self.scope.binding(name)
                if type(value) not in (int, float, bool):
                    return None
                guards.append(Guard(self.scope.globals, name, (), value, value))
        return guards

    def body(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        at = 0
        while at < len(statements):
            run = self._longest(statements[at:])
            out += run.emitted() if run is not None else self.statement(statements[at])
            at += run.length if run is not None else 1
        return out

    def _longest(self, statements: Sequence[ast.stmt]) -> "_Run | None":
        """The longest run that starts here; None if there is none."""
        tried = _Run(self, statements)
        length = tried.added
        best = tried if tried.is_possible else _Run(self, statements[:length]) if length else None
        while best is not None and not best.is_worthwhile:
            best = _Run(self, statements[: best.length - 1]) if best.length > 1 else None
        return best

    def statement(self, node: ast.stmt) -> list[ast.stmt]:
        """A statement that is part of no run."""
        if isinstance(node, ast.ClassDef):
            return [node]
        if isinstance(node, ast.FunctionDef):
            Blocks(self.scope, self.make, self.numbers).function(node)
            return [node]
        if isinstance(node, ast.AsyncFunctionDef):
            return [node]
        sure = frozenset(getattr(node, "bound_before", frozenset()))
        for field, value in ast.iter_fields(node):
            if field in _BODIES:
                setattr(node, field, self.body(value))
            elif isinstance(value, ast.expr):
                setattr(node, field, self.expression(value, sure))
            elif isinstance(value, list):
                setattr(node, field, [self._part(part, sure) for part in value])
        return [node]

    def _part(self, part: Any, sure: frozenset[str]) -> Any:
        if isinstance(part, ast.expr):
            return self.expression(part, sure)
        if isinstance(part, ast.ExceptHandler | ast.match_case):
            part.body = self.body(part.body)
        elif isinstance(part, ast.withitem):
            part.context_expr = self.expression(part.context_expr, sure)
        return part

    def expression(self, node: ast.expr, sure: frozenset[str], whole: bool = True) -> ast.expr:
        """An expression outside of runs: a block if it can be one, else its parts."""
        if isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):
            return node
        made = self._block(node, sure) if whole else None
        return self._parts(node, sure) if made is None else made

    def _block(self, node: ast.expr, sure: frozenset[str]) -> ast.expr | None:
        form = self.form(sure)
        if not isinstance(node, _COMPUTED):
            return None
        try:
            body: list[ast.stmt] = [ast.Return(form.build(node))]
        except Refused:
            return None
        if form.count < _LEAST:
            return None
        name = self.make(form, body, [], node)
        result = self.fresh()
        call = _call(name, form)
        test = ast.Compare(ast.NamedExpr(ast.Name(result, ast.Store()), call), [ast.IsNot()], [ast.Constant(None)])
        otherwise = substituted(node, form.replaced)
        if form.goes_through:
            with self.otherwise(form):
                otherwise = self.expression(otherwise, sure)
        else:
            otherwise = _through_forms(otherwise, self.scope)
        out = ast.IfExp(test, ast.Name(result, ast.Load()), otherwise)
        return placed(out, node)

    def _parts(self, node: ast.expr, sure: frozenset[str]) -> ast.expr:
        node = copy.copy(node)
        if isinstance(node, ast.Lambda):
            inner = Blocks(self.scope, self.make, self.numbers)
            names = parameters(node)
            inner.scope = self.scope.with_names(self.scope.own | names, self.scope.own | names, self.scope.own)
            node.body = inner.expression(node.body, frozenset(names))
            return node
        if isinstance(node, _COMPREHENSIONS):
            return self._comprehension(node, sure)
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                setattr(node, field, self.expression(value, sure))
            elif isinstance(value, list):
                setattr(node, field, [self._argument(part, sure) for part in value])
        if isinstance(node, ast.Call):
            node.func = through_form(node.func, self.scope)
        return node

    def _argument(self, part: Any, sure: frozenset[str]) -> Any:
        if isinstance(part, ast.keyword):
            part = copy.copy(part)
            part.value = self.expression(part.value, sure)
            return part
        return self.expression(part, sure) if isinstance(part, ast.expr) else part

    def _comprehension(self, node: Any, sure: frozenset[str]) -> ast.expr:
        """The element only: what it runs over may hold no `:=`."""
        names = frozenset(name for each in node.generators for name in target_names(each.target))
        outer = self.scope
        self.scope = outer.with_names(outer.own | names, outer.sure | names, outer.shifting)
        for field in ("elt", "key", "value"):
            if hasattr(node, field):
                setattr(node, field, self.expression(getattr(node, field), sure))
        self.scope = outer
        return node


class _Run:
    """A run of statements as a block, if it can be one."""

    def __init__(self, blocks: Blocks, statements: Sequence[ast.stmt]) -> None:
        self.blocks = blocks
        self.statements = list(statements)
        self.length = len(statements)
        first = statements[0]
        sure = frozenset(getattr(first, "bound_before", frozenset()))
        self.form = blocks.form(sure)
        self.body: list[ast.stmt] = []
        self.returned: ast.expr | None = None
        self.results: list[str] = []
        self.is_partial = False  # something is evaluated beside it
        self.copied: set[str] = set()  # names of what may be an array from outside, or is a list
        self.added = 0  # statements, before one that cannot be part of it
        self.lists_from = 0  # statements before the first that goes through a list
        try:
            for statement in statements:
                self._add(statement)
                self.added += 1
                self.lists_from += not self.form.goes_through
        except Refused:
            self.outputs: list[str] = []
            return
        live: frozenset[str] = getattr(statements[-1], "live_after", frozenset())
        names = list(dict.fromkeys(name for each in statements for name in _targets(each)))
        if self.returned is not None:
            live |= {part.id for part in ast.walk(self.returned) if isinstance(part, ast.Name)}
        self.outputs = [*[name for name in names if name in live], *self.results]

    @property
    def is_possible(self) -> bool:
        return self.added == self.length

    @property
    def is_worthwhile(self) -> bool:
        return self.form.count >= _LEAST and bool(self.outputs) and not self.copied.intersection(self.outputs)

    def _add(self, node: ast.stmt) -> None:
        form = self.form
        if self.returned is not None:
            raise Refused
        before = form.count
        match node:
            case ast.Assign(targets=[target]) if _is_plain(target):
                value = self._value(node.value)
            case ast.AnnAssign(target=ast.Name() as target, value=ast.expr(), simple=1):
                value = self._value(node.value)  # type: ignore[arg-type]
            case ast.AugAssign(target=ast.Name(id=name) as target) if name in form.bound:
                made = ast.AugAssign(ast.Name(name, ast.Store()), node.op, form.build(node.value, False, True))
                form.count += 1
                self.body.append(placed(made, node))
                return
            case ast.Return(value=ast.expr()):
                self._return(node.value)  # type: ignore[arg-type]
                if form.count == before and not self.body:
                    raise Refused
                return
            case _:
                raise Refused
        names = target_names(target)
        if form.count == before or not names <= self.blocks.assignable:
            raise Refused
        if isinstance(value, ast.Name | ast.ListComp):
            self.copied |= names
        else:
            self.copied -= names
        self.body.append(placed(ast.Assign([target], value), node))
        form.bound |= names

    def _value(self, node: ast.expr) -> ast.expr:
        """What is assigned; a part that is only a name would be a second name of one array."""
        parts = node.elts if isinstance(node, ast.Tuple) else [node]
        if isinstance(node, ast.ListComp) or all(isinstance(part, _COMPUTED) for part in parts):
            return self.form.build(node)
        raise Refused

    def _return(self, node: ast.expr) -> None:
        """Parts that are operations become outputs; what follows the last of them is evaluated afterwards."""
        form = self.form
        parts = node.elts if isinstance(node, ast.Tuple) else [node]
        out: list[ast.expr] = []
        over = False
        for part in parts:
            if isinstance(part, ast.Name | ast.Constant):
                sure = isinstance(part, ast.Constant) or part.id in form.bound | form.scope.sure
                over = over or not sure
                out.append(part)
                continue
            if not over:
                before = form.count
                made = form.attempt(part)
                if made is not None and form.count > before:
                    name = form.fresh()
                    self.results.append(name)
                    self.body.append(placed(ast.Assign([ast.Name(name, ast.Store())], made), part))
                    out.append(ast.Name(name, ast.Load()))
                    continue
                if form.count == 0:
                    raise Refused
            over = self.is_partial = True
            out.append(part)
        self.returned = placed(ast.Tuple(out, ast.Load()) if isinstance(node, ast.Tuple) else out[0], node)
        if over and any(isinstance(n, ast.NamedExpr | ast.Yield | ast.Await) for n in ast.walk(node)):
            raise Refused

    def emitted(self) -> list[ast.stmt]:
        blocks, form, first = self.blocks, self.form, self.statements[0]
        last = self.statements[-1]
        where = ast.copy_location(ast.Pass(), first)
        where.end_lineno = last.end_lineno
        name = blocks.make(form, self.body, self.outputs, where)
        result = blocks.fresh()
        record = ast.Assign([ast.Name(result, ast.Store())], _call(name, form))
        again = [substituted(each, form.replaced) for each in self.statements]
        with blocks.otherwise(form, lists=self.length > 1):
            if form.goes_through:
                at = self.lists_from
                parts = (again[:at], again[at : at + 1], again[at + 1 :])
                otherwise = [line for part in parts for line in blocks.body(part)]
            else:
                otherwise = [line for each in again for line in self._smaller(each)]
        taken: Any = ast.Name(result, ast.Load())
        names: list[ast.expr] = [ast.Name(each, ast.Store()) for each in self.outputs]
        then: list[ast.stmt] = [ast.Assign([names[0] if len(names) == 1 else ast.Tuple(names, ast.Store())], taken)]
        if self.returned is not None:
            sure = frozenset(getattr(last, "bound_before", frozenset()))
            then.append(ast.Return(blocks.expression(self.returned, sure, whole=False)))
        test = ast.Compare(ast.Name(result, ast.Load()), [ast.Is()], [ast.Constant(None)])
        return [placed(record, first), placed(ast.If(test, otherwise, then), first)]

    def _smaller(self, statement: ast.stmt) -> list[ast.stmt]:
        if self.length > 1:
            run = _Run(self.blocks, [statement])
            if run.is_possible and run.is_worthwhile:
                return run.emitted()
        several = isinstance(getattr(statement, "value", None), ast.Tuple)
        if self.length > 1 or several:
            return self.blocks.statement(statement)
        return [_through_forms(statement, self.blocks.scope)]


def _through_forms(node: Any, scope: Scope) -> Any:
    """Let the helpers that a block would have called be called in their block forms."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call):
            part.func = through_form(part.func, scope)
    return node


def _call(name: str, form: BlockForm) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), form.slots()[0], [])


def _targets(node: ast.stmt) -> list[str]:
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    return [part.id for part in parts if isinstance(part, ast.Name)]


def _is_plain(target: ast.expr) -> bool:
    """A name, or a flat tuple of names."""
    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    return all(isinstance(part, ast.Name) for part in parts)


def _rebound(tree: ast.FunctionDef) -> set[str]:
    return {name for node in ast.walk(tree) if isinstance(node, ast.Nonlocal) for name in node.names}
