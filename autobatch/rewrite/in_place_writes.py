"""The passes for in-place writes (items, attributes, names updated by `+=`), and which arrays may have aliases."""

import ast
import collections
from collections.abc import Iterator
from typing import Any

from autobatch.facts.call_effects import ARRAY_SHARERS, functions_of, mutators
from autobatch.facts.operators import ARITHMETIC
from autobatch.program.quote import expression, name, statements
from autobatch.program.scopes import bound_names, captured, local_nodes, parameters, target_names
from autobatch.program.syntax_effects import ARRAY_METHODS, UNKNOWN, Reader, usual_meaning


def stored_names(body: Any) -> set[str]:
    """Names of arrays written by item assignment (`name[a][b] = value`) or by NumPy (`np.add.at(name, ...)`)."""
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
    """True for a call of a NumPy function, or of a method that only arrays have."""
    if reader.value_of(call.func) is not UNKNOWN:
        return True
    return isinstance(call.func, ast.Attribute) and call.func.attr in ARRAY_METHODS


class Ownership:
    """The names whose arrays the function made itself and writes into, and which of them may have aliases.

    A call that makes an array to be held by a container, an object or the caller is marked (`owned`), so that a later
    write finds one array per lane.

    Attributes:
        written: names whose items are assigned, here or in a nested function, or that are updated in place.
        own: names in `written` whose array has no alias: a loop, which carries a value only under its name, may
            write into it for some of the lanes, unless views of it are alive.
        views: names that may hold a view of, or be another name for, an array.
        carried: names in `written` that are local to the function, not to an enclosing one: a loop may rebind them.
    """

    def __init__(self, function: ast.FunctionDef) -> None:
        nodes = list(local_nodes(function.body))
        updated = {
            node.target.id for node in nodes if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
        }
        inner = [stored_names(node.body) - parameters(node) for node in nodes if isinstance(node, ast.FunctionDef)]
        self.written = stored_names(function.body) | updated | (captured(function) & set().union(*inner))
        self.views = _bound_otherwise(nodes)
        given = parameters(function) - _rebound_to_fresh(function.body)
        known = _aliased(nodes) | self.views | given | captured(function)
        bound = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        self.own = (self.written & bound) - known
        self.carried = self.written & (parameters(function) | bound)
        writes_elsewhere = _may_write_to_aliases(nodes, self.views | given)
        for call in _escaping_makers(
            nodes, _aliased(nodes) | _viewed(nodes) if writes_elsewhere else set(), writes_elsewhere
        ):
            call.owned = True  # type: ignore[attr-defined]


_SHARERS = (ARRAY_SHARERS | {"transpose"}) - {"array"}
"""Functions whose result may share memory: `np.array` only with `copy=`; `np.transpose` is `permute_dims`."""
_MAKERS = frozenset(function.__name__ for function in functions_of("creates"))
_KEEPERS = mutators(list, collections.deque, dict) & {"append", "appendleft", "insert", "setdefault"}


def _may_write_to_aliases(nodes: list[ast.AST], unclear: set[str]) -> bool:
    """True if a write may reach an array that is held in a container or known by several names."""
    for node in nodes:
        base: ast.AST
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            base = node.target
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            base = node.value
        else:
            continue
        if not isinstance(base, ast.Name) or base.id in unclear:
            return True
    return False


def _viewed(nodes: list[ast.AST]) -> set[str]:
    """Names of values of which an item or attribute is assigned to another target."""
    values = [node.value for node in nodes if isinstance(node, ast.Assign)]
    parts = [value.value for value in values if isinstance(value, ast.Subscript | ast.Attribute)]
    return {part.id for part in parts if isinstance(part, ast.Name)}


def _escaping_makers(nodes: list[ast.AST], aliased: set[str], in_containers: bool) -> Iterator[ast.Call]:
    """Calls that make an array for an attribute, a name in `aliased` or a loop, or, if `in_containers`, a container."""
    for node in nodes:
        parts: list[ast.AST] = []
        if isinstance(node, ast.For):
            changed = stored_names(node.body) | bound_names(node.body)
            parts = [node.iter, *getattr(node.iter, "args", ())] if changed & target_names(node.target) else []
        elif isinstance(node, ast.Assign):
            (target, *_) = node.targets
            if isinstance(target, ast.Attribute) or (isinstance(target, ast.Name) and target.id in aliased):
                parts = [node.value]
            parts += [arm for part in parts if isinstance(part, ast.IfExp) for arm in (part.body, part.orelse)]
        elif not in_containers:
            continue
        elif isinstance(node, ast.List | ast.Tuple):
            parts = list(node.elts)
        elif isinstance(node, ast.Dict):
            parts = list(node.values)
        elif isinstance(node, ast.ListComp):
            parts = [node.elt]
        elif isinstance(node, ast.DictComp):
            parts = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _KEEPERS:
            parts = list(node.args)
        yield from (part for part in parts if isinstance(part, ast.Call) and is_maker(part))


def is_maker(call: ast.Call) -> bool:
    """True if a call makes an array that is not derived from others, as `np.zeros` does; any module name counts."""
    return isinstance(call.func, ast.Attribute) and call.func.attr in _MAKERS


def _bound_otherwise(nodes: list[ast.AST]) -> set[str]:
    """Names that may be bound to a view of an existing array, or to the array itself."""
    fresh: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.AugAssign):
            fresh.add(id(node.target))
        elif isinstance(node, ast.Assign) and is_fresh(node.value):
            fresh.update(id(target) for target in node.targets[:1])
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            target = node.targets[0]
            parts = target.elts if isinstance(target, ast.Tuple) and len(node.targets) == 1 else []
            if len(parts) == len(node.value.elts) and not any(isinstance(part, ast.Starred) for part in parts):
                pairs = zip(parts, node.value.elts, strict=True)
                fresh.update(id(part) for part, value in pairs if is_fresh(value))
    stores = (n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return {n.id for n in stores if id(n) not in fresh}


def _rebound_to_fresh(body: list[ast.stmt]) -> set[str]:
    """Names that every call rebinds to a fresh array (`x = x.copy()`) before a write can reach the old one."""
    out: set[str] = set()
    touched: set[str] = set()
    for node in body:
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if isinstance(target, ast.Name) and isinstance(node, ast.Assign) and is_fresh(node.value):
            out |= {target.id} - touched
        touched |= bound_names(node) | stored_names([node])
    return out


def is_fresh(value: ast.expr) -> bool:
    """True if an expression makes a new value, so that nothing else refers to it."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if _may_not_copy(value):
            return False
        if value.func.attr in ("copy", "astype"):
            return True
        module = value.func.value
        return isinstance(module, ast.Name) and module.id in ("np", "numpy") and value.func.attr not in _SHARERS
    return isinstance(value, ast.BinOp | ast.UnaryOp | ast.Constant | ast.List | ast.Dict | ast.ListComp | ast.DictComp)


def _may_not_copy(call: ast.Call) -> bool:
    """True if a call that usually copies may return the array itself."""
    name = getattr(call.func, "attr", None)
    return name in ("conj", "conjugate") or any(keyword.arg in ("copy", None) for keyword in call.keywords)


def _aliased(nodes: list[ast.AST]) -> set[str]:
    """Names that may have aliases: those mentioned other than as an operand or as an indexed array."""
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
                parts += node.args[:_INTO] if node.func.attr not in _SHARERS else []
            if _may_not_copy(node):
                parts = []
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _READERS:
            parts = list(node.args)
        elif isinstance(node, ast.Attribute):
            parts = [node.value] if node.attr in ("shape", "ndim", "size", "dtype") else []
        elif isinstance(node, ast.Tuple) and not isinstance(node.ctx, ast.Load):
            parts = list(node.elts)
        harmless.update(id(part) for part in parts)
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and id(n) not in harmless}


_INTO = 2  # positional arguments: a ufunc's third one may be the output array, which it returns
_READERS = frozenset(
    ("len", "sum", "min", "max", "abs", "int", "float", "bool", "print", "round", "range", "any", "all")
)


_SYMBOLS = {each.syntax: each.symbol for each in ARITHMETIC}


class Stores(ast.NodeTransformer):
    """Rewrites item and attribute targets, `del x[i]` and augmented assignment to calls, in Python's order.

    `X[I] = V` becomes `_ab_setitem(V, X, I)`, `X.a = V` becomes `_ab_setattr(V, X, "a")`, `n += V` becomes
    `n = _ab_update("+", n, V)`; other targets go through temporary names. A fresh array under a name that is written
    into becomes one per lane (`_ab_own`). Runs after the loops, which must see the stores; ownership was found before,
    on the user's own syntax (`function.ownership`).
    """

    removes = "assignment to an item or an attribute, and augmented assignment"

    def __init__(self, function: ast.FunctionDef) -> None:
        self.count = 0
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
            if isinstance(target, ast.Subscript | ast.Attribute):
                out += statements("_ab_refuse('del of an item or attribute')", target)
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
        base = target.value
        return statements("_ab_setitem(VALUE, X, I)", target, VALUE=value, X=base, I=target.slice)
