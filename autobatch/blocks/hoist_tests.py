"""Array expressions that a statement decides by, or appends, as statements of their own, which a block may end with.

    seen = np.concatenate([a, b])            seen = np.concatenate([a, b])
    shift = bool(seen @ w > 0)        ->     _ab_test1 = seen @ w > 0
                                             shift = bool(_ab_test1)

Then array statements that follow an `if` move to the ends of its arms, so that they are of one block with what is
there.

    if parents:                         if parents:
        z = z + gate * found                z = z + gate * found
    h = np.tanh(z)               ->         h = np.tanh(z)
                                        else:
                                            h = np.tanh(z)

Both run before liveness. Only what the statement evaluates first is set apart: before it, at most `append` is read, of
what is known to be a list. A test of a `while` is evaluated anew each time. An arm that ends in a jump gets nothing:
nothing follows it. A statement moves where it reads what an arm assigns last.
"""

import ast
import copy
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from autobatch.blocks.block_expressions import Scope, is_pure
from autobatch.syntax.scopes import binds, bound_names, parameters, path_of, reads

__all__ = ["set_tests_apart", "sink"]

_BODIES = ("body", "orelse", "finalbody")
_CONVERSIONS = (bool, float, int)


def set_tests_apart(tree: ast.FunctionDef, scope: Scope) -> None:
    """Change the body of a function, and let what was set apart be of one block with what is before it."""
    _Apart(scope, frozenset(parameters(tree) | bound_names(tree.body)) | scope.own, _lists(tree)).bodies(tree)


class _Apart:
    def __init__(self, scope: Scope, own: frozenset[str], lists: frozenset[str]) -> None:
        self.scope = scope
        self.own = own
        self.lists = lists
        self.count = 0

    def bodies(self, node: ast.AST) -> None:
        for field in _BODIES:
            body = getattr(node, field, None)
            if isinstance(body, list):
                setattr(node, field, self.statements(body))
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            self.bodies(part)

    def statements(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for each in body:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                out.append(each)
                continue
            where: Any = (each, "test" if isinstance(each, ast.If) else "value")
            if isinstance(each, ast.Assign | ast.Return | ast.If):
                call = getattr(*where)
                if self._converts(call):
                    where = (call.args, 0)
                elif not isinstance(each, ast.If):
                    where = None
                out += self._apart(where)
            elif isinstance(each, ast.Expr) and self._appends(each.value):
                out += self._apart((each.value.args, 0))  # type: ignore[attr-defined]
            out.append(each)
        out = sink(out, self._is_array)
        for each in out:
            if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.bodies(each)
        return out

    def _appends(self, node: ast.expr) -> bool:
        """Whether this appends to a list of the function's own."""
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[_], keywords=[]):
                return name in self.lists
        return False

    def _converts(self, node: Any) -> bool:
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1):
            return False
        name = node.func.id
        return not node.keywords and name not in self.own and self.scope.binding(name) in _CONVERSIONS

    def _apart(self, where: Any) -> list[ast.stmt]:
        """The statement that binds what is at a place, which then is a name."""
        if where is None:
            return []
        holder, key = where
        node = holder[key] if isinstance(holder, list) else getattr(holder, key)
        if not isinstance(node, ast.BinOp | ast.Compare | ast.Call) or not self._is_array(node):
            return []
        self.count += 1
        name = f"_ab_test{self.count}"
        read = ast.copy_location(ast.Name(name, ast.Load()), node)
        if isinstance(holder, list):
            holder[key] = read
        else:
            setattr(holder, key, read)
        target = ast.copy_location(ast.Name(name, ast.Store()), node)
        return [ast.copy_location(ast.Assign([target], node), node)]

    def _is_array(self, node: ast.expr) -> bool:
        """Whether an operation can only be one of arrays: a matrix product, or NumPy's own."""
        match node:
            case ast.BinOp(op=ast.MatMult()):
                return True
            case ast.BinOp():
                return self._is_array(node.left) or self._is_array(node.right)
            case ast.Compare(ops=[_], comparators=[right]):
                return self._is_array(node.left) or self._is_array(right)
            case ast.Call():
                return self._is_numpy(node.func) or (
                    isinstance(node.func, ast.Attribute) and self._is_array(node.func.value)
                )
        return False

    def _is_numpy(self, function: ast.expr) -> bool:
        found = path_of(function)
        if found is None or found[0] in self.own or not found[1]:
            return False
        value: Any = self.scope.binding(found[0])
        for _, name in found[1]:
            value = getattr(value, "__dict__", {}).get(name)
        return is_pure(value)


def _lists(tree: ast.FunctionDef) -> frozenset[str]:
    """The names that are only ever bound to new lists, by plain assignments."""
    made: Counter[str] = Counter()
    stores: Counter[str] = Counter()
    declared: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets, value=ast.List() | ast.ListComp()):
                made.update(target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.List() | ast.ListComp()):
                made[name] += 1
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                stores[name] += 1
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                declared.update(names)
    declared |= parameters(tree) | (bound_names(tree.body) - set(stores))
    return frozenset(name for name, count in made.items() if stores[name] == count) - declared


_MOST = 3  # statements of one `if`, each of which is repeated in every arm
_ARMS = 4
_JUMPS = (ast.Return, ast.Raise, ast.Break, ast.Continue)
_COMPUTED = (ast.BinOp, ast.UnaryOp, ast.Call, ast.Subscript)
_ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign)


def sink(body: list[ast.stmt], is_array: Callable[[ast.expr], bool]) -> list[ast.stmt]:
    """The statements with array statements moved into the arms before them.

    Args:
        is_array: whether an expression can only be one of arrays.
    """
    out: list[ast.stmt] = []
    moved = 0
    for each in body:
        before = out[-1] if out else None
        if isinstance(before, ast.If) and moved < _MOST and _moves(each, before, is_array):
            _append(before, each)
            moved += 1
            continue
        moved = 0
        out.append(each)
    return out


def _moves(node: ast.stmt, into: ast.If, is_array: Callable[[ast.expr], bool]) -> bool:
    if not isinstance(node, ast.Assign) or not all(isinstance(target, ast.Name) for target in node.targets):
        return False
    if not is_array(node.value) or binds(node) or any(isinstance(part, ast.Lambda) for part in ast.walk(node)):
        return False
    ends = _ends(into)
    return len(ends) <= _ARMS and any(_feeds(end, node) for end in ends)


def _ends(node: ast.If) -> list[list[ast.stmt]]:
    """The arms that go on after the `if`."""
    out = []
    for arm in (node.body, node.orelse):
        if arm and isinstance(arm[-1], ast.If):
            out += _ends(arm[-1])
        elif not arm or not isinstance(arm[-1], _JUMPS):
            out.append(arm)
    return out


def _feeds(arm: Sequence[ast.stmt], node: ast.stmt) -> bool:
    """Whether the last statement of an arm computes what a statement reads."""
    last = arm[-1] if arm else None
    if not isinstance(last, _ASSIGNMENTS) or not isinstance(last.value, _COMPUTED):
        return False
    targets = last.targets if isinstance(last, ast.Assign) else [last.target]
    return any(isinstance(part, ast.Name) and part.id in reads(node) for each in targets for part in ast.walk(each))


def _append(into: ast.If, node: ast.stmt) -> None:
    for arm in _ends(into):
        arm.append(copy.deepcopy(node))
