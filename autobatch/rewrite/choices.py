"""The pass over expressions that choose what they evaluate: `and`, `or`, `not`, the ternary and chained comparisons."""

import ast
from typing import Any

from autobatch.syntax.quote import expression, is_generated
from autobatch.syntax.scopes import with_methods

__all__ = ["Choices"]

_SYMBOLS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}


class Choices(ast.NodeTransformer):
    """Reads `A if T else B`, `A and B`, `A or B`, `not A`, `A < B < C`; leaves calls of the runtime.

    Operands that only some lanes evaluate are lambdas: `_ab_choose(T, lambda: A, lambda: B)`. Where such an operand
    binds a name by `:=`, or calls `super()`, it keeps its form, and all lanes must agree. Runs after
    the comprehensions.
    """

    removes = "`and`, `or`, `not`, a ternary or a chained comparison that does not ask the runtime"

    @staticmethod
    def remains(node: ast.AST) -> bool:
        kinds = isinstance(node, ast.BoolOp | ast.IfExp) or (isinstance(node, ast.Compare) and _chained(node))
        return (kinds and not hasattr(node, "marked")) or (
            isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        )

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        return with_methods(self, node)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        _mark_tested(node.test)
        native = _is_bound_here(node.body, node.orelse)
        self.generic_visit(node)
        if native:
            node.marked = True  # type: ignore[attr-defined]
            return node
        return expression("_ab_choose(T, lambda: A, lambda: B)", node, T=node.test, A=node.body, B=node.orelse)

    def visit_Call(self, node: ast.Call) -> Any:
        if is_generated(node) and node.args and _asks(node.func):
            _mark_tested(node.args[0])
        return self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        native = _is_bound_here(*node.values[1:])
        self.generic_visit(node)
        if native:
            node.marked = True  # type: ignore[attr-defined]
            return node
        both = isinstance(node.op, ast.And)
        values = node.values
        if hasattr(node, "tested"):  # operands of different kinds, of which only the truth matters
            values = [each if _is_truth(each) else expression("_ab_truth(A)", each, A=each) for each in values]
        call: ast.Call = expression("_ab_and(A)" if both else "_ab_or(A)", node, A=values[0])
        call.args += [expression("lambda: B", each, B=each) for each in values[1:]]
        return call

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            _mark_tested(node.operand)
        self.generic_visit(node)
        return expression("_ab_not(A)", node, A=node.operand) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node: ast.Compare) -> Any:
        native = _is_bound_here(*node.comparators)
        self.generic_visit(node)
        if not _chained(node):
            return node
        if native:
            node.marked = True  # type: ignore[attr-defined]
            return node
        symbols = ast.copy_location(
            ast.Tuple([ast.copy_location(ast.Constant(_SYMBOLS[type(op)]), node) for op in node.ops], ast.Load()), node
        )
        call: ast.Call = expression("_ab_chain(A, SYMBOLS)", node, A=node.left, SYMBOLS=symbols)
        call.args += [expression("lambda: B", each, B=each) for each in node.comparators]
        return call


def _asks(function: ast.expr) -> bool:
    """Whether a generated call asks for the truth of its first argument."""
    if isinstance(function, ast.Attribute):
        return function.attr == "stops"
    return isinstance(function, ast.Name) and function.id in ("_ab_if", "_ab_check")


def _is_truth(node: ast.expr) -> bool:
    """Whether an operand is a bool, or an array of them, already."""
    return isinstance(node, ast.Compare) or is_generated(node)


def _mark_tested(node: ast.expr) -> None:
    """Note of an `and` or `or`, and of those that are its operands, that only its truth matters."""
    if isinstance(node, ast.BoolOp):
        node.tested = True  # type: ignore[attr-defined]
        for value in node.values:
            _mark_tested(value)


def _chained(node: ast.Compare) -> bool:
    return len(node.ops) > 1 and all(type(op) in _SYMBOLS for op in node.ops)


def _is_bound_here(*nodes: ast.expr) -> bool:
    """Whether an operand must stay in the scope of the function."""
    for part in (part for node in nodes for part in ast.walk(node)):
        if isinstance(part, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom):
            return True
        if isinstance(part, ast.Name) and part.id in ("super", "__class__"):
            return True
    return False
