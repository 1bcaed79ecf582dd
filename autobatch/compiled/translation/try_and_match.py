"""`try` and `match`: statements that choose an arm by the exception raised, or by the form of a value.

The body of a `try` is a loop that runs once. What is surely raised in it, and which handler catches it, is known while
reading: code sets `leave` and breaks out of the loops up to that `try`. Any other failure leaves the example to Python.
"""

from collections.abc import Callable, Sequence
from typing import Any

from autobatch.compiled.translation import containers, iteration
from autobatch.compiled.translation import exact_types as types
from autobatch.compiled.translation.calls import calls
from autobatch.compiled.translation.source_program import Inline, Lines
from autobatch.compiled.translation.statement_reader import Handlers, Reader
from autobatch.compiled.translation.typed_text import Value, code, item_text, parts_of
from autobatch.program import normal_form as nf
from autobatch.program.liveness import reads

_LEAVES = nf.Return | nf.Jump


def try_statement(reader: Reader, node: nf.Try) -> None:
    """`try`, with its handlers, `else` and `finally`."""
    guarded = [each for body in nf.bodies_of(node) if body is not node.final for each in body]
    if node.final and any(isinstance(x, _LEAVES) for x in nf.walk(guarded)):
        if any(isinstance(x, nf.Jump) for x in nf.walk(node.final)):
            raise reader.refuse("a `finally` that jumps", node)
        finally_(reader, [*node.body, *node.orelse], lambda: reader.block(node.final))
        return
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


def finally_(reader: Reader, body: Sequence[nf.Statement], final: Callable[[], Any]) -> None:
    """Statements after which `final` runs, however they are left; where anything is raised, Python runs the example."""
    reader.handlers.append(Handlers([None], len(reader.loops), 0))
    reader.finals.append((len(reader.loops), final))
    reader.block(body)
    reader.finals.pop()
    if reader.env is not None:
        final()
    reader.handlers.pop()


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


@calls(nf.sequence_parts)
def sequence_parts(reader: Reader, node: nf.Node, value: Value, count: Value, star: Value, keeps: Value) -> Value:
    """What a pattern of a sequence looks into."""
    kind, many, place = value.kind, count.constant, star.constant
    if isinstance(kind, types.Union | types.Maybe | types.Static) or kind == types.RANGE:
        raise reader.refuse(f"a pattern of a {kind}", node)
    if isinstance(kind, types.Tuple) or (isinstance(kind, types.Struct) and issubclass(kind.cls, tuple)):
        parts = parts_of(reader.once(value))
        rest = len(parts) - many + 1
        if rest != 1 if place < 0 else rest < 0:
            return reader.constant(None, node)
        if place >= 0:
            held = parts[place : place + rest] if keeps.constant else []
            parts[place : place + rest] = [containers.literal(reader, node, held, types.List)]
        return reader.tuple_of(parts)
    if not isinstance(kind, types.List) or (kind.elem is None and many > (place >= 0)):
        return reader.constant(None, node)
    if place >= 0:
        raise reader.refuse("a pattern of a list with *", node)

    def items() -> Value:
        found = [reader.temp(code("list_item", value.text, str(i)), kind.elem) for i in range(many)]
        return reader.held(reader.tuple_of(found or [reader.constant(0, node)]))

    return reader.choice(f"len({value.text}) == {many}", items, lambda: reader.constant(None, node), node)


@calls(nf.class_parts)
def class_parts(reader: Any, node: nf.Node, value: Value, cls: Value, count: Value, names: Value) -> Value:
    """What a pattern of a class looks into."""
    wanted, own = cls.constant, types.class_of(value.kind)
    if not isinstance(wanted, type) or own is None:
        raise reader.refuse(f"a pattern of a {value.kind}", node)
    if not issubclass(own, wanted):
        return reader.constant(None, node)
    found = [*getattr(wanted, "__match_args__", ())[: count.constant], *names.constant]
    if isinstance(value.kind, types.Object):
        parts = [reader.attribute_of(value, name, node) for name in found]
    elif isinstance(value.kind, types.Struct) and own is not dict:
        parts = [Value(value.kind.items[at], item_text(value.text, at)) for at in map(value.kind.names.index, found)]
    else:
        parts = [value] * count.constant
        if found or count.constant > 1:
            raise reader.refuse("a pattern of this form is not compiled", node)
    return reader.tuple_of([reader.held(part) for part in parts] or [reader.constant(0, node)])


def tree_test(reader: Reader, classes: Value, name: str, then: Any, other: Any, live: nf.Names | None) -> None:
    """`if isinstance(name, classes): then else: other` of nested tuples, which is a number in one of the arms."""
    assert reader.env is not None
    kind = reader.env[name].kind
    wanted = classes.constant if isinstance(classes.constant, tuple) else (classes.constant,)
    of_leaf, of_tuple = (issubclass(cls, wanted) for cls in kind.classes)
    if of_leaf == of_tuple:
        return reader.decide(reader.constant(of_leaf, reader.node), then, other, live)
    holder = Value(kind, reader.variable(name, kind))
    is_tuple, number = iteration.has_form(reader, holder, [1], reader.node), iteration.leaf_of(reader, holder)
    arms = (kind, holder.text, then if of_tuple else other), (kind.leaf, number, other if of_tuple else then)
    return reader.narrowed(is_tuple.text, name, arms, live)
