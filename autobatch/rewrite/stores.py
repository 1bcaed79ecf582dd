"""The passes for what is written in place: items, attributes, and names that are updated by `+=`."""

import ast
from typing import Any

from autobatch.facts.operators import ARITHMETIC
from autobatch.rewrite.ownership import Ownership
from autobatch.syntax.quote import expression, is_generated, name, statements

__all__ = ["Stores"]

_SYMBOLS = {each.syntax: each.symbol for each in ARITHMETIC}


class Stores(ast.NodeTransformer):
    """Reads item and attribute targets, `del x[i]` and augmented assignment; leaves calls, in Python's order.

    `X[I] = V` becomes `_ab_setitem(V, X, I)`, `X.a = V` becomes `_ab_setattr(V, X, "a")`, `n += V` becomes
    `n = _ab_update("+", n, V)`; other targets go through temporary names, and what Python
    unpacks through `_ab_spread`. A fresh array under a name that is written
    into becomes one per lane (`_ab_own`). Runs after the loops, which need to see what is stored where; who owns what
    was read off the user's syntax before (`function.ownership`).
    """

    removes = "assignment to an item or an attribute, and augmented assignment"

    def __init__(self, function: ast.FunctionDef) -> None:
        self.count = 0
        self.top = function
        self.owned: Ownership = function.ownership  # type: ignore[attr-defined]

    @staticmethod
    def remains(node: ast.AST) -> bool:
        if isinstance(node, ast.AugAssign):
            return True
        return isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        owned, self.owned = self.owned, node.ownership  # type: ignore[attr-defined]
        self.generic_visit(node)
        self.owned = owned
        return node

    def visit_Assign(self, node: ast.Assign) -> Any:
        self.generic_visit(node)
        target = node.targets[0]
        if len(node.targets) == 1:
            if isinstance(target, ast.Name):
                if target.id in self.owned.written and isinstance(node.value, ast.Call):
                    node.value.owned = True  # type: ignore[attr-defined]
                elif target.id in self.owned.written and isinstance(node.value, ast.BinOp | ast.UnaryOp):
                    node.value = expression("_ab_own(VALUE)", node.value, VALUE=node.value)
                return node
            if isinstance(target, ast.Subscript | ast.Attribute):
                return self._store(node.value, target)
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            for part, value in zip(target.elts, node.value.elts, strict=False):
                if isinstance(part, ast.Name) and part.id in self.owned.written and isinstance(value, ast.Call):
                    value.owned = True  # type: ignore[attr-defined]
        after: list[ast.stmt] = []
        value = node.value.value if isinstance(node.value, ast.Attribute) else node.value
        spread = any(isinstance(each, ast.Tuple | ast.List) for each in node.targets)
        if spread and not isinstance(value, ast.Tuple) and not is_generated(value):
            node.value = expression("_ab_spread(VALUE)", node.value, VALUE=node.value)
        node.targets = [self._replace(each, after) for each in node.targets]
        return [node, *after]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if isinstance(node.target, ast.Name) and node.value is None:
            return node
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return self.visit(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        self.generic_visit(node)
        symbol, target = ast.Constant(_SYMBOLS[type(node.op)]), node.target
        if isinstance(target, ast.Name):
            load = name(target.id, target)
            return statements(
                "TARGET = _ab_update(OP, LOAD, VALUE)", node, TARGET=target.id, OP=symbol, LOAD=load, VALUE=node.value
            )
        self.count += 1
        base, key = f"_ab_base_{self.count}", f"_ab_key_{self.count}"
        if isinstance(target, ast.Attribute):
            return statements(
                "BASE = X\n_ab_setattr(_ab_update(OP, _ab_old_attr(BASE, KEY), VALUE), BASE, KEY)",
                node, X=target.value, BASE=base, KEY=ast.Constant(target.attr), OP=symbol, VALUE=node.value,
            )  # fmt: skip
        return statements(
            "BASE = X\nKEY = I\n_ab_setitem(_ab_update(OP, _ab_old_item(BASE, KEY), VALUE), BASE, KEY)",
            node, X=target.value, I=target.slice, BASE=base, KEY=key, OP=symbol, VALUE=node.value,
        )  # fmt: skip

    def visit_Delete(self, node: ast.Delete) -> Any:
        self.generic_visit(node)
        out: list[ast.stmt] = []
        for target in node.targets:
            if isinstance(target, ast.Subscript | ast.Attribute):
                out += statements("_ab_refuse('del of an item or attribute')", target)
            else:
                out.append(ast.copy_location(ast.Delete([target]), node))
        return out

    def _replace(self, target: ast.expr, after: list[ast.stmt]) -> ast.expr:
        if isinstance(target, ast.Tuple | ast.List):
            target.elts = [self._replace(each, after) for each in target.elts]
        elif isinstance(target, ast.Starred):
            target.value = self._replace(target.value, after)
        elif isinstance(target, ast.Subscript | ast.Attribute):
            self.count += 1
            temporary = f"_ab_value_{self.count}"
            after += self._store(name(temporary, target), target)
            return name(temporary, target, ast.Store())
        return target

    def _store(self, value: ast.expr, target: ast.Subscript | ast.Attribute) -> list[ast.stmt]:
        if isinstance(target, ast.Attribute):
            key = ast.Constant(target.attr)
            return statements("_ab_setattr(VALUE, X, KEY)", target, VALUE=value, X=target.value, KEY=key)
        base = target.value
        return statements("_ab_setitem(VALUE, X, I)", target, VALUE=value, X=base, I=target.slice)
