"""The pass for variables that another scope binds or reads while lanes are apart.

A nested function binds one by `nonlocal`; so does `:=` in an operand that only some lanes evaluate; and a generator
reads one for its own lanes when it goes on, while the loop over it has bound it for others.
"""

import ast
from collections.abc import Iterator
from typing import Any

from autobatch.errors import NeedsLoop
from autobatch.syntax.quote import expression, name, statements
from autobatch.syntax.scopes import bound_names, captured, local_nodes, parameters

__all__ = ["Sharing"]

_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


class Sharing(ast.NodeTransformer):
    """Reads `nonlocal`, `:=` in an operand that only some lanes evaluate, and what generators capture; leaves cells.

    `n = V` becomes `_ab_cell_n.set(V)` and `n` becomes `_ab_cell_n.get()`, in the function that has the variable and in
    all that are nested in it; the cell is made where the function begins, for the lanes that are there then, and set
    for those that come by. So no branch or loop need carry the variable, whoever binds it. Other variables stay as they
    are. Runs after the patterns, which bind by `:=`, and before the control flow.
    """

    removes = "nonlocal"

    def __init__(self, function: ast.FunctionDef) -> None:
        self.scopes: list[tuple[set[str], set[str]]] = []
        self.written: set[str] = set()

    @staticmethod
    def remains(node: ast.AST) -> bool:
        return isinstance(node, ast.Nonlocal)

    def body_of(self, function: ast.FunctionDef) -> list[ast.stmt]:
        """The rewritten body of a function."""
        outside = _declared(function.body, ast.Nonlocal)
        if not all(map(self._is_cell, outside)):
            raise NeedsLoop(f"an assignment to a variable outside of the call (line {function.lineno})")
        own = (parameters(function) | bound_names(function.body)) - outside - _declared(function.body, ast.Global)
        bound_apart = set(_set_in_nested(function.body)) | _lazily_bound(function.body)
        if any(any(isinstance(n, ast.Yield) for n in local_nodes(each.body)) for each in _nested(function.body)):
            bound_apart |= captured(function) & _rebound(function)
        shared = own & bound_apart
        self.scopes.append((own, shared))
        functions = [function, *(node for node in ast.walk(function) if isinstance(node, ast.FunctionDef))]
        self.written = self.written.union(*(each.ownership.written for each in functions))  # type: ignore[attr-defined]
        first = function.body[0]
        body = self._block(function.body)
        self.scopes.pop()
        start: list[ast.stmt] = []
        for each in sorted(shared):
            value = [name(each, first)] if each in parameters(function) else []
            cell = expression("_ab_cell()", first)
            cell.args = value
            start += statements("CELL = MADE", first, CELL=_cell(each), MADE=cell)
        return [*start, *body]

    def _block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for statement in body:
            result = self.visit(statement)
            out += result if isinstance(result, list) else [result]
        return out

    def _is_cell(self, identifier: str) -> bool:
        for own, shared in reversed(self.scopes):
            if identifier in own:
                return identifier in shared
        return False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        self._function(node)
        return self._also(node, node.name)

    def _function(self, node: ast.FunctionDef) -> None:
        node.decorator_list = [self.visit(each) for each in node.decorator_list]
        node.args = self.visit(node.args)
        node.body = self.body_of(node)

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        node.args = self.visit(node.args)
        own = parameters(node) | bound_names(node.body)
        if _lazily_bound([node.body]):
            raise NeedsLoop(f":= in a lambda, where only some examples come (line {node.lineno})")
        self.scopes.append((own, set()))
        node.body = self.visit(node.body)
        self.scopes.pop()
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        outside = [each for each in node.body if not isinstance(each, ast.FunctionDef)]
        if any(isinstance(part, ast.Name) and self._is_cell(part.id) for each in outside for part in ast.walk(each)):
            raise NeedsLoop(f"a class body that uses a variable which other scopes bind (line {node.lineno})")
        for each in node.body:
            if isinstance(each, ast.FunctionDef):
                self._function(each)
        return self._also(node, node.name)

    def _also(self, node: ast.stmt, identifier: str) -> Any:
        """A definition or an import, which binds a name of the function, and then the cell."""
        if not self._is_cell(identifier):
            return node
        return [node, *self._set(identifier, name(identifier, node), node)]

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> Any:
        out: list[ast.stmt] = [node]
        for identifier in sorted(filter(self._is_cell, bound_names(node))):
            out += self._set(identifier, name(identifier, node), node)
        return out

    visit_ImportFrom = visit_Import  # noqa: N815

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> Any:
        if node.name and self._is_cell(node.name):
            raise NeedsLoop(f"except binds a variable that other scopes bind as well (line {node.lineno})")
        node.type = self.visit(node.type) if node.type is not None else None
        node.body = self._block(node.body)
        return node

    def _comprehension(self, node: Any) -> Any:
        first = node.generators[0]
        first.iter = self.visit(first.iter)
        own = {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
        walrus = {each.target.id for each in ast.walk(node) if isinstance(each, ast.NamedExpr)}
        self.scopes.append((own - walrus, set()))
        for generator in node.generators:
            if generator is not first:
                generator.iter = self.visit(generator.iter)
            generator.ifs = [self.visit(test) for test in generator.ifs]
        for part in ("elt", "key", "value"):
            if hasattr(node, part):
                setattr(node, part, self.visit(getattr(node, part)))
        self.scopes.pop()
        return node

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension  # noqa: N815

    def visit_Nonlocal(self, node: ast.Nonlocal) -> Any:
        return ast.copy_location(ast.Pass(), node)

    def visit_Name(self, node: ast.Name) -> Any:
        if isinstance(node.ctx, ast.Load) and self._is_cell(node.id):
            return expression("CELL.get()", node, CELL=_cell(node.id))
        return node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> Any:
        node.value = self.visit(node.value)
        identifier = node.target.id
        return self._set_expression(identifier, node.value, node) if self._is_cell(identifier) else node

    def visit_Assign(self, node: ast.Assign) -> Any:
        node.value = self.visit(node.value)
        target = node.targets[0]
        if len(node.targets) == 1 and isinstance(target, ast.Name) and self._is_cell(target.id):
            if isinstance(node.value, ast.Call):
                node.value.owned = True  # type: ignore[attr-defined]
            elif target.id in self.written and isinstance(node.value, ast.BinOp | ast.UnaryOp):
                node.value = expression("_ab_own(VALUE)", node.value, VALUE=node.value)
            return self._set(target.id, node.value, node)
        after: list[ast.stmt] = []
        node.targets = [self._replaced(each, after) for each in node.targets]
        return [node, *after]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if not isinstance(node.target, ast.Name) or not self._is_cell(node.target.id):
            return self.generic_visit(node)
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return self._set(node.target.id, self.visit(node.value), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        if not isinstance(node.target, ast.Name) or not self._is_cell(node.target.id):
            return self.generic_visit(node)
        identifier = node.target.id
        before = statements("NEW = CELL.get()", node, NEW=_new(identifier), CELL=_cell(identifier))
        node.value, node.target = self.visit(node.value), name(_new(identifier), node.target, ast.Store())
        return [*before, node, *self._set(identifier, name(_new(identifier), node), node)]

    def visit_For(self, node: ast.For) -> Any:
        node.iter = self.visit(node.iter)
        start: list[ast.stmt] = []
        node.target = self._replaced(node.target, start)
        node.body = [*start, *self._block(node.body)]
        node.orelse = self._block(node.orelse)
        return node

    def visit_Delete(self, node: ast.Delete) -> Any:
        out: list[ast.stmt] = []
        for target in node.targets:
            if isinstance(target, ast.Name) and self._is_cell(target.id):
                out += statements("CELL.delete()", target, CELL=_cell(target.id))
            else:
                out.append(ast.copy_location(ast.Delete([self.visit(target)]), node))
        return out

    def _replaced(self, target: ast.expr, after: list[ast.stmt]) -> ast.expr:
        """A target in which a variable that has a cell is a temporary name; `after` then sets the cell."""
        if isinstance(target, ast.Tuple | ast.List):
            target.elts = [self._replaced(each, after) for each in target.elts]
        elif isinstance(target, ast.Starred):
            target.value = self._replaced(target.value, after)
        elif not isinstance(target, ast.Name):
            return self.visit(target)
        elif self._is_cell(target.id):
            after += self._set(target.id, name(_new(target.id), target), target)
            return name(_new(target.id), target, ast.Store())
        return target

    def _set(self, identifier: str, value: ast.expr, at: ast.AST) -> list[ast.stmt]:
        return [ast.copy_location(ast.Expr(self._set_expression(identifier, value, at)), at)]

    def _set_expression(self, identifier: str, value: ast.expr, at: ast.AST) -> ast.expr:
        return expression("CELL.set(VALUE)", at, CELL=_cell(identifier), VALUE=value)


def _cell(identifier: str) -> str:
    return f"_ab_cell_{identifier}"


def _new(identifier: str) -> str:
    return f"_ab_new_{identifier}"


def _nested(body: list[ast.stmt]) -> Iterator[ast.FunctionDef]:
    return (node for node in local_nodes(body) if isinstance(node, ast.FunctionDef))


def _declared(body: list[ast.stmt], kind: type[ast.Nonlocal] | type[ast.Global]) -> set[str]:
    """Names that are declared to belong to an outer scope."""
    return {each for node in local_nodes(body) if isinstance(node, kind) for each in node.names}


def _set_in_nested(body: list[ast.stmt]) -> Iterator[str]:
    """Names that functions nested in this body declare nonlocal, and do not find in another one between."""
    for function in _nested(body):
        declared = _declared(function.body, ast.Nonlocal)
        yield from declared
        own = (parameters(function) | bound_names(function.body)) - declared
        yield from (each for each in _set_in_nested(function.body) if each not in own)


def _rebound(function: ast.FunctionDef) -> set[str]:
    """Names that may be bound more than once."""
    nodes = list(local_nodes(function.body))
    once = list(parameters(function))
    for node in nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            once.append(node.id)
        elif isinstance(node, ast.For | ast.While):
            once += bound_names(node)
    return {each for each in once if once.count(each) > 1}


def _lazily_bound(body: Any) -> set[str]:
    """Names that `:=` binds where a rewritten expression is a function of its own."""
    out: set[str] = set()
    for node in local_nodes(body):
        lazy: list[Any] = []
        if isinstance(node, ast.BoolOp):
            lazy = node.values[1:]
        elif isinstance(node, ast.IfExp):
            lazy = [node.body, node.orelse]
        elif isinstance(node, ast.Compare) and len(node.ops) > 1:
            lazy = node.comparators
        elif isinstance(node, _COMPREHENSIONS):
            lazy = [node]
        elif isinstance(node, ast.Raise):
            lazy = [node.exc] if node.exc is not None else []
        out |= {part.target.id for each in lazy for part in local_nodes(each) if isinstance(part, ast.NamedExpr)}
    return out
