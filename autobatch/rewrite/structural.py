"""Functions whose Python sees nothing but the structure of its arguments: containers, objects, numbers, text.

What such a function records for one example is what it records for every equal one, as long as the shared arguments
have the same structure, shapes and dtypes, and every global name means what it meant. So it may be recorded once
(`lazy.replay`). The proof is by a list of what is allowed; whatever else stands in a function, or in one that it calls,
leaves it as it is. That no value of an array was looked at is seen when the example is recorded.
"""

import ast
import builtins
import dis
import types
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from autobatch.blocks.block_expressions import is_pure
from autobatch.blocks.inputs import Guard
from autobatch.core.abstract_eval import freeze
from autobatch.errors import NeedsLoop
from autobatch.facts.call_effects import SHAPED_METHODS, effect_of, method_effect, method_names, mutators
from autobatch.facts.reader import UNKNOWN, Reader, keywords, literal, unpacks
from autobatch.lazy.example_keys import is_constant
from autobatch.lazy.replay import Memory
from autobatch.syntax.scopes import is_dotted, path_of
from autobatch.syntax.source import PARSING, NoSourceError, inner_codes, is_library, own_tree

# Of these a `blocks.finder.COMPUTED` is a small part by another question: what computes, not what may stand there.
# What the proof reads. That a block can compute some of it (`blocks.finder.COMPUTED`), and that some of it is never a
# list (`taped_forms._NO_LISTS`), are other facts about the same syntax.
_PLAIN = (
    ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For, ast.While,
    ast.If, ast.Pass, ast.Break, ast.Continue, ast.Expr, ast.Raise, ast.Assert, ast.Match, ast.match_case,
    ast.MatchValue, ast.MatchSingleton, ast.MatchSequence, ast.MatchMapping, ast.MatchClass, ast.MatchAs,
    ast.MatchStar, ast.MatchOr, ast.BoolOp, ast.NamedExpr, ast.BinOp, ast.UnaryOp, ast.Lambda, ast.IfExp, ast.Dict,
    ast.List, ast.Tuple, ast.ListComp, ast.DictComp, ast.GeneratorExp, ast.comprehension, ast.Compare, ast.Call,
    ast.keyword, ast.JoinedStr, ast.FormattedValue, ast.Constant, ast.Attribute, ast.Subscript, ast.Starred, ast.Name,
    ast.Slice, ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip
_BUILTINS = frozenset((
    isinstance, len, range, zip, enumerate, reversed, int, float, bool, str, complex, min, max, sum, abs, tuple, list,
    dict, sorted, any, all, map, filter, round, divmod, slice, repr, ord, chr,
))  # fmt: skip
_READERS = SHAPED_METHODS | (method_names(list, dict, str, tuple) - {"format", "format_map"})  # which show objects
_WRITERS = mutators(list, dict)
_OF_ARRAYS = frozenset(("shape", "ndim", "size", "dtype", "T"))
_KINDS = (np.ndarray, list, dict, tuple, str, int, float, complex)
_DISPLAYS = (ast.List, ast.Dict, ast.ListComp, ast.DictComp)
_COMPUTED = (ast.BinOp, ast.UnaryOp, ast.Constant, ast.Call, *_DISPLAYS)
_SHOWN = "__repr__"  # what reads an object to show it as text
_MISSING = object()

_memories: dict[tuple[int, int], tuple[FunctionType, CodeType, Memory | None]] = {}
_LIMIT = 1 << 10


def memory_of(function: Any) -> Memory | None:
    """The kept recordings of a function; None for a function that is not proved to see structure only."""
    if type(function) is not FunctionType or not _has_plain_defaults(function):
        return None
    key = id(function.__code__), id(function.__globals__)
    found = _memories.get(key)
    if found is None or (found[2] is not None and not (_has_same_defaults(function, found[0]) and found[2].holds())):
        if len(_memories) >= _LIMIT:
            _memories.clear()
        proof = _Proof()
        guards = proof.of(function)
        memory = None if guards is None else Memory(guards, proof.attributes, proof.modules)
        found = _memories[key] = function, function.__code__, memory
    return found[2]


def forget_recordings() -> None:
    """Drop all recordings of examples; proofs of functions are kept."""
    for *_, memory in _memories.values():
        if memory is not None:
            memory.forget()


def _has_plain_defaults(function: FunctionType) -> bool:
    given = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    return all(is_constant(value) for value in given)


def _has_same_defaults(function: FunctionType, other: FunctionType) -> bool:
    """Whether two functions of the same code do the same."""
    if function is other:
        return True
    return freeze(function.__defaults__) == freeze(other.__defaults__) and not (
        function.__kwdefaults__ or other.__kwdefaults__
    )


class _Refused(Exception):  # noqa: N818  (a signal inside of this file)
    """Something that is not on the list."""


class _Proof:
    """The proof of one function and all that it calls.

    Attributes:
        guards: what it relies on; attributes: names of attributes that it reads, of objects of the user's, and
            `__repr__` if it may show them as text; modules: names of those that the functions are of.
    """

    def __init__(self) -> None:
        self.attributes: set[str] = set()
        self.modules: set[str] = set()
        self.guards: dict[tuple[Any, ...], Guard] = {}
        self.seen: set[int] = set()

    def of(self, function: FunctionType) -> list[Guard] | None:
        """The guards of the proof; None without a proof."""
        try:
            with PARSING:
                self._function(function)
        except (_Refused, NoSourceError, NeedsLoop, RecursionError):
            return None
        return list(self.guards.values())

    def _function(self, function: FunctionType) -> None:
        code = function.__code__
        if id(function) in self.seen:
            return
        self.seen.add(id(function))
        self.modules.add(str(function.__globals__.get("__name__")))
        for part in ("__code__", "__defaults__", "__kwdefaults__"):
            value = getattr(function, part)
            self.guards[id(function), part] = Guard({"function": function}, "function", [part], function, value)
        for name, value in (function.__kwdefaults__ or {}).items():
            self.guards[id(function), name] = Guard(function.__kwdefaults__ or {}, name, [], value, value)
        if code.co_freevars or is_library(code.co_filename):
            raise _Refused
        codes = inner_codes(code)
        own = {name for each in codes for name in (*each.co_varnames, *each.co_cellvars)}
        read = {name for each in codes for name in _global_names(each)}
        if own & read:  # one name, two meanings
            raise _Refused
        _Body(self, function.__globals__, read, own_tree(function)).check()

    def meaning(self, scope: dict[str, Any], root: str, attributes: list[str]) -> Any:
        """The value of a dotted global name, on which the proof then relies."""
        value = base = scope.get(root, vars(builtins).get(root, _MISSING))
        for name in attributes:
            value = vars(value).get(name, _MISSING) if isinstance(value, types.ModuleType) else _MISSING
        if value is _MISSING:
            raise _Refused
        self.guards[id(scope), root, *attributes] = Guard(scope, root, attributes, base, value)
        if value is str or value is repr:
            self.attributes.add(_SHOWN)
        return value

    def call(self, scope: dict[str, Any], root: str, attributes: list[str], node: ast.Call) -> None:
        """Allow the call of a global."""
        value = self.meaning(scope, root, attributes)
        if is_pure(value):
            effect = effect_of(value)
            if effect is not None and (
                effect.section == "memory" or unpacks(node) or _written(effect, node.args, node)
            ):
                raise _Refused
            return
        function = value.__wrapped__ if hasattr(type(value), "_ab_batch") else value
        if type(function) is FunctionType:
            if not _has_plain_defaults(function):
                raise _Refused
            self._function(function)
        elif not any(value is each for each in _BUILTINS):
            raise _Refused


class _Body:
    """The statements of one function, those of functions in it included."""

    def __init__(self, proof: _Proof, scope: dict[str, Any], read: set[str], tree: ast.FunctionDef) -> None:
        self.proof = proof
        self.scope = scope
        self.read = read
        self.tree = tree
        for node in ast.walk(tree):
            if isinstance(node, ast.AnnAssign):
                node.annotation = ast.Constant(None)  # which a function does not evaluate
        self.defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)} - {tree.name}
        self.reader = Reader([tree], (), lambda name: scope.get(name, vars(builtins).get(name, UNKNOWN)))
        self.called: set[int] = set()
        self.kinds: set[int] = set()  # the nodes that stand where a class is asked for, not called

    def check(self) -> None:
        """Raise unless everything is on the list."""
        for name in self.defined:
            if len(self.reader.values(name)) > 1:
                raise _Refused
        nodes = list(ast.walk(self.tree))
        for node in nodes:
            match node:
                case ast.Call(func=ast.Name(id="isinstance"), args=[_, kind]) if self._means_isinstance():
                    self.kinds.update(map(id, ast.walk(kind)))
                case ast.MatchClass(cls=kind) | ast.Raise(exc=ast.expr() as kind):
                    self.kinds.update(map(id, ast.walk(kind)))
            if isinstance(node, ast.Call):
                self._call(node)
        for node in nodes:
            if not isinstance(node, _PLAIN):
                raise _Refused
            match node:
                case ast.Attribute() if id(node) not in self.called:
                    self._attribute(node)
                case ast.Name(id=name, ctx=ast.Load()) if name in self.read and id(node) not in self.called:
                    self._constant(name, [], node)
                case ast.FormattedValue() | ast.BinOp(op=ast.Mod()):
                    self.proof.attributes.add(_SHOWN)
                case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store()) if self._is_fresh(name, _DISPLAYS):
                    pass
                case ast.Subscript(ctx=ast.Store() | ast.Del()):
                    raise _Refused
                case ast.AugAssign():
                    self._augmented(node)
                case ast.Compare(ops=ops) if any(isinstance(op, ast.Is | ast.IsNot) for op in ops):
                    if not all(map(_is_single, node.comparators)):
                        raise _Refused
                case ast.MatchClass(kwd_attrs=names):
                    for name in names:
                        self._read_of_objects(name)
                case ast.FunctionDef(decorator_list=[_, *_]):
                    raise _Refused

    def _means_isinstance(self) -> bool:
        return "isinstance" in self.read and self.proof.meaning(self.scope, "isinstance", []) is isinstance

    def _call(self, node: ast.Call) -> None:
        path = path_of(node.func)
        if path is not None and path[0] in self.read and is_dotted(path[1]):
            self.called.update(map(id, ast.walk(node.func)))
            self.proof.call(self.scope, path[0], [name for _, name in path[1]], node)
            return
        match node.func:
            case ast.Name(id=name) if name in self.defined:
                return
            case ast.Attribute(value=ast.Name(id=name), attr=attr) if attr in _WRITERS:
                if not self._is_fresh(name, _DISPLAYS):
                    raise _Refused
            case ast.Attribute(attr=attr) if attr in _READERS:
                args = [node.func, *node.args]
                if attr in SHAPED_METHODS and (unpacks(node) or _written(method_effect(np.ndarray, attr), args, node)):
                    raise _Refused
            case _:
                raise _Refused
        self.called.add(id(node.func))

    def _attribute(self, node: ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load):
            raise _Refused
        path = path_of(node)
        if path is not None and path[0] in self.read and is_dotted(path[1]):
            self.called.update(map(id, ast.walk(node)))
            self._constant(path[0], [name for _, name in path[1]], node)
        elif node.attr not in _OF_ARRAYS:
            self._read_of_objects(node.attr)

    def _read_of_objects(self, name: str) -> None:
        if name.startswith("__") or any(hasattr(kind, name) for kind in _KINDS):
            raise _Refused
        self.proof.attributes.add(name)

    def _constant(self, root: str, attributes: list[str], node: ast.expr) -> None:
        """Allow a global name for a constant, or for a class that is not called."""
        value = self.proof.meaning(self.scope, root, attributes)
        if is_constant(value) or any(value is each for each in _BUILTINS):
            return
        if type(value) is not type or not (id(node) in self.kinds or issubclass(value, np.generic)):
            raise _Refused

    def _augmented(self, node: ast.AugAssign) -> None:
        """`x += y` may write into x's array, so this call must have made it."""
        target = node.target
        if isinstance(node.op, ast.Mod):
            self.proof.attributes.add(_SHOWN)
        if not isinstance(target, ast.Name) or not self._is_fresh(target.id, _COMPUTED):
            raise _Refused

    def _is_fresh(self, name: str, kinds: tuple[type, ...]) -> bool:
        """Whether a name is only ever bound to something made there."""
        values = self.reader.values(name) or [None]
        return all(value is not None and isinstance(value, kinds) and self.reader.depth(value) > 0 for value in values)


def _written(effect: Any, args: list[ast.expr], node: ast.Call) -> list[ast.expr]:
    """The arguments that a call writes, or that its result may share memory with."""
    named = keywords(node)
    return effect.written(args, named, literal) + (effect.shared(args, named, literal) if effect.switches else [])


def _is_single(node: ast.expr) -> bool:
    """Whether it is a constant of which there is one object."""
    return isinstance(node, ast.Constant) and (node.value is ... or type(node.value) in (bool, type(None)))


def _global_names(code: CodeType) -> Iterator[str]:
    """The global names that code reads.

    Raises:
        _Refused: it binds one, or is no plain function's.
    """
    for each in dis.get_instructions(code):
        if each.opname in ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_NAME", "LOAD_NAME"):
            raise _Refused
        if each.opname == "LOAD_GLOBAL":
            yield each.argval
