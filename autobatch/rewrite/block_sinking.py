"""Array statements that follow an `if` move to the ends of its arms, so that they are of one run with what is there.

    if parents:                         if parents:
        z = z + gate * found                z = z + gate * found
    h = np.tanh(z)               ->         h = np.tanh(z)
                                        else:
                                            h = np.tanh(z)

Runs before liveness. An arm that ends in a jump gets nothing: nothing follows it. A statement moves where it reads what
an arm assigns last.
"""

import ast
import copy
from collections.abc import Callable, Sequence

from autobatch.facts.scopes import reads
from autobatch.rewrite.paths import binds

__all__ = ["sink"]

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
