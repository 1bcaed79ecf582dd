"""Liveness, run backward, and definite assignment, run forward, over the normal form of a function.

Sets `live_after` and `bound_before` of each statement, and `live_head`, `live_out`, `bound` and `bound_end` of those
with statements inside. Any statement may raise, so in `try` and `with` all names used inside count as live throughout:
a handler sees whatever has been assigned by then. Names that functions inside use count as read everywhere.
"""

import ast
from collections.abc import Iterable, Sequence

from autobatch.program.normal_form import (
    Bind,
    Branch,
    Closure,
    Inner,
    Jump,
    Loop,
    Match,
    Name,
    Names,
    Node,
    Opaque,
    OpaqueStatement,
    Raise,
    Return,
    Statement,
    Try,
    With,
    bodies_of,
    target_names,
    values_of,
    walk,
)
from autobatch.program.scopes import bound_names
from autobatch.program.scopes import reads as reads_of_syntax

_NONE: Names = frozenset()


def annotate(function: Closure) -> None:
    """Annotate the statements of a function, and of all functions made inside of it."""
    _Liveness(captured(function)).block(function.body, _NONE, _NONE, _NONE)
    _bind(function.body, frozenset(function.parameters.names))
    for node in walk(function.body):
        if isinstance(node, Closure):
            annotate(node)


def own_reads(node: Node) -> Names:
    """Names that a statement or value reads itself, without the statements inside of it."""
    found: set[str] = set(_deleted(node))
    stack: list[Node] = list(values_of(node)) if isinstance(node, Statement) else [node]
    if isinstance(node, OpaqueStatement):
        return Names(reads_of_syntax(node.syntax))
    if isinstance(node, Try):
        stack += [handler.types for handler in node.handlers if handler.types is not None]
    while stack:
        value = stack.pop()
        if isinstance(value, Name):
            found.add(value.id)
        elif isinstance(value, Opaque):
            found |= reads_of_syntax(value.syntax)
        stack += values_of(value)
    return Names(found)


def reads(nodes: Node | Sequence[Node]) -> Names:
    """Names that a piece of a program may read in its own scope."""
    found: set[str] = set()
    for node in walk(nodes):
        if isinstance(node, Name):
            found.add(node.id)
        elif isinstance(node, Opaque | OpaqueStatement):
            found |= reads_of_syntax(node.syntax)
        elif isinstance(node, Match):
            found |= reads_of_syntax(each.pattern for each in node.cases)
        else:
            found.update(_deleted(node))
    return Names(found)


def _deleted(node: Node) -> Iterable[str]:
    """The names that `del` takes, which have to be bound."""
    return target_names(node.target) if isinstance(node, Bind) and node.value is None else ()


def binds(nodes: Node | Sequence[Node]) -> Names:
    """Names that a piece of a program may bind or delete in its own scope."""
    found: set[str] = set()
    for node in walk(nodes):
        if isinstance(node, Bind | Loop | With):
            found.update(target_names(node.target))
        elif isinstance(node, Try):
            found.update(handler.name for handler in node.handlers if handler.name)
        elif isinstance(node, Match):
            found |= bound_names(each.pattern for each in node.cases)
        elif isinstance(node, OpaqueStatement | Opaque):
            found |= bound_names(node.syntax)
    return Names(found)


def captured(function: Closure) -> Names:
    """Names that functions and classes made in this function use, and so may read at any time."""
    found: set[str] = set()
    for node in walk(function.body):
        if isinstance(node, Closure):
            found |= free(node)
        elif isinstance(node, Opaque | OpaqueStatement):
            found.update(part.id for part in ast.walk(node.syntax) if isinstance(part, ast.Name))
    return Names(found)


def free(function: Closure) -> Names:
    """Names that a function uses but does not bind itself."""
    used = reads(function.body) | captured(function) | binds(function.body)
    own = frozenset(function.parameters.names) | binds(function.body)
    return used - (own - function.outer - function.shared)


class _Liveness:
    """The backward walk. `always`: names that may be read at any time."""

    def __init__(self, always: Names) -> None:
        self.always = always

    def block(self, body: Sequence[Statement], out: Names, at_break: Names, at_continue: Names) -> Names:
        """The names live before these statements, given those live after them and at each jump's target."""
        for statement in reversed(body):
            statement.live_after = out | self.always
            out = self.statement(statement, out, at_break, at_continue)
        return out

    def statement(self, node: Statement, out: Names, at_break: Names, at_continue: Names) -> Names:
        """The names live before a statement."""
        if isinstance(node, Try | With | Match):
            anything = out | at_break | at_continue | self.always | reads(node) | binds(node)
            for inner in bodies_of(node):
                self.block(inner, anything, anything, anything)
            node.live_head = node.live_out = anything
            return anything
        match node:
            case Return() | Raise():
                return self.always | own_reads(node)
            case Jump(to=to):
                return at_break if to == "break" else at_continue
            case Branch():
                arms = self.block(node.body, out, at_break, at_continue)
                arms |= self.block(node.orelse, out, at_break, at_continue)
                node.live_head, node.live_out = arms, out
                return arms | own_reads(node)
            case Loop():
                return self.loop(node, out, at_break, at_continue)
            case Bind(target=target) if node.value is not None:
                return (out - frozenset(target_names(target))) | self.always | own_reads(node)
            case _:
                return out | self.always | own_reads(node)

    def loop(self, node: Loop, out: Names, at_break: Names, at_continue: Names) -> Names:
        """The names live before a loop; jumps in its `else` go to the loop around it."""
        after = self.block(node.orelse, out, at_break, at_continue) | self.always
        targets = frozenset(target_names(node.target))
        tested = own_reads(node) if node.target is None else _NONE
        head = after
        while True:
            if node.target is None:
                body = self.block(node.body, head, out, head)
                wider = self.block(node.head, after | body | tested, _NONE, _NONE)
            else:
                wider = after | (self.block(node.body, head, out, head) - targets)
            if wider <= head:
                break
            head |= wider
        node.live_head, node.live_out = head, out | after
        return head if node.target is None else head | own_reads(node)


def _bind(body: Sequence[Statement], bound: Names) -> Names:
    """Forward walk: `bound` has the names definitely bound before; returns those bound after the statements."""
    for node in body:
        if isinstance(node, Inner) or (isinstance(node, Bind) and node.value is None):
            bound = bound - _unbound_by(node)
        before = node.bound_before = bound
        match node:
            case Bind(target=target) if node.value is not None:
                bound |= frozenset(target_names(target))
            case Branch():
                bound = _bind(node.body, bound) & _bind(node.orelse, bound)
                node.bound, node.bound_end = before, bound
            case Loop():
                start = _bind(node.head, bound)
                node.bound, node.bound_end = before, _bind(node.body, start | frozenset(target_names(node.target)))
                _bind(node.orelse, start if node.target is None else bound)
            case Try() | With() | Match():  # control may leave the inside early
                for inner in bodies_of(node):
                    _bind(inner, bound)
                node.bound = node.bound_end = bound
    return bound


def _unbound_by(node: Statement) -> Names:
    """Names that a statement may unbind: by `del`, or at the end of an `except ... as name`."""
    found: set[str] = set()
    for each in walk(node):
        if isinstance(each, Bind) and each.value is None:
            found.update(target_names(each.target))
        elif isinstance(each, Try):
            found.update(handler.name for handler in each.handlers if handler.name)
    return Names(found)
