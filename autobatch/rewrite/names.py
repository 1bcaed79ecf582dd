"""The values of names as one tuple, and back: how a loop or a branch hands them to the runtime."""

import ast
from typing import Any

from autobatch.facts.reader import ARRAY_METHODS, UNKNOWN, Reader, usual_meaning
from autobatch.syntax.quote import expression, name, statements
from autobatch.syntax.scopes import local_nodes

__all__ = ["places", "rebind", "stored_names", "values"]


def stored_names(body: Any) -> set[str]:
    """Names of arrays that are written: items assigned (`name[a][b] = value`), or by NumPy (`np.add.at(name, ...)`)."""
    out = set()
    reader = Reader((), (), usual_meaning)
    for node in local_nodes(body):
        written: list[ast.expr] = []
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            written = [node]
        elif isinstance(node, ast.Call) and _is_numpys(reader, node):
            written = [each for each in reader.changed(node) if each is not None]
        for base in written:
            while isinstance(base, ast.Subscript):
                base = base.value
            if isinstance(base, ast.Name):
                out.add(base.id)
    return out


def _is_numpys(reader: Reader, call: ast.Call) -> bool:
    """Whether a call is one of a function of NumPy's, or of a method that arrays alone have."""
    if reader.value_of(call.func) is not UNKNOWN:
        return True
    return isinstance(call.func, ast.Attribute) and call.func.attr in ARRAY_METHODS


def places(names: list[str], own: set[str]) -> str:
    """Where in `names` those are that no other name knows, as source of an argument; empty without any."""
    found = tuple(place for place, each in enumerate(names) if each in own)
    return f", own={found}" if found else ""


def values(names: list[str], bound: set[str], at: ast.AST) -> ast.Tuple:
    """A tuple of the names' values, `_ab_unbound` for one that is not bound."""
    parts = [
        name(each, at)
        if each in bound
        else expression("_ab_locals().get(NAME, _ab_unbound)", at, NAME=ast.Constant(each))
        for each in names
    ]
    return ast.fix_missing_locations(ast.copy_location(ast.Tuple(parts, ast.Load()), at))


def rebind(names: list[str], new: ast.expr, bound: set[str], at: ast.AST) -> list[ast.stmt]:
    """`(a, b) = NEW`; a name without a value is unbound again."""
    targets = ast.copy_location(ast.Tuple([name(each, at, ast.Store()) for each in names], ast.Store()), at)
    out: list[ast.stmt] = [ast.copy_location(ast.Assign([targets], new), at)]
    for each in names:
        if each not in bound:
            out += statements("if NAME is _ab_unbound:\n    del NAME", at, NAME=each)
    return out
