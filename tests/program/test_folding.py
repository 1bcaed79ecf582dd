"""Sugar that was lowered is folded again: what is written back does what the user's function does, and looks like it.

Found red by breaking once each: in `folding._Fold.taking`, values taken although the name is read twice; in `chosen`,
`and` for `or`, and a chain that loses its last operand.
"""

import ast
import copy
import types

import numpy as np
import pytest

from autobatch.errors import Unsupported
from autobatch.program import normal_form as nf
from autobatch.program.folding import folded
from autobatch.program.lowering import lowered
from autobatch.program.python_text import Writer
from autobatch.program.source import compiled, normal_form
from tests.law import assert_same
from tests.test_programs import PROGRAMS

UNCHANGED = """
def f(a, b, xs, d, self, *rest, k=None):
    '''What it does.'''
    y = g(a, b if g(a) else d)[k] < 2 < k
    while 0 < a[1] < b and y:
        a = a + 1
    pairs = [(x, z) for x in xs for z in x if x > 3]
    t = np.concatenate([g(p @ w + b) for p in xs] + [q]) + sum((g(m) for m in xs))
    counts = {i: v + 1 for i, v in d.items()}
    e = {g(n) for n in xs}
    table = [[r * c for c in a] for r in b]
    h = a or b or (c0 and d)
    if a and b or h:
        assert a > 3, f'k {a!r} {b:>{h}}'
    self.x[k + 1] += t
    q = sorted(xs, key=lambda u: u[0] and u[1])
    with g(a) as o, g(b):
        del o[k]
    try:
        r1, (r2, *r3) = g(*rest, *(a if b else h), k=[s for s in xs])
    except ValueError as error:
        raise TypeError(not (a if b else h)) from error
    return (-1, t[1:, ::2], {'a': 1, **d}, yielded(q, key=1, **d))
"""
NESTED_WITH = """    with g(a) as o:
        with g(b):
"""


def test_what_was_lowered_is_folded_to_what_was_written():
    (tree,) = ast.parse(UNCHANGED).body
    made = ast.unparse(Writer().definition(folded(lowered(tree))))
    wanted = (
        UNCHANGED.strip()
        .replace("    with g(a) as o, g(b):\n", NESTED_WITH)
        .replace("        del o", "            del o")
    )
    assert made.replace('"""', "'''") == wanted


NAMES = {f"_ab_{each.__name__}": each for each in nf.PARTS}


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_programs_written_back_do_the_same(name):
    program = PROGRAMS[name]
    function = getattr(program.f, "__wrapped__", program.f)
    try:
        form = normal_form(function)
    except (Unsupported, AttributeError):
        pytest.skip("no function with source")
    for each in (form, folded(form)):
        code = compiled(Writer().definition(each), function.__code__, [])
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        again = types.FunctionType(
            code, function.__globals__ | NAMES, None, function.__defaults__, tuple(map(cells.get, code.co_freevars))
        )
        again.__kwdefaults__ = function.__kwdefaults__
        for row in list(zip(*program.examples, strict=True))[:3]:
            with np.errstate(all="ignore"):
                got, wanted = [_outcome(f, copy.deepcopy(row), program.shared) for f in (again, function)]
            assert_same([got], [wanted])


def _outcome(function, row, shared):
    try:
        return function(*row, **copy.deepcopy(shared))
    except Exception as error:
        return repr(error)
