"""`try` and `match`: statements that choose an arm by the exception raised, or by the form of a value.

The body of a `try` is a loop that runs once. What is surely raised in it, and which handler catches it, is known while
reading: code sets `leave` and breaks out of the loops up to that `try`. Any other failure leaves the example to Python.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.compiled.translation import exact_types as types
from autobatch.compiled.translation.exact_types import BOOL, FLOAT, INT, NONE
from autobatch.compiled.translation.source_program import Inline, Lines
from autobatch.compiled.translation.statement_reader import Handlers, Reader
from autobatch.compiled.translation.typed_text import NO_CONSTANT, Value, code, item_text, parts_of
from autobatch.program import normal_form as nf
from autobatch.program.liveness import reads
from autobatch.program.lowering import lowered_value
from autobatch.program.scopes import bound_names

_LEAVES = nf.Return | nf.Jump


def try_statement(reader: Reader, node: nf.Try) -> None:
    """`try`, with its handlers, `else` and `finally`."""
    guarded = [each for body in nf.bodies_of(node) if body is not node.final for each in body]
    if node.final and any(isinstance(x, _LEAVES) for x in nf.walk(guarded)):
        raise reader.refuse("a `finally` that is reached by a jump", node)
    first = 10 + reader.count
    reader.count += len(node.handlers)
    handlers = Handlers([_caught_classes(reader, each) for each in node.handlers], len(reader.loops), first)
    reader.emit("leave = 0")
    reader.loops.append(None)
    reader.handlers.append(handlers)

    def body() -> None:
        reader.block(node.body)
        reader.handlers.remove(handlers)
        if reader.env is not None:
            reader.block(node.orelse)

    lines, after = reader.arm(body, reader.env)
    reader.loops.pop()
    end: Lines = []
    reader.emit("while True:", [*lines, Inline(end), "break"])
    ends = [] if after is None else [(end, after)]
    if reader.loops:
        own = f"{first} <= leave < {first + len(node.handlers)}"
        inside = reader.loops[-1] is None
        reader.emit("if leave == 1:", ["break"] if inside else ["leave = 0", "break"])
        reader.emit("if leave == 2:", ["break"] if inside else ["leave = 0", "continue"])
        reader.emit(f"if leave >= 10 and not {own}:", ["break"])
    for number, handler in enumerate(node.handlers):
        ways = [(place, env) for which, place, env in handlers.jumps if which == number]
        start = reader.merge_paths(ways, None)
        if start is not None:
            written, left = reader.arm(handler.body, start)
            written.insert(0, "leave = 0")  # in place, since `merge_paths` adds to this list
            reader.emit(f"if leave == {first + number}:", written)
            if left is not None:
                ends.append((written, left))
    reader.env = reader.merge_paths(ends, None)
    if reader.env is not None:
        reader.block(node.final)


def _caught_classes(reader: Reader, handler: nf.Handler) -> Any:
    """The classes that a handler catches; None if they are not known, or if it uses the exception."""
    if handler.name and handler.name in reads(handler.body):
        return None
    if handler.types is None:
        return (BaseException,)
    found = reader.expr(handler.types).constant
    classes = found if isinstance(found, tuple) else (found,)
    return classes if all(isinstance(each, type) for each in classes) else None


# --- match


def match_statement(reader: Any, node: nf.Match) -> None:
    """`match`: the cases one after the other. The names that a pattern captures are bound once it has matched whole."""
    subject = reader.held(reader.expr(node.subject))

    def rest(cases: Sequence[nf.Case]) -> None:
        if not cases:
            return
        case, guard = cases[0], cases[0].guard
        names = _captured(case.pattern)

        def bound(test: Any) -> Value:
            for name in names:
                reader.assign(name, reader.held(reader.read(_HIDDEN + name, case, whole=True)))
            return test()

        reader.node = case
        matched = _matches(reader, case.pattern, subject)
        if guard is not None:
            matched = reader.connected(matched, lambda: bound(lambda: reader.condition(guard)), True, node)
        then = case.body if guard is not None else lambda: bound(lambda: reader.block(case.body))
        reader.decide(matched, then, lambda: rest(cases[1:]), None)

    rest(node.cases)
    for case in node.cases:
        for name in _captured(case.pattern) if reader.env is not None else ():
            reader.env.pop(_HIDDEN + name, None)


_HIDDEN = "captured."  # prefix of a captured name until its whole pattern has matched


def _captured(pattern: Any) -> list[str]:
    return sorted(bound_names(pattern))


def _all(reader: Reader, tests: Sequence[Any], node: nf.Node) -> Value:
    if not tests:
        return reader.constant(True, node)
    return reader.connected(tests[0](), lambda: _all(reader, tests[1:], node), True, node)


def _matches(reader: Reader, pattern: Any, value: Value) -> Value:
    """The truth of a match of a pattern's syntax; what it captures is kept in hidden variables."""
    match type(pattern).__name__:
        case "MatchValue":
            return _truth(
                reader, reader.compared("Eq", value, reader.expr(lowered_value(pattern.value)), pattern), pattern
            )
        case "MatchSingleton" if pattern.value is None:
            return reader.compared("Is", value, reader.constant(None, pattern), pattern)
        case "MatchSingleton" if value.kind == BOOL:
            return Value(BOOL, value.text if pattern.value else f"(not {value.text})")
        case "MatchAs":
            inner, name = pattern.pattern, pattern.name
            matched = reader.constant(True, pattern) if inner is None else _matches(reader, inner, value)

            def bind() -> Value:
                reader.locals.add(_HIDDEN + str(name))
                reader.assign(_HIDDEN + str(name), value)
                return reader.constant(True, pattern)

            return matched if name is None else reader.connected(matched, bind, True, pattern)
        case "MatchOr":
            return _any(reader, pattern.patterns, value, pattern)
        case "MatchSequence":
            return _sequence(reader, pattern.patterns, value, pattern)
        case "MatchClass":
            return _instance(reader, pattern, value)
    raise reader.refuse("a pattern of this form is not compiled", pattern)


def _truth(reader: Reader, value: Value, node: nf.Node) -> Value:
    if value.constant is not NO_CONSTANT:
        return reader.constant(bool(value.constant), node)
    return Value(BOOL, reader.truth(value, node))


def _any(reader: Reader, patterns: Sequence[Any], value: Value, node: nf.Node) -> Value:
    if not patterns:
        return reader.constant(False, node)
    first = _matches(reader, patterns[0], value)
    return reader.connected(first, lambda: _any(reader, patterns[1:], value, node), False, node)


def _is_star(pattern: Any) -> bool:
    return type(pattern).__name__ == "MatchStar"


def _sequence(reader: Reader, patterns: Sequence[Any], value: Value, node: nf.Node) -> Value:
    kind = value.kind
    stars = [place for place, each in enumerate(patterns) if _is_star(each)]
    if isinstance(kind, types.Union | types.Maybe | types.Static | types.Range) or (
        stars and not isinstance(kind, types.Tuple)
    ):
        raise reader.refuse(f"a pattern of a {kind}", node)
    if isinstance(kind, types.Tuple) or (isinstance(kind, types.Struct) and issubclass(kind.cls, tuple)):
        parts = parts_of(value)
        if stars:
            rest = len(parts) - len(patterns) + 1
            if rest < 0:
                return reader.constant(False, node)
            if patterns[stars[0]].name is not None:
                raise reader.refuse("a pattern that captures with *", node)
            parts = [*parts[: stars[0]], *parts[stars[0] + rest :]]
            patterns = [each for each in patterns if not _is_star(each)]
        if len(parts) != len(patterns):
            return reader.constant(False, node)
        return _all(
            reader,
            [lambda a=a, b=b: _matches(reader, a, reader.held(b)) for a, b in zip(patterns, parts, strict=True)],
            node,
        )
    if isinstance(kind, types.List):
        same = reader.temp(f"len({value.text}) == {len(patterns)}", BOOL)
        if kind.elem is None:
            return same if not patterns else reader.constant(False, node)
        tests = [
            lambda i=i, each=each: _matches(reader, each, reader.temp(code("list_item", value.text, str(i)), kind.elem))
            for i, each in enumerate(patterns)
        ]
        return reader.connected(same, lambda: _all(reader, tests, node), True, node)
    return reader.constant(False, node)


def _instance(reader: Reader, pattern: Any, value: Value) -> Value:
    cls, own = reader.expr(lowered_value(pattern.cls)).constant, class_of(value.kind)
    if not isinstance(cls, type) or own is None:
        raise reader.refuse(f"a pattern of a {value.kind}", pattern)
    if not issubclass(own, cls):
        return reader.constant(False, pattern)
    if isinstance(value.kind, types.Struct) and value.kind.cls is not dict:
        names = [*getattr(cls, "__match_args__", ())[: len(pattern.patterns)], *pattern.kwd_attrs]
        parts = [value.kind.names.index(name) for name in names]
        tests = [
            lambda at=at, each=each: _matches(
                reader, each, reader.held(Value(value.kind.items[at], item_text(value.text, at)))
            )
            for at, each in zip(parts, [*pattern.patterns, *pattern.kwd_patterns], strict=True)
        ]
        return _all(reader, tests, pattern)
    of_object = isinstance(value.kind, types.Object) and pattern.patterns
    if pattern.kwd_attrs or len(pattern.patterns) > 1 or of_object:
        raise reader.refuse("a pattern of this form is not compiled", pattern)
    return _matches(reader, pattern.patterns[0], value) if pattern.patterns else reader.constant(True, pattern)


_CLASSES = {INT: int, FLOAT: float, BOOL: bool, NONE: type(None)}
_OF_KIND = {
    types.Text: str, types.Tuple: tuple, types.List: list, types.Dict: dict, types.Range: range,
    types.Array: np.ndarray,
}  # fmt: skip


def class_of(kind: types.Type) -> type | None:
    """The class of the values of a type; None if it is not known or there are several."""
    if isinstance(kind, types.Scalar):
        return _CLASSES.get(kind) or np.dtype(kind.name).type
    if isinstance(kind, types.Object):
        return kind.site.find().cls
    return kind.cls if isinstance(kind, types.Struct) else _OF_KIND.get(type(kind))
