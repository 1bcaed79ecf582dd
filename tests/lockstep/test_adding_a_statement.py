"""A kind of statement is a pass, its place in the order, what lanes do, and that name: `match`, by way of example.

Lock-step leaves `match` to the next way. Here it gets what `docs/architecture.md` says that a statement needs, and no
more: a pass of `rewrite/`, a line in `PASSES`, a function of lanes, and its name in `NAMES`.
"""

import ast
import itertools
import types

import numpy as np
import pytest

import autobatch as ab
from autobatch.program.quote import expression, statements
from autobatch.rewrite import lockstep_forms
from tests.law import equals_loop


class Matches(ast.NodeTransformer):
    """Reads `match` over literals, `|` and `_`; leaves `if`, for the passes after it."""

    removes = "a match statement"

    def __init__(self, function):
        self.names = itertools.count()

    @staticmethod
    def remains(node):
        return isinstance(node, ast.Match)

    def visit_Match(self, node):
        self.generic_visit(node)
        subject = f"_ab_subject_{next(self.names)}"
        rest = []
        for case in reversed(node.cases):
            test = self.test(case.pattern, subject)
            rest = case.body if test is None else [ast.copy_location(ast.If(test, case.body, rest), node)]
        return statements("SUBJECT = VALUE\nREST", node, SUBJECT=subject, VALUE=node.subject, REST=rest)

    def test(self, pattern, subject):
        match pattern:
            case ast.MatchAs(pattern=None, name=None):
                return None
            case ast.MatchValue(value=value):
                return expression("_ab_matches(SUBJECT, VALUE)", pattern, SUBJECT=subject, VALUE=value)
            case ast.MatchOr(patterns=patterns):
                return ast.copy_location(ast.BoolOp(ast.Or(), [self.test(each, subject) for each in patterns]), pattern)


def matches(subject, value):
    """Whether a literal pattern matches, of each lane."""
    return subject == value


@pytest.fixture
def with_matches(monkeypatch):
    monkeypatch.setattr(lockstep_forms, "PASSES", [Matches, *lockstep_forms.PASSES])
    monkeypatch.delitem(lockstep_forms._REFUSED, ast.Match)
    monkeypatch.setitem(lockstep_forms._NAME_CELLS, "_ab_matches", types.CellType(matches))
    monkeypatch.setitem(lockstep_forms.NAMES, "_ab_matches", matches)


def program():
    def f(kind, x):
        out = x * 0
        for i in range(2):
            match int(kind) + i:
                case 0:
                    out = out + x
                case 1 | 2:
                    out = out - x.sum()
                    if i:
                        return out
                case _:
                    out = out * 2 + 1
        return out

    return f


KINDS = [np.int64(kind) for kind in (0, 1, 2, 3, 0)]
XS = [np.arange(float(n)) for n in (2, 0, 3, 1, 4)]


def test_match_goes_to_the_next_way():
    equals_loop(program(), KINDS, XS, falls_back=True)


def test_a_pass_and_a_function_of_lanes_are_all_that_a_statement_needs(with_matches):
    f = program()
    f.__code__ = f.__code__.replace(co_name="f")  # another code object than the one that was refused
    equals_loop(f, KINDS, XS)
    assert "_ab_matches" in ab.source(f, rewritten=True)
