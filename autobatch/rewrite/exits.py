"""The pass for ways out of a `try` or a `with` other than its end: jumps, `finally`, and context managers."""

import ast
from typing import Any

from autobatch.errors import NeedsLoop
from autobatch.syntax.quote import name, statements
from autobatch.syntax.scopes import local_nodes, with_methods

__all__ = ["Exits"]

_RETURN, _BREAK, _CONTINUE = 1, 2, 3


class Exits(ast.NodeTransformer):
    """Reads `with`, `finally`, and jumps that leave a `try`; leaves `try ... except ... else` that no jump leaves.

    A jump becomes a note of where to (`_ab_way_1`), and the way to the end of its block; what must happen on every way
    out is then the statement behind it, and after that each lane jumps where it wanted to.

    ```
    _ab_way_1 = 0                                           # try:
    try:                                                    #     if TEST:
        for _ab_once_1 in _ab_once:                         #         return X
            if TEST:                                        #     BODY
                _ab_returns.give(X)                         # finally:
                _ab_way_1 = 1                               #     FINAL
                break
            BODY
    except _ab_Exception:
        _ab_way_1 = 4
        _ab_errors.keep(1)
    FINAL
    if _ab_way_1 == 1:
        return                                              # what was given
    if _ab_way_1 == 4:
        _ab_errors.throw(1)
    ```
    ```
    with _ab_manager(MANAGER) as _ab_manager_1:             # with MANAGER as TARGET:
        TARGET = _ab_manager_1.enter()                      #     BODY
        _ab_failed_1 = False
        try:
            BODY
        except _ab_Exception:
            _ab_failed_1 = True
            if not _ab_manager_1.exit():
                raise
        if not _ab_failed_1:
            _ab_manager_1.leave()
    ```
    Runs before `Control`, which reads what this pass leaves, on the user's own syntax.
    """

    removes = "finally"

    def __init__(self, function: ast.FunctionDef) -> None:
        self.count = 0
        self.keeps = False

    def body_of(self, function: ast.FunctionDef) -> list[ast.stmt]:
        """The rewritten body of a function."""
        outer, self.keeps = self.keeps, False
        first = function.body[0]
        body = [line for statement in function.body for line in _as_list(self.visit(statement))]
        if self.keeps:
            body = [*statements("_ab_errors = _ab_waiting()", first), *body]
        self.keeps = outer
        return body

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        node.body = self.body_of(node)
        return node

    @staticmethod
    def remains(node: ast.AST) -> bool:
        return isinstance(node, ast.Try) and bool(node.finalbody)

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        return with_methods(self, node)

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        return node

    def visit_Try(self, node: ast.Try) -> Any:
        self.generic_visit(node)
        _no_yield(node)
        if not node.finalbody:
            return self._without_jumps(node)
        if _Jumps.of([node.finalbody]):
            raise NeedsLoop(f"a jump out of finally (line {node.lineno})")
        number, at = self._number(), node.body[0]
        way, key = f"_ab_way_{number}", ast.copy_location(ast.Constant(number), at)
        self.keeps = True
        inner = ast.copy_location(ast.Try(node.body, node.handlers, node.orelse, []), node)
        jumps = _Jumps(way, number)
        body = jumps.block(self._without_jumps(inner) if node.handlers else node.body)
        out = statements(
            "WAY = 0\ntry:\n    BODY\nexcept _ab_Exception:\n    WAY = 4\n    _ab_errors.keep(KEY)", at,
            WAY=way, KEY=key, BODY=body,
        )  # fmt: skip
        out += node.finalbody
        out += jumps.onwards(node)
        return [*out, *statements("if WAY == 4:\n    _ab_errors.throw(KEY)", at, WAY=way, KEY=key)]

    def _without_jumps(self, node: ast.Try) -> list[ast.stmt]:
        if not _Jumps.of(_parts(node)):
            return [node]
        number = self._number()
        jumps = _Jumps(f"_ab_way_{number}", number)
        leaves_body = _Jumps.of([node.body])
        node.body = jumps.block(node.body)
        for handler in node.handlers:
            handler.body = jumps.block(handler.body)
        if node.orelse:
            orelse = jumps.block(node.orelse)
            node.orelse = (
                statements("if WAY == 0:\n    BODY", node.orelse[0], WAY=jumps.way, BODY=orelse)
                if leaves_body
                else orelse
            )
        return [*statements("WAY = 0", node, WAY=jumps.way), node, *jumps.onwards(node)]

    def visit_With(self, node: ast.With) -> Any:
        if len(node.items) > 1:
            inner = ast.copy_location(ast.With(node.items[1:], node.body), node)
            return self.visit_With(ast.copy_location(ast.With(node.items[:1], [inner]), node))
        self.generic_visit(node)
        _no_yield(node)
        number, item = self._number(), node.items[0]
        at = item.context_expr
        names = {"M": f"_ab_manager_{number}", "ENTERED": f"_ab_entered_{number}", "FAILED": f"_ab_failed_{number}"}
        body = list(node.body)
        if isinstance(item.optional_vars, ast.Name):  # binding a name raises nothing, so it may come before
            names["ENTERED"] = item.optional_vars.id
        elif item.optional_vars is not None:
            body = [_assign(item.optional_vars, names["ENTERED"]), *body]
        jumps = _Jumps(f"_ab_way_{number}", number)
        leaves = _Jumps.of([body])
        (out,) = statements(
            "with _ab_manager(MANAGER) as M:\n    ENTERED = M.enter()\n    FAILED = False\n    try:\n        BODY\n"
            "    except _ab_Exception:\n        FAILED = True\n        if not M.exit():\n            raise\n"
            "    if not FAILED:\n        M.leave()", at, MANAGER=at, BODY=jumps.block(body) if leaves else body,
            **names,
        )  # fmt: skip
        return [*statements("WAY = 0", at, WAY=jumps.way), out, *jumps.onwards(node)] if leaves else out

    def _number(self) -> int:
        self.count += 1
        return self.count


def _parts(node: ast.Try) -> list[list[ast.stmt]]:
    return [node.body, *(handler.body for handler in node.handlers), node.orelse]


def _assign(target: ast.expr, value: str) -> ast.stmt:
    return ast.copy_location(ast.Assign([target], name(value, target)), target)


def _no_yield(node: ast.stmt) -> None:
    if any(isinstance(part, ast.Yield | ast.YieldFrom) for part in local_nodes(node)):
        raise NeedsLoop(f"a yield inside of try or with (line {node.lineno})")


class _Jumps(ast.NodeTransformer):
    """Turns jumps that leave a block into a note of where to, and a way to the block's end."""

    def __init__(self, way: str, number: int) -> None:
        self.way = way
        self.number = number
        self.kinds: set[int] = set()
        self.depth = self.noted = 0

    @staticmethod
    def of(parts: list[list[ast.stmt]]) -> bool:
        """Whether a jump leaves one of these blocks."""
        return any(_leaves(statement, False) for part in parts for statement in part)

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """A block that is left at its end only."""
        before = self.noted
        *first, last = body
        at_end = isinstance(last, ast.Return) and not self.of([first])
        out = [line for statement in body for line in _as_list(self.visit(statement))]
        if self.noted == before:
            return out
        if at_end:
            return out[:-1]
        once = name(f"_ab_once_{self.number}", body[0], ast.Store())
        return [ast.copy_location(ast.For(once, name("_ab_once", body[0]), out, []), body[0])]

    def onwards(self, at: ast.stmt) -> list[ast.stmt]:
        """The jumps themselves, behind the block."""
        leave: Any
        out: list[ast.stmt] = []
        for kind, leave in ((_RETURN, ast.Return(None)), (_BREAK, ast.Break()), (_CONTINUE, ast.Continue())):
            if kind in self.kinds:
                leave.given = True
                test = ast.copy_location(ast.Constant(kind), at)
                out += statements(
                    "if WAY == KIND:\n    LEAVE", at, WAY=self.way, KIND=test, LEAVE=[ast.copy_location(leave, at)]
                )
        return out

    def _note(self, kind: int, at: ast.stmt) -> list[ast.stmt]:
        self.kinds.add(kind)
        self.noted += 1
        value = ast.copy_location(ast.Constant(kind), at)
        return [*statements("WAY = KIND", at, WAY=self.way, KIND=value), ast.copy_location(ast.Break(), at)]

    def visit_Return(self, node: ast.Return) -> Any:
        note = self._note(_RETURN, node)
        if getattr(node, "given", False):
            return note
        value = node.value or ast.copy_location(ast.Constant(None), node)
        return [*statements("_ab_returns.give(VALUE)", node, VALUE=value), *note]

    def visit_Break(self, node: ast.Break) -> Any:
        return node if self.depth else self._note(_BREAK, node)

    def visit_Continue(self, node: ast.Continue) -> Any:
        return node if self.depth else self._note(_CONTINUE, node)

    def _loop(self, node: Any) -> Any:
        before = self.noted
        self.depth += 1
        node.body = [line for statement in node.body for line in _as_list(self.visit(statement))]
        self.depth -= 1
        inside = self.noted > before
        node.orelse = [line for statement in node.orelse for line in _as_list(self.visit(statement))]
        return [node, *statements("if WAY != 0:\n    break", node, WAY=self.way)] if inside else node

    visit_For = visit_While = _loop  # noqa: N815

    def _keep(self, node: Any) -> Any:
        return node

    visit_FunctionDef = visit_ClassDef = visit_Lambda = _keep  # noqa: N815


def _leaves(node: ast.AST, in_loop: bool) -> bool:
    if isinstance(node, ast.Return):
        return True
    if isinstance(node, ast.Break | ast.Continue):
        return not in_loop
    if isinstance(node, ast.For | ast.While):
        return any(_leaves(each, True) for each in node.body) or any(_leaves(each, in_loop) for each in node.orelse)
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.expr):
        return False
    return any(_leaves(child, in_loop) for child in ast.iter_child_nodes(node))


def _as_list(result: Any) -> list[ast.stmt]:
    return result if isinstance(result, list) else [result]
