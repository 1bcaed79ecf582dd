"""`ab.testing.forms`: which execution modes have a form of a function, and why the others do not."""

import numpy as np
import pytest

import autobatch as ab
from autobatch.testing import forms
from tests.inspect import no_compiler

XS = [np.linspace(0.0, 1.0, n) for n in (3, 5, 4, 6)]
PARAMS = {"w": np.eye(2), "u": np.eye(2)}
STEPS = [np.full((n, 2), 0.1) for n in (3, 5, 4, 6)]


def recurrent(steps, params):
    h = np.zeros(2)
    for x in steps:
        h = np.tanh(x @ params["w"] + h @ params["u"])
    return h


def handles(x):
    try:
        return x.sum() / len(x)
    except ZeroDivisionError:
        return 0.0


def formats(x):
    return len(f"{x[0]:.3f}") * x.sum()


def formats_much(x):
    return f"{x[0]:.3f} and then a text that is so long that a reason cannot hold all of it {x[1]:.3f}"


def fails_for_the_long(x):
    if len(x) > 5:
        raise ValueError("too long")
    return x.sum()


def place(function, line):
    return f"test_forms.py:{function.__code__.co_firstlineno + line}: "


def test_a_form_in_every_mode():
    assert forms(recurrent, STEPS, params=PARAMS) == {"lockstep": "", "fly": "", "compiled": ""}


def test_a_decorated_function_is_the_function():
    assert forms(ab.batch(recurrent), STEPS, params=PARAMS) == forms(recurrent, STEPS, params=PARAMS)


@pytest.mark.parametrize(
    ("function", "mode", "line", "why"),
    [
        (handles, "lockstep", 1, "an exception that is handled"),
        (formats, "fly", 1, "a formatted string with a format or a conversion"),
        (formats, "compiled", 1, "a formatted string is not compiled"),
        (formats_much, "compiled", 1, "hold all of i…`: a formatted string is not compiled"),
    ],
)
def test_a_reason_begins_with_the_users_line(function, mode, line, why):
    reason = forms(function, XS)[mode]
    assert reason.startswith(place(function, line))
    assert why in reason


def test_an_error_of_the_users_is_no_lack_of_a_form():
    assert forms(fails_for_the_long, XS)["lockstep"] == ""


def test_what_is_no_function_of_the_users():
    found = forms(np.sum, XS)
    assert found["lockstep"] == ""
    assert "not a plain Python function" in found["fly"]
    assert "not a plain Python function" in found["compiled"]


def test_nothing_is_changed_and_nothing_is_compiled():
    def scales(x, log):
        x *= 2.0
        log.append(len(x))
        return x.sum()

    xs, log = [x.copy() for x in XS], []
    with no_compiler():
        forms(scales, xs, log=log)
    assert all(map(np.array_equal, xs, XS))
    assert log == []
