"""Writes a function's lock-step form from its normal form: one method for each node that lanes may run differently.

What lanes may do differently asks the runtime (`lockstep.runtime`): operators, calls, reads and writes of items and
attributes, branches and loops. Operands that only some lanes evaluate become lambdas. What lock-step does not support
raises Unsupported. Every line that is written has the place of the user's line that it is made from.
"""

import ast
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from autobatch.errors import FROM_PLAIN_CODE, MAKE_A_LIST, RETURN_VALUES, TEST_BEFORE, Unsupported
from autobatch.facts import operators
from autobatch.facts.python_functions import FRAME_READERS, PAUSES
from autobatch.lockstep.block_sites import BlockLine, FunctionBlocks, Line, LoopScan, scan_of
from autobatch.lockstep.calls.calls_on_items import LAZY
from autobatch.program import normal_form as nf
from autobatch.program.folding import EAGER
from autobatch.program.liveness import binds
from autobatch.program.ownership import Ownership, stored_names
from autobatch.program.python_text import Writer
from autobatch.program.quote import expression, name, statements

_WORDS = {each.symbol: f"_ab_{each.word}" for each in operators.BINARY} | {
    "is": "_ab_is", "is not": "_ab_is_not", "in": "_ab_in", "not in": "_ab_not_in", "not": "_ab_not",
} | {each.name: f"_ab_{each.name}" for each in operators.UNARY}  # fmt: skip
_ARITHMETIC = frozenset(each.symbol for each in operators.ARITHMETIC) | {each.name for each in operators.UNARY}
_MODULES = frozenset({"np", "numpy", "math", "ab", "autobatch"})
_TEMPORARY = frozenset({"range", "zip", "enumerate", "reversed", "map", "list", "tuple", "sorted"})
BlocksOf = Callable[[nf.Closure, Ownership], FunctionBlocks | None]


class LockStepWriter(Writer):
    """Writes one function.

    Args:
        function: a folded program (`program.folding`), with liveness. blocks_of: finds the blocks of a function.
        outer: the writer of the function around it.
    """

    def __init__(self, function: nf.Closure, blocks_of: BlocksOf, outer: "LockStepWriter | None" = None) -> None:
        self.function = function
        self.blocks_of = blocks_of
        self.top: nf.Closure = function if outer is None else outer.top
        self.numbers: Iterator[int] = itertools.count(1) if outer is None else outer.numbers
        self.ownership = Ownership(function)
        is_value = function.name == "<lambda>"
        self.blocks = None if is_value else blocks_of(function, self.ownership)
        inner = (each for each in nf.walk(function.body) if isinstance(each, nf.Branch | nf.Loop | nf.With))
        self.gives = any(_returns([each]) for each in inner)
        self.inside = False  # a loop that is written here
        self.jumps: list[tuple[str, list[str], nf.Names]] = []

    def definition(self, function: nf.Closure, name: str = "") -> ast.FunctionDef:
        """The definition of this function, or of one that is made in it."""
        if function is not self.function:
            made = LockStepWriter(function, self.blocks_of, self).definition(function, name)
            made.args = self.arguments(function.parameters, function)
            made.decorator_list = [self.value(each) for each in function.decorators]
            return made
        if function.is_generator:
            self.refuse("a generator", function, MAKE_A_LIST)
        declared = function.shared | function.outer
        if declared:
            what = "a global name" if function.shared else "a variable of another function"
            bound = (node for node in nf.walk(function.body) if not declared.isdisjoint(binds([node])))
            self.refuse(f"an assignment to {what}", next(bound, function), RETURN_VALUES)
        return super().definition(function, name)

    def refuse(self, why: str, node: nf.Node, instead: str = "") -> Any:
        """Raise Unsupported: the function has no lock-step form."""
        raise Unsupported(f"{why} in {self.top.name}", node, instead=instead)

    # statements

    def statements(self, body: Sequence[nf.Statement]) -> list[ast.stmt]:
        if body is not self.function.body:
            return self.lines(self.gathered(body)) or super().statements([])
        out = self.lines(self.gathered(body))
        if self.gives:
            first, last = (body or [self.function])[0], (body or [self.function])[-1]
            out = [*statements("_ab_returns = _ab_function()", _syntax(first.at)), *out]
            if not isinstance(last, nf.Return):
                out += statements("_ab_returns.give(None)\nreturn _ab_returns.result()", _syntax(last.at))
        return out or super().statements([])

    def gathered(self, body: Sequence[nf.Statement]) -> list[Line]:
        """Statements, with each block in the place of its own."""
        return list(body) if self.blocks is None else self.blocks.gathered(body)

    def lines(self, body: Iterable[Line]) -> list[ast.stmt]:
        """Statements and blocks as Python."""
        return [
            line
            for each in body
            for line in (self.block(each) if isinstance(each, BlockLine) else self.statement(each))
        ]

    def inner(self, body: Iterable[Line]) -> list[ast.stmt]:
        """Statements and blocks inside a native loop that is written here."""
        inside, self.inside = self.inside, True
        out = self.lines(body)
        self.inside = inside
        return out

    def block(self, node: BlockLine) -> list[ast.stmt]:
        """A block: read the inputs, call the site, and run the statements themselves if it returns nothing."""
        at = _syntax(node.at)
        before = [nf.Bind(value.at, each, value) for each, value in node.before]
        call: ast.Call = expression("SITE()", at, SITE=node.site)
        call.args = [name(key, _syntax(value.at)) for key, value in node.inputs]
        bind = ast.copy_location(ast.Assign([_names(node.outputs, at, ast.Store())], name(node.out, at)), at)
        return self.lines(before) + statements(
            "OUT = CALL\nif OUT:\n    BIND\n    OUT = None\nelse:\n    OTHERWISE",
            at, OUT=node.out, CALL=call, BIND=[bind], OTHERWISE=self.lines(node.otherwise),
        )  # fmt: skip

    def scan(self, node: LoopScan | None, loop: str) -> list[ast.stmt]:
        """The call of a loop's scan (`LoopScan`)."""
        if node is None:
            return []
        at = _syntax(node.at)
        call = expression(
            "SITE(LOOP, STATES, VALUES, TESTED, BASES, LISTS)", at, SITE=node.site, LOOP=loop,
            STATES=_names(node.states, at), VALUES=_names(node.values, at), TESTED=_names(node.tested, at),
            BASES=_names(node.bases, at), LISTS=_names(node.lists, at),
        )  # fmt: skip
        if node.is_while:
            return [ast.copy_location(ast.Expr(call), at)]
        bind = ast.copy_location(ast.Assign([_names(node.states, at, ast.Store())], name(node.out, at)), at)
        return statements("OUT = CALL\nif OUT:\n    BIND", at, OUT=node.out, CALL=call, BIND=[bind])

    def tested(self, node: nf.Value) -> tuple[list[Line], nf.Value]:
        """A statement's last value, and the block before the statement that computes it."""
        return ([], node) if self.blocks is None else self.blocks.value(node)

    def statement(self, node: nf.Statement) -> list[ast.stmt]:
        match node:
            case nf.Bind():
                return self.bind(node)
            case nf.Write():
                return self.write(node)
            case nf.Branch():
                return self.branch(node)
            case nf.Loop(target=None):
                return self.while_loop(node)
            case nf.Loop():
                return self.item_loop(node) if not _jumps(node.body) and not _returns([node]) else self.for_loop(node)
            case nf.Jump():
                loop, names, bound = self.jumps[-1]
                at = _syntax(node.at)
                method = "leave" if node.to == "break" else "next"
                call = statements(f"LOOP.{method}(V)", at, LOOP=loop, V=values(names, bound, at))
                return [*call, *self.leave_arm(node)]
            case nf.Return():
                return self.give(node)
            case nf.Raise():
                return self.raised(node)
            case nf.With():
                (made,) = super().statement(node)
                assert isinstance(made, ast.With)
                manager = made.items[0].context_expr
                made.items[0].context_expr = expression("_ab_manager(X)", manager, X=manager)
                return [made]
            case nf.Try():
                self.refuse("an exception that is handled", node, TEST_BEFORE)
            case nf.OpaqueStatement(syntax=ast.Import() | ast.ImportFrom()):
                return super().statement(node)
            case nf.OpaqueStatement(syntax=syntax):
                why, instead = _OPAQUE.get(type(syntax), ("asynchronous code", FROM_PLAIN_CODE))
                self.refuse(why, node, instead)
        return super().statement(node)

    def bind(self, node: nf.Bind) -> list[ast.stmt]:
        """`x = value`; the target is a name, or unpacks."""
        match node:
            case nf.Bind(target=str(), value=nf.Closure(name="<genexpr>")):
                self.refuse("a generator", node, MAKE_A_LIST)
            case nf.Bind(target=str() as target, value=nf.Call() as value) if value.symbol.endswith("="):
                if value.symbol not in _WORDS:
                    return [_at(ast.Assign([self.target(target, node)], self.value(value)), node)]
        return super().statement(node)

    def write(self, node: nf.Write) -> list[ast.stmt]:
        """`x[i] = value` and `x.a = value`."""
        if node.value is None:
            return statements("_ab_refuse('del of an item or attribute')", _syntax(node.at))
        parts = {"VALUE": self.value(node.value), "X": self.value(node.base)}
        if isinstance(node.key, str):
            return statements("_ab_setattr(VALUE, X, KEY)", _syntax(node.at), **parts, KEY=ast.Constant(node.key))
        return statements("_ab_setitem(VALUE, X, KEY)", _syntax(node.at), **parts, KEY=self.value(node.key))

    def raised(self, node: nf.Raise) -> list[ast.stmt]:
        """A `raise` only signals that some example raises; the next mode finds the exact exception."""
        (made,) = super().statement(node)
        if isinstance(made, ast.Raise) and made.exc is not None:
            made.exc = expression("_ab_raised(lambda: ERROR)", made.exc, ERROR=made.exc)
        return [made]

    def give(self, node: nf.Return) -> list[ast.stmt]:
        """`return`: from a region, a value for its lanes."""
        before, value = self.tested(node.value or nf.Constant(node.at, None))
        lines = self.lines(before)
        if not self.gives:
            return [*lines, _at(ast.Return(None if node.value is None else self.value(value)), node)]
        give = statements("_ab_returns.give(VALUE)", _syntax(node.at), VALUE=self.value(value))
        return [*lines, *give, *self.leave_arm(node)]

    def leave_arm(self, node: nf.Node) -> list[ast.stmt]:
        """Go to the next arm or step, or return from the function: no lane is left here."""
        at = _syntax(node.at)
        if self.inside:
            return [ast.copy_location(ast.Continue(), at)]
        return statements("return _ab_returns.result()", at)

    def branch(self, node: nf.Branch) -> list[ast.stmt]:
        """`if`: a native loop over a runtime object, with one iteration for each arm, which has its own region.

        ```
        _ab_if_1 = _ab_if(TEST, (x,), True, False)              # (names bound in an arm and read later), has an else,
        for _ab_arm_1 in _ab_if_1:                              # jumps may leave an arm
            if _ab_if_1.changed:
                (x,) = _ab_if_1.values                          # restore the values from before the other arm ran
            if _ab_arm_1:
                BODY
            else:
                ORELSE
            if _ab_if_1.split:
                _ab_if_1.end((x,))
        if _ab_if_1.split:
            (x,) = _ab_if_1.join()                              # merge the values of the lanes of both arms
        ```
        """
        if not node.body and any(isinstance(each, nf.Raise) and _is_assertion(each) for each in node.orelse):
            return self.check(node)
        number, at = next(self.numbers), _syntax(node.test.at)
        branch, arm = f"_ab_if_{number}", f"_ab_arm_{number}"
        arms = [*node.body, *node.orelse]
        left = _returns(arms) or _jumps(arms)
        names = self.names(arms, node)
        with_else = bool(node.orelse)
        owned = places(names, self.ownership.own)
        body, orelse = self.inner(self.gathered(node.body)), self.inner(self.gathered(node.orelse))
        before, test = self.tested(node.test)
        parts: dict[str, Any] = {"IF": branch, "ARM": arm, "V": values(names, node.bound, at), "TEST": self.value(test)}
        parts["RESTORE"] = rebind(names, expression("IF.values", at, IF=branch), node.bound, at) if names else []
        restore = "if IF.changed:\n        RESTORE" if names and (with_else or owned) else "pass"
        choice = _at(ast.If(name(arm, at), body or [_at(ast.Pass(), node)], orelse), node)
        lines = f"IF = _ab_if(TEST, V, {with_else}, {left}{owned})\nfor ARM in IF:\n    {restore}\n    CHOICE\n    "
        lines += "IF.end(END)" if left else "if IF.split:\n        IF.end(END)"
        out = statements(lines, at, CHOICE=[choice], END=values(names, node.bound_end, at), **parts)
        (loop,) = [line for line in out if isinstance(line, ast.For)]
        loop.body = [line for line in loop.body if not isinstance(line, ast.Pass)]
        if left:
            out += statements("if IF.is_empty:\n    AWAY", at, IF=branch, AWAY=self.leave_arm(node))
        join = expression("IF.join()", at, IF=branch)
        joined = rebind(names, join, node.bound_end, at) if names else [ast.copy_location(ast.Expr(join), at)]
        return [*self.lines(before), *out, *statements("if IF.split:\n    JOIN", at, IF=branch, JOIN=joined)]

    def check(self, node: nf.Branch) -> list[ast.stmt]:
        """`assert`."""
        at = _syntax(node.at)
        test = expression("_ab_check(TEST)", _syntax(node.test.at), TEST=self.value(node.test))
        *before, last = node.orelse
        assert isinstance(last, nf.Raise)
        assert isinstance(last.value, nf.Call)
        words = [self.value(each) for each in last.value.args]
        if not before:
            return [_at(ast.Assert(test, words[0] if words else None), node)]
        return statements("if not TEST:\n    RAISE", at, TEST=test, RAISE=self.lines(node.orelse))

    def item_loop(self, node: nf.Loop) -> list[ast.stmt]:
        """A `for` without break, continue and return: a native `for` over `_ab_loop(iterable)`.

        ```
        _ab_loop_1 = _ab_loop(ITERABLE)
        for _ab_item_1 in _ab_loop_1:
            if _ab_loop_1.has_shrunk:                            # some lanes have run out of items
                h, c = _ab_loop_1.narrow((h,), (c,))            # save their last values (h is read after the loop)
            x = _ab_item_1
            BODY
        (h,) = _ab_loop_1.merge((h,))                           # the values of all lanes again
        ORELSE
        ```
        (`own=` gives the positions of arrays that the function made and that have no alias; names that may hold views
        of them, and are not read again, are first set to None.)
        Carried names: those that the body binds or writes into and that may be read at the loop's head (`liveness`).
        """
        number, at = next(self.numbers), _syntax(node.over.at)
        loop, item = f"_ab_loop_{number}", f"_ab_item_{number}"
        body = self.gathered(node.body)
        inner, orelse = self.inner(body), self.lines(self.gathered(node.orelse))
        targets = frozenset(nf.target_names(node.target))
        bound_inside = binds(node.body)
        written = (bound_inside | targets | (stored_names(node.body) & self.ownership.carried)) - {node.fills}
        kept = sorted(written & node.live_out)
        carried = sorted(written & node.live_head - node.live_out)
        own = self.ownership.own
        views = bound_inside & self.ownership.views if own & {*kept, *carried} else nf.Names()
        if self.blocks is not None:
            inner += self.scan(scan_of(self.blocks.sites, body, None, [*kept, *carried], targets), loop)
        target, inner = self.takes_item(node, item, {*kept, *carried}, inner)
        if kept or carried:
            parts = {"KEPT": values(kept, node.bound, at), "CARRIED": values(carried, node.bound, at)}
            call = f"LOOP.narrow(KEPT, CARRIED{places([*kept, *carried], own)})"
            narrow = rebind([*kept, *carried], expression(call, at, LOOP=loop, **parts), node.bound, at)
            narrow = _clear_dead_names(views - node.live_head - targets, at) + narrow
            inner = [*statements("if LOOP.has_shrunk:\n    REBIND", at, LOOP=loop, REBIND=narrow), *inner]
        out = statements("LOOP = _ab_loop(ITER)", at, LOOP=loop, ITER=self.value(node.over))
        out.append(_at(ast.For(target, name(loop, at), inner or [_at(ast.Pass(), node)], []), node))
        kept_values = values(kept, node.bound, at)
        merge = expression(f"LOOP.merge(KEPT{places(kept, own)})", at, LOOP=loop, KEPT=kept_values)
        out += _clear_dead_names(views - node.live_out, at)
        out += rebind(kept, merge, node.bound, at) if kept else [ast.copy_location(ast.Expr(merge), at)]
        return out + orelse

    def for_loop(self, node: nf.Loop) -> list[ast.stmt]:
        """A `for` that lanes may leave one by one; see `while_loop`."""
        number, at = next(self.numbers), _syntax(node.over.at)
        loop, item = f"_ab_loop_{number}", f"_ab_item_{number}"
        names = self.names([*node.body, *node.orelse], node, nf.target_names(node.target))
        target, start = self.takes_item(node, item, set(names), [])
        temporary = isinstance(node.over, nf.Call) and getattr(node.over.function, "id", None) in _TEMPORARY
        walk = expression(
            f"_ab_for(ITER, {temporary}, V{places(names, self.ownership.own)})",
            at, ITER=self.value(node.over), V=values(names, node.bound, at),
        )  # fmt: skip
        return self.walked(node, loop, walk, target, names, start, None)

    def while_loop(self, node: nf.Loop) -> list[ast.stmt]:
        """A loop that lanes may leave one by one.

        ```
        _ab_loop_1 = _ab_while((x,))                            # or _ab_for(ITERABLE, ...)
        for _ab_step_1 in _ab_loop_1:
            if _ab_loop_1.changed:
                (x,) = _ab_loop_1.values                        # the values of the lanes at the loop's head
            if _ab_loop_1.stops(TEST, (x,)):
                if _ab_loop_1.is_empty:
                    break
                (x,) = _ab_loop_1.values                        # the values of the lanes that go on
            BODY
            _ab_loop_1.next((x,))
        for _ab_values_1 in _ab_loop_1.otherwise():
            (x,) = _ab_values_1
            ORELSE
            _ab_loop_1.leave((x,))
        (x,) = _ab_loop_1.after()
        ```
        `break` becomes `_ab_loop_1.leave(...)`, `continue` becomes `_ab_loop_1.next(...)` and `return X` becomes
        `_ab_returns.give(X)`, each followed by a native `continue`, which goes to the next arm or step. After a
        statement that a jump may leave, `if _ab_if_1.is_empty: continue` skips code that no lane reaches.
        """
        number, at = next(self.numbers), _syntax(node.over.at)
        loop, step = f"_ab_loop_{number}", f"_ab_step_{number}"
        names = self.names([*node.head, *node.body, *node.orelse], node)
        walk = expression(f"_ab_while(V{places(names, self.ownership.own)})", at, V=values(names, node.bound, at))
        start: list[ast.stmt] = []
        before: list[Line] = []
        if not (isinstance(node.over, nf.Constant) and node.over.value is True):
            go_on = rebind(names, expression("LOOP.values", at, LOOP=loop), node.bound, at) if names else []
            before, test = self.tested(node.over)
            start = self.inner([*self.gathered(node.head), *before]) + statements(
                "if LOOP.stops(TEST, V):\n    if LOOP.is_empty:\n        break\n    GO_ON", at,
                LOOP=loop, TEST=self.value(test), V=values(names, node.bound, at), GO_ON=go_on,
            )  # fmt: skip
        return self.walked(node, loop, walk, name(step, at, ast.Store()), names, start, before)

    def walked(
        self, node: nf.Loop, loop: str, walk: ast.expr, target: ast.expr, names: list[str], start: list[ast.stmt],
        test: list[Line] | None,
    ) -> list[ast.stmt]:  # fmt: skip
        """The part that `while` and `for` with jumps share; `test`: the block of the condition."""
        at, bound = _syntax(node.over.at), node.bound
        left = _returns([node]) or _jumps(node.orelse)
        self.jumps.append((loop, names, bound))
        lines = self.gathered(node.body)
        body = [*start, *self.inner(lines)]
        self.jumps.pop()
        body += statements("LOOP.next(V)", at, LOOP=loop, V=values(names, node.bound_end, at))
        if test and not node.head and self.blocks is not None:
            body += self.scan(scan_of(self.blocks.sites, lines, test, names, ()), loop)
        if names:
            again = rebind(names, expression("LOOP.values", at, LOOP=loop), bound, at)
            body = [*statements("if LOOP.changed:\n    AGAIN", at, LOOP=loop, AGAIN=again), *body]
        out = statements("LOOP = WALK", at, LOOP=loop, WALK=walk)
        out.append(_at(ast.For(target, name(loop, at), body, []), node))
        if node.orelse:
            ended = loop.replace("loop", "values")
            restore = rebind(names, name(ended, at), bound, at) if names else []
            orelse = self.inner(self.gathered(node.orelse))
            out += statements(
                "for ENDED in LOOP.otherwise():\n    RESTORE\n    ORELSE\n    LOOP.leave(V)",
                _syntax(node.orelse[0].at),
                ENDED=ended, LOOP=loop, RESTORE=restore, ORELSE=orelse, V=values(names, bound, at),
            )  # fmt: skip
        after = expression("LOOP.after()", at, LOOP=loop)
        if left and names:  # lanes already at the head of an outer loop keep the values they had there
            came = loop.replace("loop", "after")
            out += statements("CAME = AFTER", at, CAME=came, AFTER=after)
            after = name(came, at)
        elif left or not names:
            out.append(ast.copy_location(ast.Expr(after), at))
        if left:
            out += statements("if LOOP.is_empty:\n    AWAY", at, LOOP=loop, AWAY=self.leave_arm(node))
        return [*out, *rebind(names, after, bound, at)] if names else out

    def takes_item(
        self, node: nf.Loop, item: str, carried: set[str], body: list[ast.stmt]
    ) -> tuple[ast.expr, list[ast.stmt]]:
        """The native loop's target, and a body that first binds the user's target if the loop cannot bind it itself."""
        assert node.target is not None
        target = self.target(node.target, node)
        if not carried.intersection(nf.target_names(node.target)):
            return target, body
        at = _syntax(node.over.at)
        assign = ast.copy_location(ast.Assign([target], name(item, at)), at)
        return name(item, at, ast.Store()), [assign, *body]

    def names(self, body: Sequence[nf.Statement], node: nf.Branch | nf.Loop, also: Iterable[str] = ()) -> list[str]:
        """Names that the statements bind, or write into if owned, and that are read in or after them; sorted."""
        written = binds(body) | set(also) | (stored_names(body) & self.ownership.own)
        return sorted(written & (node.live_head | node.live_out))

    # values

    def syntax_of(self, node: nf.Value) -> ast.expr:
        match node:
            case nf.Closure(name="<genexpr>"):
                self.refuse("a generator", node, MAKE_A_LIST)
            case nf.Call() if not node.symbol:
                return self.call(node)
            case nf.Read():
                return self.read(node)
            case nf.Spread(value=value):
                items = self.value(value)
                return ast.Starred(expression("_ab_tuple(ITEMS)", _syntax(node.at), ITEMS=items), ast.Load())
            case nf.Closure(body=[nf.Return(value=nf.Value() as result)]):
                inner = LockStepWriter(node, self.blocks_of, self)
                return ast.Lambda(self.arguments(node.parameters, node), inner.value(result))
            case nf.Yield():
                self.refuse("a generator", node, MAKE_A_LIST)
            case nf.Opaque(syntax=syntax):
                waits = any(isinstance(part, ast.Await) for part in ast.walk(syntax))
                if waits:
                    self.refuse("a coroutine", node, FROM_PLAIN_CODE)
                self.refuse("a comprehension that makes functions", node)
        return super().syntax_of(node)

    def read(self, node: nf.Read) -> ast.expr:
        """`x[i]`, and `x.a` unless x is a module."""
        if not isinstance(node.key, str):
            return self.runtime("_ab_getitem", node, node.base, node.key)
        base = self.value(node.base)
        if isinstance(base, ast.Attribute) or (isinstance(base, ast.Name) and base.id in _MODULES):
            return ast.Attribute(base, node.key, ast.Load())
        return expression("_ab_getattr(X, NAME)", _syntax(node.at), X=base, NAME=ast.Constant(node.key))

    def runtime(self, called: str, node: nf.Value, *args: nf.Value) -> ast.expr:
        """A call of the runtime."""
        function = ast.Name(called, ast.Load(), lineno=node.at.line, col_offset=node.at.column)
        return ast.Call(function, [self.value(each) for each in args], [])

    def call(self, node: nf.Call) -> ast.expr:
        """A call. `super()` and debugger calls stay."""
        function = node.function
        if is_pause(node) or (isinstance(function, nf.Name) and function.id == "super" and not node.args):
            return super().syntax_of(node)
        if isinstance(function, nf.Name) and function.id in FRAME_READERS:
            what = ast.Constant(f"a call of {function.id}")
            return expression("_ab_refuse(WHAT, 'name the variables themselves')", _syntax(node.at), WHAT=what)
        args = [self.value(each) for each in node.args[1:]]
        if node.args:
            args.insert(0, self.first_argument(node, node.args[0]))
        called = self.value(function)
        written = "_ab_create(F)" if self.ownership.makes(node) else "_ab_call(F)"
        call: ast.Call = expression(written, _syntax(node.at), F=called)
        call.args += args
        call.keywords = self.keywords(node.keywords)
        return call

    def first_argument(self, call: nf.Call, node: nf.Value) -> ast.expr:
        """The first argument of a call; what the function reads to its end may be a list."""
        made: Any = self.value(node)
        match node:
            case nf.Call(function=nf.Name(id=lazy) | nf.Read(key=str(lazy))) if lazy in LAZY:
                function = call.function
                named = function.id if isinstance(function, nf.Name) else getattr(function, "key", "")
                if named in EAGER and (named == "sorted" or all(key != "key" for key, _ in call.keywords)):
                    made.args[0] = expression("_ab_eager(F)", _syntax(node.at), F=made.args[0])
        return made

    def sugar(self, node: nf.Sugar) -> ast.expr:
        at, parts = _syntax(node.at), node.parts
        match node.how:
            case "if":
                test, body, orelse = [self.value(each) for each in parts]
                return expression("_ab_choose(T, lambda: A, lambda: B)", at, T=test, A=body, B=orelse)
            case "and" | "or":
                call: ast.Call = expression(f"_ab_{node.how}(A)", at, A=self.value(parts[0]))
                call.args += [self.later(each) for each in parts[1:]]
                return call
            case "compare":
                compared: list[ast.expr] = [
                    name(_WORDS[each.symbol], at) for each in parts if isinstance(each, nf.Operator)
                ]
                first, *rest = [each for each in parts if not isinstance(each, nf.Operator)]
                functions = ast.copy_location(ast.Tuple(compared, ast.Load()), at)
                call = expression("_ab_chain(A, FUNCTIONS)", at, A=self.value(first), FUNCTIONS=functions)
                call.args += [self.later(each) for each in rest]
                return call
        raise AssertionError(node.how)

    def later(self, node: nf.Value) -> ast.expr:
        """An operand that only some lanes evaluate."""
        return expression("lambda: B", _syntax(node.at), B=self.value(node))

    def operation(self, symbol: str, args: list[nf.Value], node: nf.Value) -> ast.expr:
        if _is_constant(node):
            return super().operation(symbol, args, node)
        at = _syntax(node.at)
        if symbol in _WORDS:
            made = self.runtime(_WORDS[symbol], node, *args)
            if symbol in _ARITHMETIC and self.ownership.makes(node):
                return expression("_ab_own(VALUE)", at, VALUE=_at(made, node))
            return made
        if symbol == "truth":
            return self.value(args[0])
        if symbol == "slice":
            return self.runtime("_ab_slice", node, *args)
        if symbol == "format":
            return self.runtime("_ab_fstring", node, *args)
        if symbol == "formatted":
            return ast.Tuple([self.value(each) for each in args], ast.Load())
        if symbol == "dict" and not all(map(_has_constant_key, args)):
            pairs = [
                (nf.Name(each.at, "_ab_unbound"), each.value) if isinstance(each, nf.Spread) else each.args  # type: ignore[attr-defined]
                for each in args
            ]
            call: ast.Call = expression("_ab_dict()", at)
            call.args += [
                _at(ast.Tuple([self.value(part) for part in pair], ast.Load()), each)
                for each, pair in zip(args, pairs, strict=True)
            ]
            return call
        if symbol in ("list", "set", "dict"):
            return expression("_ab_made(DISPLAY)", at, DISPLAY=_at(super().operation(symbol, args, node), node))
        if symbol.endswith("="):
            call = expression("_ab_update(OP, X, VALUE)", at, OP=ast.Constant(symbol[:-1]),
                              X=self.value(args[0]), VALUE=self.value(args[1]))  # fmt: skip
            return call
        return super().operation(symbol, args, node)


_OPAQUE: dict[type, tuple[str, str]] = {  # {syntax: (what it is, what to write instead)}
    ast.ClassDef: ("a class that is made", "define the class outside of the function"),
    ast.Try: ("an exception that is handled", TEST_BEFORE),
    ast.TryStar: ("an exception that is handled", TEST_BEFORE),
    ast.Match: ("a match statement", "write the cases as if / elif"),
    ast.FunctionDef: ("a function whose annotations call something", "leave out the annotations"),
}


def is_pause(node: nf.Node) -> bool:
    """True for `breakpoint()`, and for `pdb.set_trace()` of any debugger."""
    function = getattr(node, "function", None)
    return getattr(function, "id", getattr(function, "key", None)) in PAUSES if isinstance(node, nf.Call) else False


def _is_assertion(node: nf.Raise) -> bool:
    return isinstance(node.value, nf.Call) and node.value.symbol == "assertion"


def _has_constant_key(item: nf.Value) -> bool:
    return isinstance(item, nf.Call) and isinstance(item.args[0], nf.Constant)


def _is_constant(node: nf.Value) -> bool:
    """True for a constant, or an operator on constants."""
    if isinstance(node, nf.Call):
        return node.symbol in _ARITHMETIC and all(map(_is_constant, node.args))
    return isinstance(node, nf.Constant)


def _returns(body: Sequence[nf.Statement]) -> bool:
    return any(isinstance(node, nf.Return) for node in nf.walk(body))


def _jumps(body: Iterable[nf.Node]) -> bool:
    """True if a `break` or `continue` in these statements belongs to a loop around them."""
    for node in body:
        if isinstance(node, nf.Jump):
            return True
        if isinstance(node, nf.Loop):
            if _jumps(node.orelse):
                return True
        elif isinstance(node, nf.Branch):
            if _jumps(node.body) or _jumps(node.orelse):
                return True
        elif isinstance(node, nf.With) and _jumps(node.body):
            return True
    return False


def _clear_dead_names(names: Iterable[str], at: ast.AST) -> list[ast.stmt]:
    """Set names that are not read again to None, so that views they hold no longer count as aliases."""
    return [line for each in sorted(names) for line in statements("NAME = None", at, NAME=each)]


# How a loop or a branch passes the values of names to the runtime, as one tuple, and gets them back.


def places(names: list[str], own: set[str]) -> str:
    """Source of the argument `own=`: the indices in `names` of those without an alias; empty if there are none."""
    found = tuple(place for place, each in enumerate(names) if each in own)
    return f", own={found}" if found else ""


def values(names: list[str], bound: nf.Names, at: ast.AST) -> ast.Tuple:
    """A tuple of the names' values, with `_ab_unbound` for each name that is not bound."""
    parts: list[ast.expr] = []
    for each in names:
        if each in bound:
            parts.append(name(each, at))
        elif each.startswith(nf.TEMPORARY) and not each.endswith(nf.PART):
            parts.append(name("_ab_unbound", at))
        else:
            parts.append(expression("_ab_locals().get(NAME, _ab_unbound)", at, NAME=ast.Constant(each)))
    return ast.fix_missing_locations(ast.copy_location(ast.Tuple(parts, ast.Load()), at))


def rebind(names: list[str], new: ast.expr, bound: nf.Names, at: ast.AST) -> list[ast.stmt]:
    """`(a, b) = NEW`, followed by `del` of each name whose new value is `_ab_unbound`."""
    out: list[ast.stmt] = [ast.copy_location(ast.Assign([_names(names, at, ast.Store())], new), at)]
    for each in names:
        if each not in bound and not each.startswith(nf.TEMPORARY):
            out += statements("if NAME is _ab_unbound:\n    del NAME", at, NAME=each)
    return out


def _names(names: Sequence[str], at: ast.AST, ctx: ast.expr_context | None = None) -> ast.Tuple:
    """A tuple of names."""
    parts: list[ast.expr] = [name(each, at, ctx) for each in names]
    return ast.copy_location(ast.Tuple(parts, ctx or ast.Load()), at)


def _syntax(at: nf.Place) -> ast.AST:
    """Syntax at a place, for `quote`, whose templates take the place of what they replace."""
    return ast.Pass(lineno=at.line, col_offset=at.column, end_lineno=at.end_line, end_col_offset=at.end_column)


def _at(made: Any, node: nf.Node) -> Any:
    return ast.copy_location(made, _syntax(node.at))
