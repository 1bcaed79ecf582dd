"""The passes for what is written in place: items, attributes, and names that are updated by `+=`."""

import ast
from typing import Any

from autobatch.rewrite.names import stored_names
from autobatch.rewrite.quote import expression, name, statements
from autobatch.rewrite.scopes import bound_names, captured, local_nodes, parameters

__all__ = ["Ownership", "Stores"]

_SYMBOLS = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.MatMult: "@", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>",
}  # fmt: skip


class Ownership:
    """Which names hold arrays that the function made itself and writes into, and which of them may have aliases.

    Attributes:
        written: names of which items are assigned, or that are updated in place.
        own: those of them that no other name can know: a loop, which carries a value under its name only, may write
            into them for some of the lanes, unless views of them live.
        views: names that may hold a view of, or be another name for, an array.
        carried: names of `written` that are the function's own, not those of one around it: a loop may rebind them.
    """

    def __init__(self, function: ast.FunctionDef) -> None:
        nodes = list(local_nodes(function.body))
        updated = {
            node.target.id for node in nodes if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
        }
        self.written = stored_names(function.body) | updated
        self.views = _bound_otherwise(nodes)
        given = parameters(function) - _renewed(function.body)
        known = _aliased(nodes) | self.views | given | captured(function)
        bound = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        self.own = (self.written & bound) - known
        self.carried = self.written & (parameters(function) | bound)


_VIEWS = frozenset({
    "asarray", "asanyarray", "ascontiguousarray", "reshape", "ravel", "transpose", "swapaxes", "moveaxis", "squeeze",
    "expand_dims", "broadcast_to", "atleast_1d", "atleast_2d", "atleast_3d", "flip", "diagonal", "split",
    "array_split", "real", "imag", "require", "rollaxis", "fliplr", "flipud", "rot90", "diag", "hsplit", "vsplit",
    "dsplit", "matrix_transpose", "permute_dims", "nan_to_num", "unstack", "asarray_chkfinite",
})  # fmt: skip


def _bound_otherwise(nodes: list[ast.AST]) -> set[str]:
    """Names that are bound to what may be a view of, or another name for, an array that exists already."""
    fresh: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.AugAssign):
            fresh.add(id(node.target))
        elif isinstance(node, ast.Assign) and _is_fresh(node.value):
            fresh.update(id(target) for target in node.targets[:1])
    stores = (n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return {n.id for n in stores if id(n) not in fresh}


def _renewed(body: list[ast.stmt]) -> set[str]:
    """Names that every call binds to a fresh array (`x = x.copy()`) before it may write into what they held."""
    out: set[str] = set()
    touched: set[str] = set()
    for node in body:
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if isinstance(target, ast.Name) and isinstance(node, ast.Assign) and _is_fresh(node.value):
            out |= {target.id} - touched
        touched |= bound_names(node) | stored_names([node])
    return out


def _is_fresh(value: ast.expr) -> bool:
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if _may_not_copy(value):
            return False
        if value.func.attr in ("copy", "astype"):
            return True
        module = value.func.value
        return isinstance(module, ast.Name) and module.id in ("np", "numpy") and value.func.attr not in _VIEWS
    return isinstance(value, ast.BinOp | ast.UnaryOp | ast.Constant | ast.List | ast.Dict | ast.ListComp | ast.DictComp)


def _may_not_copy(call: ast.Call) -> bool:
    """Whether a call that copies may give the array itself after all."""
    name = getattr(call.func, "attr", None)
    return name in ("conj", "conjugate") or any(keyword.arg in ("copy", None) for keyword in call.keywords)


def _aliased(nodes: list[ast.AST]) -> set[str]:
    """Names whose value may also be reached by another way: any mention but as an operand or as what is indexed."""
    harmless: set[int] = set()
    for node in nodes:
        parts: list[ast.AST] = []
        if isinstance(node, ast.BinOp):
            parts = [node.left, node.right]
        elif isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.UnaryOp):
            parts = [node.operand]
        elif isinstance(node, ast.Return | ast.AugAssign | ast.FormattedValue) and node.value is not None:
            parts = [node.value, *(node.value.elts if isinstance(node.value, ast.Tuple) else ())]
        elif isinstance(node, ast.Subscript):
            parts = [node.value, node.slice]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            parts = [node.func.value]
            if isinstance(node.func.value, ast.Name) and node.func.value.id in ("np", "numpy", "math"):
                parts += node.args[:_INTO] if node.func.attr not in _VIEWS else []
            if _may_not_copy(node):
                parts = []
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _READERS:
            parts = list(node.args)
        elif isinstance(node, ast.Attribute):
            parts = [node.value] if node.attr in ("shape", "ndim", "size", "dtype") else []
        elif isinstance(node, ast.Tuple) and not isinstance(node.ctx, ast.Load):
            parts = list(node.elts)
        harmless.update(id(part) for part in parts)
    out = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and id(n) not in harmless}
    return out


_INTO = 2  # a ufunc's third argument may be what it writes into and gives back
_READERS = frozenset(
    {"len", "sum", "min", "max", "abs", "int", "float", "bool", "print", "round", "range", "any", "all"}
)


class Stores(ast.NodeTransformer):
    """Reads item and attribute targets, `del x[i]` and augmented assignment; leaves calls, in Python's order.

    `X[I] = V` becomes `_ab_setitem(V, X, I)`, `X.a = V` becomes `_ab_setattr(V, X, "a")`, `n += V` becomes
    `n = _ab_update("+", n, V)`; other targets go through temporary names. A fresh array under a name that is written
    into becomes one per lane (`_ab_own`). Runs after the loops, which need to see what is stored where; who owns what
    was read off the user's syntax before (`function.ownership`).
    """

    removes = "assignment to an item or an attribute, and augmented assignment"

    def __init__(self, function: ast.FunctionDef) -> None:
        self.count = 0
        self.top = function
        self.owned: Ownership = function.ownership  # type: ignore[attr-defined]

    @staticmethod
    def remains(node: ast.AST) -> bool:
        if isinstance(node, ast.AugAssign):
            return True
        return isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        owned, self.owned = self.owned, node.ownership  # type: ignore[attr-defined]
        self.generic_visit(node)
        self.owned = owned
        return node

    def visit_Assign(self, node: ast.Assign) -> Any:
        self.generic_visit(node)
        target = node.targets[0]
        if len(node.targets) == 1:
            if isinstance(target, ast.Name):
                if target.id in self.owned.written and isinstance(node.value, ast.Call):
                    node.value.owned = True  # type: ignore[attr-defined]
                elif target.id in self.owned.written and isinstance(node.value, ast.BinOp | ast.UnaryOp):
                    node.value = expression("_ab_own(VALUE)", node.value, VALUE=node.value)
                return node
            if isinstance(target, ast.Subscript | ast.Attribute):
                return self._store(node.value, target)
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            for part, value in zip(target.elts, node.value.elts, strict=False):
                if isinstance(part, ast.Name) and part.id in self.owned.written and isinstance(value, ast.Call):
                    value.owned = True  # type: ignore[attr-defined]
        after: list[ast.stmt] = []
        node.targets = [self._replace(each, after) for each in node.targets]
        return [node, *after]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if isinstance(node.target, ast.Name) and node.value is None:
            return node
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return self.visit(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        self.generic_visit(node)
        symbol, target = ast.Constant(_SYMBOLS[type(node.op)]), node.target
        if isinstance(target, ast.Name):
            load = name(target.id, target)
            return statements(
                "TARGET = _ab_update(OP, LOAD, VALUE)", node, TARGET=target.id, OP=symbol, LOAD=load, VALUE=node.value
            )
        self.count += 1
        base, key = f"_ab_base_{self.count}", f"_ab_key_{self.count}"
        if isinstance(target, ast.Attribute):
            return statements(
                "BASE = X\n_ab_setattr(_ab_update(OP, _ab_getattr(BASE, KEY), VALUE), BASE, KEY)",
                node, X=target.value, BASE=base, KEY=ast.Constant(target.attr), OP=symbol, VALUE=node.value,
            )  # fmt: skip
        return statements(
            "BASE = X\nKEY = I\n_ab_setitem(_ab_update(OP, _ab_getitem(BASE, KEY), VALUE), BASE, KEY)",
            node, X=target.value, I=target.slice, BASE=base, KEY=key, OP=symbol, VALUE=node.value,
        )  # fmt: skip

    def visit_Delete(self, node: ast.Delete) -> Any:
        self.generic_visit(node)
        out: list[ast.stmt] = []
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                out += statements("_ab_delitem(X, I)", target, X=target.value, I=target.slice)
            elif isinstance(target, ast.Attribute):
                out += statements("_ab_refuse('del of an attribute')", target)
            else:
                out.append(ast.copy_location(ast.Delete([target]), node))
        return out

    def _replace(self, target: ast.expr, after: list[ast.stmt]) -> ast.expr:
        if isinstance(target, ast.Tuple | ast.List):
            target.elts = [self._replace(each, after) for each in target.elts]
        elif isinstance(target, ast.Starred):
            target.value = self._replace(target.value, after)
        elif isinstance(target, ast.Subscript | ast.Attribute):
            self.count += 1
            temporary = f"_ab_value_{self.count}"
            after += self._store(name(temporary, target), target)
            return name(temporary, target, ast.Store())
        return target

    def _store(self, value: ast.expr, target: ast.Subscript | ast.Attribute) -> list[ast.stmt]:
        if isinstance(target, ast.Attribute):
            key = ast.Constant(target.attr)
            return statements("_ab_setattr(VALUE, X, KEY)", target, VALUE=value, X=target.value, KEY=key)
        return statements("_ab_setitem(VALUE, X, I)", target, VALUE=value, X=target.value, I=target.slice)
