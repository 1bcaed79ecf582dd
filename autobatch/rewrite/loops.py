"""The pass that turns `for` loops into native loops over a region that shrinks as lanes run out of items."""

import ast
from typing import Any

from autobatch.rewrite.liveness import annotate
from autobatch.rewrite.quote import expression, name, statements
from autobatch.rewrite.scopes import bound_names, local_nodes, target_names

__all__ = ["Loops", "stored_names"]


class Loops(ast.NodeTransformer):
    """Reads `for` loops and the `return`s in them; leaves a native `for` over `_ab_loop(iterable)`.

    ```
    _ab_loop_1 = _ab_loop(ITERABLE)
    for _ab_item_1 in _ab_loop_1:
        if _ab_loop_1.fewer:                                # lanes have run out of items
            h, c = _ab_loop_1.narrow((h,), (c,))            # keep what they leave behind (h is read after the loop)
        x = _ab_item_1
        BODY
    (h,) = _ab_loop_1.merge((h,))                           # for all lanes again
    if _ab_loop_1.finished():
        ORELSE
    ```
    (`own=` names the places of arrays that the function made and that have no other name; names that may hold views of
    them are set to None there, if they are not read again.)
    Names carried: those that the body binds or writes into and that may be read at the loop's head (`liveness`).
    Runs first, on the user's own syntax, since it needs to see every binding.
    """

    removes = "a `for` over anything but a lock-step loop"

    def __init__(self, function: ast.FunctionDef) -> None:
        self.count = 0
        self.nest: list[str] = []
        self.owners = [function]
        annotate(function)

    @staticmethod
    def remains(node: ast.AST) -> bool:
        return isinstance(node, ast.For) and not (
            isinstance(node.iter, ast.Name) and node.iter.id.startswith("_ab_loop_")
        )

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        if node is self.owners[0]:
            return self.generic_visit(node)
        annotate(node)
        nest, self.nest = self.nest, []
        self.owners.append(node)
        self.generic_visit(node)
        self.owners.pop()
        self.nest = nest
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        return node

    def visit_Return(self, node: ast.Return) -> Any:
        value = node.value or ast.copy_location(ast.Constant(None), node)
        for loop in reversed(self.nest):
            value = expression("LOOP.leave(VALUE)", node, LOOP=loop, VALUE=value)
        if self.nest:
            node.value = value
        return node

    def visit_For(self, node: ast.For) -> Any:
        self.count += 1
        loop, item = f"_ab_loop_{self.count}", f"_ab_item_{self.count}"
        targets = target_names(node.target)
        written = bound_names(node.body) | targets | stored_names(node.body)
        live_head: set[str] = node.live_head  # type: ignore[attr-defined]
        live_out: set[str] = node.live_out  # type: ignore[attr-defined]
        bound: set[str] = node.bound  # type: ignore[attr-defined]
        kept = sorted(written & live_out)
        carried = sorted(written & live_head - live_out)

        node.iter = self.visit(node.iter)
        orelse = [line for statement in node.orelse for line in _as_list(self.visit(statement))]
        self.nest.append(loop)
        body = [line for statement in node.body for line in _as_list(self.visit(statement))]
        self.nest.pop()

        plain_target = all(
            isinstance(part, ast.Name | ast.Tuple | ast.List | ast.expr_context) for part in ast.walk(node.target)
        )
        if not plain_target or targets & {*kept, *carried}:
            assign = ast.copy_location(ast.Assign([node.target], name(item, node.target)), node.target)
            target: ast.expr = name(item, node.target, ast.Store())
            body = [assign, *body]
        else:
            target = node.target
        at = node.target
        ownership = self.owners[-1].ownership  # type: ignore[attr-defined]
        own = ownership.own
        views = bound_names(body) & ownership.views if own & {*kept, *carried} else set()
        if kept or carried:
            parts = {"KEPT": _values(kept, bound, at), "CARRIED": _values(carried, bound, at)}
            narrow = expression(_call_of("narrow", [*kept, *carried], own), at, LOOP=loop, **parts)
            rebind = _rebind([*kept, *carried], narrow, bound, at)
            rebind = _let_go(views - live_head - targets, at) + rebind
            body = [*statements("if LOOP.fewer:\n    REBIND", at, LOOP=loop, REBIND=rebind), *body]
        out = statements("LOOP = _ab_loop(ITER)", at, LOOP=loop, ITER=node.iter)
        out.append(ast.copy_location(ast.For(target, name(loop, at), body, []), node))
        merge = expression(_call_of("merge", kept, own), at, LOOP=loop, KEPT=_values(kept, bound, at))
        out += _let_go(views - live_out, at)
        out += _rebind(kept, merge, bound, at) if kept else [ast.copy_location(ast.Expr(merge), at)]
        if orelse:
            out += statements("if LOOP.finished():\n    ORELSE", node.orelse[0], LOOP=loop, ORELSE=orelse)
        return out


def stored_names(body: Any) -> set[str]:
    """Names of which an item is assigned (`name[...] = value`, also deeper: `name[a][b] = value`)."""
    out = set()
    for node in local_nodes(body):
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            base: ast.expr = node
            while isinstance(base, ast.Subscript):
                base = base.value
            if isinstance(base, ast.Name):
                out.add(base.id)
    return out


def _call_of(method: str, names: list[str], own: set[str]) -> str:
    places = tuple(place for place, each in enumerate(names) if each in own)
    arguments = "KEPT, CARRIED" if method == "narrow" else "KEPT"
    return f"LOOP.{method}({arguments}, own={places})" if places else f"LOOP.{method}({arguments})"


def _as_list(result: Any) -> list[Any]:
    return result if isinstance(result, list) else [result]


def _values(names: list[str], bound: set[str], at: ast.AST) -> ast.Tuple:
    """A tuple of the names' values, `_ab_unbound` for one that is not bound."""
    values = [
        name(each, at)
        if each in bound
        else expression("_ab_locals().get(NAME, _ab_unbound)", at, NAME=ast.Constant(each))
        for each in names
    ]
    return ast.fix_missing_locations(ast.copy_location(ast.Tuple(values, ast.Load()), at))


def _let_go(names: set[str], at: ast.AST) -> list[ast.stmt]:
    """Names that are not read again let go of the views they hold, which else would count as other names."""
    return [line for each in sorted(names) for line in statements("NAME = None", at, NAME=each)]


def _rebind(names: list[str], value: ast.expr, bound: set[str], at: ast.AST) -> list[ast.stmt]:
    targets = ast.copy_location(ast.Tuple([name(each, at, ast.Store()) for each in names], ast.Store()), at)
    out: list[ast.stmt] = [ast.copy_location(ast.Assign([targets], value), at)]
    for each in names:
        if each not in bound:
            out += statements("if NAME is _ab_unbound:\n    del NAME", at, NAME=each)
    return out
