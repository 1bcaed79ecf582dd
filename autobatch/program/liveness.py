"""Liveness analysis, run backward, and definite assignment, run forward, annotate the statements of a function.

Each `for`, `while` and `if` gets the attributes `live_head` (names that may be read from the loop's head on, or in an
arm of the branch), `live_out` (names that may be read after it), `bound` (names definitely bound before it that nothing
inside unbinds) and `bound_end` (names definitely bound at the end of the loop's body, or of both arms). Each statement
gets `live_after` (names that may be read after it) and `bound_before` (names definitely bound before it).
"""

import ast
from collections.abc import Sequence

from autobatch.program.scopes import bound_names, captured, parameters, reads, target_names

Names = frozenset[str]
_NONE: Names = frozenset()
_COMPOUND = ast.If | ast.For | ast.While | ast.Try | ast.TryStar | ast.With | ast.Match


def annotate(function: ast.FunctionDef) -> None:
    """Annotate the statements in the function's own scope. Names that nested functions use count as read everywhere.

    Any statement may raise, so in `try`, `with` and `match` all names used inside count as live throughout: a handler
    sees whatever has been assigned by then.
    """
    _Live(Names(captured(function))).block(function.body, _NONE, _NONE, _NONE)
    _bind(function.body, set(parameters(function)))


class _Live:
    """The backward walk. `always`: names that may be read at any time."""

    def __init__(self, always: Names) -> None:
        self.always = always

    def block(self, body: Sequence[ast.stmt], out: Names, at_break: Names, at_continue: Names) -> Names:
        """The names live before these statements, given those live after them and at each jump's target."""
        for statement in reversed(body):
            statement.live_after = out | self.always  # type: ignore[attr-defined]
            out = self.statement(statement, out, at_break, at_continue)
        return out

    def statement(self, node: ast.stmt, out: Names, at_break: Names, at_continue: Names) -> Names:
        """The names live before a statement."""
        if isinstance(node, ast.Try | ast.TryStar | ast.With | ast.Match):
            anything = out | at_break | at_continue | self.always | reads(node) | bound_names(node)
            for inner in _bodies(node):
                self.block(inner, anything, anything, anything)
            return anything
        match node:
            case ast.Return() | ast.Raise():
                return self.always | reads(node)
            case ast.Break():
                return at_break
            case ast.Continue():
                return at_continue
            case ast.If():
                arms = self.block(node.body, out, at_break, at_continue)
                arms |= self.block(node.orelse, out, at_break, at_continue)
                node.live_head, node.live_out = arms, out  # type: ignore[attr-defined]
                return arms | reads(node.test)
            case ast.While():
                return self._while(node, out, at_break, at_continue)
            case ast.For():
                return self._for(node, out, at_break, at_continue)
            case ast.Assign() | ast.AnnAssign() | ast.Delete() | ast.FunctionDef() | ast.ClassDef():
                return (out - bound_names(node)) | self.always | reads(node) | (out & _reads_of_class(node))
            case ast.AugAssign():
                return out | self.always | reads(node) | target_names(node.target)
            case _:
                return out | self.always | reads(node)

    def _while(self, node: ast.While, out: Names, at_break: Names, at_continue: Names) -> Names:
        after = self.block(node.orelse, out, at_break, at_continue) | reads(node.test) | self.always
        head = after
        while True:
            wider = after | self.block(node.body, head, out, head)
            if wider <= head:
                break
            head |= wider
        node.live_head, node.live_out = head, out | after  # type: ignore[attr-defined]
        return head

    def _for(self, node: ast.For, out: Names, at_break: Names, at_continue: Names) -> Names:
        after = self.block(node.orelse, out, at_break, at_continue) | self.always
        targets = target_names(node.target)
        head = after
        while True:
            wider = after | (self.block(node.body, head, out, head) - targets) | _subscripted(node.target)
            if wider <= head:
                break
            head |= wider
        node.live_head = head  # type: ignore[attr-defined]
        node.live_out = after | out  # type: ignore[attr-defined]
        return head | reads(node.iter)


def _subscripted(target: ast.expr) -> Names:
    return Names(reads(target))


def _reads_of_class(node: ast.stmt) -> Names:
    """Names that a class body binds: it runs immediately and may read them before."""
    return Names(bound_names(node.body)) if isinstance(node, ast.ClassDef) else _NONE


def _bodies(node: ast.stmt) -> list[list[ast.stmt]]:
    """The lists of statements in a compound statement."""
    parts = [node, *getattr(node, "handlers", ()), *getattr(node, "cases", ())]
    return [body for part in parts for name in ("body", "orelse", "finalbody") if (body := getattr(part, name, None))]


def _bind(body: Sequence[ast.stmt], bound: set[str]) -> set[str]:
    """Forward walk: `bound` has the names definitely bound before; returns those bound after the statements."""
    for node in body:
        if isinstance(node, ast.Delete | _COMPOUND):
            bound = bound - _deleted(node)
        before = node.bound_before = Names(bound)  # type: ignore[attr-defined]
        match node:
            case ast.Assign() | ast.FunctionDef() | ast.Import() | ast.ImportFrom():
                bound |= bound_names(node)
            case ast.AnnAssign() if node.value is not None:
                bound |= target_names(node.target)
            case ast.If():
                bound = _bind(node.body, set(bound)) & _bind(node.orelse, set(bound))
                node.bound, node.bound_end = before, Names(bound)  # type: ignore[attr-defined]
            case ast.For():
                end = _bind(node.body, bound | target_names(node.target))
                _bind(node.orelse, set(bound))
                node.bound, node.bound_end = before, Names(end)  # type: ignore[attr-defined]
            case ast.While():
                end = _bind(node.body, set(bound))
                _bind(node.orelse, set(bound))
                node.bound, node.bound_end = before, Names(end)  # type: ignore[attr-defined]
            case _:  # `try`, `with`, `match`: control may leave the inside early
                for inner in _bodies(node):
                    _bind(inner, set(bound))
    return bound


def _deleted(node: ast.stmt) -> set[str]:
    """Names that a statement may unbind: by `del`, or at the end of an `except ... as name`."""
    out = {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Del)}
    return out | {handler.name for handler in ast.walk(node) if isinstance(handler, ast.ExceptHandler) and handler.name}
