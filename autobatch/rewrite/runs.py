"""Straight-line runs of array expressions, found in the user's statements before any of them is rewritten.

A run is a series of assignments to names whose values are made of operators, declared functions and static slices. What
it reads from outside are its inputs: names, and reads like `params["w"]` or `self.w`, which come first and in order. A
run whose operands turn out to suit is one launch (`lockstep.blocks`); else the statements run as they stand.
"""

import ast
import copy
from collections.abc import Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from autobatch.core.op import Op
from autobatch.facts.scopes import bound_names, captured, parameters
from autobatch.lockstep.blocks import Site
from autobatch.ops.table import FUNCTIONS, UFUNCS
from autobatch.rewrite.quote import expression, name, statements

__all__ = ["Runs"]

_METHODS = frozenset({
    "sum", "mean", "max", "min", "prod", "std", "var", "argmax", "argmin", "any", "all", "cumsum", "dot", "transpose",
    "reshape", "astype", "clip", "round", "squeeze", "swapaxes", "ravel", "copy", "conj",
})  # fmt: skip
_FACTS = frozenset({"shape", "ndim", "size", "dtype"})
_SPLITS = (np.split, np.array_split)  # functions of several results
_COMPARED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_LEAST_IN_A_VALUE = 3  # ops, below which a launch of an expression alone is no faster than they are
_CONSTANTS = (int, float, bool, complex, str, type(None), type(Ellipsis))


class _NotARun(Exception):  # noqa: N818  (a signal inside of this module)
    """A statement that no run may hold."""


class Runs:
    """The runs of one function, each a `Site` under a name that the rewritten code calls.

    Args:
        function: the definition, whose statements are the user's own.
        live: the function object, for what its global names stand for.
        sites: {name: Site}, filled here.
    """

    def __init__(self, function: ast.FunctionDef, live: FunctionType, sites: dict[str, Any]) -> None:
        self.live = live
        self.sites = sites
        self.locals = bound_names(function.body) | parameters(function) | set(live.__code__.co_freevars)
        self.locals |= captured(function) & set(live.__code__.co_cellvars)
        self.written: set[str] = function.ownership.written  # type: ignore[attr-defined]

    def gathered(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The statements, each run of them as a call of its site with the statements themselves as the alternative."""
        out: list[ast.stmt] = []
        run: _Run | None = None
        for statement in body:
            if run is not None and run.take(statement):
                continue
            if run is not None:
                out += run.finish()
            run = _Run(self)
            if not run.take(statement):
                out.append(statement)
                run = None
        return out if run is None else out + run.finish()

    def value(self, node: ast.expr) -> tuple[list[ast.stmt], ast.expr]:
        """An expression that a statement ends with (a test, what is returned): lines that bind its value to a name, and
        the name; no lines, and the expression itself, where it is too little for a block of its own."""
        run = _Run(self)
        target = f"_ab_value_{run.number}"
        assign = ast.copy_location(ast.Assign([name(target, node, ast.Store())], node), node)
        assign.live_after = {target}  # type: ignore[attr-defined]
        if not run.take(assign) or run.count < _LEAST_IN_A_VALUE:
            return [], node
        return run.finish(), name(target, node)

    def resolve(self, node: ast.expr) -> Any:
        """What an attribute of a module, or a global name, stands for; the node itself where that is not fixed."""
        if isinstance(node, ast.Name):
            return node if node.id in self.locals else self.live.__globals__.get(node.id, node)
        if isinstance(node, ast.Attribute):
            holder = self.resolve(node.value)
            if isinstance(holder, ModuleType):
                return getattr(holder, node.attr, node)
        return node


def _is_array_function(value: Any) -> bool:
    if isinstance(value, np.ufunc):
        return value in UFUNCS
    if isinstance(value, Op):
        return True
    if isinstance(value, FunctionType) and (value.__module__ or "").startswith("autobatch.ops.nn"):
        return True
    return isinstance(value, type(np.sum)) and value in FUNCTIONS


def _counts(target: ast.expr, value: ast.expr) -> bool:
    """`n = n + 1`: of a Python number, most likely, which is nothing to launch."""
    return (
        isinstance(value, ast.BinOp)
        and isinstance(value.right, ast.Constant)
        and type(value.right.value) is int
        and isinstance(target, ast.Name)
        and isinstance(value.left, ast.Name)
        and value.left.id == target.id
    )


class _Run:
    """Statements taken so far, and what they read."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.taken: list[ast.stmt] = []
        self.rewritten: list[ast.stmt] = []
        self.inputs: dict[str, ast.expr] = {}
        self.static: set[str] = set()
        self.assigned: set[str] = set()
        self.count = 0
        self.number = len(runs.sites) + 1
        self.outputs: list[str] = []
        self.site = f"_ab_block_{self.number}"

    def take(self, statement: ast.stmt) -> bool:
        """Whether the statement belongs to the run; if so it is part of it now."""
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return False
        target, value = statement.targets[0], statement.value
        targets = [target] if isinstance(target, ast.Name) else getattr(target, "elts", [])
        if not targets or not all(isinstance(each, ast.Name) for each in targets):
            return False
        names = {each.id for each in targets}
        if names & self.runs.written or len(names) < len(targets) or _counts(target, value):
            return False
        whole = isinstance(target, ast.Name) or self._is_split(value)
        parts = [value] if whole else getattr(value, "elts", [])
        if not whole and (len(parts) != len(targets) or not isinstance(value, ast.Tuple)):
            return False
        before = dict(self.inputs), set(self.static), self.count
        rewritten = copy.deepcopy(statement)
        try:
            new = [self._array(part) for part in copy.deepcopy(parts)]
            if any(isinstance(part, ast.Name) for part in new):
                raise _NotARun
        except _NotARun:
            self.inputs, self.static, self.count = before
            return False
        assert isinstance(rewritten, ast.Assign)
        if whole:
            rewritten.value = new[0]
        else:
            rewritten.value.elts = new  # type: ignore[attr-defined]
        self.taken.append(statement)
        self.rewritten.append(rewritten)
        self.assigned |= names
        return True

    def _is_split(self, value: ast.expr) -> bool:
        function = self.runs.resolve(value.func) if isinstance(value, ast.Call) else None
        return any(function is each for each in _SPLITS)

    def finish(self) -> list[ast.stmt]:
        """The run as a block, or as it was where it is too small or nothing reads what it makes."""
        last, first = self.taken[-1], self.taken[0]
        self.outputs = outputs = sorted(self.assigned & last.live_after)  # type: ignore[attr-defined]
        if self.count < 2 or not outputs or not self.inputs:
            return self.taken
        site, out = self.site, f"_ab_out_{self.number}"
        self.runs.sites[site] = Site(self._body(outputs), [key in self.static for key in self.inputs])
        lines: list[ast.stmt] = []
        for key, value in self.inputs.items():
            if not isinstance(value, ast.Name):
                lines.append(ast.copy_location(ast.Assign([name(key, value, ast.Store())], value), value))
        call: ast.Call = expression("SITE()", first, SITE=site)
        call.args = [name(key, value) for key, value in self.inputs.items()]
        targets = ast.copy_location(ast.Tuple([name(each, first, ast.Store()) for each in outputs], ast.Store()), first)
        bind = ast.copy_location(ast.Assign([targets], name(out, first)), first)
        lines += statements(
            "OUT = CALL\nif OUT:\n    BIND\n    OUT = None\nelse:\n    RUN",
            first, OUT=out, CALL=call, BIND=[bind], RUN=self.rewritten,
        )  # fmt: skip
        for line in lines:
            line.is_run = self  # type: ignore[attr-defined]
        return [ast.fix_missing_locations(line) for line in lines]

    def _body(self, outputs: list[str]) -> FunctionType:
        """The run as a function of its inputs, in plain Python: what is traced."""
        (made,) = ast.parse("def block(): pass").body
        assert isinstance(made, ast.FunctionDef)
        made.args.args = [ast.arg(key) for key in self.inputs]
        back = ast.Return(ast.Tuple([ast.Name(each, ast.Load()) for each in outputs], ast.Load()))
        made.body = [*copy.deepcopy(self.rewritten), back]
        module = ast.fix_missing_locations(ast.copy_location(ast.Module([made], []), self.taken[0]))
        compiled = compile(module, self.runs.live.__code__.co_filename, "exec", dont_inherit=True)
        (code,) = [const for const in compiled.co_consts if isinstance(const, CodeType)]
        return FunctionType(code, self.runs.live.__globals__)

    def _array(self, node: ast.expr) -> ast.expr:
        """The expression of an array, its inputs replaced by names."""
        if isinstance(node, ast.Name):
            return node if node.id in self.assigned else self._input(node)
        if isinstance(node, ast.Constant) and type(node.value) in (int, float, bool, complex):
            return node
        if isinstance(node, ast.BinOp):
            node.left, node.right = self._array(node.left), self._array(node.right)
            self.count += 2 if isinstance(node.op, ast.MatMult) else 1
            return node
        if isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not):
            node.operand = self._array(node.operand)
            self.count += not isinstance(node.operand, ast.Constant)
            return node
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], _COMPARED):
            node.left, node.comparators = self._array(node.left), [self._array(node.comparators[0])]
            self.count += 1
            return node
        if isinstance(node, ast.Call):
            return self._call(node)
        if self._is_path(node):
            return self._input(node)
        if isinstance(node, ast.Attribute) and node.attr == "T":
            node.value = self._array(node.value)
            self.count += 1
            return node
        if isinstance(node, ast.Subscript):
            node.value, node.slice = self._array(node.value), self._static(node.slice)
            self.count += 1
            return node
        value = self.runs.resolve(node)
        if isinstance(value, _CONSTANTS) and not isinstance(value, str):
            return node
        raise _NotARun

    def _call(self, node: ast.Call) -> ast.expr:
        function = self.runs.resolve(node.func)
        if any(isinstance(arg, ast.Starred) for arg in node.args) or any(
            kw.arg in (None, "out") for kw in node.keywords
        ):
            raise _NotARun
        if _is_array_function(function):
            weak = isinstance(function, np.ufunc)
            node.args = [self._argument(arg, weak) for arg in node.args]
        elif isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
            if isinstance(self.runs.resolve(node.func.value), ModuleType):
                raise _NotARun
            node.func.value = self._array(node.func.value)
            node.args = [self._argument(arg, False) for arg in node.args]
        else:
            raise _NotARun
        for keyword in node.keywords:
            keyword.value = self._static(keyword.value)
        self.count += 1
        return node

    def _argument(self, node: ast.expr, weak: bool) -> ast.expr:
        """An argument of a function: an array, or where numbers are not operands what the function is told."""
        if weak:
            return self._array(node)
        if isinstance(node, ast.Tuple | ast.List):
            node.elts = [self._argument(each, False) for each in node.elts]
            return node
        try:
            out = self._array(node)
        except _NotARun:
            return self._static(node)
        if isinstance(out, ast.Name) and out.id in self.inputs:
            self.static.add(out.id)
        return out

    def _static(self, node: ast.expr) -> ast.expr:
        """An expression whose value is part of the program: an index, an axis, a shape, a dtype."""
        if isinstance(node, ast.Constant) and isinstance(node.value, _CONSTANTS):
            return node
        if isinstance(node, ast.Tuple | ast.List):
            node.elts = [self._static(each) for each in node.elts]
        elif isinstance(node, ast.Slice):
            for field in ("lower", "upper", "step"):
                part = getattr(node, field)
                if part is not None:
                    setattr(node, field, self._static(part))
        elif isinstance(node, ast.BinOp):
            node.left, node.right = self._static(node.left), self._static(node.right)
        elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not):
            node.operand = self._static(node.operand)
        elif self._is_fact(node) or isinstance(self.runs.resolve(node), (*_CONSTANTS, type, np.dtype)):
            return node
        elif self._is_path(node):
            out = self._input(node)
            self.static.add(out.id)
            return out
        else:
            raise _NotARun
        return node

    def _is_fact(self, node: ast.expr) -> bool:
        """`a.shape`, `a.shape[0]`, `a.dtype` of an array that the run made."""
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant | ast.UnaryOp):
            node = node.value
        return (
            isinstance(node, ast.Attribute)
            and node.attr in _FACTS
            and isinstance(node.value, ast.Name)
            and node.value.id in self.assigned
        )

    def _is_path(self, node: ast.expr) -> bool:
        """A read that is no array expression: attributes and constant keys, from a name that the run did not assign."""
        while True:
            if isinstance(node, ast.Name):
                return node.id not in self.assigned and not isinstance(self.runs.resolve(node), ModuleType)
            if isinstance(node, ast.Attribute) and node.attr != "T":
                if isinstance(self.runs.resolve(node), (*_CONSTANTS, type, np.dtype)):
                    return False
                node = node.value
            elif isinstance(node, ast.Subscript) and self._is_key(node.slice):
                node = node.value
            else:
                return False

    def _is_key(self, index: ast.expr) -> bool:
        if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub):
            index = index.operand
        if isinstance(index, ast.Constant):
            return isinstance(index.value, int | str)
        return isinstance(index, ast.Name) and index.id not in self.assigned

    def _input(self, node: ast.expr) -> ast.Name:
        if isinstance(node, ast.Name):
            if isinstance(self.runs.resolve(node), ModuleType | FunctionType | type):
                raise _NotARun
            self.inputs.setdefault(node.id, node)
            return node
        key = f"_ab_input_{self.number}_{len(self.inputs)}"
        self.inputs[key] = node
        return name(key, node)
