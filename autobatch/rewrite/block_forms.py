"""Rewrites a user's function into its block form, in which each block is one call of its recorder.

    i, o, u = np.split(x @ w, 3)                  _ab_1 = _ab_record1(x, w, c)
    c = sigmoid(i) * np.tanh(u) + c               if _ab_1 is None:
    return sigmoid(o) * np.tanh(c), c      ->         (the same statements)
                                                  else:
                                                      _ab_2, c = _ab_1
                                                      return _ab_2, c

If a recorder returns None, the original statements run instead, split into smaller blocks where possible. An
expression outside such statements (a test, an argument) becomes a block of its own. Calls of user functions call their
block forms. The form is made from the live function, as the lock-step form is: it shares globals, closure cells and
defaults. A function without source, or with nothing to gain, is left unchanged.
"""

import ast
import contextlib
import copy
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from types import CellType, CodeType, FunctionType
from typing import Any

from autobatch.batches.any_batch import Batch
from autobatch.blocks.block_expressions import LEAST, BlockForm, Names, Scope
from autobatch.blocks.finder import COMPUTED, FoundBlock, body_function, longest_block, scope_in, split_off_arrays
from autobatch.core.current_region import check_time
from autobatch.core.diagnostics import is_library
from autobatch.errors import Unsupported, UnsupportedError
from autobatch.facts.python_functions import PAUSES
from autobatch.facts.types import forget_classes
from autobatch.lazy.block_nodes import Block
from autobatch.lazy.fibers import shared_item
from autobatch.lazy.trace import plain_parts
from autobatch.program.bounded_caches import MOST_FUNCTIONS, BoundedDict, CodeCache
from autobatch.program.liveness import annotate
from autobatch.program.quote import expression, placed, substituted
from autobatch.program.scopes import parameters, path_of, target_names
from autobatch.program.source import compiled, find, inner_codes, own_tree, remember
from autobatch.rewrite.callees import FRAME_NAME_READERS, Forms, function_of, helper, through_form
from autobatch.rewrite.taped_forms import CELLS, mark

_GENERATOR = 0x20
_ITEM = "_ab_item"
_CONTAINERS = (dict, list, tuple)
_PLAIN_CODE = 0x80 | 0x100 | 0x200  # coroutine, iterable coroutine, asynchronous generator


class _BlockForm:
    """Block form of one function; `code` is None if the function stays unchanged. `blocks`: {recorder name: Block}."""

    __slots__ = ("blocks", "cells", "code", "globals", "origin", "plain", "tree")

    def __init__(self, origin: CodeType, globals_: dict[str, Any]) -> None:
        self.origin = origin  # kept with the globals so that their ids, which are the cache key, stay valid
        self.globals = globals_
        self.code: CodeType | None = None
        self.tree: ast.FunctionDef | None = None
        self.plain: ast.FunctionDef | None = None  # the user's own tree, if the function stays unchanged
        self.blocks: dict[str, Block] = {}
        self.cells: dict[str, CellType] = {**block_form.cells, _ITEM: CellType(shared_item), **CELLS}


_forms: BoundedDict[tuple[int, int], _BlockForm] = BoundedDict(MOST_FUNCTIONS)
_generated: CodeCache[None] = CodeCache()
_batch_free = plain_parts  # containers known to hold no batches, by id
_leaf_types: set[type] = set()


def forget_forms() -> None:
    """Drop the cached forms of functions that were called; their rewritten code stays cached."""
    block_form.forget()
    _batch_free.clear()
    _leaf_types.clear()
    forget_classes()


def block_source(function: Any) -> str:
    """Return the rewritten source of a function for reading; its original source if nothing was rewritten.

    Raises:
        UnsupportedError: not a function written in Python, or one without source.
    """
    function = getattr(function, "__wrapped__", function)
    if type(function) is not FunctionType:
        raise UnsupportedError(f"{function!r} is no function written in Python")
    made = _form_of(function)
    if made is not None and made.tree is not None:
        return ast.unparse(made.tree)
    try:
        return ast.unparse(find(function).tree)
    except Unsupported as error:
        raise UnsupportedError(str(error)) from None


def _decorated(forms: Forms, function: Any) -> Any:
    """Form of a decorated function: runs the block form, or lock-step if an argument holds a batch."""
    inner = forms(function.__wrapped__)
    if type(inner) is not FunctionType:
        return function
    harmless, checked = _leaf_types, _batch_free

    def call(*args: Any, **kwargs: Any) -> Any:
        for arg in args:
            if type(arg) not in harmless and id(arg) not in checked and _may_hold_batch(arg):
                return function(*args, **kwargs)
        if kwargs and any(map(_may_hold_batch, kwargs.values())):
            return function(*args, **kwargs)
        return inner(*args, **kwargs)

    return call


def _may_hold_batch(arg: Any) -> bool:
    """True if an argument is a batch, or a nested dict, list or tuple that holds one; remembers negative answers."""
    if isinstance(arg, Batch):
        return True
    if type(arg) not in _CONTAINERS:  # object trees that hold batches were made for lock-step
        _leaf_types.add(type(arg))
        return False
    if id(arg) in _batch_free:
        return False
    harmless, checked, nodes = _leaf_types, _batch_free, [arg]
    checked[id(arg)] = arg
    for node in nodes:  # `nodes` grows during the loop
        for part in node.values() if type(node) is dict else node:
            kind = type(part)
            if kind in harmless:
                continue
            if kind in _CONTAINERS:
                if id(part) not in checked:
                    checked[id(part)] = part
                    nodes.append(part)
            elif isinstance(part, Batch):
                for each in nodes:
                    checked.pop(id(each), None)
                return True
            else:
                harmless.add(kind)
    return False


def _form_of(function: FunctionType) -> _BlockForm | None:
    """Block form of a user function's code; None for library code or generated code."""
    code = function.__code__
    if id(code) in _generated:
        return None
    key = id(code), id(function.__globals__)
    made = _forms.get(key)
    if made is None:
        if is_library(code.co_filename):
            return None
        made = _forms[key] = _make(function)
    return made


def _form(forms: Forms, function: FunctionType) -> FunctionType:
    made = _form_of(function)
    return function if made is None or made.code is None else function_of(function, made.code, made.cells)


def _make(function: FunctionType) -> _BlockForm:
    code = function.__code__
    made = _BlockForm(code, function.__globals__)
    if code.co_flags & _PLAIN_CODE or (FRAME_NAME_READERS | PAUSES) & set(code.co_names):
        return made
    try:
        check_time()
        tree = own_tree(function)
        around = frozenset(code.co_freevars)
        scope = Scope(function.__globals__, around, around, around, helper)
        mark(tree)
        split_off_arrays(tree, scope)
        for part in ast.walk(tree):
            if isinstance(part, ast.FunctionDef):
                annotate(part)
        Blocks(scope, functools.partial(_block, made, code.co_filename)).function(tree)
        run = _with_shared_items(tree)
        if not any(isinstance(part, ast.Name) and part.id.startswith("_ab_") for part in ast.walk(run)):
            return made
        new = compiled(run, code, made.cells)
    except (Unsupported, SyntaxError, RecursionError):
        return made
    remember(new, code)
    for each in inner_codes(new):
        _generated.put(each)
    made.code, made.tree = new, tree
    return made


def _with_shared_items(node: Any) -> Any:
    """A copy in which `model.table[ids]` calls `shared_item`, which checks for an array that all examples share."""
    changed: dict[str, Any] = {}
    for name, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            new: Any = _with_shared_items(value)
            if new is not value:
                changed[name] = new
        elif isinstance(value, list):
            new = [_with_shared_items(each) if isinstance(each, ast.AST) else each for each in value]
            if any(a is not b for a, b in zip(new, value, strict=True)):
                changed[name] = new
    if changed:
        node = copy.copy(node)
        for name, new in changed.items():
            setattr(node, name, new)
    if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load) or path_of(node.value) is None:
        return node
    if isinstance(node.slice, ast.Constant | ast.UnaryOp | ast.Slice | ast.Tuple):
        return node
    return expression(f"{_ITEM}(B, I)", node, B=node.value, I=node.slice)


def block_tree(function: FunctionType) -> tuple[ast.FunctionDef, dict[str, Block]]:
    """Syntax tree of a user's function in block form, and its blocks by recorder name.

    Raises:
        Unsupported: it is not a plain Python function of the user's with source.
    """
    made = _form_of(function)
    if made is None or function.__code__.co_flags & (_PLAIN_CODE | _GENERATOR):
        raise Unsupported(f"{function.__qualname__} is no plain function of the user's")
    if made.tree is not None:
        return made.tree, made.blocks
    if made.plain is None:
        made.plain = own_tree(function)
    return made.plain, {}


block_form = Forms(_form, _decorated)
"""Maps a function to the form to call while examples are recorded."""


def _block(made: _BlockForm, filename: str, form: BlockForm, body: list[ast.stmt], at: ast.AST) -> str:
    """Create a block and return the name of the closure cell that holds its recorder."""
    lines = getattr(at, "lineno", 0), getattr(at, "end_lineno", 0)
    function = body_function(form, body, filename, at)
    block = Block((filename, *lines), form.slots()[1], list(form.guards.values()), function, made.globals)
    name = f"_ab_record{len(made.cells)}"
    made.cells[name] = block.cell
    made.blocks[name] = block
    return name


_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_BODIES = ("body", "orelse", "finalbody")
Make = Callable[[BlockForm, list[ast.stmt], ast.AST], str]


class Blocks:
    """Rewrites one function, whose liveness must already be annotated.

    Args:
        make: creates a block from its form, body and position; returns its recorder's name in the rewritten code.
    """

    def __init__(self, scope: Scope, make: Make, numbers: Any = None) -> None:
        self.scope = scope
        self.make = make
        self.numbers = numbers or itertools.count(1)
        self.temporaries: frozenset[str] = frozenset()
        self.assignable: Names = frozenset()
        self.lists = True

    def fresh(self) -> str:
        return f"_ab_{next(self.numbers)}"

    def _scope(self, sure: frozenset[str]) -> Scope:
        old = self.scope
        return old.with_names(old.local | self.temporaries, old.bound | sure | self.temporaries, old.rebindable)

    def form(self, sure: frozenset[str]) -> BlockForm:
        return BlockForm(self._scope(sure), True, self.fresh, lambda node: self.expression(node, sure), self.lists)

    @contextlib.contextmanager
    def in_fallback(self, form: BlockForm, lists: bool = False) -> Iterator[None]:
        """Context for a block's fallback code, which reuses evaluated inputs and never iterates over a list again."""
        outer = self.temporaries, self.lists
        self.temporaries = self.temporaries | set(form.replaced.values())
        self.lists = self.lists and (lists or not form.goes_through)
        try:
            yield
        finally:
            self.temporaries, self.lists = outer

    def function(self, tree: ast.FunctionDef) -> None:
        """Rewrite the body of a function in place."""
        outer = self.scope
        self.scope, self.assignable = scope_in(tree, outer)
        tree.body = self.body(tree.body)
        self.scope = outer

    def body(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        at = 0
        while at < len(statements):
            block = longest_block(statements[at:], self.form, self.assignable)
            out += self.emitted(block) if block is not None else self.statement(statements[at])
            at += block.length if block is not None else 1
        return out

    def emitted(self, block: FoundBlock) -> list[ast.stmt]:
        form, first, last = block.form, block.statements[0], block.statements[-1]
        where = ast.copy_location(ast.Pass(), first)
        where.end_lineno = last.end_lineno
        name = self.make(form, block.returning_body(), where)
        result = self.fresh()
        record = ast.Assign([ast.Name(result, ast.Store())], _call(name, form))
        again = block.fallback()
        with self.in_fallback(form, lists=block.length > 1):
            if form.goes_through:
                at = block.lists_from
                parts = (again[:at], again[at : at + 1], again[at + 1 :])
                fallback = [line for part in parts for line in self.body(part)]
            else:
                fallback = [line for each in again for line in self._smaller(each, block.length)]
        taken: Any = ast.Name(result, ast.Load())
        names: list[ast.expr] = [ast.Name(each, ast.Store()) for each in block.outputs]
        then: list[ast.stmt] = [ast.Assign([names[0] if len(names) == 1 else ast.Tuple(names, ast.Store())], taken)]
        if block.returned is not None:
            sure = frozenset(getattr(last, "bound_before", frozenset()))
            then.append(ast.Return(self.expression(block.returned, sure, whole=False)))
        test = ast.Compare(ast.Name(result, ast.Load()), [ast.Is()], [ast.Constant(None)])
        return [placed(record, first), placed(ast.If(test, fallback, then), first)]

    def _smaller(self, statement: ast.stmt, length: int) -> list[ast.stmt]:
        if length > 1:
            block = FoundBlock([statement], self.form, self.assignable)
            if block.is_possible and block.is_worthwhile:
                return self.emitted(block)
        several = isinstance(getattr(statement, "value", None), ast.Tuple)
        if length > 1 or several:
            return self.statement(statement)
        return [_through_forms(statement, self.scope)]

    def statement(self, node: ast.stmt) -> list[ast.stmt]:
        """Rewrite a statement that is not part of a block."""
        if isinstance(node, ast.ClassDef):
            return [node]
        if isinstance(node, ast.FunctionDef):
            Blocks(self.scope, self.make, self.numbers).function(node)
            return [node]
        if isinstance(node, ast.AsyncFunctionDef):
            return [node]
        sure = frozenset(getattr(node, "bound_before", frozenset()))
        for field, value in ast.iter_fields(node):
            if field in _BODIES:
                setattr(node, field, self.body(value))
            elif isinstance(value, ast.expr):
                setattr(node, field, self.expression(value, sure))
            elif isinstance(value, list):
                setattr(node, field, [self._part(part, sure) for part in value])
        return [node]

    def _part(self, part: Any, sure: frozenset[str]) -> Any:
        if isinstance(part, ast.expr):
            return self.expression(part, sure)
        if isinstance(part, ast.ExceptHandler | ast.match_case):
            part.body = self.body(part.body)
        elif isinstance(part, ast.withitem):
            part.context_expr = self.expression(part.context_expr, sure)
        return part

    def expression(self, node: ast.expr, sure: frozenset[str], whole: bool = True) -> ast.expr:
        """Rewrite an expression outside block statements: as one block if possible, else part by part."""
        if isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):
            return node
        made = self._block(node, sure) if whole else None
        return self._parts(node, sure) if made is None else made

    def _block(self, node: ast.expr, sure: frozenset[str]) -> ast.expr | None:
        form = self.form(sure)
        if not isinstance(node, COMPUTED):
            return None
        try:
            body: list[ast.stmt] = [ast.Return(form.build(node))]
        except Unsupported:
            return None
        if form.count < LEAST:
            return None
        name = self.make(form, body, node)
        result = self.fresh()
        call = _call(name, form)
        test = ast.Compare(ast.NamedExpr(ast.Name(result, ast.Store()), call), [ast.IsNot()], [ast.Constant(None)])
        fallback = substituted(node, form.replaced)
        if form.goes_through:
            with self.in_fallback(form):
                fallback = self.expression(fallback, sure)
        else:
            fallback = _through_forms(fallback, self.scope)
        out = ast.IfExp(test, ast.Name(result, ast.Load()), fallback)
        return placed(out, node)

    def _parts(self, node: ast.expr, sure: frozenset[str]) -> ast.expr:
        node = copy.copy(node)
        if isinstance(node, ast.Lambda):
            inner = Blocks(self.scope, self.make, self.numbers)
            names = parameters(node)
            inner.scope = self.scope.with_names(self.scope.local | names, self.scope.local | names, self.scope.local)
            node.body = inner.expression(node.body, frozenset(names))
            return node
        if isinstance(node, _COMPREHENSIONS):
            return self._comprehension(node, sure)
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                setattr(node, field, self.expression(value, sure))
            elif isinstance(value, list):
                setattr(node, field, [self._argument(part, sure) for part in value])
        if isinstance(node, ast.Call):
            node.func = through_form(node, self.scope)
        return node

    def _argument(self, part: Any, sure: frozenset[str]) -> Any:
        if isinstance(part, ast.keyword):
            part = copy.copy(part)
            part.value = self.expression(part.value, sure)
            return part
        return self.expression(part, sure) if isinstance(part, ast.expr) else part

    def _comprehension(self, node: Any, sure: frozenset[str]) -> ast.expr:
        """Rewrite the element only: Python allows no `:=` in the iterables."""
        names = frozenset(name for each in node.generators for name in target_names(each.target))
        outer = self.scope
        self.scope = outer.with_names(outer.local | names, outer.bound | names, outer.rebindable)
        for field in ("elt", "key", "value"):
            if hasattr(node, field):
                setattr(node, field, self.expression(getattr(node, field), sure))
        self.scope = outer
        return node


def _through_forms(node: Any, scope: Scope) -> Any:
    """Make helpers, which a block would call directly, be called in their block forms."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call):
            part.func = through_form(part, scope)
    return node


def _call(name: str, form: BlockForm) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), form.slots()[0], [])
