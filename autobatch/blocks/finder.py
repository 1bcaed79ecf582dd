"""The finder of blocks: which statements in a row can run, or be recorded, as one.

    i, o, u = np.split(x @ w, 3)
    c = sigmoid(i) * np.tanh(u) + c          ->     inputs x, w, c; outputs c and what is returned first
    return sigmoid(o) * np.tanh(c), c

A block is as long as it can be. What it reads from outside are its inputs; what may be read after it are its outputs.
Needs the statements' liveness (`syntax.liveness`).
"""

import ast
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from autobatch.blocks.block_expressions import RECORDED, BlockForm, Names, Refused, Scope
from autobatch.blocks.inputs import Guard
from autobatch.syntax.quote import located, placed, substituted
from autobatch.syntax.scopes import bound_names, captured, parameters, target_names

__all__ = ["COMPUTED", "LEAST", "FoundBlock", "body_function", "longest_block", "relies_on", "scope_in"]

LEAST = 2  # operations; fewer are as quick on their own, and group with their like anywhere
COMPUTED = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.Subscript, ast.Attribute)
MakeForm = Callable[[Names], BlockForm]


def longest_block(statements: Sequence[ast.stmt], make: MakeForm, assignable: Names) -> "FoundBlock | None":
    """The longest block that starts with the first of these statements; None if there is none.

    Args:
        make: the form to begin with, given the names that are bound for sure.
        assignable: the names that a block may assign.
    """
    tried = FoundBlock(statements, make, assignable)
    length = tried.added
    best = tried if tried.is_possible else FoundBlock(statements[:length], make, assignable) if length else None
    while best is not None and not best.is_worthwhile:
        best = FoundBlock(statements[: best.length - 1], make, assignable) if best.length > 1 else None
    return best


def scope_in(tree: ast.FunctionDef, outer: Scope) -> tuple[Scope, Names]:
    """What names mean in a function, and which of them a block may assign."""
    own = parameters(tree) | bound_names(tree.body)
    declared = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
    elsewhere = {name for node in ast.walk(tree) if isinstance(node, ast.Nonlocal) for name in node.names}
    assignable = Names(own - declared - elsewhere)
    around = outer.own - assignable
    return outer.with_names((outer.own | own) - declared, around, around | captured(tree) | elsewhere), assignable


def relies_on(tree: ast.FunctionDef, outer: Scope) -> list[Guard] | None:
    """What a function relies on that does nothing but compute with its parameters; None for any other function."""
    args, names = tree.args, parameters(tree)
    if args.vararg or args.kwarg or not tree.body or not isinstance(tree.body[-1], ast.Return):
        return None
    scope, assignable = scope_in(tree, outer)
    first = tree.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    numbers = itertools.count(1)

    def make(sure: Names) -> BlockForm:
        known = scope.with_names(scope.own, scope.sure | sure, scope.shifting)
        return BlockForm(known, RECORDED, lambda: f"_ab_{next(numbers)}", lambda node: node)

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
    """A block as a function of its inputs, in plain Python: what is traced."""
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
    """Statements as a block, if they can be one.

    Attributes:
        form: its inputs, and what it relies on; body: its statements, without a `return`.
        outputs: names that are read after it, and `results`, what a `return` computes.
        returned: what the `return` gives, of names of the outputs; is_partial: something is evaluated beside the block.
        added: how many statements come before one that cannot be part of it.
        lists_from: how many come before the first that goes through a list.
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
        self.copied: set[str] = set()  # names of what may be an array from outside, or is a list
        self.added = self.lists_from = 0
        try:
            for statement in statements:
                self._add(statement)
                self.added += 1
                self.lists_from += not self.form.goes_through
        except Refused:
            self.outputs: list[str] = []
            return
        live: frozenset[str] = getattr(statements[-1], "live_after", frozenset())
        names = list(dict.fromkeys(name for each in statements for name in _targets(each)))
        if self.returned is not None:
            live |= {part.id for part in ast.walk(self.returned) if isinstance(part, ast.Name)}
        self.outputs = [*[name for name in names if name in live], *self.results]

    @property
    def is_possible(self) -> bool:
        """Whether all of the statements can be part of it."""
        return self.added == self.length

    @property
    def is_worthwhile(self) -> bool:
        """Whether it does enough, for something that is read, of something from outside."""
        enough = self.form.count >= LEAST and bool(self.outputs) and bool(self.form.inputs)
        return enough and not self.copied.intersection(self.outputs)

    def whole(self) -> list[ast.stmt]:
        """The body of a function that returns the outputs: one, or a tuple."""
        values: list[ast.expr] = [ast.Name(name, ast.Load()) for name in self.outputs]
        return [*self.body, ast.Return(values[0] if len(values) == 1 else ast.Tuple(values, ast.Load()))]

    def otherwise(self) -> list[Any]:
        """Its statements, for where it does not run: what was evaluated before it is read from names."""
        return [substituted(each, self.form.replaced) for each in self.statements]

    def _add(self, node: ast.stmt) -> None:
        form = self.form
        if self.returned is not None:
            raise Refused
        before = form.count
        match node:
            case ast.Assign(targets=[target]) if _is_plain(target) and (form.policy.counts or not _counts(node)):
                value = self._value(node.value)
            case ast.AnnAssign(target=ast.Name() as target, value=ast.expr(), simple=1):
                value = self._value(node.value)  # type: ignore[arg-type]
            case ast.AugAssign(target=ast.Name(id=name) as target) if name in form.bound:
                made = ast.AugAssign(ast.Name(name, ast.Store()), node.op, form.build(node.value, False, True))
                form.count += 1
                self.body.append(placed(made, node))
                return
            case ast.Return(value=ast.expr()) if form.policy.returns:
                self._return(node.value)  # type: ignore[arg-type]
                if form.count == before and not self.body:
                    raise Refused
                return
            case _:
                raise Refused
        names = target_names(target)
        if form.count == before or not names <= self.assignable:
            raise Refused
        if isinstance(target, ast.Name) and isinstance(value, ast.Tuple) and not form.policy.lists:
            raise Refused
        if isinstance(value, ast.Name | ast.ListComp):
            self.copied |= names
        else:
            self.copied -= names
        self.body.append(placed(ast.Assign([target], value), node))
        form.bound |= names

    def _value(self, node: ast.expr) -> ast.expr:
        """What is assigned; a part that is only a name would be a second name of one array."""
        parts = node.elts if isinstance(node, ast.Tuple) else [node]
        if not isinstance(node, ast.ListComp) and not all(isinstance(part, COMPUTED) for part in parts):
            raise Refused
        made = self.form.build(node)
        if isinstance(made, ast.Tuple) and any(isinstance(part, ast.Name) for part in made.elts):
            raise Refused
        return made

    def _return(self, node: ast.expr) -> None:
        """Parts that are operations become outputs; what follows the last of them is evaluated afterwards."""
        form = self.form
        parts = node.elts if isinstance(node, ast.Tuple) else [node]
        out: list[ast.expr] = []
        over = False
        for part in parts:
            if isinstance(part, ast.Name | ast.Constant):
                sure = isinstance(part, ast.Constant) or part.id in form.bound | form.scope.sure
                over = over or not sure
                out.append(part)
                continue
            if not over and not isinstance(part, ast.List | ast.ListComp | ast.Tuple):  # a block gives arrays
                before = form.count
                made = form.attempt(part)
                if made is not None and form.count > before:
                    name = form.fresh()
                    self.results.append(name)
                    self.body.append(placed(ast.Assign([ast.Name(name, ast.Store())], made), part))
                    out.append(ast.Name(name, ast.Load()))
                    continue
                if form.count == 0:
                    raise Refused
            over = self.is_partial = True
            out.append(part)
        self.returned = placed(ast.Tuple(out, ast.Load()) if isinstance(node, ast.Tuple) else out[0], node)
        if over and any(isinstance(n, ast.NamedExpr | ast.Yield | ast.Await) for n in ast.walk(node)):
            raise Refused


def _targets(node: ast.stmt) -> list[str]:
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    return [part.id for part in parts if isinstance(part, ast.Name)]


def _is_plain(target: ast.expr) -> bool:
    """A name, or a flat tuple of names."""
    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    return all(isinstance(part, ast.Name) for part in parts)


def _counts(node: ast.Assign) -> bool:
    """`n = n + 1`: of a Python number, most likely."""
    match node:
        case ast.Assign(
            targets=[ast.Name(id=target)],
            value=ast.BinOp(left=ast.Name(id=name), right=ast.Constant(value=int() as step)),
        ):
            return name == target and type(step) is int
    return False
