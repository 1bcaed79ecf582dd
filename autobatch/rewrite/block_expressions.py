"""Which expressions can be part of a block, and the block's own form of them.

A block is made of operators, declared NumPy and `nn` functions, array methods and indices. Its inputs are what those
are applied to: names; what is read from containers and objects without running code (`params["w"]`, `node.word`); and
anything else (a call of the user's), as long as it is evaluated before the block's first operation.
"""

import ast
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.facts.scopes import target_names
from autobatch.lazy.blocks import Guard, Slot
from autobatch.lazy.keys import Key
from autobatch.rewrite.block_inputs import Input, roots
from autobatch.rewrite.block_keys import key_of
from autobatch.rewrite.block_scope import NUMBERS, Scope, is_pure
from autobatch.rewrite.paths import binds, is_dotted, is_slicing, path_of

__all__ = ["METHODS", "BlockForm", "Refused"]

_OPERATORS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
METHODS = frozenset((
    "all", "any", "argmax", "argmin", "astype", "clip", "copy", "cumprod", "cumsum", "diagonal", "dot", "flatten",
    "max", "mean", "min", "prod", "ravel", "repeat", "reshape", "round", "squeeze", "std", "sum", "swapaxes", "take",
    "trace", "transpose", "var",
))  # fmt: skip
_BAGS = frozenset(("max", "mean", "min", "sum"))  # over the rows of a look-up: a launch of its own
_SHAPES = frozenset(("shape", "ndim", "size", "dtype"))
_LEAST = 2
_CONSTANTS = (type, np.dtype, type(None))
_MISSING = object()


class Refused(Exception):  # noqa: N818  (a signal between the passes for blocks)
    """This cannot be part of a block."""


class BlockForm:
    """A block in the making: its body, its inputs, what it relies on.

    Attributes:
        lists: it may go through lists of arrays; goes_through: it does.
        count: operations so far, rows of them look-ups; bound: names that the body has bound.
        replaced: {id of a node of the user's: name} of what is evaluated before the block, whatever becomes of it.
    """

    def __init__(
        self, scope: Scope, fresh: Callable[[], str], inner: Callable[[ast.expr], ast.expr], lists: bool = True
    ) -> None:
        self.lists = lists
        self.goes_through = False
        self.scope = scope
        self.fresh = fresh
        self.inner = inner
        self.count = self.rows = 0
        self.bound: set[str] = set()
        self.replaced: dict[int, str] = {}
        self.guards: dict[tuple[str, ...], Guard] = {}
        self._inputs: list[Input] = []
        self._known: dict[Any, Input] = {}

    def slots(self) -> tuple[list[ast.expr], list[Slot], list[str]]:
        """What the recorder is passed, how it reads each input from that, and the inputs' names in the body."""
        arguments: list[ast.expr] = []
        numbers: dict[str, int] = {}

        def root_of(name: str) -> Any:
            if name not in self.scope.own and not name.startswith("_ab_"):
                return name
            if name not in numbers:
                numbers[name] = len(arguments)
                arguments.append(ast.Name(name, ast.Load()))
            return numbers[name]

        slots = []
        for each in self._inputs:
            if each.part:
                numbers[each.temporary] = len(arguments)
                target = ast.Name(each.temporary, ast.Store())
                arguments.append(ast.NamedExpr(target, self.inner(each.node)))
                continue
            if each.temporary:
                slots.append(Slot(len(arguments), (), None, each.number, each.several))
                node = each.node if each.path is not None else self.inner(each.node)
                arguments.append(ast.NamedExpr(ast.Name(each.temporary, ast.Store()), node))
                continue
            root, steps, index = each.path
            if type(index) is Key:
                paths = [(root_of(name), steps) for name, steps in index.paths]
                at: Any = Key(paths, index.items, index.function, index.text)
            else:
                at = None if index is None else (root_of(index[0]), index[1])
            slots.append(Slot(root_of(root), steps, at, each.number, each.several))
        return arguments, slots, [each.name for each in self._inputs if not each.part]

    def names(self) -> list[str | None]:
        """For each input the name that it is, or an item of which it is; None for any other input."""
        return [
            None if each.temporary or each.path[2] or any(how != "key" for how, _ in each.path[1]) else each.path[0]
            for each in self._inputs
        ]

    def attempt(self, node: ast.expr) -> ast.expr | None:
        """`build`, or nothing at all."""
        inputs = [(each, each.number, each.temporary, list(each.places), each.several) for each in self._inputs]
        before = self.count, self.rows, dict(self.replaced), dict(self.guards), dict(self._known)
        try:
            return self.build(node)
        except Refused:
            self.count, self.rows, self.replaced, self.guards, self._known = before
            self._inputs = [each for each, *_ in inputs]
            for each, number, temporary, places, several in inputs:
                each.number, each.temporary, each.places, each.several = number, temporary, places, several
            return None

    def build(self, node: ast.expr, static: bool = False, operand: bool = False) -> ast.expr:
        """The block's form of an expression.

        Args:
            static: its value, if it is a number, decides about shapes.
            operand: it is an operand of an operator, so that a number counts only by its type.
        """
        match node:
            case ast.Constant():
                return node
            case ast.Name(id=name) if name in self.bound:
                return ast.Name(name, ast.Load())
            case ast.BinOp():
                left = self.build(node.left, static, not static)
                return self._op(ast.BinOp(left, node.op, self.build(node.right, static, not static)), static)
            case ast.UnaryOp(operand=ast.Constant()):
                return node
            case ast.UnaryOp() if not isinstance(node.op, ast.Not):
                return self._op(ast.UnaryOp(node.op, self.build(node.operand, static, not static)), static)
            case ast.Compare(ops=[op], comparators=[right]) if isinstance(op, _OPERATORS):
                left = self.build(node.left, static, not static)
                return self._op(ast.Compare(left, [op], [self.build(right, static, not static)]), static)
            case ast.Tuple() | ast.List() if not any(isinstance(part, ast.Starred) for part in node.elts):
                parts = [self.build(part, static) for part in node.elts]
                return type(node)(parts, ast.Load())
            case ast.List() if self.lists:
                parts = [
                    ast.Starred(self._several(part.value), ast.Load())
                    if isinstance(part, ast.Starred)
                    else self.build(part, static)
                    for part in node.elts
                ]
                return ast.List(parts, ast.Load())
            case ast.ListComp(generators=[each]) if self.lists and not each.ifs and not each.is_async:
                return self._for_each(node, each)
            case ast.Slice():
                bounds = [
                    None if part is None else self.build(part, True) for part in (node.lower, node.upper, node.step)
                ]
                return ast.Slice(*bounds)
            case ast.Call():
                return self._call(node, static)
            case ast.Subscript(ctx=ast.Load()):
                return self._subscript(node, static, operand)
            case ast.Attribute(ctx=ast.Load()):
                return self._attribute(node, static, operand)
            case ast.Name():
                return self._leaf(node, static, operand)
        return self._opaque(node, static, operand)

    def _for_each(self, node: Any, each: ast.comprehension) -> ast.expr:
        """A comprehension over the arrays of a list: its element is computed within the block, for each of them."""
        over = self._several(each.iter)
        bound = self.bound
        self.bound = bound | target_names(each.target)  # whatever else is evaluated in it refuses the block
        try:
            element = self.build(node.elt)
        finally:
            self.bound = bound
        return type(node)(element, [ast.comprehension(each.target, over, [], 0)])

    def _several(self, node: ast.expr) -> ast.expr:
        """What the block goes through item by item."""
        if isinstance(node, ast.Call) and self._is_zip(node):
            lists = [self._several(arg) for arg in node.args]
            return ast.Call(node.func, lists, self._keywords(node))
        made = items = self.build(node)
        while isinstance(items, ast.Subscript):  # a part of it
            items = items.value
        for slot in self._inputs:
            if isinstance(items, ast.Name) and items.id == slot.name:
                slot.several = self.goes_through = True
        return made

    def _is_zip(self, node: ast.Call) -> bool:
        """Whether it is `zip` of lists, which goes through them once, as the block would."""
        if not isinstance(node.func, ast.Name) or node.func.id in self.scope.own:
            return False
        if self._global(node.func.id, []) is not zip or any(isinstance(arg, ast.Starred) for arg in node.args):
            return False
        named = all(each.arg == "strict" and isinstance(each.value, ast.Constant) for each in node.keywords)
        return named and all(isinstance(arg, ast.Name | ast.Subscript | ast.Call) for arg in node.args)

    def _op(self, made: ast.expr, static: bool) -> ast.expr:
        self.count += not static
        return made

    def _leaf(self, node: ast.expr, static: bool, operand: bool) -> ast.expr:
        """What is read without running code: a name, or a path from one."""
        found = path_of(node)
        if found is None:
            return self._opaque(node, static, operand)
        root, steps = found
        if root not in self.scope.own:
            base = self.scope.binding(root)
            if isinstance(base, types.ModuleType) or not steps:
                value = self._global(root, [name for _, name in steps]) if is_dotted(steps) else None
                if isinstance(value, _CONSTANTS):
                    return node
                if value is _MISSING or callable(value) or isinstance(value, types.ModuleType):
                    return self._opaque(node, static, operand)
        return self._input(node, (root, steps, None), static, operand)

    def _global(self, root: str, attributes: list[str]) -> Any:
        """What a dotted global name means now; the block then relies on it if it is a function or a type."""
        value = base = self.scope.binding(root)
        for name in attributes:
            value = vars(value).get(name, _MISSING) if isinstance(value, types.ModuleType) else _MISSING
        if callable(value) or isinstance(value, _CONSTANTS):
            self.guards[root, *attributes] = Guard(self.scope.globals, root, attributes, base, value)
        return value

    def _input(self, node: ast.expr, path: Any, static: bool, operand: bool) -> ast.expr:
        root, steps, index = path
        names = {root, *roots(index)}
        if any(name in self.bound or (name in self.scope.own and name not in self.scope.sure) for name in names):
            raise Refused
        key = (root, steps, index, static)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Input(f"_ab_s{len(self._inputs)}", node, (root, steps, index))
            self._inputs.append(found)
        found.places.append(node)
        found.number = found.number and operand
        return ast.Name(found.name, ast.Load())

    def _opaque(self, node: ast.expr, static: bool, operand: bool) -> ast.expr:
        """Anything else: evaluated before the block, in its order among the other inputs."""
        if self.count > self.rows or self.bound or binds(node):
            raise Refused
        for each in self._inputs:  # what is read before it has to be read before it
            if not each.temporary and (each.path[1] or each.path[2] or self._may_shift(each.path[0])):
                self._evaluate(each)
        self._known.clear()
        made = Input(f"_ab_s{len(self._inputs)}", node, None)
        made.number = operand and not static
        made.places.append(node)
        self._inputs.append(made)
        self._evaluate(made)
        return ast.Name(made.name, ast.Load())

    def _evaluate(self, each: Input) -> None:
        """Let the user's code evaluate an input, once."""
        each.temporary = self.fresh()
        for place in each.places:
            self.replaced[id(place)] = each.temporary

    def _may_shift(self, name: str) -> bool:
        return name not in self.scope.own or name in self.scope.shifting

    def _call(self, node: ast.Call, static: bool) -> ast.expr:
        if any(isinstance(arg, ast.Starred) for arg in node.args) or any(k.arg is None for k in node.keywords):
            return self._opaque(node, static, False)
        function = path_of(node.func)
        if function is not None and function[0] not in self.scope.own and is_dotted(function[1]):
            guards = dict(self.guards)
            value = self._global(function[0], [name for _, name in function[1]])
            if is_pure(value) and (value is not len or self._is_made(node)):
                if value in NUMBERS and value not in (abs, len):
                    static = True
                args = [self.build(arg, static, value is abs or isinstance(value, np.ufunc)) for arg in node.args]
                return self._op(ast.Call(node.func, args, self._keywords(node)), static)
            if value is sum and self.lists and node.args:
                args = [self._summands(node.args[0]), *[self.build(arg) for arg in node.args[1:]]]
                return self._op(ast.Call(node.func, args, self._keywords(node)), static)
            relied = self.scope.helper(value)
            if relied is not None:
                args = [self.build(arg, static, True) for arg in node.args]
                self._rely(function, value, relied)
                self.count += _LEAST
                return ast.Call(node.func, args, self._keywords(node))
            self.guards = guards
            return self._opaque(node, static, False)
        method = node.func
        if isinstance(method, ast.Attribute) and method.attr in METHODS:
            if method.attr in _BAGS and _is_look_up(method.value):
                return self._opaque(node, static, False)
            base = self.build(method.value, False, True)
            args = [self.build(arg, True) for arg in node.args]
            return self._op(ast.Call(ast.Attribute(base, method.attr, ast.Load()), args, self._keywords(node)), static)
        return self._opaque(node, static, False)

    def _summands(self, node: ast.expr) -> ast.expr:
        match node:
            case ast.GeneratorExp(generators=[each]) if not each.ifs and not each.is_async:
                return self._for_each(node, each)
            case ast.List() | ast.ListComp():
                return self.build(node)
        return self._several(node)

    def _rely(self, path: Any, function: Any, more: list[Guard]) -> None:
        """Rely on a helper: on what it is, and on what it relies on itself."""
        names = [name for _, name in path[1]]
        root, own = self.scope.binding(path[0]), getattr(function, "__wrapped__", function)
        if own is function:
            for part in ("__code__", "__defaults__", "__kwdefaults__"):
                value = getattr(function, part)
                self.guards[path[0], *names, part] = Guard(self.scope.globals, path[0], [*names, part], root, value)
        self.guards.update({(str(id(each.scope)), each.name, *each.attributes): each for each in more})

    def _is_made(self, node: ast.Call) -> bool:
        """Whether the argument of a call is an array that this block makes."""
        return len(node.args) == 1 and isinstance(node.args[0], ast.Name) and node.args[0].id in self.bound

    def _keywords(self, node: ast.Call) -> list[ast.keyword]:
        return [ast.keyword(keyword.arg, self.build(keyword.value)) for keyword in node.keywords]

    def _attribute(self, node: ast.Attribute, static: bool, operand: bool) -> ast.expr:
        root = path_of(node)
        is_array = root is None or root[0] in self.scope.own
        if is_array and node.attr in _SHAPES:
            return ast.Attribute(self.build(node.value, False, True), node.attr, ast.Load())
        if is_array and node.attr == "T":
            return self._op(ast.Attribute(self.build(node.value, False, True), "T", ast.Load()), static)
        return self._leaf(node, static, operand)

    def _subscript(self, node: ast.Subscript, static: bool, operand: bool) -> ast.expr:
        base, index = path_of(node.value), node.slice
        if base is None or base[0] in self.bound or is_slicing(index):
            return self._by_index(node, static)
        if path_of(node) is not None:
            return self._leaf(node, static, operand)
        where = path_of(index)
        if where is None and (self.count > self.rows or self.bound):
            key = key_of(index)
            if key is not None and self.scope.own.issuperset([base[0], *roots(key)]):
                return self._look_up(node, (*base, key), static, operand)
        if where is None and base[0] in self.scope.own and isinstance(index, ast.Subscript) and not static:
            return self._row(node, operand)
        if where is None or where[0] in self.bound or not {base[0], where[0]} <= self.scope.own:
            return self._opaque(node, static, operand)
        return self._look_up(node, (*base, where), static, operand)

    def _row(self, node: ast.Subscript, operand: bool) -> ast.expr:
        """`table[ids[i]]`: the user's code evaluates the table and the id, and the look-up is part of the block."""
        for each in (node.value, node.slice):
            self._opaque(each, False, False)
            self._inputs[-1].part = True
        table, index = [part.temporary for part in self._inputs[-2:]]
        out = self._look_up(node, (table, (), (index, ())), False, operand)
        read = ast.Subscript(ast.Name(table, ast.Load()), ast.Name(index, ast.Load()), ast.Load())
        self._inputs[-1].node = ast.copy_location(read, node)
        return out

    def _look_up(self, node: ast.expr, path: Any, static: bool, operand: bool) -> ast.expr:
        self.count += 1
        self.rows += 1
        return self._input(node, path, static, operand)

    def _by_index(self, node: ast.Subscript, static: bool) -> ast.expr:
        base = self.build(node.value, False, True)
        return self._op(ast.Subscript(base, self.build(node.slice, True), ast.Load()), static)


def _is_look_up(node: ast.expr) -> bool:
    """Whether it is `table[ids]`, of any number of ids as far as one can see."""
    if not isinstance(node, ast.Subscript) or path_of(node) is not None:
        return False
    return isinstance(node.slice, ast.Subscript) or path_of(node.slice) is not None
