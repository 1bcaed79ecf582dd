"""The rewritten form of try, with, match, generators and shared variables; their line numbers, and their cost."""

import ast
import pickle
import traceback

import numpy as np
import pytest

from autobatch import batch
from autobatch.rewrite.convert import convert, source
from tests.lockstep.test_rewrite import assert_rewriting_costs_little, body_of, written


def test_a_return_out_of_try_with_finally():
    def f(x):
        try:
            return x / 2
        finally:
            x = 0

    assert body_of(f) == written(
        """
        _ab_returns = _ab_function()
        _ab_errors = _ab_waiting()
        _ab_way_1 = 0
        _ab_try_1 = _ab_try((_ab_way_1,))
        for _ab_turn_1 in _ab_try_1:
            if _ab_try_1.changed:
                (_ab_way_1,) = _ab_try_1.values
            try:
                try:
                    _ab_returns.give(x / 2)
                    _ab_way_1 = 1
                    _ab_try_1.ran()
                except _ab_Exception:
                    _ab_try_1.caught()
                    raise
            except _ab_Aside:
                if _ab_try_1.again:
                    continue
                raise
            except _ab_Exception:
                _ab_way_1 = 4
                _ab_errors.keep(1)
            _ab_try_1.end((_ab_way_1,))
        if _ab_try_1.split:
            (_ab_way_1,) = _ab_try_1.join()
        x = 0
        _ab_if_2 = _ab_if(_ab_way_1 == 1, (), False, True)
        for _ab_arm_2 in _ab_if_2:
            if _ab_arm_2:
                continue
            _ab_if_2.end(())
        if _ab_if_2.nobody:
            return _ab_returns.result()
        if _ab_if_2.split:
            _ab_if_2.join()
        _ab_if_3 = _ab_if(_ab_way_1 == 4, (), False, False)
        for _ab_arm_3 in _ab_if_3:
            if _ab_arm_3:
                _ab_errors.throw(1)
            if _ab_if_3.split:
                _ab_if_3.end(())
        if _ab_if_3.split:
            _ab_if_3.join()
        _ab_returns.give(None)
        return _ab_returns.result()
        """
    )


def test_a_match():
    def f(x):
        match x:
            case 0:
                y = 1
            case [a, *_] if a > 0:
                y = a
        return y

    text = source(f)
    assert "_ab_if(_ab_eq(_ab_subject_1, 0), " in text
    assert (
        "_ab_and(_ab_is_sequence(_ab_subject_1), lambda: _ab_ge(_ab_call(_ab_len, _ab_subject_1), 1), "
        "lambda: _ab_bound(_ab_cell_a.set(_ab_getitem(_ab_subject_1, 0))), lambda: _ab_gt(_ab_cell_a.get(), 0))"
    ) in text


def test_a_variable_of_two_scopes():
    def f(n):
        def step():
            nonlocal n
            n += 1

        step()
        return n

    assert body_of(f) == written(
        """
        _ab_cell_n = _ab_cell(n)
        def step():
            pass
            _ab_new_n = _ab_cell_n.get()
            _ab_new_n = _ab_update('+', _ab_new_n, 1)
            _ab_cell_n.set(_ab_new_n)
        _ab_call(step)
        return _ab_cell_n.get()
        """
    )


def test_a_generator_expression():
    def f(xs):
        g = (x + 1 for x in xs)
        return g

    assert body_of(f) == written(
        """
        def _ab_generator_1(_ab_items):
            _ab_loop_1 = _ab_loop(_ab_items)
            for x in _ab_loop_1:
                yield (x + 1)
            _ab_loop_1.merge(())
        g = _ab_call(_ab_generator_1, xs)
        return g
        """
    )


def raises_in_try(x):
    try:
        y = x + 1
        return y.no_such_attribute
    finally:
        x = 0


def raises_in_with(x):
    with np.errstate(all="ignore"):
        y = x + 1
        return y.no_such_attribute


def raises_in_match(x):
    match x + 1:
        case y:
            return y.no_such_attribute


def raises_in_a_generator(x):
    def g():
        y = yield x
        return y.no_such_attribute

    return list(g())


def raises_in_a_closure(x):
    y = None

    def step():
        nonlocal y
        y = x + 1
        return y.no_such_attribute

    return step()


RAISING = [raises_in_try, raises_in_with, raises_in_match, raises_in_a_generator, raises_in_a_closure]


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
    assert pickle.loads(pickle.dumps(batch(raises_in_try).__wrapped__)) is raises_in_try


def test_rewriting_costs_little():
    block = """
    try:
        with M(x) as m:
            match x:
                case [a, *b] if a:
                    return (k := a) and k
                case {"k": v} | Pair(v):
                    total += sum(w for w in v)
        for y in gen(x):
            if y: break
    except KeyError as error:
        print(error)
    finally:
        step(total)
"""
    head = "def f(x, total):\n    def step(k):\n        nonlocal total\n        total += k\n"
    assert_rewriting_costs_little(head, block, at_most=400_000)
