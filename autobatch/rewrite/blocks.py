"""Blocks into calls of their recorders.

    i, o, u = np.split(x @ w, 3)                  _ab_1 = _ab_record1(x, w, c)
    c = sigmoid(i) * np.tanh(u) + c               if _ab_1 is None:
    return sigmoid(o) * np.tanh(c), c      ->         (the same statements)
                                                  else:
                                                      _ab_2, c = _ab_1
                                                      return _ab_2, c

The statements that follow a None are made into smaller blocks themselves. An expression that stands in no such
statement (a test, an argument) is a block of its own. Calls of the user's functions call their block forms.
"""

import ast
import contextlib
import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from autobatch.blocks.expressions import RECORDED, BlockForm, Names, Refused, Scope
from autobatch.blocks.finder import COMPUTED, LEAST, FoundBlock, longest_block, scope_in
from autobatch.rewrite.callees import through_form
from autobatch.syntax.quote import placed, substituted
from autobatch.syntax.scopes import parameters, target_names

__all__ = ["Blocks"]

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_BODIES = ("body", "orelse", "finalbody")
Make = Callable[[BlockForm, list[ast.stmt], ast.AST], str]


class Blocks:
    """Rewrites one function; its liveness has been annotated.

    Args:
        make: makes a block of a form, its body and its place, and gives the name that its recorder has in the rewritten
            code.
    """

    def __init__(self, scope: Scope, make: Make, numbers: Any = None) -> None:
        self.scope = scope
        self.make = make
        self.numbers = numbers or itertools.count(1)
        self.temporaries: frozenset[str] = frozenset()
        self.assignable: Names = frozenset()
        self.lists = True

    def fresh(self) -> str:
        return f"_ab_{next(self.numbers)}"

    def _scope(self, sure: frozenset[str]) -> Scope:
        old = self.scope
        return old.with_names(old.own | self.temporaries, old.sure | sure | self.temporaries, old.shifting)

    def form(self, sure: frozenset[str]) -> BlockForm:
        return BlockForm(self._scope(sure), RECORDED, self.fresh, lambda node: self.expression(node, sure), self.lists)

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
        self.scope, self.assignable = scope_in(tree, outer)
        tree.body = self.body(tree.body)
        self.scope = outer

    def body(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        at = 0
        while at < len(statements):
            block = longest_block(statements[at:], self.form, self.assignable)
            out += self.emitted(block) if block is not None else self.statement(statements[at])
            at += block.length if block is not None else 1
        return out

    def emitted(self, block: FoundBlock) -> list[ast.stmt]:
        form, first, last = block.form, block.statements[0], block.statements[-1]
        where = ast.copy_location(ast.Pass(), first)
        where.end_lineno = last.end_lineno
        name = self.make(form, block.whole(), where)
        result = self.fresh()
        record = ast.Assign([ast.Name(result, ast.Store())], _call(name, form))
        again = block.otherwise()
        with self.otherwise(form, lists=block.length > 1):
            if form.goes_through:
                at = block.lists_from
                parts = (again[:at], again[at : at + 1], again[at + 1 :])
                otherwise = [line for part in parts for line in self.body(part)]
            else:
                otherwise = [line for each in again for line in self._smaller(each, block.length)]
        taken: Any = ast.Name(result, ast.Load())
        names: list[ast.expr] = [ast.Name(each, ast.Store()) for each in block.outputs]
        then: list[ast.stmt] = [ast.Assign([names[0] if len(names) == 1 else ast.Tuple(names, ast.Store())], taken)]
        if block.returned is not None:
            sure = frozenset(getattr(last, "bound_before", frozenset()))
            then.append(ast.Return(self.expression(block.returned, sure, whole=False)))
        test = ast.Compare(ast.Name(result, ast.Load()), [ast.Is()], [ast.Constant(None)])
        return [placed(record, first), placed(ast.If(test, otherwise, then), first)]

    def _smaller(self, statement: ast.stmt, length: int) -> list[ast.stmt]:
        if length > 1:
            block = FoundBlock([statement], self.form, self.assignable)
            if block.is_possible and block.is_worthwhile:
                return self.emitted(block)
        several = isinstance(getattr(statement, "value", None), ast.Tuple)
        if length > 1 or several:
            return self.statement(statement)
        return [_through_forms(statement, self.scope)]

    def statement(self, node: ast.stmt) -> list[ast.stmt]:
        """A statement that is part of no block."""
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
        """An expression outside of such statements: a block if it can be one, else its parts."""
        if isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):
            return node
        made = self._block(node, sure) if whole else None
        return self._parts(node, sure) if made is None else made

    def _block(self, node: ast.expr, sure: frozenset[str]) -> ast.expr | None:
        form = self.form(sure)
        if not isinstance(node, COMPUTED):
            return None
        try:
            body: list[ast.stmt] = [ast.Return(form.build(node))]
        except Refused:
            return None
        if form.count < LEAST:
            return None
        name = self.make(form, body, node)
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


def _through_forms(node: Any, scope: Scope) -> Any:
    """Let the helpers that a block would have called be called in their block forms."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call):
            part.func = through_form(part.func, scope)
    return node


def _call(name: str, form: BlockForm) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), form.slots()[0], [])
