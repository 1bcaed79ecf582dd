"""A kind of statement is a method of the writer of lock-step code and what lanes do: `del x[key]`, by way of example.

Lock-step leaves `del d[key]` to the next way. Here it gets what `docs/architecture.md` says that a statement needs, and
no more: a method of `LockStepWriter`, a function of lanes, and its name in `NAMES`.
"""

import ast
import types

import numpy as np
import pytest

import autobatch as ab
from autobatch.lockstep import lockstep_forms
from autobatch.lockstep.emitter import LockStepWriter
from tests.law import equals_loop

_write = LockStepWriter.write


def write(self, node):
    """`del x[key]` calls a function of lanes; any other write is as it was."""
    if node.value is not None or isinstance(node.key, str):
        return _write(self, node)
    called = ast.Call(ast.Name("_ab_delete", ast.Load()), [self.value(node.base), self.value(node.key)], [])
    return [ast.fix_missing_locations(self.placed(ast.Expr(called), node))]


def delete(holder, key):
    """`del holder[key]` of a dict that all lanes share."""
    del holder[key]


@pytest.fixture
def with_delete(monkeypatch):
    monkeypatch.setattr(LockStepWriter, "write", write)
    monkeypatch.setitem(lockstep_forms._NAME_CELLS, "_ab_delete", types.CellType(delete))
    monkeypatch.setitem(lockstep_forms.NAMES, "_ab_delete", delete)


def program():
    def f(kind, x):
        parts = {"double": x * 2, "own": x}
        out = parts["double"] if kind > 1 else parts["own"]
        del parts["double"]
        for part in parts.values():
            out = out + part * kind
        return out

    return f


KINDS = [np.int64(kind) for kind in (0, 1, 2, 3, 0)]
XS = [np.arange(float(n)) for n in (2, 0, 3, 1, 4)]


def test_del_goes_to_the_next_way():
    equals_loop(program(), KINDS, XS, falls_back=True)


def test_a_method_and_a_function_of_lanes_are_all_that_a_statement_needs(with_delete):
    f = program()
    f.__code__ = f.__code__.replace(co_name="f")  # another code object than the one that was refused
    equals_loop(f, KINDS, XS)
    assert "_ab_delete" in ab.source(f, rewritten=True)
