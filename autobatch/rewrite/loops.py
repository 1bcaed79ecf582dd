"""`for` loops that no lane leaves before its items are used up: native loops over a region that shrinks."""

import ast
from typing import Any

from autobatch.rewrite.block_sites import scan_lines
from autobatch.rewrite.names import places, rebind, stored_names, values
from autobatch.syntax.quote import expression, name, statements
from autobatch.syntax.scopes import bound_names, target_names

__all__ = ["item_loop", "takes_item"]


def item_loop(
    node: ast.For, number: int, body: list[ast.stmt], orelse: list[ast.stmt], ownership: Any, blocks: Any
) -> list[Any]:
    """A `for` without break, continue and return, as a native `for` over `_ab_loop(iterable)`.

    ```
    _ab_loop_1 = _ab_loop(ITERABLE)
    for _ab_item_1 in _ab_loop_1:
        if _ab_loop_1.fewer:                                # lanes have run out of items
            h, c = _ab_loop_1.narrow((h,), (c,))            # keep what they leave behind (h is read after the loop)
        x = _ab_item_1
        BODY
    (h,) = _ab_loop_1.merge((h,))                           # for all lanes again
    ORELSE
    ```
    (`own=` names the places of arrays that the function made and that have no other name; names that may hold views of
    them are set to None there, if they are not read again.)
    Names carried: those that the body binds or writes into and that may be read at the loop's head (`liveness`).

    Args:
        node: the loop; `body` and `orelse` are its parts, rewritten.
        ownership: what is known of the function's arrays; blocks: its blocks.
    """
    loop, item, at = f"_ab_loop_{number}", f"_ab_item_{number}", node.target
    written = bound_names(node.body) | target_names(at) | (stored_names(node.body) & ownership.carried)
    live_head, live_out, bound = node.live_head, node.live_out, node.bound  # type: ignore[attr-defined]
    kept = sorted(written & live_out)
    carried = sorted(written & live_head - live_out)
    own: set[str] = ownership.own
    views = bound_names(node.body) & ownership.views if own & {*kept, *carried} else set()
    body = [*body, *scan_lines(blocks, loop, body, None, [*kept, *carried], target_names(at))]
    target, body = takes_item(node, item, {*kept, *carried}, body)
    if kept or carried:
        parts = {"KEPT": values(kept, bound, at), "CARRIED": values(carried, bound, at)}
        call = f"LOOP.narrow(KEPT, CARRIED{places([*kept, *carried], own)})"
        narrow = rebind([*kept, *carried], expression(call, at, LOOP=loop, **parts), bound, at)
        narrow = _let_go(views - live_head - target_names(at), at) + narrow
        body = [*statements("if LOOP.fewer:\n    REBIND", at, LOOP=loop, REBIND=narrow), *body]
    out = statements("LOOP = _ab_loop(ITER)", at, LOOP=loop, ITER=node.iter)
    out.append(ast.copy_location(ast.For(target, name(loop, at), body, []), node))
    merge = expression(f"LOOP.merge(KEPT{places(kept, own)})", at, LOOP=loop, KEPT=values(kept, bound, at))
    out += _let_go(views - live_out, at)
    out += rebind(kept, merge, bound, at) if kept else [ast.copy_location(ast.Expr(merge), at)]
    return out + orelse


def _let_go(names: set[str], at: ast.AST) -> list[ast.stmt]:
    """Names that are not read again let go of the views they hold, which else would count as other names."""
    return [line for each in sorted(names) for line in statements("NAME = None", at, NAME=each)]


def takes_item(node: ast.For, item: str, carried: set[str], body: list[ast.stmt]) -> tuple[ast.expr, list[ast.stmt]]:
    """The target of the native loop, and the body that starts by binding the user's target where that must wait."""
    plain = all(isinstance(part, ast.Name | ast.Tuple | ast.List | ast.expr_context) for part in ast.walk(node.target))
    if plain and not target_names(node.target) & carried:
        return node.target, body
    assign = ast.copy_location(ast.Assign([node.target], name(item, node.target)), node.target)
    return name(item, node.target, ast.Store()), [assign, *body]
