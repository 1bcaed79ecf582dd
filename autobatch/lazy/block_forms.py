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

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from types import CellType, CodeType, FunctionType
from typing import Any

from autobatch.batches.any_batch import Batch, Shared, has_batch, unwrap_shared
from autobatch.blocks.block_expressions import LEAST, BlockForm, is_computed
from autobatch.blocks.finder import FoundBlock, body_function, helper, longest_block, scope_in, split_off_arrays
from autobatch.core.current_region import check_time
from autobatch.core.diagnostics import is_library
from autobatch.errors import Unsupported, UnsupportedError
from autobatch.facts.python_functions import PAUSES
from autobatch.facts.types import forget_classes
from autobatch.lazy.block_nodes import Block
from autobatch.lazy.callees import FRAME_NAME_READERS, Calls, Forms, Marks, function_of
from autobatch.lazy.fibers import shared_item
from autobatch.lazy.taped_forms import CELLS, mark
from autobatch.lazy.trace import plain_parts
from autobatch.program import normal_form as nf
from autobatch.program.bounded_caches import MOST_FUNCTIONS, BoundedDict, CodeCache
from autobatch.program.folding import folded
from autobatch.program.liveness import all_names, annotate
from autobatch.program.python_text import Writer, source_of
from autobatch.program.scopes import Scope
from autobatch.program.source import compiled, inner_codes, normal_form, remember

_ITEM = "_ab_item"  # checks what is read for an array that all examples share
_PLAIN_INDICES = nf.SINGLE | {"not", "slice", "tuple"}
_CONTAINERS = (dict, list, tuple)
_PLAIN_CODE = 0x80 | 0x100 | 0x200  # coroutine, iterable coroutine, asynchronous generator


class _RewrittenCode:
    """Block form of one function, written with its names in `scope`; `code` is None if the function stays unchanged.

    `blocks`: {recorder name: Block}.
    """

    __slots__ = ("blocks", "cells", "code", "form", "globals", "marks", "origin", "scope")

    def __init__(self, origin: CodeType, globals_: dict[str, Any]) -> None:
        self.origin = origin  # kept with the globals so that their ids, which are the cache key, stay valid
        self.globals = globals_
        self.code: CodeType | None = None
        self.form: nf.Closure | None = None
        self.marks = Marks()
        self.scope: Scope | None = None
        self.blocks: dict[str, Block] = {}
        self.cells: dict[str, CellType] = {**block_form.cells, _ITEM: CellType(shared_item), **CELLS}


_forms: BoundedDict[tuple[int, int], _RewrittenCode] = BoundedDict(MOST_FUNCTIONS)
_generated: CodeCache[None] = CodeCache()
_batch_free = plain_parts  # containers known to hold no batches, by id
_leaf_types: set[type] = set()


def forget_forms() -> None:
    """Drop the cached forms of functions that were called; their rewritten code stays cached."""
    block_form.forget()
    _batch_free.clear()
    _leaf_types.clear()
    forget_classes()


def block_source(function: FunctionType) -> str:
    """Return the rewritten source of a function for reading; its original source if nothing was rewritten.

    Raises:
        UnsupportedError: it has no source.
    """
    made = _form_of(function)
    try:
        if made is None or made.form is None or made.scope is None:
            return source_of(Writer().definition(normal_form(function)))
        return source_of(Calls(made.scope, made.marks).definition(made.form))
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
                return looked_at(args, kwargs)
        if kwargs and any(map(_may_hold_batch, kwargs.values())):
            return looked_at(args, kwargs)
        return inner(*args, **kwargs)

    def looked_at(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        own, named = unwrap_shared(args, kwargs)
        return function(*args, **kwargs) if own is args and named is kwargs else call(*own, **named)

    return call


def _may_hold_batch(arg: Any) -> bool:
    """True of `ab.shared`, a batch, or a nested dict, list or tuple that holds one; remembers negative answers."""
    if isinstance(arg, Batch | Shared):
        return True
    if type(arg) not in _CONTAINERS:  # object trees that hold batches were made for lock-step
        _leaf_types.add(type(arg))
        return False
    if id(arg) not in _batch_free:
        if has_batch((arg,), {}):
            return True
        _batch_free[id(arg)] = arg
    return False


def _form_of(function: FunctionType) -> _RewrittenCode | None:
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


def _make(function: FunctionType) -> _RewrittenCode:
    code = function.__code__
    made = _RewrittenCode(code, function.__globals__)
    if code.co_flags & _PLAIN_CODE or (FRAME_NAME_READERS | PAUSES) & set(code.co_names):
        return made
    try:
        check_time()
        marks = made.marks = mark(normal_form(function))
        marks.made.clear()  # when traced, adding to an array needs no other array
        form = folded(normal_form(function))
        around = frozenset(code.co_freevars)
        scope = Scope(function.__globals__, around, around, around, helper)
        form = split_off_arrays(form, scope)
        annotate(form)
        make = functools.partial(_block, made, code.co_filename)
        made.form = Blocks(scope, make, _numbers_after(form)).function(form)
        made.scope = scope.with_names(*[around | all_names(normal_form(function))] * 3)
        tree = _Items(made.scope, marks).definition(made.form)
        if not made.blocks and not marks.is_changed:
            return made
        new = compiled(tree, code, made.cells)
    except (Unsupported, SyntaxError, RecursionError):
        return made
    remember(new, code)
    for each in inner_codes(new):
        _generated.put(each)
    made.code = new
    return made


def _numbers_after(function: nf.Closure) -> Iterator[int]:
    """Numbers that no temporary name of a function has."""
    nodes = (node for each in nf.closures(function) for node in nf.walk(each.body))
    used = [node.id.removeprefix(nf.TEMPORARY) for node in nodes if isinstance(node, nf.Name)]
    return itertools.count(1 + max((int(each) for each in used if each.isdigit()), default=0))


def block_program(function: FunctionType) -> tuple[nf.Closure, dict[str, Block], Marks]:
    """A user's function in block form, its blocks by recorder name, and what is known of its calls.

    Raises:
        Unsupported: it is not a plain Python function of the user's with source.
    """
    made = _form_of(function)
    if made is None or function.__code__.co_flags & (_PLAIN_CODE | 0x20):  # or a generator
        raise Unsupported(f"{function.__qualname__} is not a function of your code")
    if made.form is None:
        made.form = folded(normal_form(function))
    return made.form, made.blocks, made.marks


block_form = Forms(_form, _decorated)
"""Maps a function to the form to call while examples are recorded."""


def _block(made: _RewrittenCode, filename: str, form: BlockForm, body: list[nf.Statement], at: nf.Node) -> str:
    """Create a block and return the name of the closure cell that holds its recorder."""
    function = body_function(form, body, filename, at)
    lines = at.at.line, at.at.end_line
    block = Block((filename, *lines), form.slots()[1], list(form.guards.values()), function, made.globals)
    name = f"_ab_record{len(made.cells)}"
    made.cells[name] = block.cell
    made.blocks[name] = block
    return name


Make = Callable[[BlockForm, list[nf.Statement], nf.Node], str]


class _Items(Calls):
    """Writes a function whose reads `model.table[ids]` give rows of a table that all examples share, if it is one."""

    def syntax_of(self, node: nf.Value) -> Any:
        """A value; an item by what is no constant and no slice is read by a call."""
        made = super().syntax_of(node)
        if isinstance(node, nf.Read) and isinstance(node.key, nf.Value) and nf.path_of(node.base) is not None:
            is_plain = isinstance(node.key, nf.Call) and node.key.symbol in _PLAIN_INDICES
            if not is_plain and not isinstance(node.key, nf.Constant):
                return self.changed(f"{_ITEM}(BASE, KEY)", node, BASE=made.value, KEY=made.slice)
        return made


class Blocks:
    """Makes a function whose blocks are calls of their recorders, of one whose liveness is annotated.

    Args:
        scope: the meaning of the names around it.
        make: creates a block from its form, body and position; returns its recorder's name in the rewritten code.
        numbers: the numbers of new names.
    """

    def __init__(self, scope: Scope, make: Make, numbers: Iterator[int]) -> None:
        self.scope = scope
        self.make = make
        self.numbers = numbers
        self.temporaries: nf.Names = frozenset()
        self.assignable: nf.Names = frozenset()
        self.sure: nf.Names = frozenset()
        self.lists = True

    def fresh(self) -> str:
        return f"_ab_{next(self.numbers)}"

    def form(self, sure: nf.Names) -> BlockForm:
        old = self.scope
        scope = old.with_names(old.local | self.temporaries, old.bound | sure | self.temporaries, old.rebindable)
        return BlockForm(scope, True, self.fresh, self.lists)

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

    @contextlib.contextmanager
    def within(self, scope: Scope, sure: nf.Names) -> Iterator[None]:
        """Context in which names have another meaning, and those in `sure` are certainly bound."""
        outer = self.scope, self.sure
        self.scope, self.sure = scope, sure
        try:
            yield
        finally:
            self.scope, self.sure = outer

    def function(self, function: nf.Closure) -> nf.Closure:
        """A function in which blocks are called."""
        inner = Blocks(self.scope, self.make, self.numbers)
        if nf.is_lambda(function):
            names = nf.Names(function.parameters.names)
            local = self.scope.local | names
            with inner.within(self.scope.with_names(local, local, self.scope.local), names):
                return nf.with_bodies(function, lambda body: [nf.with_values(each, inner.value) for each in body])
        inner.scope, inner.assignable = scope_in(function, self.scope)
        return nf.with_bodies(function, inner.statements)

    def statements(self, body: Sequence[nf.Statement]) -> list[nf.Statement]:
        """Statements, of which some are blocks."""
        out: list[nf.Statement] = []
        at = 0
        while at < len(body):
            block = longest_block(body[at:], self.form, self.assignable)
            out += self.called(block) if block is not None else [self.statement(body[at])]
            at += block.length if block is not None else 1
        return out

    def called(self, block: FoundBlock) -> list[nf.Statement]:
        """The statements that call a block's recorder."""
        form, first, last = block.form, block.statements[0], block.statements[-1]
        at = nf.Place(first.at.line, first.at.column, last.at.end_line, last.at.end_column)
        name = self.make(form, block.returning_body(), nf.Node(at))
        result = nf.Name(first.at, self.fresh())
        with self.within(self.scope, first.bound_before):
            call = self.recorder(name, form, first)
        again = block.fallback()
        with self.in_fallback(form, lists=block.length > 1):
            if form.goes_through:
                at_lists = block.lists_from
                parts = [
                    part for part in (again[:at_lists], again[at_lists : at_lists + 1], again[at_lists + 1 :]) if part
                ]
                fallback = [line for part in parts for line in self.statements(part)]
            else:
                fallback = [line for each in again for line in self._smaller(each, block.length)]
        target: nf.Target = block.outputs[0] if len(block.outputs) == 1 else nf.Unpack(first.at, list(block.outputs))
        then: list[nf.Statement] = [nf.Bind(first.at, target, result)]
        if block.returned is not None:
            with self.within(self.scope, last.bound_before):
                then.append(nf.Return(last.at, nf.with_values(block.returned, self.value)))
        return [nf.Bind(first.at, result.id, call), nf.Branch(first.at, _is(result, "is"), fallback, then)]

    def recorder(self, name: str, form: BlockForm, at: nf.Node) -> nf.Call:
        """A call of a recorder."""
        args = [self.value(value) if temporary else value for temporary, value in form.slots()[0]]
        names = [temporary for temporary, _ in form.slots()[0]]
        kept = [_kept(name, value) if name else value for name, value in zip(names, args, strict=True)]
        return nf.Call(at.at, nf.Name(at.at, name), kept)

    def _smaller(self, statement: nf.Statement, length: int) -> list[nf.Statement]:
        if length > 1:
            block = FoundBlock([statement], self.form, self.assignable)
            if block.is_possible and block.is_worthwhile:
                return self.called(block)
        value = getattr(statement, "value", None)
        return [self.statement(statement) if length > 1 or (value is not None and nf.is_tuple(value)) else statement]

    def statement(self, node: nf.Statement) -> Any:
        """A statement that is not part of a block."""
        with self.within(self.scope, node.bound_before):
            match node:
                case (
                    nf.Bind(value=nf.Call(args=[read, more]) as update)
                    | nf.Write(value=nf.Call(args=[read, more]) as update)
                ) if update.symbol in nf.UPDATES:
                    return dataclasses.replace(node, value=dataclasses.replace(update, args=[read, self.value(more)]))
                case nf.Write(value=nf.Value() as value):
                    return dataclasses.replace(node, value=self.value(value))
                case nf.Write():
                    return node
            made = nf.with_values(node, self.value)
            return nf.with_bodies(made, self.statements) if isinstance(node, nf.Inner) else made

    def value(self, node: nf.Value) -> Any:
        """A value: as one block if possible, else part by part."""
        made = self._block(node) if is_computed(node) else None
        return self.by_parts(node) if made is None else made

    def _block(self, node: nf.Value) -> nf.Value | None:
        form = self.form(self.sure)
        try:
            body: list[nf.Statement] = [nf.Return(node.at, form.build(node))]
        except Unsupported:
            return None
        if form.count < LEAST:
            return None
        call = self.recorder(self.make(form, body, node), form, node)
        result = nf.Name(node.at, self.fresh())
        fallback = nf.substituted(node, form.replaced)
        if form.goes_through:
            with self.in_fallback(form):
                fallback = self.value(fallback)
        return nf.Sugar(node.at, "if", [_is(_kept(result.id, call), "is not"), result, fallback])

    def by_parts(self, node: nf.Value) -> Any:
        """A value part by part; the iterables of comprehensions without blocks, as Python allows no `:=` there."""
        if isinstance(node, nf.Closure):
            return self.function(node)
        if not isinstance(node, nf.Sugar) or not node.loops:
            return nf.with_values(node, self.value)
        names = nf.Names(name for each in node.loops for name in nf.target_names(each.target))
        old = self.scope
        with self.within(old.with_names(old.local | names, old.bound | names, old.rebindable), self.sure):
            return dataclasses.replace(node, parts=[self.value(each) for each in node.parts])


def _kept(name: str, value: nf.Value) -> nf.Sugar:
    return nf.Sugar(value.at, "keep", [nf.Name(value.at, name), value])


def _is(value: nf.Value, symbol: str) -> nf.Call:
    """The test whether a block has not run, or has."""
    return nf.Call(value.at, nf.Operator(value.at, symbol), [value, nf.Constant(value.at, None)])
