"""The normal form as text for people: a program's steps, with what is live after each."""

import ast
from collections.abc import Iterable, Iterator, Sequence

from autobatch.program import normal_form as nf
from autobatch.program.liveness import binds
from autobatch.program.python_text import Writer, text, text_of


def printed(function: nf.Closure) -> str:
    """A function's normal form, a statement a line, each with the names that may be read after it.

    The first line of a branch or loop says what may be read when an arm or a step begins. What stands under `before
    each test` runs before each test of the `while` above it.

    >>> from autobatch.program.liveness import annotate
    >>> from autobatch.program.lowering import lowered
    >>> function = lowered(ast.parse("def f(xs, w): return [x * w if x else w for x in xs]").body[0])
    >>> annotate(function)
    >>> print(printed(function))
    def f(xs, w):
        _ab_1 = []                                              # _ab_1, w, xs
        for x in xs:                                            # _ab_1, w
            if x:                                               # _ab_1, w, x
                _ab_2 = x * w                                   # _ab_1, _ab_2, w
            else:
                _ab_2 = w                                       # _ab_1, _ab_2, w
            _ab_1.append(_ab_2)                                 # _ab_1, w
        return _ab_1
    """
    return "\n".join(_Printer(nf.Names()).function(function, function.name, 0))


class _Printer:
    """Prints one function. `known`: the names of the functions around it."""

    def __init__(self, known: nf.Names) -> None:
        self.known = known

    def function(self, function: nf.Closure, name: str, depth: int) -> Iterator[str]:
        parameters = ast.unparse(Writer().arguments(function.parameters, function))
        self.known |= {*function.parameters.names, *binds(function.body)}
        yield self.line(depth, f"def {name}({parameters}):")
        for words, names in (("global", function.shared), ("nonlocal", function.outer)):
            if names:
                yield self.line(depth + 1, f"{words} {', '.join(sorted(names))}")
        yield from self.body(function.body, depth + 1)

    def body(self, body: Sequence[nf.Statement], depth: int) -> Iterator[str]:
        if not body:
            yield self.line(depth, "pass")
        for node in body:
            yield from self.statement(node, depth)

    def arm(self, words: str, body: Sequence[nf.Statement], depth: int) -> Iterator[str]:
        """A part of a statement that may be left out."""
        if body:
            yield self.line(depth, words)
            yield from self.body(body, depth + 1)

    def statement(self, node: nf.Statement, depth: int) -> Iterator[str]:
        match node:
            case nf.Bind(target=str() as name, value=nf.Closure() as function):
                yield from _Printer(self.known).function(function, name, depth)
            case nf.Branch():
                yield self.line(depth, f"if {text(node.test)}:", node.live_head)
                yield from self.body(node.body, depth + 1)
                yield from self.arm("else:", node.orelse, depth)
            case nf.Loop(target=None):
                yield self.line(depth, f"while {text(node.over)}:", node.live_head)
                yield from self.arm("before each test:", node.head, depth + 1)
                yield from self.body(node.body, depth + 1)
                yield from self.arm("else:", node.orelse, depth)
            case nf.Loop(target=target):
                assert target is not None
                names = ast.unparse(Writer().target(target, node))
                yield self.line(depth, f"for {names} in {text(node.over)}:", node.live_head)
                yield from self.body(node.body, depth + 1)
                yield from self.arm("else:", node.orelse, depth)
            case nf.With():
                taken = "" if node.target is None else f" as {ast.unparse(Writer().target(node.target, node))}"
                yield self.line(depth, f"with {text(node.manager)}{taken}:")
                yield from self.body(node.body, depth + 1)
            case nf.Try():
                yield from self.arm("try:", node.body, depth)
                for each in node.handlers:
                    kinds = "" if each.types is None else f" {text(each.types)}"
                    yield from self.arm(f"except{kinds}{f' as {each.name}' if each.name else ''}:", each.body, depth)
                yield from self.arm("else:", node.orelse, depth)
                yield from self.arm("finally:", node.final, depth)
            case nf.Match():
                yield self.line(depth, f"match {text(node.subject)}:")
                for case in node.cases:
                    guard = "" if case.guard is None else f" if {text(case.guard)}"
                    yield from self.arm(f"case {ast.unparse(case.pattern)}{guard}:", case.body, depth + 1)
            case _:
                first, *rest = text_of(node).splitlines()
                yield self.line(depth, first, node.live_after)
                yield from [self.line(depth, each) for each in rest]

    def line(self, depth: int, words: str, live: Iterable[str] = ()) -> str:
        words = "    " * depth + words
        names = ", ".join(sorted(self.known.intersection(live)))
        return f"{words:<58}  # {names}" if names else words
