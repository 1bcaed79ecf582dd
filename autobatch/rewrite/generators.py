"""The pass for generators: expressions become functions, and `yield from` a loop that yields."""

import ast
from typing import Any

from autobatch.errors import NeedsLoop
from autobatch.rewrite.ownership import Ownership
from autobatch.rewrite.quote import expression, name, statements
from autobatch.rewrite.scopes import with_methods

__all__ = ["EAGER", "Generators"]

EAGER = frozenset({"sum", "min", "max", "list", "tuple", "sorted", "set", "any", "all", "frozenset", "dict"})
"""Functions that read a generator to its end, or for which only its items count: these take it as a comprehension."""


class Generators(ast.NodeTransformer):
    """Reads generator expressions and `yield from`; leaves generator functions, whose `yield` stays.

    ```
    def _ab_generator_1(_ab_items):                         # g = (F(x) for x in XS if C(x))
        for x in _ab_items:
            if C(x):
                yield F(x)
    g = _ab_generator_1(XS)
    ```
    ```
    _ab_source_1 = _ab_source(X)                            # r = yield from X
    for _ab_item_1 in _ab_source_1:
        yield _ab_item_1
    r = _ab_result(_ab_source_1)
    ```
    What a function of `EAGER` takes is left to the comprehensions, and so is one in a lambda or in a comprehension,
    which has no statement to put the function before. `next` of a generator that nothing else can reach is
    `_ab_first`. Runs first, so that the other passes see the functions.
    """

    removes = "yield from"

    def __init__(self, function: ast.FunctionDef) -> None:
        self.count = 0
        self.before: list[ast.stmt] | None = None

    @staticmethod
    def remains(node: ast.AST) -> bool:
        return isinstance(node, ast.YieldFrom)

    def body_of(self, function: ast.FunctionDef) -> list[ast.stmt]:
        """The rewritten body of a function."""
        return self._block(function.body)

    def _block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for statement in body:
            outer, self.before = self.before, []
            result = self.visit(statement)
            out += self.before
            self.before = outer
            out += result if isinstance(result, list) else [result]
        return out

    def generic_visit(self, node: Any) -> Any:
        if not isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            return super().generic_visit(node)
        for field, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                setattr(node, field, self._block(value))
            elif isinstance(value, list):
                setattr(node, field, [self.visit(each) if isinstance(each, ast.AST) else each for each in value])
            elif isinstance(value, ast.AST):
                setattr(node, field, self.visit(value))
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        return with_methods(self, node)

    def _own_scope(self, node: Any) -> Any:
        """A scope of expressions only: no function can be defined in it."""
        outer, self.before = self.before, None
        super().generic_visit(node)
        self.before = outer
        return node

    visit_Lambda = visit_ListComp = visit_SetComp = visit_DictComp = _own_scope  # noqa: N815

    def visit_Call(self, node: ast.Call) -> Any:
        only = node.args[0] if node.args else None
        called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if isinstance(only, ast.GeneratorExp) and (called in EAGER or called == "join"):
            node.args[0] = self._own_scope(only)
            return node
        first = called == "next" and isinstance(node.func, ast.Name) and isinstance(only, ast.GeneratorExp | ast.Call)
        super().generic_visit(node)
        if first:
            call: ast.Call = expression("_ab_first(NEXT)", node, NEXT=node.func)
            call.args += node.args
            return call
        return node

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> Any:
        if self.before is None or any(isinstance(part, ast.NamedExpr | ast.Await) for part in ast.walk(node)):
            return self._own_scope(node)
        self.count += 1
        made = f"_ab_generator_{self.count}"
        outer, self.before = self.before, None
        super().generic_visit(node)
        self.before = outer
        first = node.generators[0]
        items = first.iter
        first.iter = name("_ab_items", items)
        body: list[ast.stmt] = [_statement(ast.Yield(node.elt), node.elt)]
        for generator in reversed(node.generators):
            if generator.is_async:
                raise NeedsLoop(f"asynchronous code (line {node.lineno})")
            for test in reversed(generator.ifs):
                body = [ast.copy_location(ast.If(test, body, []), test)]
            body = [ast.copy_location(ast.For(generator.target, generator.iter, body, []), generator.target)]
        (function,) = statements("def MADE(_ab_items):\n    pass", node)
        assert isinstance(function, ast.FunctionDef)
        function.name, function.body = made, body
        function.ownership = Ownership(function)  # type: ignore[attr-defined]
        assert self.before is not None
        self.before.append(function)
        return ast.copy_location(ast.Call(name(made, node), [items], []), node)

    def visit_Expr(self, node: ast.Expr) -> Any:
        if isinstance(node.value, ast.YieldFrom):
            return self._yield_from(node.value)[0]
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> Any:
        return self._with_result(node)

    def visit_Return(self, node: ast.Return) -> Any:
        return self._with_result(node)

    def _with_result(self, node: Any) -> Any:
        if not isinstance(node.value, ast.YieldFrom):
            return self.generic_visit(node)
        out, source = self._yield_from(node.value)
        node.value = expression("_ab_result(SOURCE)", node.value, SOURCE=source)
        return [*out, self.generic_visit(node)]

    def _yield_from(self, node: ast.YieldFrom) -> tuple[list[ast.stmt], str]:
        self.count += 1
        source, item = f"_ab_source_{self.count}", f"_ab_item_{self.count}"
        out = statements(
            "SOURCE = _ab_source(X)\nfor ITEM in SOURCE:\n    pass", node,
            SOURCE=source, ITEM=item, X=self.visit(node.value),
        )  # fmt: skip
        loop = out[1]
        assert isinstance(loop, ast.For)
        loop.body = [_statement(ast.Yield(name(item, node)), node)]
        return out, source

    def visit_YieldFrom(self, node: ast.YieldFrom) -> Any:
        raise NeedsLoop(f"yield from inside of an expression (line {node.lineno})")


def _statement(value: ast.expr, at: ast.AST) -> ast.stmt:
    return ast.copy_location(ast.Expr(ast.copy_location(value, at)), at)
