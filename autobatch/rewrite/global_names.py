"""The pass for global names that a function assigns: they become items of the dict that holds them."""

import ast
from typing import Any

from autobatch.errors import NeedsLoop
from autobatch.syntax.quote import expression
from autobatch.syntax.scopes import bound_names, local_nodes, parameters

__all__ = ["GlobalNames"]

_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


class GlobalNames(ast.NodeTransformer):
    """Reads `global n` where the function assigns `n`; leaves `_ab_globals()["n"]` for the name in that function.

    So an assignment to it is one of an item, as every other change of what is outside the call. Runs first of all.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        outer = self.names
        node.decorator_list = [self.visit(each) for each in node.decorator_list]
        node.args = self.visit(node.args)
        declared = {name for each in local_nodes(node.body) if isinstance(each, ast.Global) for name in each.names}
        assigned = declared & bound_names(node.body)
        self.names = (self.names - parameters(node) - bound_names(node.body)) | assigned
        self._check(node, assigned)
        node.body = [self.visit(each) for each in node.body]
        self.names = outer
        return node

    def _check(self, node: ast.FunctionDef, assigned: set[str]) -> None:
        for each in local_nodes(node.body):
            named = isinstance(each, ast.NamedExpr) and each.target.id in assigned
            if named or (
                not isinstance(each, ast.Name) and not isinstance(each, _COMPREHENSIONS) and _binds(each, assigned)
            ):
                raise NeedsLoop(f"an assignment to a global name in {node.name} (line {each.lineno})")  # type: ignore[attr-defined]

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        outer, self.names = self.names, self.names - parameters(node)
        self.generic_visit(node)
        self.names = outer
        return node

    def _comprehension(self, node: Any) -> Any:
        own = {part.id for each in node.generators for part in ast.walk(each.target) if isinstance(part, ast.Name)}
        node.generators[0].iter = self.visit(node.generators[0].iter)
        outer, self.names = self.names, self.names - own
        self.generic_visit(node)
        self.names = outer
        return node

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension  # noqa: N815

    def visit_Global(self, node: ast.Global) -> Any:
        names = [each for each in node.names if each not in self.names]
        return ast.copy_location(ast.Global(names) if names else ast.Pass(), node)

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id not in self.names:
            return node
        out = expression("_ab_globals()[KEY]", node, KEY=ast.Constant(node.id))
        out.ctx = node.ctx
        return out


def _binds(node: ast.AST, names: set[str]) -> bool:
    """Whether a statement that is no assignment binds one of these names itself."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
        return node.name in names
    if isinstance(node, ast.Import | ast.ImportFrom):
        return not names.isdisjoint((alias.asname or alias.name).split(".")[0] for alias in node.names)
    return isinstance(node, ast.MatchMapping) and node.rest in names
