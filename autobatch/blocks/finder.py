"""The block finder: finds consecutive statements that can run, or be recorded, as one op.

    i, o, u = np.split(x @ w, 3)
    c = sigmoid(i) * np.tanh(u) + c          ->     inputs x, w, c; outputs: the first returned value, and c
    return sigmoid(o) * np.tanh(c), c

A block is as long as possible. Its inputs are the values it reads from outside; its outputs are the values that may be
read after it. The statements' liveness must be annotated (`syntax.liveness`).

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
is read, of a known list. The test of a `while` stays, because it is evaluated anew each time. An arm that ends in a
jump gets no copy, since nothing follows it. A statement moves only if it reads what an arm assigns last.
"""

import ast
import copy
import itertools
import types
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from autobatch.blocks.block_expressions import LEAST, METHODS, BlockForm, Names, Scope, is_pure
from autobatch.blocks.block_inputs import Guard
from autobatch.errors import Unsupported
from autobatch.program.quote import located, placed, substituted
from autobatch.program.scopes import binds, bound_names, captured, parameters, path_of, reads, target_names

COMPUTED = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.Subscript, ast.Attribute)
MakeForm = Callable[[Names], BlockForm]


def longest_block(statements: Sequence[ast.stmt], make: MakeForm, assignable: Names) -> "FoundBlock | None":
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


def scope_in(tree: ast.FunctionDef, outer: Scope) -> tuple[Scope, Names]:
    """The scope of a function, and the names that a block may assign in it."""
    own = parameters(tree) | bound_names(tree.body)
    declared = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
    elsewhere = {name for node in ast.walk(tree) if isinstance(node, ast.Nonlocal) for name in node.names}
    assignable = Names(own - declared - elsewhere)
    around = outer.local - assignable
    return outer.with_names((outer.local | own) - declared, around, around | captured(tree) | elsewhere), assignable


def guards_of_helper(tree: ast.FunctionDef, outer: Scope) -> list[Guard] | None:
    """The guards of a function that only computes with its parameters; None for any other function."""
    args, names = tree.args, parameters(tree)
    if args.vararg or args.kwarg or not tree.body or not isinstance(tree.body[-1], ast.Return):
        return None
    scope, assignable = scope_in(tree, outer)
    first = tree.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    numbers = itertools.count(1)

    def make(sure: Names) -> BlockForm:
        known = scope.with_names(scope.local, scope.bound | sure, scope.rebindable)
        return BlockForm(known, True, lambda: f"_ab_{next(numbers)}", lambda node: node)

    block = FoundBlock(tree.body[1:] if documented else tree.body, make, assignable)
    if not block.is_possible or block.is_partial or not block.outputs:
        return None
    guards = list(block.form.guards.values())
    for name in block.form.names():
        if name is None:
            return None
        if name not in names:
            value = scope.binding(name)
            if type(value) not in (int, float, bool):
                return None
            guards.append(Guard(scope.globals, name, (), value, value))
    return guards


def body_function(form: BlockForm, body: list[ast.stmt], filename: str, at: ast.AST) -> Callable[..., Any]:
    """A block as a plain Python function of its inputs, which is what gets traced."""
    (function,) = ast.parse("def _ab_body(): pass").body
    assert isinstance(function, ast.FunctionDef)
    function.args.args = [ast.arg(each.name) for each in form.inputs if not each.part]
    function.body = body
    ast.copy_location(function, at)
    space: dict[str, Any] = {}
    exec(compile(located(ast.Module([function], [])), filename, "exec", dont_inherit=True), form.scope.globals, space)
    made: Callable[..., Any] = space["_ab_body"]
    return made


class FoundBlock:
    """Consecutive statements as a block, if they can be one.

    Attributes:
        form: its inputs and guards; body: its statements, without a `return`.
        outputs: names that are read after it, then `results`, the values that a `return` computes.
        returned: the returned expression, in names of the outputs; is_partial: some of it is evaluated outside.
        added: how many statements come before the first that cannot be part of the block.
        lists_from: how many statements come before the first that iterates over a list.
    """

    def __init__(self, statements: Sequence[ast.stmt], make: MakeForm, assignable: Names) -> None:
        self.assignable = assignable
        self.statements = list(statements)
        self.length = len(statements)
        first = statements[0]
        self.form = make(frozenset(getattr(first, "bound_before", frozenset())))
        self.body: list[ast.stmt] = []
        self.returned: ast.expr | None = None
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
        live: frozenset[str] = getattr(statements[-1], "live_after", frozenset())
        names = list(dict.fromkeys(name for each in statements for name in _targets(each)))
        if self.returned is not None:
            live |= {part.id for part in ast.walk(self.returned) if isinstance(part, ast.Name)}
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

    def returning_body(self) -> list[ast.stmt]:
        """The body of a function that returns the outputs: one value, or a tuple."""
        values: list[ast.expr] = [ast.Name(name, ast.Load()) for name in self.outputs]
        return [*self.body, ast.Return(values[0] if len(values) == 1 else ast.Tuple(values, ast.Load()))]

    def fallback(self) -> list[Any]:
        """The original statements, run if the block is not; parts evaluated before it are read from names."""
        return [substituted(each, self.form.replaced) for each in self.statements]

    def _add(self, node: ast.stmt) -> None:
        form = self.form
        if self.returned is not None:
            raise Unsupported
        before = form.count
        match node:
            case ast.Assign(targets=[target]) if _is_plain(target) and (form.recorded or not _is_counter(node)):
                value = self._value(node.value)
            case ast.AnnAssign(target=ast.Name() as target, value=ast.expr(), simple=1):
                value = self._value(node.value)  # type: ignore[arg-type]
            case ast.AugAssign(target=ast.Name(id=name) as target) if name in form.bound:
                made = ast.AugAssign(ast.Name(name, ast.Store()), node.op, form.build(node.value, False, True))
                form.count += 1
                self.body.append(placed(made, node))
                return
            case ast.AugAssign(target=ast.Name(id=name) as target) if name in form.updatable:
                left = form.updated(target)
                right = form.build(node.value, False, True)
                if form.count == before:
                    raise Unsupported
                form.count += 1
                self.body.append(
                    placed(ast.Assign([ast.Name(name, ast.Store())], ast.BinOp(left, node.op, right)), node)
                )
                form.bound.add(name)
                return
            case ast.Return(value=ast.expr()) if form.recorded:
                self._return(node.value)  # type: ignore[arg-type]
                if form.count == before and not self.body:
                    raise Unsupported
                return
            case _:
                raise Unsupported
        names = target_names(target)
        if form.count == before or not names <= self.assignable:
            raise Unsupported
        if isinstance(target, ast.Name) and isinstance(value, ast.Tuple) and not form.recorded:
            raise Unsupported
        if isinstance(value, ast.Name | ast.ListComp):
            self.copied |= names
        else:
            self.copied -= names
        self.body.append(placed(ast.Assign([target], value), node))
        form.bound |= names

    def _value(self, node: ast.expr) -> ast.expr:
        """The assigned value; a part that is only a name is refused, as it would make a second name for one array."""
        parts = node.elts if isinstance(node, ast.Tuple) else [node]
        if not isinstance(node, ast.ListComp) and not all(isinstance(part, COMPUTED) for part in parts):
            raise Unsupported
        made = self.form.build(node)
        if isinstance(made, ast.Tuple) and any(isinstance(part, ast.Name) for part in made.elts):
            raise Unsupported
        return made

    def _return(self, node: ast.expr) -> None:
        """Make the returned parts that are operations outputs; parts after the last one are evaluated afterwards."""
        form = self.form
        parts = node.elts if isinstance(node, ast.Tuple) else [node]
        out: list[ast.expr] = []
        over = False
        for part in parts:
            if isinstance(part, ast.Name | ast.Constant):
                sure = isinstance(part, ast.Constant) or part.id in form.bound | form.scope.bound
                over = over or not sure
                out.append(part)
                continue
            if not over and not isinstance(part, ast.List | ast.ListComp | ast.Tuple):  # outputs must be arrays
                before = form.count
                made = form.attempt(part)
                if made is not None and form.count > before:
                    name = form.fresh()
                    self.results.append(name)
                    self.body.append(placed(ast.Assign([ast.Name(name, ast.Store())], made), part))
                    out.append(ast.Name(name, ast.Load()))
                    continue
                if form.count == 0:
                    raise Unsupported
            over = self.is_partial = True
            out.append(part)
        self.returned = placed(ast.Tuple(out, ast.Load()) if isinstance(node, ast.Tuple) else out[0], node)
        if over and any(isinstance(n, ast.NamedExpr | ast.Yield | ast.Await) for n in ast.walk(node)):
            raise Unsupported


def _targets(node: ast.stmt) -> list[str]:
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    return [part.id for part in parts if isinstance(part, ast.Name)]


def _is_plain(target: ast.expr) -> bool:
    """True for a name, or a flat tuple of names."""
    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    return all(isinstance(part, ast.Name) for part in parts)


def _is_counter(node: ast.Assign) -> bool:
    """True for `n = n + 1`: most likely a Python counter, not worth a launch in lock-step."""
    match node:
        case ast.Assign(
            targets=[ast.Name(id=target)],
            value=ast.BinOp(left=ast.Name(id=name), right=ast.Constant(value=int() as step)),
        ):
            return name == target and type(step) is int
    return False


_BODIES = ("body", "orelse", "finalbody")
_CONVERSIONS = (bool, float, int)


def split_off_arrays(tree: ast.FunctionDef, scope: Scope, recorded: bool = True) -> None:
    """Split off array expressions in the body of a function, so that they can join the block before them.

    Args:
        recorded: True on the fly; in lock-step, only what is appended to a list or stored in an array is split off.
    """
    own = frozenset(parameters(tree) | bound_names(tree.body)) | scope.local
    _ArraySplitter(scope, own, _lists(tree), recorded).bodies(tree)


class _ArraySplitter:
    def __init__(self, scope: Scope, own: frozenset[str], lists: frozenset[str], recorded: bool) -> None:
        self.scope = scope
        self.own = own
        self.lists = lists
        self.recorded = recorded
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
            if isinstance(each, ast.Expr) and self._appends(each.value):
                args = each.value.args  # type: ignore[attr-defined]
                lines = self._split_off(self._converted(args[0]) or (args, 0))
                at = len(out) if self.recorded else self._before_appends(out, lines)
                out[at:at] = lines
            elif not self.recorded and isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Subscript):
                out += self._split_off((each, "value")) if self._is_array(each.value) else []
            elif self.recorded and isinstance(each, ast.Assign | ast.Return):
                out += self._split_off(self._converted(each.value))
            elif self.recorded and isinstance(each, ast.If):
                out += self._split_off(self._converted(each.test) or (each, "test"))
            elif self.recorded and isinstance(each, ast.For):
                out += self._split_off(self._converted(each.iter) or (each, "iter"))
            out.append(each)
        out = sink(out, self._is_array) if self.recorded else out
        for each in out:
            if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.bodies(each)
        return out

    def _appends(self, node: ast.expr) -> bool:
        """True for an append to a list of the function's own."""
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[_], keywords=[]):
                return name in self.lists
        return False

    def _before_appends(self, statements: Sequence[ast.stmt], lines: Sequence[ast.stmt]) -> int:
        """The place before the appends at the end whose lists these lines do not read, if the lines only compute."""
        nodes = [node for line in lines for node in ast.walk(line)]
        read = {node.id for node in nodes if isinstance(node, ast.Name)}
        at = len(statements)
        if not all(map(self._only_computes, nodes)):
            return at
        while at and isinstance(statement := statements[at - 1], ast.Expr) and self._appends(statement.value):
            if statement.value.func.value.id in read:  # type: ignore[attr-defined]
                break
            at -= 1
        return at

    def _only_computes(self, node: ast.AST) -> bool:
        """True unless a node binds a name, calls what may do more than compute, or reads an attribute of an object."""
        if isinstance(node, ast.Attribute):
            return node.attr in METHODS or node.attr == "T" or self._is_numpy(node) or self._is_module(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            known = node.func.id not in self.own
            return known and self.scope.helper(self.scope.binding(node.func.id)) is not None
        return not isinstance(node, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom)

    def _is_module(self, node: ast.Attribute) -> bool:
        found = path_of(node)
        value: Any = None if found is None or found[0] in self.own else self.scope.binding(found[0])
        return isinstance(value, types.ModuleType)

    def _converted(self, node: Any) -> Any:
        """The place of the argument that a call converts to Python numbers; None for any other call."""
        match node:
            case ast.Call(func=ast.Name(id=name), args=[_], keywords=[]):
                if name not in self.own and self.scope.binding(name) in _CONVERSIONS:
                    return node.args, 0
            case ast.Call(func=ast.Attribute(attr="item" | "tolist"), args=[], keywords=[]):
                return node.func, "value"
        return None

    def _split_off(self, where: Any) -> list[ast.stmt]:
        """A statement that binds the expression at a place to a new name."""
        if where is None:
            return []
        holder, key = where
        node = holder[key] if isinstance(holder, list) else getattr(holder, key)
        computed = not self.recorded and isinstance(node, ast.BinOp | ast.UnaryOp)
        if not (computed or self._is_array(node)):
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
        """True if an expression can only be an array operation: a matrix product, or a NumPy call."""
        match node:
            case ast.BinOp(op=ast.MatMult()):
                return True
            case ast.Subscript():
                return self._is_array(node.value)
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
    """Names that are only ever bound to new lists, by plain assignments."""
    made: Counter[str] = Counter()
    stores: Counter[str] = Counter()
    declared: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets, value=ast.List() | ast.ListComp()):
                made.update(target.id for target in targets if isinstance(target, ast.Name))
            case ast.Assign(targets=[ast.Tuple(elts=parts)], value=ast.Tuple(elts=values)) if len(parts) == len(values):
                several = zip(parts, values, strict=True)
                lists = [part for part, value in several if isinstance(value, ast.List | ast.ListComp)]
                made.update(part.id for part in lists if isinstance(part, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.List() | ast.ListComp()):
                made[name] += 1
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                stores[name] += 1
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                declared.update(names)
    declared |= parameters(tree) | (bound_names(tree.body) - set(stores))
    return frozenset(name for name, count in made.items() if stores[name] == count) - declared


_MOST = 3  # statements moved into one `if`; each is copied into every arm
_ARMS = 4
_JUMPS = (ast.Return, ast.Raise, ast.Break, ast.Continue)
_COMPUTED = (ast.BinOp, ast.UnaryOp, ast.Call, ast.Subscript)
_ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign)


def sink(body: list[ast.stmt], is_array: Callable[[ast.expr], bool]) -> list[ast.stmt]:
    """Move array statements that follow an `if` into its arms.

    Args:
        is_array: tells whether an expression can only be an array operation.
    """
    out: list[ast.stmt] = []
    moved = 0
    for each in body:
        before = out[-1] if out else None
        if isinstance(before, ast.If) and moved < _MOST and _moves(each, before, is_array):
            for arm in _ends(before):
                arm.append(copy.deepcopy(each))
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
    """The arms after which control continues behind the `if`."""
    out = []
    for arm in (node.body, node.orelse):
        if arm and isinstance(arm[-1], ast.If):
            out += _ends(arm[-1])
        elif not arm or not isinstance(arm[-1], _JUMPS):
            out.append(arm)
    return out


def _feeds(arm: Sequence[ast.stmt], node: ast.stmt) -> bool:
    """True if the last statement of an arm computes a value that the statement reads."""
    last = arm[-1] if arm else None
    if not isinstance(last, _ASSIGNMENTS) or not isinstance(last.value, _COMPUTED):
        return False
    targets = last.targets if isinstance(last, ast.Assign) else [last.target]
    return any(isinstance(part, ast.Name) and part.id in reads(node) for each in targets for part in ast.walk(each))
