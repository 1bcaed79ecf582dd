"""Functions made in a function: the variables that they read are passed to them, those that they bind are returned.

A nested function or a lambda is called only where it can be seen, within the call that made it. So at each call its
free variables have the values that they have in the caller, and its `nonlocal` variables are parts of its result. A
memoised function, nested or of a module, has a dict from its arguments to its results.
"""

import ast
import copy
import dataclasses
import functools
import types as python_types
from collections.abc import Callable, Sequence
from typing import Any

from autobatch.compiled.translation.exact_types import CONFLICT, Dict, Scalar, Static, Tuple, Union
from autobatch.compiled.translation.typed_text import Value
from autobatch.program.liveness import annotate
from autobatch.program.quote import parse
from autobatch.program.source import as_function


@dataclasses.dataclass(eq=False)
class LocalFunction:
    """A nested function.

    Attributes:
        function: a function object that stands for its code; it is never run.
        outer: the module-level function around it, whose closure and globals it sees.
        scopes: the code objects of the functions that may call it: those around it, and itself.
        around: the names of the functions around it; mentions: those that it reads or binds; binds: its `nonlocal`s.
        defaults: for each parameter, the hidden variable that holds its default.
        memo: the hidden variable that holds its memo; "" if it is not memoised.
    """

    function: python_types.FunctionType
    outer: python_types.FunctionType
    scopes: frozenset[Any]
    around: frozenset[str]
    mentions: frozenset[str]
    binds: frozenset[str]
    defaults: dict[str, str]
    memo: str = ""


def define(reader: Any, node: ast.FunctionDef | ast.Lambda) -> Value:
    """Read the definition of a nested function or lambda: its defaults are stored in hidden variables."""
    known = reader.program.local_functions
    if id(node) not in known:
        known[id(node)] = _local_function(reader, node, len(known))
    local: LocalFunction = known[id(node)]
    args = node.args
    positional = [*args.posonlyargs, *args.args]
    given = list(zip(positional[len(positional) - len(args.defaults) :], args.defaults, strict=True))
    given += [(arg, value) for arg, value in zip(args.kwonlyargs, args.kw_defaults, strict=True) if value is not None]
    for arg, value in given:
        found = reader.expr(value)
        if not isinstance(found.kind, Scalar | Union | Tuple | Static):
            raise reader.refuse(f"the default of {arg.arg} is a {found.kind}", node)
        reader.locals.add(local.defaults[arg.arg])
        reader.assign(local.defaults[arg.arg], found)
    if local.memo:
        reader.locals.add(local.memo)
        kind = reader.site(node, Dict, 2)
        reader.assign(local.memo, reader.temp(f"new_Dict{kind.site.find().number}()", kind))
    return Value(Static(local), "0", local)


def _local_function(reader: Any, node: ast.FunctionDef | ast.Lambda, number: int) -> LocalFunction:
    memo = any(_is_memo(reader, each, node) for each in getattr(node, "decorator_list", ()))
    owner = reader.instance.function
    tree = as_function(copy.deepcopy(node), owner.__code__.co_name)
    inner = [x for x in ast.walk(tree) if isinstance(x, ast.FunctionDef | ast.Lambda) and x is not tree]
    if memo and inner:
        raise reader.refuse("a memoised function that makes others", node)
    declared = {name for x in ast.walk(tree) if isinstance(x, ast.Nonlocal) for name in x.names}
    holder = parse("def around(): pass")
    holder.body[0].body = [  # type: ignore[attr-defined]
        *(parse(f"{name} = None").body[0] for name in sorted(declared)), copy.deepcopy(tree),
    ]  # fmt: skip
    outside = compile(ast.fix_missing_locations(holder), owner.__code__.co_filename, "exec").co_consts[0]
    (code,) = [each for each in outside.co_consts if isinstance(each, python_types.CodeType)]
    own = {*code.co_varnames, *code.co_cellvars}
    closure = tuple(python_types.CellType() for _ in code.co_freevars)
    function = python_types.FunctionType(code, owner.__globals__, code.co_name, None, closure)
    annotate(tree)
    reader.program.trees[code] = tree
    parent = reader.instance.local
    around = {*reader.own_names, *(parent.around if parent else ())}
    mentions = {x.id for x in ast.walk(tree) if isinstance(x, ast.Name)} | declared
    names = [arg.arg for arg in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs)]
    defaults = {name: f"default.{number}.{name}" for name in names}
    return LocalFunction(
        function, parent.outer if parent else owner,
        frozenset({code, *(parent.scopes if parent else (owner.__code__,))}), frozenset(around),
        frozenset((mentions - own) & around), frozenset(declared - own), defaults, f"memo.{number}" if memo else "",
    )  # fmt: skip


def _is_memo(reader: Any, decorator: ast.expr, node: Any) -> bool:
    """True if a decorator memoises; a bounded `lru_cache` forgets, so a call that changes something may run twice."""
    bound: Any = None
    called = decorator
    if isinstance(decorator, ast.Call):
        called = decorator.func
        given = [*decorator.args, *(word.value for word in decorator.keywords if word.arg == "maxsize")]
        bound = reader.expr(given[0]).constant if given else 128
    found = reader.expr(called).constant
    if found is functools.cache or found is functools.lru_cache:
        if found is functools.lru_cache and not isinstance(decorator, ast.Call):
            bound = 128
        if bound is not None and not _changes_nothing(node):
            raise reader.refuse("a bounded cache of a function that changes something", node)
        return True
    raise reader.refuse(f"the decorator {ast.unparse(decorator)} is not compiled", node)


def _changes_nothing(node: Any) -> bool:
    """True if no statement of a function could change anything but its own names."""
    stores = (ast.Attribute, ast.Subscript)
    return not any(
        isinstance(x, ast.Nonlocal | ast.Expr) or (isinstance(x, stores) and isinstance(x.ctx, ast.Store))
        for x in ast.walk(node)
        if not (isinstance(x, ast.Expr) and isinstance(x.value, ast.Constant))
    )


def holds_local(value: Any) -> bool:
    """True if an object known while compiling is, or contains, a nested function."""
    return isinstance(value, LocalFunction) or (isinstance(value, tuple) and any(map(holds_local, value)))


def _reached(reader: Any, local: LocalFunction) -> list[LocalFunction]:
    """The nested function, and all nested functions that it may call."""
    out: list[LocalFunction] = []
    left = [local]
    while left:
        each = left.pop()
        if each in out:
            continue
        out.append(each)
        for name in sorted(each.mentions):
            known = (reader.env or {}).get(name)
            if known is not None and isinstance(known.kind, Static) and isinstance(known.kind.value, LocalFunction):
                left.append(known.kind.value)
    return out


def outer_values(reader: Any, local: LocalFunction, node: Any) -> tuple[list[tuple[str, Any, str]], list[str]]:
    """The outer variables that a call needs, as (name, type, text), and the outer names that it binds.

    Raises:
        Unsupported: the call is in a function that cannot see it.
    """
    if not local.scopes & {reader.instance.function.__code__} or reader.env is None:
        raise reader.refuse("a function made in another is called elsewhere", node)
    reached = _reached(reader, local)
    names = sorted({name for each in reached for name in each.mentions})
    hidden = sorted({name for each in reached for name in (*each.defaults.values(), each.memo) if name})
    out: list[tuple[str, Any, str]] = []
    for name in [*names, *hidden]:
        known = reader.env.get(name)
        if known is None:
            continue
        if isinstance(known.kind, Static) or known.kind is CONFLICT:
            out.append((name, known.kind, ""))
            continue
        value = reader.read(name, node, whole=True)
        out.append((name, value.kind, value.text))
    return out, sorted({name for each in reached for name in each.binds} & set(local.around))


def rebind(reader: Any, out: Value, names: Sequence[str]) -> Value:
    """After a call, bind the outer variables that it has bound; returns its value."""
    for place, name in enumerate(names):
        reader.locals.add(name)
        reader.assign(name, reader.temp(f"{out.text}[{place + 1}]", out.kind.items[place + 1]))
    return reader.temp(f"{out.text}[0]", out.kind.items[0])


def memoised(reader: Any, node: Any, memo: Value, args: Sequence[Value], call: Callable[[], Value]) -> Value:
    """The result for these arguments: read from the memo, or computed and stored there."""
    key = reader.once(args[0] if len(args) == 1 else reader.tuple_of(list(args)))
    place, text = memo.text, reader.key_of(memo, key, node)

    if memo.kind.site.find().vague:  # equal keys share one result, whose type the first call decides
        raise reader.refuse("a memo of arguments that are Python's ints and NumPy's", node)

    def computed() -> Value:
        value = reader.once(call())
        if not _is_immutable(value.kind):
            raise reader.refuse(f"a memo of {value.kind}", node)
        reader.put_key(memo, key, value, node)
        return value

    def known() -> Value:
        if memo.kind.value is None:
            reader.stop()
        return reader.temp(f"{place}[{text}]", memo.kind.value)

    return reader.choice(f"{text} in {place}", known, computed, node)


def _is_immutable(kind: Any) -> bool:
    if isinstance(kind, Tuple):
        return all(map(_is_immutable, kind.items))
    return isinstance(kind, Scalar | Union)
