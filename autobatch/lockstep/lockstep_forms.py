"""The lock-step form of a user's function: its normal form, written by `lockstep.emitter`, cached by code object.

The lock-step form is made from the live function: its globals, closure cells and defaults are the function's own, so
rebinding any of them is seen.
"""

import dataclasses
from types import CellType, CodeType, FunctionType
from typing import Any

from autobatch.blocks.finder import helper, split_off_arrays
from autobatch.core.current_region import check_time
from autobatch.core.diagnostics import is_library
from autobatch.errors import FROM_PLAIN_CODE, NeedsLoop, Unsupported, UnsupportedError, reason_of
from autobatch.lockstep.block_launch import LaneBlock
from autobatch.lockstep.block_loops import LaneScan
from autobatch.lockstep.block_sites import FunctionBlocks
from autobatch.lockstep.emitter import LockStepWriter, is_pause
from autobatch.lockstep.runtime import NAMES
from autobatch.program import normal_form as nf
from autobatch.program.bounded_caches import MOST_FUNCTIONS, BoundedDict, CodeCache
from autobatch.program.folding import folded
from autobatch.program.liveness import all_names, annotate
from autobatch.program.ownership import Ownership
from autobatch.program.python_text import source_of
from autobatch.program.scopes import Guard, Scope
from autobatch.program.source import PARSING, FunctionNode, compiled, inner_codes, normal_form

_NAME_CELLS = {name: CellType(value) for name, value in NAMES.items()}


class _Converted:
    """The code of a lock-step form, or the reason why there is none."""

    __slots__ = ("code", "last", "origin", "reason", "sites", "tree")

    def __init__(self, origin: CodeType, code: CodeType | None, tree: FunctionNode | None, reason: str) -> None:
        self.origin = origin  # keeps the key alive
        self.code = code
        self.tree = tree
        self.reason = reason
        self.sites: dict[str, CellType] = {}
        self.last: tuple[Any, Any, Any, Any] = (None, None, None, None)


_cache: BoundedDict[int, _Converted] = BoundedDict(MOST_FUNCTIONS)
_generated: CodeCache[None] = CodeCache()


def convert(function: FunctionType) -> Any:
    """The lock-step form of a function; None if it is not the user's own code (a library's, or ours).

    Raises:
        NeedsLoop: there is no lock-step form; the message says why.
    """
    code = function.__code__
    if id(code) in _generated:
        return function
    known = _cache.get(id(code))
    if known is None:
        if is_library(code.co_filename):
            return None
        with PARSING:
            known = _cache.get(id(code)) or _convert(function)
            _cache[id(code)] = known
    if known.code is None:
        raise NeedsLoop(known.reason)
    last, defaults, named, out = known.last
    if last is function and defaults is function.__defaults__ and named is function.__kwdefaults__:
        return out
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    ours = _NAME_CELLS | known.sites
    closure = tuple([ours.get(name) or cells[name] for name in known.code.co_freevars])
    out = FunctionType(known.code, function.__globals__, function.__name__, function.__defaults__, closure)
    out.__kwdefaults__ = function.__kwdefaults__
    known.last = (function, function.__defaults__, function.__kwdefaults__, out)
    return out


def source(function: FunctionType) -> str:
    """The rewritten source of a function, for reading.

    Raises:
        UnsupportedError: it has none; the message says why.
    """
    try:
        rewritten = convert(function)
    except NeedsLoop as error:
        raise UnsupportedError(str(error)) from None
    if rewritten is None:
        raise UnsupportedError(f"{function.__qualname__} belongs to a library, which is not rewritten")
    if rewritten is function:
        raise UnsupportedError(f"{function.__qualname__} is rewritten code itself")
    return "" if (tree := _cache[id(function.__code__)].tree) is None else source_of(tree)


def block_lines(function: FunctionType) -> list[range]:
    """The lines of each block of a function in lock-step.

    Raises:
        NeedsLoop: there is no lock-step form; `where` is the file and line of the reason.
        UnsupportedError: the function belongs to a library.
    """
    if convert(function) is None:
        raise UnsupportedError(f"{function.__qualname__} belongs to a library, which is not rewritten")
    known = _cache.get(id(function.__code__))
    sites = [] if known is None else [cell.cell_contents for cell in known.sites.values()]
    found = [
        [line for *_, line in each.body.__code__.co_lines() if line] for each in sites if isinstance(each, LaneBlock)
    ]
    return [range(min(lines), max(lines) + 1) for lines in found if lines]


def _convert(function: FunctionType) -> _Converted:
    code = function.__code__
    sites: dict[str, LaneBlock | LaneScan] = {}
    try:
        if code.co_flags & (0x80 | 0x200):  # coroutine, asynchronous generator
            raise Unsupported(f"{function.__qualname__} is a coroutine", instead=FROM_PLAIN_CODE)
        form = folded(normal_form(function), in_lanes=True)
        around = all_names(form).union(code.co_freevars)
        form = _split(form, Scope(function.__globals__, around, around, around, _helper))
        annotate(form)
        own = all_names(form).union(code.co_freevars)
        scope = Scope(function.__globals__, own, own, own, _helper)
        shown = any(is_pause(node) for part in nf.closures(form) for node in nf.walk(part.body))

        def blocks_of(part: nf.Closure, ownership: Ownership) -> FunctionBlocks | None:
            if shown:
                return None  # a debugger shows the variables, and a block binds only those that are read after it
            return FunctionBlocks(part, ownership.written, scope, code.co_filename, sites)

        check_time()
        tree = LockStepWriter(form, blocks_of).definition(form)
        made = compiled(tree, code, [*NAMES, *sites])
    except (Unsupported, SyntaxError, RecursionError) as error:
        if not isinstance(error, Unsupported):
            error = Unsupported(reason_of(error))
        return _Converted(code, None, None, error.at(code.co_filename, code.co_firstlineno).reason)
    for each in inner_codes(made):
        _generated.put(each)
    out = _Converted(code, made, tree, "")
    out.sites = {key: CellType(site) for key, site in sites.items()}
    return out


def _helper(function: Any) -> list[Guard] | None:
    """Guards of a helper that a block may call; None if it reads global numbers, whose change would go unnoticed."""
    found = helper(function)
    return None if found is None or any(type(each.value) in (int, float, bool) for each in found) else found


def _split(function: nf.Closure, scope: Scope) -> nf.Closure:
    """A function with arrays split off in its body, and in those of all functions in it."""

    def inside(node: nf.Value) -> nf.Value:
        return _split(node, scope) if isinstance(node, nf.Closure) else nf.with_values(node, inside)

    def every(body: list[nf.Statement]) -> list[nf.Statement]:
        return [nf.with_bodies(nf.with_values(each, inside), every) for each in body]

    made = split_off_arrays(function, scope, recorded=False)
    return dataclasses.replace(made, body=every(made.body)) if len(list(nf.closures(made))) > 1 else made
