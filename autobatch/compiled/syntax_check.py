"""What the syntax of a function says at once: statements and expressions that no types make compiled code of."""

import ast
from types import FunctionType

from autobatch.syntax.source import NoSourceError, own_tree

_NEVER = {
    ast.AsyncFor: "an asynchronous loop", ast.AsyncWith: "an asynchronous block", ast.Await: "await",
    ast.ClassDef: "a class made in the function", ast.AsyncFunctionDef: "a coroutine", ast.Yield: "a generator",
    ast.YieldFrom: "a generator", ast.TryStar: "a handler of exceptions",
    ast.Global: "a global name that is bound", ast.Import: "an import", ast.ImportFrom: "an import",
    ast.JoinedStr: "a formatted string",
}  # fmt: skip


def first_refusal(function: FunctionType) -> str | None:
    """Why a function can never be compiled, with the line that says so; None if nothing in its syntax does."""
    try:
        tree = own_tree(function)
    except NoSourceError as error:
        return str(error)
    allowed = {id(x) for node in ast.walk(tree) if isinstance(node, ast.Raise | ast.Assert) for x in ast.walk(node)}
    for node in ast.walk(tree):
        why = _NEVER.get(type(node))
        if why is not None and node is not tree and id(node) not in allowed:
            line = getattr(node, "lineno", tree.lineno)
            what = ast.unparse(node).partition("\n")[0][:80]
            return f"{function.__code__.co_filename}:{line}: `{what}`: {why} is not compiled"
    return None
