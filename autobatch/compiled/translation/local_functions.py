"""Functions made in a function: the variables that they read are passed to them, those that they bind are returned.

A nested function or a lambda is called only where it can be seen, within the call that made it. So at each call its
free variables have the values that they have in the caller, and its `nonlocal` variables are parts of its result. A
memoised one has a dict from its arguments to its results.
"""

import dataclasses
import functools
import types as python_types
from collections.abc import Callable, Sequence
from typing import Any

from autobatch.compiled.translation.exact_types import CONFLICT, Dict, Scalar, Static, Text, Tuple, Union
from autobatch.compiled.translation.statement_reader import Reader
from autobatch.compiled.translation.typed_text import Value, item_text
from autobatch.program import normal_form as nf
from autobatch.program.liveness import binds, reads
from autobatch.program.python_text import code_of, text_of


@dataclasses.dataclass(eq=False)
class LocalFunction:
    """A nested function.

    Attributes:
        function: a function object that stands for its code; it is never run.
        outer: the module-level function around it, whose closure and globals it sees.
        scopes: the code objects of the functions around it, and its own; those beside it may call it, too.
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


def define(reader: Reader, node: nf.Closure) -> Value:
    """Read the definition of a nested function or lambda: its defaults are stored in hidden variables."""
    known = reader.program.local_functions
    if id(node) not in known:
        known[id(node)] = _local_function(reader, node, len(known))
    local: LocalFunction = known[id(node)]
    args = node.parameters
    positional = [*args.positional_only, *args.positional]
    given = list(zip(positional[len(positional) - len(args.defaults) :], args.defaults, strict=True))
    given += [(n, v) for n, v in zip(args.keyword_only, args.keyword_defaults, strict=True) if v is not None]
    for name, value in given:
        found = reader.expr(value)
        if not isinstance(found.kind, Scalar | Union | Text | Tuple | Static):
            raise reader.refuse(f"the default of {name} is a {found.kind}", node)
        reader.locals.add(local.defaults[name])
        reader.assign(local.defaults[name], found)
    if local.memo:
        reader.locals.add(local.memo)
        kind = reader.site(node, Dict, 2)
        reader.assign(local.memo, reader.temp(f"new_Dict{kind.site.find().number}()", kind))
    return Value(Static(local), "0", local)


def _local_function(reader: Reader, node: nf.Closure, number: int) -> LocalFunction:
    memo = any(_is_memo(reader, each, node) for each in node.decorators)
    if memo and len(list(nf.closures(node))) > 1:
        raise reader.refuse("a memoised function that makes others", node)
    owner = reader.instance.function
    code = code_of(node, owner.__code__.co_filename)
    closure = tuple(python_types.CellType() for _ in code.co_freevars)
    function = python_types.FunctionType(code, owner.__globals__, code.co_name, None, closure)
    reader.program.forms[code] = node
    parent = reader.instance.local
    around = {*reader.own_names, *(parent.around if parent else ())}
    own = {*code.co_varnames, *code.co_cellvars}
    mentions = {name for each in nf.closures(node) for name in reads(each.body) | binds(each.body)} | node.outer
    defaults = {name: f"default.{number}.{name}" for name in node.parameters.names}
    return LocalFunction(
        function, parent.outer if parent else owner,
        frozenset({code, *(parent.scopes if parent else (owner.__code__,))}), frozenset(around),
        frozenset((mentions - own) & around), frozenset(node.outer - own), defaults,
        f"memo.{number}" if memo else "",
    )  # fmt: skip


def _is_memo(reader: Reader, decorator: nf.Value, form: nf.Closure) -> bool:
    """True if a decorator memoises; a bounded `lru_cache` forgets, so a call that changes something may run twice."""
    bound: Any = None
    called = decorator
    if isinstance(decorator, nf.Call):
        called = decorator.function
        given = [*decorator.args, *(value for name, value in decorator.keywords if name == "maxsize")]
        bound = reader.expr(given[0]).constant if given else 128
    found = reader.expr(called).constant
    if found is functools.cache or found is functools.lru_cache:
        if found is functools.lru_cache and not isinstance(decorator, nf.Call):
            bound = 128
        if bound is not None and not _changes_nothing(form):
            raise reader.refuse("a bounded cache of a function that changes something", form)
        return True
    raise reader.refuse(f"the decorator {text_of(decorator)} is not compiled", form)


def _changes_nothing(form: nf.Closure) -> bool:
    """True if no statement of a function could change anything but its own names."""
    nodes = nf.walk(form.body)
    return not form.outer and not any(
        isinstance(x, nf.Write) or (isinstance(x, nf.Bind) and x.target is None) for x in nodes
    )


def holds_local(value: object) -> bool:
    """True if an object known while compiling is, or contains, a nested function."""
    return isinstance(value, LocalFunction) or (isinstance(value, tuple) and any(map(holds_local, value)))


def _reached(reader: Reader, local: LocalFunction) -> list[LocalFunction]:
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


def outer_values(reader: Any, local: LocalFunction, node: nf.Node) -> tuple[list[tuple[str, Any, str]], list[str]]:
    """The outer variables that a call needs, as (name, type, text), and the outer names that it binds.

    Raises:
        Unsupported: the call is in a function that cannot see it.
    """
    reached = _reached(reader, local)
    names = sorted({name for each in reached for name in each.mentions})
    caller = reader.instance.local
    beside = caller is not None and len(caller.scopes ^ local.scopes) == 2 and reader.own_names.isdisjoint(names)
    if not (beside or reader.instance.function.__code__ in local.scopes) or reader.env is None:
        raise reader.refuse("a function made in another is called elsewhere", node)
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


def rebind(reader: Reader, out: Value, names: Sequence[str]) -> Value:
    """After a call, bind the outer variables that it has bound; returns its value."""
    for place, name in enumerate(names):
        reader.locals.add(name)
        reader.assign(name, reader.temp(item_text(out.text, place + 1), out.kind.items[place + 1]))
    return reader.temp(item_text(out.text, 0), out.kind.items[0])


def memoised(reader: Any, node: nf.Node, memo: Value, args: Sequence[Value], call: Callable[[], Value]) -> Value:
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
        return reader.temp(item_text(place, text), memo.kind.value)

    return reader.choice(f"{text} in {place}", known, computed, node)


def _is_immutable(kind: Any) -> bool:
    if isinstance(kind, Tuple):
        return all(map(_is_immutable, kind.items))
    return isinstance(kind, Scalar | Union)
