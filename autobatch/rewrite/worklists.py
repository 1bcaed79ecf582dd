"""The pass for a `for` over a list that the loop itself changes, as a search does with what it has still to visit."""

import ast
from typing import Any

from autobatch.syntax.quote import name, statements
from autobatch.syntax.scopes import local_nodes

__all__ = ["Worklists"]

_CHANGES = frozenset({"append", "extend", "insert", "pop", "remove", "clear"})


class Worklists(ast.NodeTransformer):
    """Reads a `for` over a name whose list the body changes; leaves a `while`, which asks for the length at each step.

    ```
    _ab_list_1, _ab_next_1 = _ab_changing(QUEUE), 0         # for x in QUEUE: ...
    while _ab_next_1 < _ab_len(_ab_list_1):
        x = _ab_list_1[_ab_next_1]
        _ab_next_1 += 1
        ...
    ```
    So lanes whose lists come to differ leave it one by one. Runs before the exits and the control flow.
    """

    removes = "a loop over a list that it changes"

    def __init__(self, function: ast.FunctionDef) -> None:
        self.count = 0

    @staticmethod
    def remains(node: ast.AST) -> bool:
        return isinstance(node, ast.For) and _is_changed(node)

    def visit_For(self, node: ast.For) -> Any:
        changed = _is_changed(node)
        self.generic_visit(node)
        if not changed:
            return node
        self.count += 1
        items, place = f"_ab_list_{self.count}", f"_ab_next_{self.count}"
        length = ast.copy_location(ast.Call(name("_ab_len", node.iter), [name(items, node.iter)], []), node.iter)
        start: list[ast.stmt] = statements(
            "LIST = _ab_changing(QUEUE)\nPLACE = 0\nwhile PLACE < LENGTH:\n    PLACE += 1",
            node, LIST=items, PLACE=place, QUEUE=node.iter, LENGTH=length,
        )  # fmt: skip
        (item,) = statements("ITEM = LIST[PLACE]", node, ITEM="_ab_item", LIST=items, PLACE=place)
        assert isinstance(item, ast.Assign)
        item.targets = [node.target]
        loop = start[-1]
        assert isinstance(loop, ast.While)
        loop.body = [item, *loop.body, *node.body]
        loop.orelse = node.orelse
        return start


def _is_changed(node: ast.For) -> bool:
    """Whether the body of a loop changes what the loop runs over, by the name that it has there."""
    if not isinstance(node.iter, ast.Name):
        return False
    methods = [each.func for each in local_nodes(node.body) if isinstance(each, ast.Call)]
    holders = [each.value for each in methods if isinstance(each, ast.Attribute) and each.attr in _CHANGES]
    return any(isinstance(each, ast.Name) and each.id == node.iter.id for each in holders)
