"""Liveness, run backward, and definite assignment, run forward, over the normal form of a function.

Sets `live_after` and `bound_before` of each statement, and `live_head`, `live_out`, `bound` and `bound_end` of those
with statements inside. Any statement may raise, so in `try` and `with` all names used inside count as live throughout:
a handler sees whatever has been assigned by then. Names that functions inside use count as read everywhere.
"""

import ast
from collections.abc import Iterable, Sequence

from autobatch.program import normal_form as nf
from autobatch.program.scopes import bound_names
from autobatch.program.scopes import reads as reads_of_syntax

_NONE: nf.Names = frozenset()


def annotate(function: nf.Closure) -> None:
    """Annotate the statements of a function, and of all functions made inside of it."""
    _Liveness(captured(function)).block(function.body, _NONE, _NONE, _NONE)
    _bind(function.body, frozenset(function.parameters.names))
    for node in nf.walk(function.body):
        if isinstance(node, nf.Closure):
            annotate(node)


def own_reads(node: nf.Node) -> nf.Names:
    """Names that a statement or value reads itself, without the statements inside of it."""
    found: set[str] = set(_deleted(node))
    stack: list[nf.Node] = list(nf.values_of(node)) if isinstance(node, nf.Statement) else [node]
    if isinstance(node, nf.OpaqueStatement):
        return nf.Names(reads_of_syntax(node.syntax))
    if isinstance(node, nf.Try):
        stack += [handler.types for handler in node.handlers if handler.types is not None]
    while stack:
        value = stack.pop()
        if isinstance(value, nf.Name):
            found.add(value.id)
        elif isinstance(value, nf.Opaque):
            found |= reads_of_syntax(value.syntax)
        stack += nf.values_of(value)
    return nf.Names(found)


def reads(nodes: nf.Node | Sequence[nf.Node]) -> nf.Names:
    """Names that a piece of a program may read in its own scope."""
    found: set[str] = set()
    for node in nf.walk(nodes):
        if isinstance(node, nf.Name):
            found.add(node.id)
        elif isinstance(node, nf.Opaque | nf.OpaqueStatement):
            found |= reads_of_syntax(node.syntax)
        else:
            found.update(_deleted(node))
    return nf.Names(found)


def _deleted(node: nf.Node) -> Iterable[str]:
    """The names that `del` takes, which have to be bound."""
    return nf.target_names(node.target) if isinstance(node, nf.Bind) and node.value is None else ()


def binds(nodes: nf.Node | Sequence[nf.Node]) -> nf.Names:
    """Names that a piece of a program may bind or delete in its own scope."""
    return nf.Names(name for node in nf.walk(nodes) for name in own_binds(node))


def own_binds(node: nf.Node) -> Iterable[str]:
    """Names that a node binds or deletes itself, without the statements inside of it."""
    match node:
        case nf.Bind(target=target) | nf.Loop(target=target) | nf.With(target=target):
            return nf.target_names(target)
        case nf.Try(handlers=handlers):
            return [handler.name for handler in handlers if handler.name]
        case nf.OpaqueStatement(syntax=syntax) | nf.Opaque(syntax=syntax):
            return bound_names(syntax)
    return ()


def all_names(function: nf.Closure) -> nf.Names:
    """The names of a function's variables, and of those of all functions in it."""
    return nf.Names().union(*[binds(each.body).union(each.parameters.names) for each in nf.closures(function)])


def captured(function: nf.Closure) -> nf.Names:
    """Names that functions and classes made in this function use, and so may read at any time."""
    found: set[str] = set()
    for node in nf.walk(function.body):
        if isinstance(node, nf.Closure):
            found |= free(node)
        elif isinstance(node, nf.Opaque | nf.OpaqueStatement):
            found.update(part.id for part in ast.walk(node.syntax) if isinstance(part, ast.Name))
    return nf.Names(found)


def free(function: nf.Closure) -> nf.Names:
    """Names that a function uses but does not bind itself."""
    used = reads(function.body) | captured(function) | binds(function.body)
    own = frozenset(function.parameters.names) | binds(function.body)
    return used - (own - function.outer - function.shared)


class _Liveness:
    """The backward walk. `always`: names that may be read at any time."""

    def __init__(self, always: nf.Names) -> None:
        self.always = always

    def block(self, body: Sequence[nf.Statement], out: nf.Names, at_break: nf.Names, at_continue: nf.Names) -> nf.Names:
        """The names live before these statements, given those live after them and at each jump's target."""
        for statement in reversed(body):
            statement.live_after = out | self.always
            out = self.statement(statement, out, at_break, at_continue)
        return out

    def statement(self, node: nf.Statement, out: nf.Names, at_break: nf.Names, at_continue: nf.Names) -> nf.Names:
        """The names live before a statement."""
        if isinstance(node, nf.Try | nf.With):
            anything = out | at_break | at_continue | self.always | reads(node) | binds(node)
            for inner in nf.bodies_of(node):
                self.block(inner, anything, anything, anything)
            node.live_head = node.live_out = anything
            return anything
        match node:
            case nf.Return() | nf.Raise():
                return self.always | own_reads(node)
            case nf.Jump(to=to):
                return at_break if to == "break" else at_continue
            case nf.Branch():
                arms = self.block(node.body, out, at_break, at_continue)
                arms |= self.block(node.orelse, out, at_break, at_continue)
                node.live_head, node.live_out = arms, out
                return arms | own_reads(node)
            case nf.Loop():
                return self.loop(node, out, at_break, at_continue)
            case nf.Bind(target=target) if node.value is not None:
                return (out - frozenset(nf.target_names(target))) | self.always | own_reads(node)
            case _:
                return out | self.always | own_reads(node)

    def loop(self, node: nf.Loop, out: nf.Names, at_break: nf.Names, at_continue: nf.Names) -> nf.Names:
        """The names live before a loop; jumps in its `else` go to the loop around it."""
        after = self.block(node.orelse, out, at_break, at_continue) | self.always
        targets = frozenset(nf.target_names(node.target))
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


def _bind(body: Sequence[nf.Statement], bound: nf.Names) -> nf.Names:
    """Forward walk: `bound` has the names definitely bound before; returns those bound after the statements."""
    for node in body:
        if isinstance(node, nf.Inner) or (isinstance(node, nf.Bind) and node.value is None):
            bound = bound - _unbound_by(node)
        before = node.bound_before = bound
        match node:
            case nf.Bind(target=target) if node.value is not None:
                bound |= frozenset(nf.target_names(target))
            case nf.Branch():
                bound = _bind(node.body, bound) & _bind(node.orelse, bound)
                node.bound, node.bound_end = before, bound
            case nf.Loop():
                start = _bind(node.head, bound)
                node.bound, node.bound_end = before, _bind(node.body, start | frozenset(nf.target_names(node.target)))
                _bind(node.orelse, start if node.target is None else bound)
            case nf.Try() | nf.With():  # control may leave the inside early
                for inner in nf.bodies_of(node):
                    _bind(inner, bound)
                node.bound = node.bound_end = bound
    return bound


def _unbound_by(node: nf.Statement) -> nf.Names:
    """Names that a statement may unbind: by `del`, or at the end of an `except ... as name`."""
    unbinds = (each for each in nf.walk(node) if isinstance(each, nf.Try) or getattr(each, "value", each) is None)
    return nf.Names(name for each in unbinds for name in own_binds(each))
