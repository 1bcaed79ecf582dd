"""What a block may leave out and rely on: names that may be read after a statement, and names bound for sure before it.

Every statement of a function gets `live_after` and `bound_before`. Inside of `try`, `with` and `match` every name of
theirs counts as read at any time: a handler sees whatever had been assigned when a statement failed.
"""

import ast
from collections.abc import Sequence

from autobatch.facts.scopes import bound_names, captured, parameters, reads, target_names
from autobatch.rewrite.liveness import Live, Names, deleted

__all__ = ["annotate"]

_NONE: Names = frozenset()


def annotate(function: ast.FunctionDef) -> None:
    """Annotate the statements in the function's own scope. Names of nested functions count as read at any time."""
    _BlockLive(Names(captured(function))).block(function.body, _NONE, _NONE, _NONE)
    _bind(function.body, Names(parameters(function)))


class _BlockLive(Live):
    def note(self, statement: ast.stmt, out: Names) -> None:
        super().note(statement, out | self.always)

    def statement(self, node: ast.stmt, out: Names, at_break: Names, at_continue: Names) -> Names:
        if not isinstance(node, ast.Try | ast.TryStar | ast.With | ast.Match):
            return super().statement(node, out, at_break, at_continue)
        anything = out | at_break | at_continue | self.always | reads(node) | bound_names(node)
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
            bound -= deleted(node)
        node.bound_before = bound  # type: ignore[attr-defined]
        match node:
            case ast.Assign() | ast.FunctionDef() | ast.Import() | ast.ImportFrom():
                bound |= bound_names(node) - deleted(node)
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
