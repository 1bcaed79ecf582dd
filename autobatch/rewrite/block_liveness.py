"""What a block may leave out and rely on: names that may be read after a statement, and names bound for sure before it.

Every statement of a function gets `live_after` and `bound_before`. Inside of `try`, `with` and `match` every name of
theirs counts as read at any time: a handler sees whatever had been assigned when a statement failed.
"""

import ast
from collections.abc import Sequence

from autobatch.rewrite.scopes import bound_names, captured, parameters, reads, target_names

__all__ = ["annotate"]

Names = frozenset[str]
_NONE: Names = frozenset()


def annotate(function: ast.FunctionDef) -> None:
    """Annotate the statements in the function's own scope. Names of nested functions count as read at any time."""
    _Live(Names(captured(function))).block(function.body, _NONE, _NONE, _NONE)
    _bind(function.body, Names(parameters(function)))


class _Live:
    def __init__(self, always: Names) -> None:
        self.always = always

    def block(self, body: Sequence[ast.stmt], out: Names, at_break: Names, at_continue: Names) -> Names:
        """The names live before these statements, given those live after them and at the ends of a jump."""
        for node in reversed(body):
            node.live_after = out | self.always  # type: ignore[attr-defined]
            out = self.statement(node, out, at_break, at_continue)
        return out

    def statement(self, node: ast.stmt, out: Names, at_break: Names, at_continue: Names) -> Names:
        match node:
            case ast.Return() | ast.Raise():
                return self.always | reads(node)
            case ast.Break():
                return at_break
            case ast.Continue():
                return at_continue
            case ast.If():
                arms = self.block(node.body, out, at_break, at_continue)
                return arms | self.block(node.orelse, out, at_break, at_continue) | reads(node.test)
            case ast.While():
                return self._loop(node, reads(node.test), set(), out, at_break, at_continue)
            case ast.For():
                targets = target_names(node.target)
                head = self._loop(node, reads(node.target), targets, out, at_break, at_continue)
                return head | reads(node.iter)
            case ast.Try() | ast.TryStar() | ast.With() | ast.Match():
                return self._guarded(node, out | at_break | at_continue)
            case ast.Assign() | ast.AnnAssign() | ast.FunctionDef():
                return (out - bound_names(node)) | self.always | reads(node)
            case _:
                return out | self.always | reads(node)

    def _loop(
        self,
        node: ast.While | ast.For,
        tested: set[str],
        targets: set[str],
        out: Names,
        at_break: Names,
        at_continue: Names,
    ) -> Names:
        """The names live at the head of a loop, where `tested` are read and then `targets` bound."""
        head = self.block(node.orelse, out, at_break, at_continue) | self.always | tested
        while True:
            wider = head | (self.block(node.body, head, out, head) - targets)
            if wider == head:
                return head
            head = wider

    def _guarded(self, node: ast.stmt, out: Names) -> Names:
        anything = out | self.always | reads(node) | bound_names(node)
        for body in _bodies(node):
            self.block(body, anything, anything, anything)
        return anything


def _bodies(node: ast.stmt) -> list[list[ast.stmt]]:
    """The lists of statements in a compound statement."""
    parts = [node, *getattr(node, "handlers", ()), *getattr(node, "cases", ())]
    return [body for part in parts for name in ("body", "orelse", "finalbody") if (body := getattr(part, name, None))]


def _bind(body: Sequence[ast.stmt], bound: Names) -> Names:
    """Walk forward with the names that are bound for sure; gives those bound after the statements."""
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound -= _deleted(node)
        node.bound_before = bound  # type: ignore[attr-defined]
        match node:
            case ast.Assign() | ast.FunctionDef() | ast.Import() | ast.ImportFrom():
                bound |= bound_names(node) - _deleted(node)
            case ast.AnnAssign() if node.value is not None:
                bound |= target_names(node.target)
            case ast.If():
                bound = _bind(node.body, bound) & _bind(node.orelse, bound)
            case ast.For():
                _bind(node.body, bound | target_names(node.target))
                _bind(node.orelse, bound)
            case _:
                for inner in _bodies(node):
                    _bind(inner, bound)
    return bound


def _deleted(node: ast.stmt) -> set[str]:
    """Names that may be unbound inside: by `del`, or at the end of an `except ... as name`."""
    out = {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Del)}
    return out | {handler.name for handler in ast.walk(node) if isinstance(handler, ast.ExceptHandler) and handler.name}
