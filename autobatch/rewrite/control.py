"""The pass for control flow in which lanes may differ: `if`, `while`, `for`, their jumps, `return` and `assert`."""

import ast
from collections.abc import Iterable
from typing import Any

from autobatch.program.liveness import annotate
from autobatch.program.quote import expression, name, statements
from autobatch.program.scopes import bound_names, local_nodes, target_names
from autobatch.rewrite.block_sites import scan_lines
from autobatch.rewrite.in_place_writes import stored_names

_TEMPORARY = frozenset({"range", "zip", "enumerate", "reversed", "map", "list", "tuple", "sorted"})


class Control(ast.NodeTransformer):
    """Rewrites branches and jumps to native loops over runtime objects, with one iteration per arm or step.

    ```
    _ab_if_1 = _ab_if(TEST, (x,), True, False)              # (names bound in an arm and read later), has an else,
    for _ab_arm_1 in _ab_if_1:                              # jumps may leave an arm. Each arm has its own region
        if _ab_if_1.changed:
            (x,) = _ab_if_1.values                          # restore the values from before the other arm ran
        if _ab_arm_1:
            BODY
        else:
            ORELSE
        if _ab_if_1.split:
            _ab_if_1.end((x,))
    if _ab_if_1.split:
        (x,) = _ab_if_1.join()                              # merge the values of the lanes of both arms
    ```
    ```
    _ab_loop_1 = _ab_while((x,))                            # or _ab_for(ITERABLE, ...): a loop that lanes may leave
    for _ab_step_1 in _ab_loop_1:
        if _ab_loop_1.changed:
            (x,) = _ab_loop_1.values                        # the values of the lanes at the loop's head
        if _ab_loop_1.stops(TEST, (x,)):
            if _ab_loop_1.is_empty:
                break
            (x,) = _ab_loop_1.values                        # the values of the lanes that go on
        BODY
        _ab_loop_1.next((x,))
    for _ab_values_1 in _ab_loop_1.otherwise():
        (x,) = _ab_values_1
        ORELSE
        _ab_loop_1.leave((x,))
    (x,) = _ab_loop_1.after()
    ```
    `break` becomes `_ab_loop_1.leave(...)`, `continue` becomes `_ab_loop_1.next(...)` and `return X` becomes
    `_ab_returns.give(X)`, each followed by a native `continue`, which goes to the next arm or step. After a statement
    that a jump may leave, `if _ab_if_1.is_empty: continue` skips code that no lane reaches. A `for` without jumps is an
    `item_loop`. `raise` only signals that some example raises; the next way to run finds the exact exception.
    Runs first, on the user's own syntax, because it must see every binding.
    """

    removes = "a branch or a loop that does not ask the runtime"

    def __init__(self, function: ast.FunctionDef) -> None:
        self.count = 0
        self.gives = False
        self.inside = False
        self.jumps: list[tuple[str, list[str], set[str]]] = []
        self.ownership: Any = None
        self.blocks: Any = None
        self.own: set[str] = set()

    @staticmethod
    def remains(node: ast.AST) -> bool:
        if isinstance(node, ast.If):
            return not _is_ours(node.test)
        return isinstance(node, ast.While) or (isinstance(node, ast.For) and not _is_ours(node.iter))

    def body_of(self, function: ast.FunctionDef) -> list[ast.stmt]:
        """Rewrite and return the body of a function."""
        annotate(function)
        state = self.gives, self.inside, self.jumps, self.ownership, self.blocks
        self.gives = any(
            isinstance(node, ast.If | ast.For | ast.While | ast.With) and _returns([node])
            for node in local_nodes(function.body)
        )
        self.inside, self.jumps = False, []
        self.ownership, self.blocks = function.ownership, getattr(function, "blocks", None)  # type: ignore[attr-defined]
        self.own = self.ownership.own
        first, last = function.body[0], function.body[-1]
        body = self._block(function.body)
        if self.gives:
            body = [*statements("_ab_returns = _ab_function()", first), *body]
            if not isinstance(last, ast.Return):
                body += statements("_ab_returns.give(None)\nreturn _ab_returns.result()", last)
        self.gives, self.inside, self.jumps, self.ownership, self.blocks = state
        self.own = self.ownership.own if self.ownership is not None else set()
        return body

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        node.body = self.body_of(node)
        return node

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        return node

    def visit_Assert(self, node: ast.Assert) -> Any:
        node.test = expression("_ab_check(TEST)", node.test, TEST=node.test)
        return node

    def visit_Raise(self, node: ast.Raise) -> Any:
        if node.exc is not None:
            node.exc = expression("_ab_raised(lambda: ERROR)", node.exc, ERROR=node.exc)
        return node

    def visit_With(self, node: ast.With) -> Any:
        for item in node.items:
            item.context_expr = expression("_ab_manager(X)", item.context_expr, X=item.context_expr)
        node.body = self._block(node.body)
        return node

    def visit_Return(self, node: ast.Return) -> Any:
        lines, value = self._value(node.value or ast.copy_location(ast.Constant(None), node))
        if not self.gives:
            node.value = value if node.value is not None else None
            return [*lines, node]
        return [*lines, *statements("_ab_returns.give(VALUE)", node, VALUE=value), *self._leave_arm(node)]

    def visit_Break(self, node: ast.Break) -> Any:
        return self._jump("leave", node)

    def visit_Continue(self, node: ast.Continue) -> Any:
        return self._jump("next", node)

    def visit_If(self, node: ast.If) -> Any:
        number, at = self._number(), node.test
        branch, arm = f"_ab_if_{number}", f"_ab_arm_{number}"
        arms = [*node.body, *node.orelse]
        left = _returns(arms) or _jumps(arms)
        names = self._names(arms, node)
        bound: set[str] = node.bound  # type: ignore[attr-defined]
        with_else = bool(node.orelse)
        owned = places(names, self.own)
        body, orelse = self._inner(node.body), self._inner(node.orelse)

        before, test = self._value(node.test)
        parts: dict[str, Any] = {"IF": branch, "ARM": arm, "V": values(names, bound, at), "TEST": test}
        parts["RESTORE"] = rebind(names, expression("IF.values", at, IF=branch), bound, at) if names else []
        restore = "if IF.changed:\n        RESTORE" if names and (with_else or owned) else "pass"
        choice = ast.copy_location(ast.If(name(arm, at), body, orelse), node)
        lines = f"IF = _ab_if(TEST, V, {with_else}, {left}{owned})\nfor ARM in IF:\n    {restore}\n    CHOICE\n    "
        bound_end: set[str] = node.bound_end  # type: ignore[attr-defined]
        end = values(names, bound_end, at)
        lines += "IF.end(END)" if left else "if IF.split:\n        IF.end(END)"
        out = statements(lines, at, CHOICE=[choice], END=end, **parts)
        (loop,) = [line for line in out if isinstance(line, ast.For)]
        loop.body = [line for line in loop.body if not isinstance(line, ast.Pass)]
        if left:
            out += statements("if IF.is_empty:\n    AWAY", at, IF=branch, AWAY=self._leave_arm(node))
        join = expression("IF.join()", at, IF=branch)
        joined = rebind(names, join, bound_end, at) if names else [ast.copy_location(ast.Expr(join), at)]
        return [*before, *out, *statements("if IF.split:\n    JOIN", at, IF=branch, JOIN=joined)]

    def visit_For(self, node: ast.For) -> Any:
        number, at = self._number(), node.target
        if not _jumps(node.body) and not _returns([node]):
            body, orelse = self._inner(node.body), self._block(node.orelse)
            return item_loop(node, number, body, orelse, self.ownership, self.blocks)
        loop, item = f"_ab_loop_{number}", f"_ab_item_{number}"
        names = self._names([*node.body, *node.orelse], node, target_names(node.target))
        bound: set[str] = node.bound  # type: ignore[attr-defined]
        target, start = takes_item(node, item, set(names), [])
        temporary = isinstance(node.iter, ast.Call) and getattr(node.iter.func, "id", None) in _TEMPORARY
        walk = expression(
            f"_ab_for(ITER, {temporary}, V{places(names, self.own)})", at, ITER=node.iter, V=values(names, bound, at)
        )
        return self._walk(node, loop, walk, target, names, bound, start)

    def visit_While(self, node: ast.While) -> Any:
        number, at = self._number(), node.test
        loop, step = f"_ab_loop_{number}", f"_ab_step_{number}"
        names = self._names([node.test, *node.body, *node.orelse], node)
        bound: set[str] = node.bound  # type: ignore[attr-defined]
        walk = expression(f"_ab_while(V{places(names, self.own)})", at, V=values(names, bound, at))
        start: list[ast.stmt] = []
        before: list[ast.stmt] = []
        if not (isinstance(node.test, ast.Constant) and node.test.value is True):
            go_on = rebind(names, expression("LOOP.values", at, LOOP=loop), bound, at) if names else []
            before, test = self._value(node.test)
            start = before + statements(
                "if LOOP.stops(TEST, V):\n    if LOOP.is_empty:\n        break\n    GO_ON", at,
                LOOP=loop, TEST=test, V=values(names, bound, at), GO_ON=go_on,
            )  # fmt: skip
        return self._walk(node, loop, walk, name(step, at, ast.Store()), names, bound, start, before)

    def _walk(
        self, node: ast.For | ast.While, loop: str, walk: ast.expr, target: ast.expr, names: list[str], bound: set[str],
        start: list[ast.stmt], test: list[ast.stmt] | None = None,
    ) -> list[ast.stmt]:  # fmt: skip
        """The part that `while` and `for` with jumps share; `test`: the lines of the condition's block."""
        at = node.test if isinstance(node, ast.While) else node.target
        left = _returns([node]) or _jumps(node.orelse)  # before the visits below, which may change the parts
        self.jumps.append((loop, names, bound))
        body = self._inner(node.body)
        self.jumps.pop()
        scan = scan_lines(self.blocks, loop, body, test, names, set()) if test else []
        body = [*start, *body]
        body += statements("LOOP.next(V)", at, LOOP=loop, V=values(names, node.bound_end, at))  # type: ignore[union-attr]
        body += scan
        if names:
            again = rebind(names, expression("LOOP.values", at, LOOP=loop), bound, at)
            body = [*statements("if LOOP.changed:\n    AGAIN", at, LOOP=loop, AGAIN=again), *body]
        out = statements("LOOP = WALK", at, LOOP=loop, WALK=walk)
        out.append(ast.copy_location(ast.For(target, name(loop, at), body, []), node))
        if node.orelse:
            ended = loop.replace("loop", "values")
            restore = rebind(names, name(ended, at), bound, at) if names else []
            out += statements(
                "for ENDED in LOOP.otherwise():\n    RESTORE\n    ORELSE\n    LOOP.leave(V)", node.orelse[0],
                ENDED=ended, LOOP=loop, RESTORE=restore, ORELSE=self._inner(node.orelse), V=values(names, bound, at),
            )  # fmt: skip
        after = expression("LOOP.after()", at, LOOP=loop)
        if left and names:  # lanes already at the head of an outer loop keep the values they had there
            came = loop.replace("loop", "after")
            out += statements("CAME = AFTER", at, CAME=came, AFTER=after)
            after = name(came, at)
        elif left or not names:
            out.append(ast.copy_location(ast.Expr(after), at))
        if left:
            out += statements("if LOOP.is_empty:\n    AWAY", at, LOOP=loop, AWAY=self._leave_arm(node))
        return [*out, *rebind(names, after, bound, at)] if names else out

    def _value(self, node: ast.expr) -> tuple[list[ast.stmt], ast.expr]:
        """The value of a statement's last expression, and the lines to run before the statement."""
        return ([], node) if self.blocks is None else self.blocks.value(node)

    def _number(self) -> int:
        self.count += 1
        return self.count

    def _names(self, body: Iterable[ast.AST], node: Any, also: Iterable[str] = ()) -> list[str]:
        """Names that the statements bind, or write into if owned, and that are read in or after them; sorted."""
        body = list(body)
        written = bound_names(body) | set(also) | (stored_names(body) & self.own)
        return sorted(written & (node.live_head | node.live_out))

    def _block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for statement in body if self.blocks is None else self.blocks.gathered(body):
            result = statement if hasattr(statement, "block") else self.visit(statement)
            out += result if isinstance(result, list) else [result]
        return out

    def _inner(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Rewrite statements inside a native loop that this pass generates."""
        inside, self.inside = self.inside, True
        out = self._block(body)
        self.inside = inside
        return out

    def _leave_arm(self, at: ast.AST) -> list[ast.stmt]:
        """Go to the next arm or step, or return from the function: no lane is left here."""
        return (
            statements("return _ab_returns.result()", at)
            if not self.inside
            else [ast.copy_location(ast.Continue(), at)]
        )

    def _jump(self, method: str, node: ast.stmt) -> list[ast.stmt]:
        loop, names, bound = self.jumps[-1]
        call = statements(f"LOOP.{method}(V)", node, LOOP=loop, V=values(names, bound, node))
        return [*call, *self._leave_arm(node)]


def _returns(body: Iterable[ast.AST]) -> bool:
    return any(isinstance(node, ast.Return) for node in local_nodes(body))


def _jumps(body: Iterable[ast.AST]) -> bool:
    """True if a `break` or `continue` in these statements belongs to a loop around them."""
    for node in body:
        if isinstance(node, ast.Break | ast.Continue):
            return True
        if isinstance(node, ast.For | ast.While):
            if _jumps(node.orelse):
                return True
        elif not isinstance(node, ast.FunctionDef | ast.expr) and _jumps(ast.iter_child_nodes(node)):
            return True
    return False


def _is_ours(node: ast.expr) -> bool:
    return any(isinstance(part, ast.Name) and part.id.startswith("_ab_") for part in ast.walk(node))


def item_loop(
    node: ast.For, number: int, body: list[ast.stmt], orelse: list[ast.stmt], ownership: Any, runs: Any
) -> list[Any]:
    """Rewrite a `for` without break, continue and return as a native `for` over `_ab_loop(iterable)`.

    ```
    _ab_loop_1 = _ab_loop(ITERABLE)
    for _ab_item_1 in _ab_loop_1:
        if _ab_loop_1.has_shrunk:                                # some lanes have run out of items
            h, c = _ab_loop_1.narrow((h,), (c,))            # save their last values (h is read after the loop)
        x = _ab_item_1
        BODY
    (h,) = _ab_loop_1.merge((h,))                           # the values of all lanes again
    ORELSE
    ```
    (`own=` gives the positions of arrays that the function made and that have no alias; names that may hold views of
    them, and are not read again, are first set to None.)
    Carried names: those that the body binds or writes into and that may be read at the loop's head (`liveness`).

    Args:
        node: the loop; body, orelse: its rewritten parts.
        ownership: what is known of the function's arrays; runs: the function's `BlockSites`, or None.
    """
    loop, item, at = f"_ab_loop_{number}", f"_ab_item_{number}", node.target
    written = bound_names(node.body) | target_names(at) | (stored_names(node.body) & ownership.carried)
    live_head, live_out, bound = node.live_head, node.live_out, node.bound  # type: ignore[attr-defined]
    kept = sorted(written & live_out)
    carried = sorted(written & live_head - live_out)
    own: set[str] = ownership.own
    views = bound_names(node.body) & ownership.views if own & {*kept, *carried} else set()
    body = [*body, *scan_lines(runs, loop, body, None, [*kept, *carried], target_names(at))]
    target, body = takes_item(node, item, {*kept, *carried}, body)
    if kept or carried:
        parts = {"KEPT": values(kept, bound, at), "CARRIED": values(carried, bound, at)}
        call = f"LOOP.narrow(KEPT, CARRIED{places([*kept, *carried], own)})"
        narrow = rebind([*kept, *carried], expression(call, at, LOOP=loop, **parts), bound, at)
        narrow = _clear_dead_names(views - live_head - target_names(at), at) + narrow
        body = [*statements("if LOOP.has_shrunk:\n    REBIND", at, LOOP=loop, REBIND=narrow), *body]
    out = statements("LOOP = _ab_loop(ITER)", at, LOOP=loop, ITER=node.iter)
    out.append(ast.copy_location(ast.For(target, name(loop, at), body, []), node))
    merge = expression(f"LOOP.merge(KEPT{places(kept, own)})", at, LOOP=loop, KEPT=values(kept, bound, at))
    out += _clear_dead_names(views - live_out, at)
    out += rebind(kept, merge, bound, at) if kept else [ast.copy_location(ast.Expr(merge), at)]
    return out + orelse


def _clear_dead_names(names: set[str], at: ast.AST) -> list[ast.stmt]:
    """Set names that are not read again to None, so that views they hold no longer count as aliases."""
    return [line for each in sorted(names) for line in statements("NAME = None", at, NAME=each)]


def takes_item(node: ast.For, item: str, carried: set[str], body: list[ast.stmt]) -> tuple[ast.expr, list[ast.stmt]]:
    """The native loop's target, and a body that first binds the user's target if the loop cannot bind it itself."""
    plain = all(isinstance(part, ast.Name | ast.Tuple | ast.List | ast.expr_context) for part in ast.walk(node.target))
    if plain and not target_names(node.target) & carried:
        return node.target, body
    assign = ast.copy_location(ast.Assign([node.target], name(item, node.target)), node.target)
    return name(item, node.target, ast.Store()), [assign, *body]


# How a loop or a branch passes the values of names to the runtime, as one tuple, and gets them back.


def places(names: list[str], own: set[str]) -> str:
    """Source of the argument `own=`: the indices in `names` of those without an alias; empty if there are none."""
    found = tuple(place for place, each in enumerate(names) if each in own)
    return f", own={found}" if found else ""


def values(names: list[str], bound: set[str], at: ast.AST) -> ast.Tuple:
    """A tuple of the names' values, with `_ab_unbound` for each name that is not bound."""
    parts = [
        name(each, at)
        if each in bound
        else expression("_ab_locals().get(NAME, _ab_unbound)", at, NAME=ast.Constant(each))
        for each in names
    ]
    return ast.fix_missing_locations(ast.copy_location(ast.Tuple(parts, ast.Load()), at))


def rebind(names: list[str], new: ast.expr, bound: set[str], at: ast.AST) -> list[ast.stmt]:
    """`(a, b) = NEW`, followed by `del` of each name whose new value is `_ab_unbound`."""
    targets = ast.copy_location(ast.Tuple([name(each, at, ast.Store()) for each in names], ast.Store()), at)
    out: list[ast.stmt] = [ast.copy_location(ast.Assign([targets], new), at)]
    for each in names:
        if each not in bound:
            out += statements("if NAME is _ab_unbound:\n    del NAME", at, NAME=each)
    return out
