"""The passes over expressions: reads of items, displays, calls, and syntax that would look at a batch as a whole."""

import ast
import functools
from types import CellType, FunctionType
from typing import Any

from autobatch.rewrite.quote import expression, is_generated

__all__ = ["Calls", "Displays", "Guards", "Properties", "Reads", "property_names"]

_FRAME_FUNCTIONS = frozenset({"locals", "globals", "vars", "dir", "eval", "exec"})


class Reads(ast.NodeTransformer):
    """Reads `x[i]`; leaves `_ab_getitem(x, i)`, with `slice(...)` written out. Runs after the stores."""

    removes = "an item read by brackets"

    @staticmethod
    def remains(node: ast.AST) -> bool:
        return isinstance(node, ast.Subscript | ast.Slice)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        self.generic_visit(node)
        return expression("_ab_getitem(X, I)", node, X=node.value, I=node.slice)

    def visit_Slice(self, node: ast.Slice) -> Any:
        self.generic_visit(node)
        at: ast.AST = node.lower or node.upper or node.step or node
        parts = {
            key: part if part is not None else ast.copy_location(ast.Constant(None), at)
            for key, part in (("A", node.lower), ("B", node.upper), ("C", node.step))
        }
        return expression("_ab_slice(A, B, C)", at, **parts)


def property_names(function: FunctionType, tree: ast.FunctionDef) -> frozenset[str]:
    """Names of properties: of the classes that a function can name, and of those that it defines."""
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
    found: set[str] = set()
    for value in (*function.__globals__.values(), *cells):
        for cls in value.__mro__[:-1] if isinstance(value, type) and value.__module__ not in _NO_USERS else ():
            found.update(
                name for name, held in vars(cls).items() if isinstance(held, property | functools.cached_property)
            )
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.decorator_list]
            found.update(each.name for each in methods)
    return frozenset(found)


_NO_USERS = ("builtins", "numpy", "dataclasses", "collections")


class Properties(ast.NodeTransformer):
    """Reads attributes that may be properties of the user's classes; leaves `_ab_property(x, "name")`.

    Which names those may be is known from the classes that the function can reach (`property_names`); of any other
    object such an attribute is read as ever. Runs before the calls.
    """

    removes = "an attribute that may be a property"

    def __init__(self, function: ast.FunctionDef) -> None:
        self.names: frozenset[str] = getattr(function, "properties", frozenset())

    @staticmethod
    def remains(node: ast.AST) -> bool:
        return False

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        self.generic_visit(node)
        if node.attr not in self.names or not isinstance(node.ctx, ast.Load):
            return node
        return expression("_ab_property(X, NAME)", node, X=node.value, NAME=ast.Constant(node.attr))


class Displays(ast.NodeTransformer):
    """Reads list, dict and set displays; leaves them marked as made in this run, so that they may be changed."""

    removes = "a display that is not marked"

    @staticmethod
    def remains(node: ast.AST) -> bool:
        return isinstance(node, ast.List | ast.Dict | ast.Set) and not (
            hasattr(node, "marked") or isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)
        )

    def _mark(self, node: Any) -> Any:
        self.generic_visit(node)
        node.marked = True
        return expression("_ab_made(DISPLAY)", node, DISPLAY=node)

    visit_Dict = visit_Set = _mark  # noqa: N815

    def visit_List(self, node: ast.List) -> Any:
        return self._mark(node) if isinstance(node.ctx, ast.Load) else self.generic_visit(node)


class Calls(ast.NodeTransformer):
    """Reads calls; leaves `_ab_call(f, ...)`. `super()` stays; what looks at the frame itself asks for the loop."""

    removes = "a call that does not go through the runtime"

    @staticmethod
    def remains(node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and not is_generated(node) and not _is_super(node)

    def __init__(self, function: ast.FunctionDef) -> None:
        self.lambdas = 0

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        self.lambdas += 1
        self.generic_visit(node)
        self.lambdas -= 1
        return node

    def whole(self, node: ast.Call) -> bool:
        """Whether a call of `eval` sees the function's own variables, and nothing else."""
        return not self.lambdas and len(node.args) == 1 and not node.keywords

    def visit_Call(self, node: ast.Call) -> Any:
        call: ast.Call
        self.generic_visit(node)
        if is_generated(node) or _is_super(node):
            return node
        if isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec") and self.whole(node):
            call = expression("_ab_evaluated(F, _ab_locals(), _ab_globals())", node, F=node.func)
            call.args += node.args
            return call
        if isinstance(node.func, ast.Name) and node.func.id in _FRAME_FUNCTIONS and len(node.args) < 2:
            return expression("_ab_refuse(WHAT)", node, WHAT=ast.Constant(f"a call of {node.func.id}"))
        call = expression("_ab_call(F)" if not hasattr(node, "owned") else "_ab_create(F)", node, F=node.func)
        call.args += node.args
        call.keywords = node.keywords
        return call


def _is_super(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args


class Guards(ast.NodeTransformer):
    """Reads `is`, `in`, `%`, and f-strings, which would look at a batch as one object; leaves calls."""

    removes = "`is` and `in`, an f-string"

    @staticmethod
    def remains(node: ast.AST) -> bool:
        if isinstance(node, ast.Compare):
            return not is_generated(node.comparators[0]) and any(
                isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in node.ops
            )
        return isinstance(node, ast.JoinedStr)

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        if is_generated(node.comparators[0]):
            return node
        op = node.ops[0]
        special = {
            ast.Is: "_ab_is(A, B)",
            ast.IsNot: "_ab_is_not(A, B)",
            ast.In: "_ab_in(A, B)",
            ast.NotIn: "_ab_not_in(A, B)",
        }
        if len(node.ops) == 1 and type(op) in special:
            return expression(special[type(op)], node, A=node.left, B=node.comparators[0])
        if any(type(each) in special for each in node.ops):
            return expression("_ab_refuse('a chained comparison by is or in')", node)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        self.generic_visit(node)
        if isinstance(node.op, ast.Mod) and not isinstance(node.right, ast.Constant):
            return expression("_ab_mod(A, B)", node, A=node.left, B=node.right)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Any:
        self.generic_visit(node)
        call: ast.Call = expression("_ab_fstring()", node)
        call.args += node.values
        return call

    def visit_FormattedValue(self, node: ast.FormattedValue) -> Any:
        self.generic_visit(node)
        spec = node.format_spec or ast.copy_location(ast.Constant(""), node)
        conversion = ast.copy_location(ast.Constant(node.conversion), node)
        return ast.copy_location(ast.Tuple([node.value, conversion, spec], ast.Load()), node)
