"""The pass for generators: expressions become functions, and `yield from` a loop that yields."""

import ast
from typing import Any

from autobatch.errors import NeedsLoop
from autobatch.rewrite.ownership import Ownership
from autobatch.syntax.quote import expression, name, statements
from autobatch.syntax.scopes import target_names, with_methods

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
    which has no statement to put the function before. A comprehension that makes functions of its variables becomes a
    function too, in which those are shared with them. `next` of a generator that nothing else can reach is
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

    visit_Lambda = _own_scope  # noqa: N815

    def visit_ListComp(self, node: ast.ListComp) -> Any:
        return self._with_functions(node, "[]", "_ab_out.append(VALUE)", VALUE=node.elt)

    def visit_SetComp(self, node: ast.SetComp) -> Any:
        return self._with_functions(node, "set()", "_ab_out.add(VALUE)", VALUE=node.elt)

    def visit_DictComp(self, node: ast.DictComp) -> Any:
        return self._with_functions(node, "{}", "_ab_out[KEY] = VALUE", KEY=node.key, VALUE=node.value)

    def _with_functions(self, node: Any, empty: str, step: str, **parts: ast.expr) -> Any:
        """A comprehension; as a function of its own where functions are made in it that see its variables change."""
        if not _captures(node):
            return self._own_scope(node)
        if self.before is None or _has_walrus(node):
            raise NeedsLoop(f"a comprehension that makes functions, inside of an expression (line {node.lineno})")
        first = node.generators[0].iter
        body = [*statements(f"_ab_out = {empty}", node), *_loops(node, statements(step, node, **parts))]
        function, call = self._defined([*body, *statements("return _ab_out", node)], node)
        call.args = [self.visit(first)]
        function.body = self._block(function.body)
        self.before.append(function)
        return call

    def _defined(self, body: list[ast.stmt], node: ast.expr) -> tuple[ast.FunctionDef, ast.Call]:
        """A function of `_ab_items` with this body, and a call of it, to be given the items."""
        self.count += 1
        (function,) = statements("def MADE(_ab_items):\n    pass", node)
        assert isinstance(function, ast.FunctionDef)
        function.name, function.body = f"_ab_generator_{self.count}", body
        function.ownership = Ownership(function)  # type: ignore[attr-defined]
        return function, ast.copy_location(ast.Call(name(function.name, node), [], []), node)

    def visit_Call(self, node: ast.Call) -> Any:
        only = node.args[0] if node.args else None
        called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if isinstance(only, ast.GeneratorExp) and (called in EAGER or called == "join") and not _captures(only):
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
        if self.before is None or _has_walrus(node) or any(isinstance(part, ast.Await) for part in ast.walk(node)):
            return self._own_scope(node)
        outer, self.before = self.before, None
        super().generic_visit(node)
        self.before = outer
        first = node.generators[0].iter
        body = _loops(node, [_statement(ast.Yield(node.elt), node.elt)])
        function, call = self._defined(body, node)
        call.args = [first]
        outer.append(function)
        return call

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


def _loops(node: Any, body: list[ast.stmt]) -> list[ast.stmt]:
    """The loops of a comprehension around this body; the first one runs over `_ab_items`."""
    node.generators[0].iter = name("_ab_items", node.generators[0].iter)
    for generator in reversed(node.generators):
        if generator.is_async:
            raise NeedsLoop(f"asynchronous code (line {node.lineno})")
        for test in reversed(generator.ifs):
            body = [ast.copy_location(ast.If(test, body, []), test)]
        body = [ast.copy_location(ast.For(generator.target, generator.iter, body, []), generator.target)]
    return body


def _has_walrus(node: ast.AST) -> bool:
    return any(isinstance(part, ast.NamedExpr) for part in ast.walk(node))


def _captures(node: Any) -> bool:
    """Whether a function that a comprehension makes may outlive the step: it sees what the variables are later on."""
    bound = {each for generator in node.generators for each in target_names(generator.target)}
    at_once = {
        id(argument)
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in EAGER
        for argument in [*call.args, *(keyword.value for keyword in call.keywords)]
    }
    return any(
        isinstance(part, ast.Lambda | ast.GeneratorExp)
        and part is not node
        and id(part) not in at_once
        and any(isinstance(each, ast.Name) and each.id in bound for each in ast.walk(part))
        for part in ast.walk(node)
    )


def _statement(value: ast.expr, at: ast.AST) -> ast.stmt:
    return ast.copy_location(ast.Expr(ast.copy_location(value, at)), at)
