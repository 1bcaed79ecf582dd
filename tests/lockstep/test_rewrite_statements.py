"""Line numbers of rewritten code, and its cost."""

import ast
import pickle
import traceback

import numpy as np
import pytest

from autobatch import batch
from autobatch.lockstep.lockstep_forms import convert, source
from tests.lockstep.test_rewrite import assert_rewriting_costs_little


def raises_in_a_branch(x):
    if len(x):
        y = x + 1
        return y.no_such_attribute


def raises_in_a_closure(x):
    def step():
        y = x + 1
        return y.no_such_attribute

    return step()


RAISING = [raises_in_a_branch, raises_in_a_closure]


@pytest.mark.parametrize("f", RAISING)
def test_tracebacks_show_the_users_lines(f):
    for g in (f, convert(f)):
        with pytest.raises(AttributeError, match="no_such_attribute") as caught:
            g(np.ones(2))
        frames = [frame for frame in traceback.extract_tb(caught.value.__traceback__) if frame.filename == __file__]
        assert frames[-1].line == "return y.no_such_attribute"
        assert all(frame.lineno >= f.__code__.co_firstlineno for frame in frames[1:])


@pytest.mark.parametrize("f", RAISING)
def test_every_line_of_the_rewritten_code_is_a_line_of_the_users(f):
    last = max(line for *_, line in f.__code__.co_lines() if line) + 4
    codes = [convert(f).__code__]
    while codes:
        code = codes.pop()
        codes += [const for const in code.co_consts if hasattr(const, "co_lines")]
        lines = {line for *_, line in code.co_lines() if line}
        assert lines <= set(range(f.__code__.co_firstlineno, last + 1))


@pytest.mark.parametrize("f", RAISING)
def test_the_source_can_be_read_and_compiled(f):
    text = source(f)
    ast.parse(text)
    assert text.startswith(f"def {f.__name__}(x):")
    assert max(map(len, text.splitlines())) < 200


def generated(x, n=2):
    """Yields."""
    for _ in range(n):
        try:
            x = x + 1
        finally:
            yield x


def test_identity_survives():
    f = batch(generated)
    assert f.__doc__ == "Yields."
    assert f.__name__ == "generated"
    assert [float(v) for v in f(1.0)] == [2.0, 3.0]
    assert pickle.loads(pickle.dumps(batch(raises_in_a_branch).__wrapped__)) is raises_in_a_branch


def test_rewriting_costs_little():
    block = """
    for m in M(x):
        if x[0] > 1 and len(m):
            return (k := a) and k
        elif x.kind in total:
            total += sum(w for w in v)
    for y in gen(x):
        if y: break
        total[y] = {"a": [y, *x]}
    step(total)
"""
    head = "def f(x, total):\n    def step(k):\n        return k * 2\n"
    assert_rewriting_costs_little(head, block, at_most=400_000)
