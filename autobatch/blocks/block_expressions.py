"""Decides which expressions can be part of a block, and builds the block's own form of them.

A block consists of operators, declared NumPy and `nn` functions, array methods and indices. Its inputs are the values
that these are applied to: names; reads from containers and objects that run no code (`params["w"]`, `node.word`); and
any other expression (a call of a user function), provided it is evaluated before the block's first operation.

On the fly a block is recorded (`BlockForm.recorded`): its recorder reads paths and table rows by itself, and the block
may iterate over lists of arrays, end with a `return`, and make arrays that are the same for all examples. In lock-step
the rewritten code reads each input, which may differ by lane, and passes the inputs to the block.
"""

import dataclasses
import math
import types
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from autobatch.blocks.block_inputs import BlockInput, Key, Slot, key_of, roots
from autobatch.core.op import Op
from autobatch.errors import Unsupported
from autobatch.facts.call_effects import SHAPED_METHODS, effect_of
from autobatch.ops import nn
from autobatch.ops.numpy.reductions import ufunc_reduction
from autobatch.ops.rules.dispatch import FUNCTIONS, NUMPY_OWN, UFUNCS
from autobatch.program import normal_form as nf
from autobatch.program.python_text import text_of
from autobatch.program.scopes import MISSING, Guard, Scope, is_dotted

METHODS = SHAPED_METHODS - {"conj"}  # which may give the array itself
_BAGS = frozenset(("max", "mean", "min", "sum"))  # over the rows of a look-up: such a reduction is a launch of its own
_SHAPES = frozenset(("shape", "ndim", "size", "dtype"))
LEAST = 2  # operations; fewer are as fast outside a block, and can be grouped with equal ops from anywhere
_CONSTANTS = (type, np.dtype, type(None))
_PARTS = ("__code__", "__defaults__", "__kwdefaults__")
_CREATION = {np.zeros, np.ones, np.full, np.arange, np.eye, np.identity, np.linspace}
_SCALARS = {np.float16, np.float32, np.float64}
NUMBERS = {getattr(math, name) for name in dir(math) if not name.startswith("_")} | {abs, len} | _SCALARS
_LAYERS = {getattr(nn, name) for name in nn.__all__} - {nn.dropout}


def is_pure(function: Any) -> bool:
    """True if calling the function on arrays only computes a result, without side effects."""
    if isinstance(function, Op):
        return function.kind != "random"
    try:
        if isinstance(function, np.ufunc):
            return function in UFUNCS
        effect = effect_of(function)
        if effect is not None and (effect.always_writes or not effect.changes_nothing_outside):
            return False
        holder = getattr(function, "__self__", None)
        if isinstance(holder, np.ufunc):
            return function.__name__ == "reduce" and ufunc_reduction(holder) is not None
        return function in FUNCTIONS or function in NUMPY_OWN or function in _LAYERS | NUMBERS
    except TypeError:  # unhashable: an object of the user's
        return False


def is_computed(node: nf.Value) -> bool:
    """True for a call, an operator, an item or an attribute."""
    return isinstance(node, nf.Read) or (isinstance(node, nf.Call) and node.symbol not in nf.DISPLAYS)


class BlockForm:
    """A block under construction: its body, its inputs, and its guards.

    Args:
        scope: the meaning of names at its place; recorded: True for tracing, False in lock-step.
        fresh: makes names for values evaluated before the block.
        lists: whether it may iterate over lists of arrays, if it is recorded.
        updatable: local names that `+=` may rebind, if they turn out to be numbers.

    Attributes:
        goes_through: True if it iterates over a list; updates: the names that `+=` rebinds.
        count: the operations so far, of which `rows` are look-ups; bound: the names that the body has bound.
        replaced: {id of a user's node: name}, for values evaluated before the block even if it does not run.
    """

    def __init__(
        self,
        scope: Scope,
        recorded: bool,
        fresh: Callable[[], str],
        lists: bool = True,
        updatable: nf.Names = frozenset(),
    ) -> None:
        self.recorded = recorded
        self.updatable = updatable
        self.updates: set[str] = set()
        self.lists = lists and recorded
        self._slots: tuple[list[tuple[str, nf.Value]], list[Slot]] | None = None
        self.goes_through = False
        self.scope = scope
        self.fresh = fresh
        self.count = self.rows = 0
        self.bound: set[str] = set()
        self.replaced: dict[int, str] = {}
        self.guards: dict[tuple[str, ...], Guard] = {}
        self.inputs: list[BlockInput] = []
        self._known: dict[Any, BlockInput] = {}

    def slots(self) -> tuple[list[tuple[str, nf.Value]], list[Slot]]:
        """The arguments of the recorder, and how each input is read from them.

        An argument is (name that its value is bound to, value), or ("", a name of the user's).
        """
        if self._slots is not None:
            return self._slots
        arguments: list[tuple[str, nf.Value]] = []
        numbers: dict[str, int] = {}

        def root_of(name: str, at: nf.Value) -> Any:
            if name not in self.scope.local and not name.startswith("_ab_"):
                return name
            if name not in numbers:
                numbers[name] = len(arguments)
                arguments.append(("", nf.Name(at.at, name)))
            return numbers[name]

        slots = []
        for each in self.inputs:
            if each.temporary:
                if each.part:
                    numbers[each.temporary] = len(arguments)
                else:
                    slots.append(Slot(len(arguments), (), None, each.number, each.is_list))
                arguments.append((each.temporary, each.node))
                continue
            root, steps, index = each.path
            if type(index) is Key:
                paths = [(root_of(name, each.node), steps) for name, steps in index.paths]
                at: Any = Key(tuple(paths), index.items, index.function, index.text)
            else:
                at = None if index is None else (root_of(index[0], each.node), index[1])
            slots.append(Slot(root_of(root, each.node), steps, at, each.number, each.is_list))
        self._slots = arguments, slots
        return self._slots

    def names(self) -> list[str | None]:
        """For each input its name, or the name of the container of which it is an item; None for any other input."""
        return [
            None if each.temporary or each.path[2] or any(how != "key" for how, _ in each.path[1]) else each.path[0]
            for each in self.inputs
        ]

    def attempt(self, node: nf.Value) -> nf.Value | None:
        """`build`, or None with all changes undone if the value cannot be part of the block."""
        inputs = [(each, each.number, each.temporary, list(each.places), each.is_list) for each in self.inputs]
        before = self.count, self.rows, dict(self.replaced), dict(self.guards), dict(self._known)
        try:
            return self.build(node)
        except Unsupported:
            self.count, self.rows, self.replaced, self.guards, self._known = before
            self.inputs = [each for each, *_ in inputs]
            for each, number, temporary, places, is_list in inputs:
                each.number, each.temporary, each.places, each.is_list = number, temporary, places, is_list
            return None

    def build(self, node: nf.Value, static: bool = False, operand: bool = False) -> nf.Value:
        """The block's form of a value.

        Args:
            static: a number here determines shapes, so its value must be known.
            operand: the node is an operand of an operator, so that of a number only the type counts.
        """
        match node:
            case nf.Constant():
                return node
            case nf.Name(id=name) if name in self.bound:
                return node
            case nf.Name():
                return self._leaf(node, static, operand)
            case nf.Call(function=nf.Operator(symbol=symbol)):
                return self._operation(node, symbol, static, operand)
            case nf.Sugar(how="list", loops=[each]) if self.lists and not each.tests:
                return self._for_each(node)
            case nf.Call():
                return self._call(node, static)
            case nf.Read(key=str()):
                return self._attribute(node, static, operand)
            case nf.Read():
                return self._subscript(node, static, operand)
        return self._opaque(node, static, operand)

    def _operation(self, node: nf.Call, symbol: str, static: bool, operand: bool) -> nf.Value:
        args = node.args
        if symbol in nf.ARITHMETIC | nf.COMPARED:
            made = [self.build(each, static, not static) for each in args]
            is_enough = symbol == "@" and not self.recorded  # one product is worth a block
            return self._op(nf.Call(node.at, node.function, made), static, LEAST if is_enough else 1)
        if symbol in nf.SINGLE:
            if isinstance(args[0], nf.Constant):
                return node
            return self._op(nf.Call(node.at, node.function, [self.build(args[0], static, not static)]), static)
        if symbol in ("tuple", "list"):
            several = any(isinstance(each, nf.Spread) for each in args)
            if not several or (self.lists and symbol == "list"):
                made = [
                    nf.Spread(each.at, self._list_of(each.value))
                    if isinstance(each, nf.Spread)
                    else self.build(each, static)
                    for each in args
                ]
                return nf.Call(node.at, node.function, made)
        if symbol == "slice":
            return nf.Call(node.at, node.function, [self.build(each, True) for each in args])
        return self._opaque(node, static, operand)

    def _for_each(self, node: nf.Sugar) -> nf.Value:
        """A comprehension over a list of arrays: the block computes the element for each of them."""
        (each,) = node.loops
        over = self._list_of(each.over)
        bound = self.bound
        self.bound = bound | set(nf.target_names(each.target))  # refuses anything evaluated before the block
        try:
            element = self.build(node.parts[0])
        finally:
            self.bound = bound
        return nf.Sugar(node.at, node.how, [element], [dataclasses.replace(each, over=over)])

    def _list_of(self, node: nf.Value) -> nf.Value:
        """The iterable over which the block iterates."""
        if isinstance(node, nf.Call) and self._is_zip(node):
            return nf.Call(node.at, node.function, [self._list_of(arg) for arg in node.args], self._keywords(node))
        made = items = self.build(node)
        while isinstance(items, nf.Read) and isinstance(items.key, nf.Value):  # a slice of the list
            items = items.base
        for slot in self.inputs:
            if isinstance(items, nf.Name) and items.id == slot.name:
                slot.is_list = self.goes_through = True
        return made

    def _is_zip(self, node: nf.Call) -> bool:
        """True for `zip` of lists, which is iterated once, as the block would do."""
        if not isinstance(node.function, nf.Name) or node.function.id in self.scope.local:
            return False
        if self._global(node.function.id, []) is not zip:
            return False
        named = all(name == "strict" and isinstance(value, nf.Constant) for name, value in node.keywords)
        return named and all(
            isinstance(arg, nf.Name) or _is_item(arg) or (isinstance(arg, nf.Call) and not arg.symbol)
            for arg in node.args
        )

    def _op(self, made: nf.Value, static: bool, count: int = 1) -> nf.Value:
        self.count += 0 if static else count
        return made

    def _leaf(self, node: nf.Value, static: bool, operand: bool) -> nf.Value:
        """An input that is read without running code: a name, or a path that starts with one."""
        found = nf.path_of(node)
        if found is None:
            return self._opaque(node, static, operand)
        root, steps = found
        if root not in self.scope.local:
            base = self.scope.binding(root)
            if isinstance(base, types.ModuleType) or not steps:
                value = self._global(root, [str(name) for _, name in steps]) if is_dotted(steps) else None
                if _is_constant(base, value):
                    return node
                if value is MISSING or callable(value) or isinstance(value, types.ModuleType):
                    return self._opaque(node, static, operand)
        return self._input(node, (root, steps, None), static, operand)

    def _global(self, root: str, attributes: list[str]) -> Any:
        """The value of a dotted global name; if it is a function or a type, the block gets a guard for it."""
        value = base = self.scope.binding(root)
        for name in attributes:
            value = vars(value).get(name, MISSING) if isinstance(value, types.ModuleType) else MISSING
        if callable(value) or _is_constant(base, value):
            self.guards[root, *attributes] = Guard(self.scope.globals, root, attributes, base, value)
        return value

    def _input(self, node: nf.Value, path: Any, static: bool, operand: bool) -> nf.Value:
        root, steps, index = path
        names = {root, *roots(index)}
        if any(name in self.bound or (name in self.scope.local and name not in self.scope.bound) for name in names):
            raise Unsupported
        key = (root, steps, index, static)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = BlockInput(f"_ab_s{len(self.inputs)}", node, (root, steps, index))
            self.inputs.append(found)
        found.places.append(node)
        found.number = found.number and operand and not static
        if found.temporary:
            self.replaced[id(node)] = found.temporary
        elif not self.recorded and (steps or index):
            self._evaluate(found)
        return nf.Name(node.at, found.name)

    def updated(self, node: nf.Name) -> nf.Value:
        """The target of `+=`, which has to be a number: then it is bound to a new one, as by `x = x + y`."""
        made = self._leaf(node, False, True)
        self.updates.add(node.id)
        return made

    def _opaque(self, node: nf.Value, static: bool, operand: bool) -> nf.Value:
        """Any other expression: evaluated before the block, in its order among the other inputs."""
        if self.count > self.rows or self.bound or nf.stays(node):
            raise Unsupported
        for each in self.inputs:  # inputs that are read before this expression must also be evaluated before it
            if not each.temporary and (each.path[1] or each.path[2] or self._may_be_rebound(each.path[0])):
                self._evaluate(each)
        self._known.clear()
        made = BlockInput(f"_ab_s{len(self.inputs)}", node, None)
        made.number = operand and not static
        made.places.append(node)
        self.inputs.append(made)
        self._evaluate(made)
        return nf.Name(node.at, made.name)

    def _evaluate(self, each: BlockInput) -> None:
        """Make the user's code evaluate an input, once, and bind it to a name."""
        each.temporary = self.fresh()
        for place in each.places:
            self.replaced[id(place)] = each.temporary

    def _may_be_rebound(self, name: str) -> bool:
        return name not in self.scope.local or name in self.scope.rebindable

    def _call(self, node: nf.Call, static: bool) -> nf.Value:
        if any(isinstance(arg, nf.Spread) for arg in node.args) or any(not name for name, _ in node.keywords):
            return self._opaque(node, static, False)
        method = node.function
        function = nf.path_of(method)
        guards = dict(self.guards)
        value: Any = MISSING
        if function is not None and function[0] not in self.scope.local and is_dotted(function[1]):
            value = self._global(function[0], [str(name) for _, name in function[1]])
        if function is not None and value is not MISSING:
            if self._computes(value) and (value is not len or self._is_computed(node)):
                if value in NUMBERS and value not in (abs, len):
                    static = True
                args = [self.build(arg, static, value is abs or isinstance(value, np.ufunc)) for arg in node.args]
                return self._op(nf.Call(node.at, method, args, self._keywords(node)), static)
            if value is sum and self.lists and node.args:
                args = [self._summands(node.args[0]), *[self.build(arg) for arg in node.args[1:]]]
                return self._op(nf.Call(node.at, method, args, self._keywords(node)), static)
            relied = self.scope.helper(value)
            if relied is not None:
                args = [self.build(arg, static, True) for arg in node.args]
                keywords = self._keywords(node)
                self._add_guards(value, relied)
                self.count += LEAST
                passed = {arg.id for arg in (*args, *(each for _, each in keywords)) if isinstance(arg, nf.Name)}
                for each in self.inputs:
                    each.is_passed = each.is_passed or each.name in passed
                return nf.Call(node.at, method, args, keywords)
            self.guards = guards
            return self._opaque(node, static, False)
        if isinstance(method, nf.Read) and isinstance(method.key, str) and method.key in METHODS:
            if self.recorded and method.key in _BAGS and _is_look_up(method.base):
                return self._opaque(node, static, False)
            base = self.build(method.base, False, True)
            args = [self.build(arg, True) for arg in node.args]
            return self._op(nf.Call(node.at, nf.Read(method.at, base, method.key), args, self._keywords(node)), static)
        return self._opaque(node, static, False)

    def _computes(self, function: Any) -> bool:
        """True if a block may call a function; one that creates an array is allowed only if the block is recorded."""
        if not self.recorded and isinstance(function, Hashable) and function in _CREATION:
            return False
        return is_pure(function)

    def _summands(self, node: nf.Value) -> nf.Value:
        match node:
            case nf.Sugar(how="generator", loops=[each]) if not each.tests:
                return self._for_each(node)
            case nf.Call(function=nf.Operator(symbol="list")) | nf.Sugar(how="list"):
                return self.build(node)
        return self._list_of(node)

    def _add_guards(self, function: Any, more: list[Guard]) -> None:
        """Add guards for a helper, and for everything that it relies on itself."""
        own = getattr(function, "__wrapped__", function) if hasattr(type(function), "_ab_batch") else function
        named = own.__kwdefaults__ or {}
        more = [
            *more,
            *[Guard({"helper": own}, "helper", [part], own, getattr(own, part)) for part in _PARTS],
            *[Guard(named, name, [], value, value) for name, value in named.items()],
        ]
        self.guards.update({(str(id(each.scope)), each.name, *each.attributes): each for each in more})

    def _is_computed(self, node: nf.Call) -> bool:
        """True if the argument of a call is an array that this block computes."""
        return len(node.args) == 1 and isinstance(node.args[0], nf.Name) and node.args[0].id in self.bound

    def _keywords(self, node: nf.Call) -> list[tuple[str, nf.Value]]:
        return [(name, self.build(value)) for name, value in node.keywords]

    def _attribute(self, node: nf.Read, static: bool, operand: bool) -> nf.Value:
        root = nf.path_of(node)
        is_array = root is None or root[0] in self.scope.local
        if is_array and node.key in _SHAPES and (self.recorded or root is None or root[0] in self.bound):
            return nf.Read(node.at, self.build(node.base, False, True), node.key)
        if is_array and node.key == "T":
            return self._op(nf.Read(node.at, self.build(node.base, False, True), "T"), static)
        read = self._plain_read(node) if root is None else None
        return self._leaf(node, static, operand) if read is None else self._input(node, read, static, operand)

    def _plain_read(self, read: nf.Read) -> Any:
        """The path of attributes and plain keys that lock-step code reads; None for any other read."""
        node: nf.Value = read
        while not self.recorded and isinstance(node, nf.Read):
            if isinstance(node.key, nf.Value) and not self._is_plain_key(node.key, nf.path_of(node.base) is not None):
                return None
            node = node.base
        if node is read or not isinstance(node, nf.Name) or node.id in self.bound:
            return None
        if isinstance(self.scope.binding(node.id), types.ModuleType) and node.id not in self.scope.local:
            return None
        return node.id, (("read", text_of(read)),), None

    def _is_plain_key(self, key: nf.Value, of_path: bool) -> bool:
        """True for names, constants and sums of them; of a container that a path leads to, also for what is read so."""
        match key:
            case nf.Constant(value=value):
                return type(value) in (int, str)
            case nf.Name(id=name):
                return name not in self.bound
            case nf.Call(args=args) if key.symbol in nf.SINGLE | {"+", "-"}:
                return all(self._is_plain_key(each, False) for each in args)
            case nf.Read():
                return of_path and self._plain_read(key) is not None
        return False

    def _subscript(self, node: nf.Read, static: bool, operand: bool) -> nf.Value:
        read = self._plain_read(node)
        if read is not None:
            return self._input(node, read, static, operand)
        base, index = nf.path_of(node.base), node.key
        assert isinstance(index, nf.Value)
        if base is None or base[0] in self.bound or _is_slicing(index):
            return self._by_index(node, index, static)
        if nf.path_of(node) is not None:
            return self._leaf(node, static, operand)
        where = nf.path_of(index)
        if where is None and (self.count > self.rows or self.bound):
            key = key_of(index)
            if key is not None and self.recorded and self.scope.local.issuperset([base[0], *roots(key)]):
                return self._look_up(node, (*base, key), static, operand)
        if not self.recorded and (where is None or where[0] not in self.bound):
            return self._by_index(node, index, static)
        if where is None and base[0] in self.scope.local and _is_item(index) and not static:
            return self._row(node, index, operand)
        if where is None or where[0] in self.bound or not {base[0], where[0]} <= self.scope.local:
            return self._opaque(node, static, operand)
        return self._look_up(node, (*base, where), static, operand)

    def _row(self, node: nf.Read, index: nf.Value, operand: bool) -> nf.Value:
        """`table[ids[i]]`: user code evaluates the table and the id, and the look-up itself is part of the block."""
        for each in (node.base, index):
            self._opaque(each, False, False)
            self.inputs[-1].part = True
        table, row = [part.temporary for part in self.inputs[-2:]]
        out = self._look_up(node, (table, (), (row, ())), False, operand)
        self.inputs[-1].node = nf.Read(node.at, nf.Name(node.at, table), nf.Name(node.at, row))
        return out

    def _look_up(self, node: nf.Value, path: Any, static: bool, operand: bool) -> nf.Value:
        self.count += 1
        self.rows += 1
        return self._input(node, path, static, operand)

    def _by_index(self, node: nf.Read, index: nf.Value, static: bool) -> nf.Value:
        base = self.build(node.base, False, True)
        return self._op(nf.Read(node.at, base, self.build(index, True)), static)


def _is_constant(base: Any, value: Any) -> bool:
    """True if a global name's value is built into the block: a type, a dtype, or a float such as `np.pi`."""
    return isinstance(value, _CONSTANTS) or (type(value) is float and (base is np or base is math))


def _is_item(node: nf.Value) -> bool:
    """True for `x[index]`."""
    return isinstance(node, nf.Read) and isinstance(node.key, nf.Value)


def _is_slicing(index: nf.Value) -> bool:
    """True if an index contains a slice, an ellipsis or None (a new axis)."""
    wholes = [part.symbol == "slice" for part in nf.items_of(index) if isinstance(part, nf.Call)]
    return any(wholes) or any(isinstance(p, nf.Constant) and p.value in (None, ...) for p in nf.items_of(index))


def _is_look_up(node: nf.Value) -> bool:
    """True for `table[ids]`, where the number of ids is not known from the syntax."""
    if not isinstance(node, nf.Read) or not isinstance(node.key, nf.Value) or nf.path_of(node) is not None:
        return False
    return _is_item(node.key) or nf.path_of(node.key) is not None
