"""The rewritten code: its form, its line numbers, and that every pass removes what it says."""

import ast
import linecache
import textwrap
import traceback

import numpy as np
import pytest

import autobatch as ab
from autobatch import batch, examples
from autobatch.errors import UnsupportedError
from autobatch.lockstep.lockstep_forms import convert, source
from autobatch.program.liveness import annotate
from autobatch.program.lowering import lowered
from autobatch.program.normal_form import Loop, walk
from autobatch.program.quote import expression, statements
from autobatch.program.source import normal_form
from tests.inspect import python_calls
from tests.law import batch_of, equals_loop, ragged


def body_of(f):
    return ast.dump(ast.Module(ast.parse(source(f)).body[0].body, []))


WORDS = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.MatMult: "matmul", ast.USub: "neg",
    ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne",
}  # fmt: skip


class Operators(ast.NodeTransformer):
    """Writes operators, and reads of attributes, as the calls that lock-step code makes."""

    def visit_BinOp(self, node):
        self.generic_visit(node)
        return expression(f"_ab_{WORDS[type(node.op)]}(A, B)", node, A=node.left, B=node.right)

    def visit_Compare(self, node):
        self.generic_visit(node)
        if type(node.ops[0]) not in WORDS:
            return node
        return expression(f"_ab_{WORDS[type(node.ops[0])]}(A, B)", node, A=node.left, B=node.comparators[0])

    def visit_UnaryOp(self, node):
        self.generic_visit(node)
        return expression(f"_ab_{WORDS[type(node.op)]}(A)", node, A=node.operand)

    def visit_Attribute(self, node):
        self.generic_visit(node)
        base = node.value
        if isinstance(base, ast.Attribute) or getattr(getattr(base, "func", None), "id", "") == "_ab_locals":
            return node
        if isinstance(base, ast.Name) and (base.id in ("np", "ab") or base.id.startswith("_ab_")):
            return node
        return expression("_ab_getattr(X, NAME)", node, X=base, NAME=ast.Constant(node.attr))


def written(text):
    """Rewritten code as it is printed, but for the operators, which are written as such to be read."""
    tree = ast.parse(textwrap.dedent(text))
    return ast.dump(ast.Module([Operators().visit(statement) for statement in tree.body], []))


def test_operators_and_attributes():
    def f(x, model):
        return {0: -x * 2 + model.w @ x < 3 * 4}[0]

    value = "_ab_lt(_ab_add(_ab_mul(_ab_neg(x), 2), _ab_matmul(_ab_getattr(model, 'w'), x)), 3 * 4)"
    assert body_of(f) == ast.dump(ast.parse(f"return _ab_getitem(_ab_made({{0: {value}}}), 0)"))


def test_a_loop():
    def f(xs, w):
        h = np.zeros(3)
        for x in xs:
            h = np.tanh(h @ w + x)
        return h

    assert body_of(f) == written(
        """
        h = _ab_call(np.zeros, 3)
        _ab_loop_1 = _ab_loop(xs)
        for x in _ab_loop_1:
            if _ab_loop_1.has_shrunk:
                (h,) = _ab_loop_1.narrow((h,), ())
            _ab_out_1 = _ab_block_1(h, w, x)
            if _ab_out_1:
                (h,) = _ab_out_1
                _ab_out_1 = None
            else:
                h = _ab_call(np.tanh, h @ w + x)
            _ab_out_1 = _ab_scan_1(_ab_loop_1, (h,), (h, w, x), (), (x,), ())
            if _ab_out_1:
                (h,) = _ab_out_1
        (h,) = _ab_loop_1.merge((h,))
        return h
        """
    )


def test_only_what_is_read_later_is_merged():
    def f(xs):
        a = b = c = 0
        for x in xs:
            t = x + a
            a = t + b
            b = a
            c = t
        return c

    assert body_of(f) == written(
        """
        a = 0
        b = 0
        c = 0
        _ab_loop_1 = _ab_loop(xs)
        for x in _ab_loop_1:
            if _ab_loop_1.has_shrunk:
                (c, a, b) = _ab_loop_1.narrow((c,), (a, b))
            _ab_out_1 = _ab_block_1(x, a, b)
            if _ab_out_1:
                (t, a) = _ab_out_1
                _ab_out_1 = None
            else:
                t = x + a
                a = t + b
            b = a
            c = t
        (c,) = _ab_loop_1.merge((c,))
        return c
        """
    )


def test_a_branch():
    def f(x):
        if x > 0:  # noqa: SIM108
            y = x
        else:
            y = -x
        return y

    assert body_of(f) == written(
        """
        _ab_if_1 = _ab_if(x > 0, (_ab_locals().get('y', _ab_unbound),), True, False)
        for _ab_arm_1 in _ab_if_1:
            if _ab_if_1.changed:
                (y,) = _ab_if_1.values
                if y is _ab_unbound:
                    del y
            if _ab_arm_1:
                y = x
            else:
                y = -x
            if _ab_if_1.split:
                _ab_if_1.end((y,))
        if _ab_if_1.split:
            (y,) = _ab_if_1.join()
        return y
        """
    )


def test_a_loop_that_lanes_leave_by_return():
    def f(xs):
        for x in xs:
            if x is None:
                return x
        else:
            return 0

    assert body_of(f) == written(
        """
        _ab_returns = _ab_function()
        _ab_loop_1 = _ab_for(xs, False, ())
        for x in _ab_loop_1:
            _ab_if_2 = _ab_if(_ab_is(x, None), (), False, True)
            for _ab_arm_2 in _ab_if_2:
                if _ab_arm_2:
                    _ab_returns.give(x)
                    continue
                _ab_if_2.end(())
            if _ab_if_2.is_empty:
                continue
            if _ab_if_2.split:
                _ab_if_2.join()
            _ab_loop_1.next(())
        for _ab_values_1 in _ab_loop_1.otherwise():
            _ab_returns.give(0)
            continue
            _ab_loop_1.leave(())
        _ab_loop_1.after()
        if _ab_loop_1.is_empty:
            return _ab_returns.result()
        _ab_returns.give(None)
        return _ab_returns.result()
        """
    )


def test_a_while_with_break_and_continue():
    def f(n):
        while n > 0:
            n = n - 1
            if n == 3:
                continue
            if n == 2:
                break
        return n

    text = source(f)
    for line in (
        "_ab_loop_1 = _ab_while((n,))",
        "if _ab_loop_1.stops(_ab_gt(n, 0), (n,)):",
        "_ab_loop_1.next((n,))",
        "_ab_loop_1.leave((n,))",
        "n, = _ab_loop_1.after()",
    ):
        assert line in text


def test_choices():
    def f(a, b, c):
        return a if b else c, a and b or c, not a, a < b <= c  # noqa: RUF021

    assert body_of(f) == written(
        """
        return (_ab_choose(b, lambda: a, lambda: c), _ab_or(_ab_and(a, lambda: b), lambda: c), _ab_not(a),
                _ab_chain(a, (_ab_lt, _ab_le), lambda: b, lambda: c))
        """
    )


def test_an_operand_that_binds_a_name_is_evaluated_as_it_stands():
    def f(n):
        return n > 0 and (half := n / 2) > 1, n < 0 or half

    out = examples(batch(f)(batch_of([4, 1, 3])))
    assert out == [f(4), f(1), f(3)]


def test_the_normal_form_stays_as_it_is():
    def f(xs, w, *, c=0):
        found = [np.tanh(x @ w) for x in xs if c < x[0] < 1]
        for x in xs:
            found.append(x @ w + 1)
            step = lambda k: k * c if k else 0 * k
            w[0] += step(x)[0] or c
        return found, {"a": found and sum(x for x in xs)}

    before = repr(normal_form(f))
    source(f)
    ab.source(f, blocks=True)
    assert repr(normal_form(f)) == before


class Doubled:
    def step(self, x):
        return x * 2


class Halved(Doubled):
    def step(self, x):
        return super().step(x) if x.sum() > 0 else x / 2


def test_super_in_an_operand_is_evaluated_as_it_stands():
    equals_loop(Halved().step, [np.array([1.0, -3.0]), np.array([2.0]), np.array([])])


def test_comprehensions_with_a_name_for_a_part_of_an_item():
    def f(xs):
        last = 0.0
        found = [last := y for x in xs if (y := x * 2) > 1]
        return sum(found), last

    equals_loop(f, [np.array(each) for each in ([1.0, 0.1], [0.2], [3.0, 2.0, -1.0])])


def test_stores_reads_and_displays():
    def f(x, i):
        out = [x[i], x[1:, ::2]]
        out[0] = {"a": x}
        out[0]["b"] += 1
        x.name, out[1] = 1, 2
        del out[0]
        return out

    assert body_of(f) == written(
        """
        out = _ab_made([_ab_getitem(x, i), _ab_getitem(x, (_ab_slice(1, None, None), _ab_slice(None, None, 2)))])
        _ab_setitem(_ab_made({'a': x}), out, 0)
        _ab_1 = _ab_getitem(out, 0)
        _ab_setitem(_ab_update('+', _ab_getitem(_ab_1, 'b'), 1), _ab_1, 'b')
        (_ab_2, _ab_3) = (1, 2)
        _ab_setattr(_ab_2, x, 'name')
        _ab_setitem(_ab_3, out, 1)
        _ab_refuse('del of an item or attribute')
        return out
        """
    )


def test_comprehensions():
    def f(xs):
        return [a * b for a, b in xs if a], sum(x for x in xs), any(x > 1 for x in xs)

    assert body_of(f) == written(
        """
        _ab_1 = _ab_made([])
        _ab_loop_1 = _ab_loop(xs)
        for (a, b) in _ab_loop_1:
            _ab_if_2 = _ab_if(a, (), False, False)
            for _ab_arm_2 in _ab_if_2:
                if _ab_arm_2:
                    _ab_call(_ab_getattr(_ab_1, 'append'), _ab_mul(a, b))
                if _ab_if_2.split:
                    _ab_if_2.end(())
            if _ab_if_2.split:
                _ab_if_2.join()
        _ab_loop_1.merge(())
        def _ab_items_1(_ab_2_items):
            _ab_given = _ab_made([])
            _ab_loop_3 = _ab_loop(_ab_2_items)
            for x in _ab_loop_3:
                _ab_call(_ab_getattr(_ab_given, 'append'), x)
            _ab_loop_3.merge(())
            return _ab_given
        def _ab_items_2(_ab_4_items):
            _ab_returns = _ab_function()
            _ab_loop_4 = _ab_for(_ab_4_items, False, ())
            for x in _ab_loop_4:
                _ab_if_5 = _ab_if(_ab_gt(x, 1), (), False, True)
                for _ab_arm_5 in _ab_if_5:
                    if _ab_arm_5:
                        _ab_returns.give(True)
                        continue
                    _ab_if_5.end(())
                if _ab_if_5.is_empty:
                    continue
                if _ab_if_5.split:
                    _ab_if_5.join()
                _ab_loop_4.next(())
            _ab_loop_4.after()
            if _ab_loop_4.is_empty:
                return _ab_returns.result()
            _ab_returns.give(False)
            return _ab_returns.result()
        return (_ab_1, _ab_call(sum, _ab_call(_ab_items_1, xs)), _ab_call(_ab_call(_ab_until, any, _ab_items_2), xs))
        """
    )


def test_tracebacks_show_the_users_lines():
    def f(x):
        y = x + 1
        return y.no_such_attribute

    ours = convert(f)
    with pytest.raises(AttributeError, match="no_such_attribute") as caught:
        ours(np.ones(2))
    frame = [each for each in traceback.extract_tb(caught.value.__traceback__) if each.filename == __file__][-1]
    assert frame.filename == __file__
    assert frame.line == "return y.no_such_attribute"
    assert frame.lineno == f.__code__.co_firstlineno + 2
    assert ours.__code__.co_qualname == f.__code__.co_qualname


def test_rewritten_code_on_plain_values_is_the_function():
    rng = np.random.default_rng(0)

    def f(xs, n):
        out, table = [], {}
        for i, x in enumerate(xs):
            if i == n:
                break
            out.append(x[0])
            table[i] = x[1:]
            out[-1] += 1
        else:
            out += [-1.0]
        return out, {k: v.sum() for k, v in table.items()}, [a for a, *_ in xs]

    for n in (0, 2, 9):
        xs = rng.normal(size=(4, 3))
        np.testing.assert_equal(convert(f)(xs, n), f(xs, n))


def test_no_source_for_a_library_function():
    with pytest.raises(UnsupportedError, match="belongs to a library"):
        source(textwrap.dedent)


def assert_rewriting_costs_little(head, block, *, at_most):
    """Decorating reads no source, and rewriting costs a number of Python calls that grows as the source does."""

    def costs(times):
        text, filename = head + block * times, f"<{times} blocks>"
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        namespace = {}
        exec(compile(text, filename, "exec"), namespace)
        assert python_calls(lambda: batch(namespace["f"])) < 20
        return python_calls(lambda: convert(namespace["f"]))

    few, many = costs(2), costs(6)
    assert few < 2 * at_most
    assert many < 3.2 * few


def test_decorating_costs_nothing_and_rewriting_little():
    assert_rewriting_costs_little("def f(x):\n", "    x = x[0:2] + sum([a for a in x])\n", at_most=15_000)


def test_liveness_of_a_name_that_a_later_iteration_reads():
    (tree,) = ast.parse(
        "def f(xs):\n    a = 0\n    while p():\n        for x in xs:\n            b = x + a\n        a = b"
    ).body
    function = lowered(tree)
    annotate(function)
    (loop,) = [node for node in walk(function.body) if isinstance(node, Loop) and node.target]
    assert "b" in loop.live_out
    assert "x" not in loop.live_out
    assert loop.bound == {"xs", "a"}


def test_templates_take_the_place_of_what_they_replace():
    (at,) = ast.parse("\n\nx = 1").body
    (out,) = statements("A = F(B)", at, A="y", F="g", B=ast.Constant(2))
    assert ast.unparse(out) == "y = g(2)"
    assert {node.lineno for node in ast.walk(out) if isinstance(node, ast.stmt | ast.Name)} == {3}


def test_a_name_read_by_a_nested_function_is_carried():
    def f(xs):
        h = np.zeros(2)
        step = lambda x: h + x
        for x in xs:
            h = step(x) * 0.5
        return step(np.ones(2))

    equals_loop(f, ragged(3, 1, 0, 4, width=2))
    assert "merge((h,))" in source(f)
