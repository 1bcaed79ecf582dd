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
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from types import CellType, CodeType, FunctionType
from typing import Any

from autobatch.batches.any_batch import Batch, Shared, unwrap_shared
from autobatch.blocks.block_expressions import LEAST, BlockForm, is_computed
from autobatch.blocks.finder import FoundBlock, body_function, longest_block, scope_in, split_off_arrays
from autobatch.core.current_region import check_time
from autobatch.core.diagnostics import is_library
from autobatch.errors import Unsupported, UnsupportedError
from autobatch.facts.python_functions import PAUSES
from autobatch.facts.types import forget_classes
from autobatch.lazy.block_nodes import Block
from autobatch.lazy.fibers import shared_item
from autobatch.lazy.trace import plain_parts
from autobatch.program import normal_form as nf
from autobatch.program.bounded_caches import MOST_FUNCTIONS, BoundedDict, CodeCache
from autobatch.program.folding import folded
from autobatch.program.liveness import annotate
from autobatch.program.python_text import Writer, source_of
from autobatch.program.quote import calling, statements
from autobatch.program.scopes import Scope
from autobatch.program.source import compiled, inner_codes, normal_form, remember
from autobatch.rewrite.callees import FRAME_NAME_READERS, Calls, Forms, Marks, function_of, helper
from autobatch.rewrite.taped_forms import CELLS, mark

_GENERATOR = 0x20
_ITEM = "_ab_item"  # checks what is read for an array that all examples share
_CONTAINERS = (dict, list, tuple)
_PLAIN_CODE = 0x80 | 0x100 | 0x200  # coroutine, iterable coroutine, asynchronous generator


class _BlockForm:
    """Block form of one function; `code` is None if the function stays unchanged. `blocks`: {recorder name: Block}."""

    __slots__ = ("blocks", "cells", "code", "globals", "origin", "tree")

    def __init__(self, origin: CodeType, globals_: dict[str, Any]) -> None:
        self.origin = origin  # kept with the globals so that their ids, which are the cache key, stay valid
        self.globals = globals_
        self.code: CodeType | None = None
        self.tree: Any = None  # its syntax
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
        raise UnsupportedError(f"{function!r} is not a function written in Python")
    made = _form_of(function)
    try:
        return source_of(Writer().definition(normal_form(function)) if made is None or made.tree is None else made.tree)
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
        marks = mark(normal_form(function))
        marks.made.clear()  # when traced, adding to an array needs no other array
        form = folded(normal_form(function))
        around = frozenset(code.co_freevars)
        scope = Scope(function.__globals__, around, around, around, helper)
        form = split_off_arrays(form, scope)
        annotate(form)
        make = functools.partial(_block, made, code.co_filename)
        made.tree = Blocks(scope, marks, make, _numbers_after(form)).definition(form)
        if not marks.is_changed and not marks.items:
            return made
        items = {id(each) for each in marks.items}
        new = compiled(calling(_ITEM, made.tree, items) if items else made.tree, code, made.cells)
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


def block_tree(function: FunctionType) -> tuple[Any, dict[str, Block]]:
    """Syntax tree of a user's function in block form, and its blocks by recorder name.

    Raises:
        Unsupported: it is not a plain Python function of the user's with source.
    """
    made = _form_of(function)
    if made is None or function.__code__.co_flags & (_PLAIN_CODE | _GENERATOR):
        raise Unsupported(f"{function.__qualname__} is not a function of your code")
    if made.tree is None:
        made.tree = Writer().definition(folded(normal_form(function)))
    return made.tree, made.blocks


block_form = Forms(_form, _decorated)
"""Maps a function to the form to call while examples are recorded."""


def _block(made: _BlockForm, filename: str, form: BlockForm, body: list[nf.Statement], at: nf.Node) -> str:
    """Create a block and return the name of the closure cell that holds its recorder."""
    function = body_function(form, body, filename, at)
    lines = at.at.line, at.at.end_line
    block = Block((filename, *lines), form.slots()[1], list(form.guards.values()), function, made.globals)
    name = f"_ab_record{len(made.cells)}"
    made.cells[name] = block.cell
    made.blocks[name] = block
    return name


Make = Callable[[BlockForm, list[nf.Statement], nf.Node], str]


class Blocks(Calls):
    """Writes a function, whose liveness must already be annotated, with its blocks as calls of their recorders.

    Args:
        make: creates a block from its form, body and position; returns its recorder's name in the rewritten code.
        numbers: the numbers of new names.
    """

    def __init__(self, scope: Scope, marks: Marks, make: Make, numbers: Iterator[int]) -> None:
        super().__init__(scope, marks)
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

    def definition(self, function: nf.Closure, name: str = "") -> Any:
        """The definition of a function."""
        inner = Blocks(self.scope, self.marks, self.make, self.numbers)
        inner.scope, inner.assignable = scope_in(function, self.scope)
        return super(Blocks, inner).definition(function, name)

    def arguments(self, parameters: Any, at: nf.Node) -> Any:
        """The parameters of a function; their defaults are evaluated where it is made."""
        return Writer().arguments(parameters, at)

    def statements(self, body: Sequence[nf.Statement]) -> list[Any]:
        """Statements, of which some are blocks; `pass` if there are none."""
        out: list[Any] = []
        at = 0
        while at < len(body):
            block = longest_block(body[at:], self.form, self.assignable)
            out += self.emitted(block) if block is not None else self.statement(body[at])
            at += block.length if block is not None else 1
        return out or super().statements([])

    def emitted(self, block: FoundBlock) -> list[Any]:
        form, first, last = block.form, block.statements[0], block.statements[-1]
        where = nf.Node(nf.Place(first.at.line, first.at.column, last.at.end_line, last.at.end_column))
        name = self.make(form, block.returning_body(), where)
        result = self.fresh()
        with self.within(self.scope, first.bound_before):
            call = self.recorder(name, form, first)
        again = block.fallback()
        with self.in_fallback(form, lists=block.length > 1):
            if form.goes_through:
                at = block.lists_from
                parts = [part for part in (again[:at], again[at : at + 1], again[at + 1 :]) if part]
                fallback = [line for part in parts for line in self.statements(part)]
            else:
                fallback = [line for each in again for line in self._smaller(each, block.length)]
        target: nf.Target = block.outputs[0] if len(block.outputs) == 1 else nf.Unpack(first.at, list(block.outputs))
        then = Writer().statement(nf.Bind(first.at, target, nf.Name(first.at, result)))
        if block.returned is not None:
            with self.within(self.scope, last.bound_before):
                value = self.placed(super().syntax_of(block.returned), block.returned)
            then += statements("return VALUE", self.target("_", last), VALUE=value)
        return statements(
            "RESULT = CALL\nif RESULT is None:\n    FALLBACK\nelse:\n    THEN",
            self.target("_", first), RESULT=result, CALL=call, FALLBACK=fallback, THEN=then,
        )  # fmt: skip

    def recorder(self, name: str, form: BlockForm, at: nf.Node) -> Any:
        """A call of a recorder."""
        call = self.changed(f"{name}()", at)
        for temporary, value in form.slots()[0]:
            made = self.value(value) if temporary else super().syntax_of(value)
            made = self.placed(made, value)
            call.args.append(self.changed("(NAME := VALUE)", value, NAME=temporary, VALUE=made) if temporary else made)
        return call

    def _smaller(self, statement: nf.Statement, length: int) -> list[Any]:
        if length > 1:
            block = FoundBlock([statement], self.form, self.assignable)
            if block.is_possible and block.is_worthwhile:
                return self.emitted(block)
        value = getattr(statement, "value", None)
        if length > 1 or (value is not None and nf.is_tuple(value)):
            return self.statement(statement)
        return self.calls().statement(statement)

    def calls(self) -> Calls:
        """Writes without blocks."""
        return Calls(self.scope, self.marks)

    def statement(self, node: nf.Statement) -> list[Any]:
        """Write a statement that is not part of a block."""
        with self.within(self.scope, node.bound_before):
            return super().statement(node)

    def place_of(self, node: nf.Write, ctx: Any) -> Any:
        """The place that a statement writes to."""
        return self.calls().place_of(node, ctx)

    def value(self, node: nf.Value) -> Any:
        """A value: as one block if possible, else part by part."""
        made = self._block(node) if is_computed(node) else None
        return super().value(node) if made is None else made

    def _block(self, node: nf.Value) -> Any:
        form = self.form(self.sure)
        try:
            body: list[nf.Statement] = [nf.Return(node.at, form.build(node))]
        except Unsupported:
            return None
        if form.count < LEAST:
            return None
        call = self.recorder(self.make(form, body, node), form, node)
        result = self.fresh()
        fallback = nf.substituted(node, form.replaced)
        if form.goes_through:
            with self.in_fallback(form):
                otherwise = self.value(fallback)
        else:
            otherwise = self.calls().value(fallback)
        return self.changed("R if (R := CALL) is not None else FALLBACK", node, R=result, CALL=call, FALLBACK=otherwise)

    def syntax_of(self, node: nf.Value) -> Any:
        """A value part by part; the iterables of comprehensions without blocks, as Python allows no `:=` there."""
        if isinstance(node, nf.Closure):
            names = nf.Names(node.parameters.names)
            inner = Blocks(self.scope, self.marks, self.make, self.numbers)
            local = self.scope.local | names
            with inner.within(self.scope.with_names(local, local, self.scope.local), names):
                return super(Blocks, inner).syntax_of(node)
        return super().syntax_of(node)

    def sugar(self, node: nf.Sugar) -> Any:
        """A ternary, a chain or a comprehension."""
        if not node.loops:
            return super().sugar(node)
        names = nf.Names(name for each in node.loops for name in nf.target_names(each.target))
        old = self.scope
        with self.within(old.with_names(old.local | names, old.bound | names, old.rebindable), self.sure):
            parts = [self.value(each) for each in node.parts]
            return self.comprehension_of(node, parts, self.calls())
