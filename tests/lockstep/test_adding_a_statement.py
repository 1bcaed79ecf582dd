"""A kind of statement is a method of the writer of lock-step code and what lanes do: `match`, by way of example.

Lock-step leaves `match` to the next way. Here it gets what `docs/architecture.md` says that a statement needs, and no
more: a method of `LockStepWriter`, a function of lanes, and its name in `NAMES`.
"""

import ast
import types

import numpy as np
import pytest

import autobatch as ab
from autobatch.lockstep import lockstep_forms
from autobatch.lockstep.emitter import LockStepWriter
from autobatch.program.normal_form import Bind, Branch, Call, Constant, Name, Sugar
from tests.law import equals_loop


def match(self, node):
    """`match` over literals, `|` and `_`, as branches."""
    subject = f"_ab_subject_{next(self.numbers)}"
    rest = []
    known = {each: getattr(node, each) for each in ("live_head", "live_out", "bound", "bound_end")}
    for case in reversed(node.cases):
        found = test(case.pattern, Name(node.at, subject))
        rest = case.body if found is None else [Branch(node.at, found, case.body, rest, **known)]
    return [line for each in (Bind(node.at, subject, node.subject), *rest) for line in self.statement(each)]


def test(pattern, subject):
    match pattern:
        case ast.MatchAs(pattern=None, name=None):
            return None
        case ast.MatchValue(value=ast.Constant(value=value)):
            return Call(subject.at, Name(subject.at, "_ab_matches"), [subject, Constant(subject.at, value)])
        case ast.MatchOr(patterns=patterns):
            return Sugar(subject.at, "or", [test(each, subject) for each in patterns])


test.__test__ = False


def matches(subject, value):
    """Whether a literal pattern matches, of each lane."""
    return subject == value


@pytest.fixture
def with_matches(monkeypatch):
    monkeypatch.setattr(LockStepWriter, "match", match)
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


def test_a_method_and_a_function_of_lanes_are_all_that_a_statement_needs(with_matches):
    f = program()
    f.__code__ = f.__code__.replace(co_name="f")  # another code object than the one that was refused
    equals_loop(f, KINDS, XS)
    assert "_ab_matches" in ab.source(f, rewritten=True)
