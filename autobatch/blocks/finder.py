"""The block finder: finds consecutive statements that can run, or be recorded, as one op.

    i, o, u = np.split(x @ w, 3)
    c = sigmoid(i) * np.tanh(u) + c          ->     inputs x, w, c; outputs: the first returned value, and c
    return sigmoid(o) * np.tanh(c), c

A block is as long as possible. Its inputs are the values it reads from outside; its outputs are the values that may be
read after it. The statements' liveness must be annotated (`program.liveness`).

Before that, `split_off_arrays` splits array expressions that a statement tests, iterates over or appends into
statements of their own, with which a block may end.

    seen = np.concatenate([a, b])            seen = np.concatenate([a, b])
    shift = bool(seen @ w > 0)        ->     _ab_test1 = seen @ w > 0
                                             shift = bool(_ab_test1)

Then array statements that follow an `if` move to the ends of its arms, so that they join the block there.

    if parents:                         if parents:
        z = z + gate * found                z = z + gate * found
    h = np.tanh(z)               ->         h = np.tanh(z)
                                        else:
                                            h = np.tanh(z)

Both run before liveness. Only the expression that a statement evaluates first is split off: before it, at most `append`
is read, of a known list. The test of a `while` stays, because it is evaluated again each time. An arm that ends in a
jump gets no copy, since nothing follows it. A statement moves only if it reads what an arm assigns last.
"""

import dataclasses
import itertools
import types
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from autobatch.blocks.block_expressions import LEAST, METHODS, BlockForm, is_computed, is_pure
from autobatch.core.diagnostics import is_library
from autobatch.errors import Unsupported
from autobatch.program import normal_form as nf
from autobatch.program.bounded_caches import MOST_FUNCTIONS, BoundedDict
from autobatch.program.folding import folded
from autobatch.program.liveness import annotate, captured, own_binds, reads
from autobatch.program.liveness import binds as bound_names
from autobatch.program.python_text import executed
from autobatch.program.scopes import Guard, Scope
from autobatch.program.source import normal_form

_NUMBERS = (int, float, bool, type(None), str)
_relied: BoundedDict[tuple[int, int], tuple[types.CodeType, Any, list[Guard] | None]] = BoundedDict(MOST_FUNCTIONS)

MakeForm = Callable[[nf.Names], BlockForm]


def longest_block(statements: Sequence[nf.Statement], make: MakeForm, assignable: nf.Names) -> "FoundBlock | None":
    """The longest block that starts with the first of these statements; None if there is none.

    Args:
        make: makes the initial form, given the names that are certainly bound.
        assignable: the names that a block may assign.
    """
    tried = FoundBlock(statements, make, assignable)
    length = tried.added
    best = tried if tried.is_possible else FoundBlock(statements[:length], make, assignable) if length else None
    while best is not None and not best.is_worthwhile:
        best = FoundBlock(statements[: best.length - 1], make, assignable) if best.length > 1 else None
    return best


def scope_in(function: nf.Closure, outer: Scope) -> tuple[Scope, nf.Names]:
    """The scope of a function, and the names that a block may assign in it."""
    own = frozenset(function.parameters.names) | bound_names(function.body)
    every = list(nf.closures(function))
    declared = nf.Names().union(*[each.shared for each in every])
    elsewhere = nf.Names().union(*[each.outer for each in every])
    assignable = own - declared - elsewhere
    around = outer.local - assignable
    return outer.with_names((outer.local | own) - declared, around, around | captured(function) | elsewhere), assignable


def helper(function: Any) -> list[Guard] | None:
    """The guards of a function that a block may call like an operation; None if a block may not call it."""
    if hasattr(type(function), "_ab_batch"):
        function = function.__wrapped__
    if type(function) is not types.FunctionType or is_library(function.__code__.co_filename):
        return None
    code = function.__code__
    key = id(code), id(function.__globals__)
    found = _relied.get(key)
    if found is None:
        _relied[key] = code, function.__globals__, None  # while this is found, so that a recursive function is refused
        found = _relied[key] = code, function.__globals__, _relied_on(function)
    given = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    return found[2] if all(type(value) in _NUMBERS for value in given) else None


def _relied_on(function: types.FunctionType) -> list[Guard] | None:
    code = function.__code__
    # A generator, coroutine, iterable coroutine, asynchronous generator.
    if code.co_freevars or code.co_flags & (0x20 | 0x80 | 0x100 | 0x200):
        return None
    try:
        form = folded(normal_form(function))
    except Unsupported:
        return None
    annotate(form)
    none = nf.Names()
    return _guards_of_helper(form, Scope(function.__globals__, none, none, none, helper))


def _guards_of_helper(function: nf.Closure, outer: Scope) -> list[Guard] | None:
    """The guards of a function that only computes with its parameters; None for any other function."""
    given = function.parameters
    if given.rest or given.named_rest or not function.body or not isinstance(function.body[-1], nf.Return):
        return None
    scope, assignable = scope_in(function, outer)
    numbers = itertools.count(1)

    def make(sure: nf.Names) -> BlockForm:
        known = scope.with_names(scope.local, scope.bound | sure, scope.rebindable)
        return BlockForm(known, True, lambda: f"_ab_b{next(numbers)}")

    block = FoundBlock(function.body, make, assignable)
    if not block.is_possible or block.is_partial or not block.outputs:
        return None
    guards = list(block.form.guards.values())
    for name in block.form.names():
        if name is None:
            return None
        if name not in given.names:
            value = scope.binding(name)
            if type(value) not in (int, float, bool):
                return None
            guards.append(Guard(scope.globals, name, (), value, value))
    return guards


def body_function(form: BlockForm, body: list[nf.Statement], filename: str, at: nf.Node) -> Callable[..., Any]:
    """A block as a plain Python function of its inputs, which is what gets traced."""
    names = [each.name for each in form.inputs if not each.part]
    function = nf.Closure(at.at, "_ab_body", nf.Parameters([], names, "", [], "", [], []), body)
    return executed(function, filename, form.scope.globals)


class FoundBlock:
    """Consecutive statements as a block, if they can be one.

    Attributes:
        form: its inputs and guards; body: its statements, without a `return`.
        outputs: names that are read after it, then `results`, the values that a `return` computes.
        returned: the returned value, in names of the outputs; is_partial: some of it is evaluated outside.
        added: how many statements come before the first that cannot be part of the block.
        lists_from: how many statements come before the first that iterates over a list.
    """

    def __init__(self, statements: Sequence[nf.Statement], make: MakeForm, assignable: nf.Names) -> None:
        self.assignable = assignable
        self.statements = list(statements)
        self.length = len(statements)
        self.form = make(statements[0].bound_before)
        self.body: list[nf.Statement] = []
        self.returned: nf.Value | None = None
        self.results: list[str] = []
        self.is_partial = False
        self.copied: set[str] = set()  # names that may be bound to an array from outside, or to a list
        self.added = self.lists_from = 0
        try:
            for statement in statements:
                self._add(statement)
                self.added += 1
                self.lists_from += not self.form.goes_through
        except Unsupported:
            self.outputs: list[str] = []
            return
        live = statements[-1].live_after
        names = dict.fromkeys(
            name for each in statements if isinstance(each, nf.Bind) for name in nf.target_names(each.target)
        )
        if self.returned is not None:
            live |= reads(self.returned)
        self.outputs = [*[name for name in names if name in live], *self.results]

    @property
    def is_possible(self) -> bool:
        """True if all statements can be part of the block."""
        return self.added == self.length

    @property
    def is_worthwhile(self) -> bool:
        """True if it does enough operations, has inputs and outputs, and returns no outside array or list."""
        enough = self.form.count >= LEAST and bool(self.outputs) and bool(self.form.inputs)
        return enough and not self.copied.intersection(self.outputs)

    def returning_body(self) -> list[nf.Statement]:
        """The body of a function that returns the outputs: one value, or a tuple."""
        at = self.statements[-1].at
        values: list[nf.Value] = [nf.Name(at, name) for name in self.outputs]
        return [
            *self.body,
            nf.Return(at, values[0] if len(values) == 1 else nf.Call(at, nf.Operator(at, "tuple"), values)),
        ]

    def fallback(self) -> list[nf.Statement]:
        """The original statements, run if the block is not; values evaluated before it are read from names."""
        return [nf.substituted(each, self.form.replaced) for each in self.statements]

    def _add(self, node: nf.Statement) -> None:
        form = self.form
        if self.returned is not None:
            raise Unsupported
        before = form.count
        match node:
            case nf.Bind(target=str(name), value=nf.Call(args=[nf.Name(id=read) as left, right]) as call) if (
                call.symbol in nf.UPDATES and read == name
            ):
                if name in form.bound:
                    made = nf.Call(call.at, call.function, [left, form.build(right, False, True)])
                elif name in form.updatable:
                    operator = nf.Operator(call.at, call.symbol[:-1])
                    made = nf.Call(call.at, operator, [form.updated(left), form.build(right, False, True)])
                    if form.count == before:
                        raise Unsupported
                    form.bound.add(name)
                else:
                    raise Unsupported
                form.count += 1
                self.body.append(nf.Bind(node.at, name, made))
                return
            case nf.Bind(target=target, value=nf.Value() as given) if _is_plain(target):
                if not form.recorded and _is_counter(node):
                    raise Unsupported
                value = self._value(given)
            case nf.Return(value=nf.Value() as given) if form.recorded:
                self._return(given)
                if form.count == before and not self.body:
                    raise Unsupported
                return
            case _:
                raise Unsupported
        names = set(nf.target_names(target))
        is_read = not form.recorded and isinstance(given, nf.Read) and isinstance(value, nf.Name)
        if (form.count == before and not is_read) or not names <= self.assignable:
            raise Unsupported
        if isinstance(target, str) and nf.is_tuple(value) and not form.recorded:
            raise Unsupported
        if isinstance(value, nf.Name | nf.Sugar):
            self.copied |= names
        else:
            self.copied -= names
        self.body.append(nf.Bind(node.at, target, value))
        form.bound |= names

    def _value(self, node: nf.Value) -> nf.Value:
        """The assigned value; a part that is only a name is refused, as it would make a second name for one array."""
        if not isinstance(node, nf.Sugar) and not all(map(is_computed, nf.items_of(node))):
            raise Unsupported
        made = self.form.build(node)
        if nf.is_tuple(made) and any(isinstance(part, nf.Name) for part in nf.items_of(made)):
            raise Unsupported
        return made

    def _return(self, node: nf.Value) -> None:
        """Make the returned parts that are operations outputs; parts after the last one are evaluated afterwards."""
        form = self.form
        out: list[nf.Value] = []
        over = False
        for part in nf.items_of(node):
            if isinstance(part, nf.Name | nf.Constant):
                over = over or (isinstance(part, nf.Name) and part.id not in form.bound | form.scope.bound)
                out.append(part)
                continue
            is_display = isinstance(part, nf.Sugar) or (isinstance(part, nf.Call) and part.symbol in ("list", "tuple"))
            if not over and not is_display:  # outputs must be arrays
                before = form.count
                made = form.attempt(part)
                if made is not None and form.count > before:
                    name = form.fresh()
                    self.results.append(name)
                    self.body.append(nf.Bind(part.at, name, made))
                    out.append(nf.Name(part.at, name))
                    continue
                if form.count == 0:
                    raise Unsupported
            over = self.is_partial = True
            out.append(part)
        self.returned = nf.Call(node.at, nf.Operator(node.at, "tuple"), out) if nf.is_tuple(node) else out[0]
        if over and nf.stays(node):
            raise Unsupported


def _is_plain(target: nf.Target | None) -> bool:
    """True for a name, or a flat tuple of names."""
    if isinstance(target, nf.Unpack):
        return target.starred < 0 and all(isinstance(part, str) for part in target.targets)
    return target is not None


def _is_counter(node: nf.Bind) -> bool:
    """True for `n = n + 1`: most likely a Python counter, not worth a launch in lock-step."""
    match node:
        case nf.Bind(
            target=str(target),
            value=nf.Call(
                function=nf.Operator(symbol=symbol), args=[nf.Name(id=name), nf.Constant(value=int() as step)]
            ),
        ):
            return name == target and type(step) is int and symbol in nf.ARITHMETIC
    return False


_OPERATORS = nf.ARITHMETIC | nf.COMPARED | nf.OF_OBJECTS
_CONVERSIONS = (bool, float, int)


def split_off_arrays(function: nf.Closure, scope: Scope, recorded: bool = True) -> nf.Closure:
    """A function in whose body array expressions are split off, so that they can join the block before them.

    Its statements are new ones, so liveness has to be computed again; functions inside of it stay as they are.

    Args:
        recorded: True for tracing; in lock-step, only what is appended to a list or stored in an array is split off.
    """
    own = frozenset(function.parameters.names) | bound_names(function.body) | scope.local
    splitter = _ArraySplitter(scope, own, _lists(function), recorded)
    return dataclasses.replace(function, body=splitter.statements(function.body))


@dataclasses.dataclass(slots=True)
class _ArraySplitter:
    scope: Scope
    own: nf.Names
    lists: nf.Names
    recorded: bool
    count: int = 0

    def statements(self, body: Sequence[nf.Statement]) -> list[nf.Statement]:
        out: list[nf.Statement] = []
        for each in body:
            lines: list[nf.Statement] = []
            at = len(out)
            match each:
                case nf.Bind(target=None, value=nf.Call(args=[_]) as call) if self._appends(call):
                    each, lines = self._split_off(each, self._converted(call.args[0]) or call.args[0])
                    at = at if self.recorded else self._before_appends(out, lines)
                case nf.Write(key=nf.Value(), value=nf.Value() as value) if not self.recorded and self._is_array(value):
                    each, lines = self._split_off(each, value)
                case nf.Bind(value=value) | nf.Return(value=value) if self.recorded:
                    each, lines = self._split_off(each, self._converted(value))
                case nf.Branch(test=test) if self.recorded:
                    each, lines = self._split_off(each, self._converted(test) or test)
                case nf.Loop(target=str() | nf.Unpack(), over=over) if self.recorded:
                    each, lines = self._split_off(each, self._converted(over) or over)
            out[at:at] = lines
            out.append(each)
        out = [nf.with_bodies(each, self.statements) for each in out]
        return sink(out, self._is_array) if self.recorded else out

    def _appends(self, node: nf.Call) -> bool:
        """True for an append to a list of the function's own."""
        match node:
            case nf.Call(function=nf.Read(base=nf.Name(id=name), key="append"), args=[_], keywords=[]):
                return name in self.lists
        return False

    def _before_appends(self, statements: Sequence[nf.Statement], lines: Sequence[nf.Statement]) -> int:
        """The place before the appends at the end whose lists these lines do not read, if the lines only compute."""
        at = len(statements)
        if not all(map(self._only_computes, nf.walk(lines))):
            return at
        read = reads(lines)
        while (
            at and isinstance(statement := statements[at - 1], nf.Bind) and isinstance(call := statement.value, nf.Call)
        ):
            if statement.target is not None or not self._appends(call) or call.function.base.id in read:  # type: ignore[attr-defined]
                break
            at -= 1
        return at

    def _only_computes(self, node: nf.Node) -> bool:
        """True unless a node calls what may do more than compute, or reads an attribute of an object."""
        if isinstance(node, nf.Read) and isinstance(node.key, str):
            return node.key in METHODS or node.key == "T" or self._is_numpy(node) or self._is_module(node)
        if isinstance(node, nf.Call) and isinstance(node.function, nf.Name):
            known = node.function.id not in self.own
            return known and self.scope.helper(self.scope.binding(node.function.id)) is not None
        return not isinstance(node, nf.Opaque | nf.OpaqueStatement | nf.Yield)

    def _is_module(self, node: nf.Read) -> bool:
        found = nf.path_of(node)
        value: Any = None if found is None or found[0] in self.own else self.scope.binding(found[0])
        return isinstance(value, types.ModuleType)

    def _converted(self, node: nf.Value | None) -> nf.Value | None:
        """What a call converts to Python numbers; None for any other call."""
        match node:
            case nf.Call(function=nf.Name(id=name), args=[value], keywords=[]):
                if name not in self.own and self.scope.binding(name) in _CONVERSIONS:
                    return value
            case nf.Call(function=nf.Read(base=base, key="item" | "tolist"), args=[], keywords=[]):
                return base
        return None

    def _split_off(self, node: nf.Statement, value: nf.Value | None) -> tuple[Any, list[nf.Statement]]:
        """The statement with a value of it bound to a new name before, and what binds it; nothing if it is no array."""
        if value is None:
            return node, []
        computed = (
            not self.recorded and isinstance(value, nf.Call) and value.symbol in nf.ARITHMETIC | nf.SINGLE | {"not"}
        )
        if not (computed or self._is_array(value)):
            return node, []
        self.count += 1
        name = f"_ab_test{self.count}"
        return nf.substituted(node, {id(value): name}), [nf.Bind(value.at, name, value)]

    def _is_array(self, node: nf.Value) -> bool:
        """True if an expression can only be an array operation: a matrix product, or a NumPy call."""
        match node:
            case nf.Call(function=nf.Operator(symbol="@")):
                return True
            case nf.Call(function=nf.Operator(symbol=symbol), args=[left, right]) if symbol in _OPERATORS:
                return self._is_array(left) or self._is_array(right)
            case nf.Read(base=base, key=nf.Value()):
                return self._is_array(base)
            case nf.Call(function=nf.Read(base=base, key=str()) as method):
                return self._is_numpy(method) or self._is_array(base)
            case nf.Call(function=function):
                return self._is_numpy(function)
        return False

    def _is_numpy(self, function: nf.Value) -> bool:
        found = nf.path_of(function)
        if found is None or found[0] in self.own or not found[1]:
            return False
        value: Any = self.scope.binding(found[0])
        for _, name in found[1]:
            value = getattr(value, "__dict__", {}).get(name)
        return is_pure(value)


def _lists(function: nf.Closure) -> nf.Names:
    """Names that are only ever bound to new lists, by plain assignments."""
    made: Counter[str] = Counter()
    stores: Counter[str] = Counter()
    every = list(nf.closures(function))
    nodes = [node for each in every for node in nf.walk(each.body)]
    fills = {node.fills for node in nodes if isinstance(node, nf.Loop)}

    def is_list(value: nf.Value | None) -> bool:
        match value:
            case nf.Call(function=nf.Operator(symbol="list")) | nf.Sugar(how="list"):
                return True
        return isinstance(value, nf.Name) and value.id in fills

    for node in nodes:
        stores.update(own_binds(node))
        match node:
            case nf.Bind(target=str(name), value=value) if is_list(value) and name not in fills:
                made[name] += 1
            case nf.Bind(
                target=nf.Unpack(targets=parts, starred=-1),
                value=nf.Call(function=nf.Operator(symbol="tuple"), args=args),
            ):
                if len(parts) == len(args):
                    several = zip(parts, args, strict=True)
                    made.update(part for part, value in several if isinstance(part, str) and is_list(value))
    given = {name for each in every for name in each.parameters.names}
    declared = nf.Names().union(*[each.shared | each.outer for each in every])
    return frozenset(name for name, count in made.items() if stores[name] == count) - declared - given


_MOST = 3  # statements moved into one `if`; each is copied into every arm


def sink(body: list[nf.Statement], is_array: Callable[[nf.Value], bool]) -> list[nf.Statement]:
    """Move array statements that follow an `if` into its arms, whose lists of statements are changed.

    Args:
        is_array: tells whether a value can only be an array operation.
    """
    out: list[nf.Statement] = []
    moved = 0
    for each in body:
        before = out[-1] if out else None
        if isinstance(before, nf.Branch) and moved < _MOST and _moves(each, before, is_array):
            for arm in _ends(before):
                arm.append(dataclasses.replace(each))
            moved += 1
            continue
        moved = 0
        out.append(each)
    return out


def _moves(node: nf.Statement, into: nf.Branch, is_array: Callable[[nf.Value], bool]) -> bool:
    if not isinstance(node, nf.Bind) or not isinstance(node.target, str) or node.value is None or into.choice:
        return False
    if (
        not is_array(node.value)
        or nf.stays(node.value)
        or any(isinstance(part, nf.Closure) for part in nf.walk(node.value))
    ):
        return False
    ends = _ends(into)
    return len(ends) <= 4 and any(_feeds(end, node.value) for end in ends)


def _ends(node: nf.Branch) -> list[list[nf.Statement]]:
    """The arms after which control continues behind the `if`."""
    out = []
    for arm in (node.body, node.orelse):
        if arm and isinstance(arm[-1], nf.Branch):
            out += _ends(arm[-1])
        elif not arm or not isinstance(arm[-1], nf.Return | nf.Raise | nf.Jump):
            out.append(arm)
    return out


def _feeds(arm: Sequence[nf.Statement], node: nf.Value) -> bool:
    """True if the last statement of an arm computes a value that a value reads."""
    last = arm[-1] if arm else None
    if not isinstance(last, nf.Bind | nf.Write):
        return False
    value = last.value
    if isinstance(value, nf.Call) and value.symbol in nf.UPDATES:
        value = value.args[1]
    if value is None or not is_computed(value) or (isinstance(value, nf.Read) and isinstance(value.key, str)):
        return False
    if isinstance(value, nf.Call) and value.symbol in nf.COMPARED | nf.OF_OBJECTS:
        return False
    bound = set(nf.target_names(last.target)) if isinstance(last, nf.Bind) else reads(last.base)
    return not bound.isdisjoint(reads(node))
