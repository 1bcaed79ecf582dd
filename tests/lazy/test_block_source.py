"""`ab.source(f, blocks=True)`: the code with its recorders, and tracebacks that still show the user's lines."""

import traceback

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import UnsupportedError
from tests.law import normal, vectors


def cell(x, w, b):
    """One step."""
    i, o = np.split(x @ w + b, 2)
    c = np.tanh(i) * o
    print(c.shape)
    return np.tanh(c) + o, c


def identity(x):
    return x


EXPECTED = """
def cell(x, w, b):
    '''One step.'''
    _ab_1 = _ab_record1(x, w, b)
    if _ab_1 is None:
        _ab_2 = _ab_record2(x, w, b)
        if _ab_2 is None:
            i, o = _ab_listed(np.split)(x @ w + b, 2)
        else:
            i, o = _ab_2
        _ab_3 = _ab_record3(i, o)
        if _ab_3 is None:
            c = _ab_listed(np.tanh)(i) * o
        else:
            c = _ab_3
    else:
        o, c = _ab_1
    print(c.shape)
    _ab_5 = _ab_record4(c, o)
    if _ab_5 is None:
        return (_ab_6 if (_ab_6 := _ab_record5(c, o)) is not None else _ab_listed(np.tanh)(c) + o, c)
    else:
        _ab_4 = _ab_5
        return (_ab_4, c)
"""


def without_numbers(text):
    """Temporaries count on through what was tried, so that only their order says something."""
    names: dict[str, str] = {}
    out = []
    for word in text.replace("(", " ( ").replace(")", " ) ").replace(",", " , ").split():
        if word.startswith("_ab_"):
            kind = word.rstrip("0123456789")
            word = names.setdefault(word, f"{kind}#{len(names)}")
        out.append(word)
    return " ".join(out)


def test_a_function_with_its_recorders():
    assert without_numbers(ab.source(cell, blocks=True)) == without_numbers(EXPECTED.replace("'''", '"""'))


def test_a_function_with_nothing_to_record_is_shown_as_it_is():
    assert ab.source(ab.batch(identity), blocks=True) == "def identity(x):\n    return x"


def test_what_has_no_source():
    with pytest.raises(UnsupportedError, match="not a function written in Python"):
        ab.source(np.tanh, blocks=True)
    with pytest.raises(UnsupportedError, match="has no source"):
        ab.source(eval("lambda x: x * 2 + 1"), blocks=True)


def failing(x, w):
    y = np.tanh(x @ w) + 1
    z = y * 2 + np.ones(3)
    return z - y


def test_a_traceback_shows_the_line_that_failed():
    with pytest.raises(ValueError, match="broadcast") as caught:
        ab.map(failing, vectors(2, 4), w=normal(4, 4))
    lines = [frame.line for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "z = y * 2 + np.ones(3)" in lines
    assert caught.value.__notes__ == ["raised for example 0"]


def test_a_traceback_that_the_example_looks_at():
    """What is inside of the library differs, the user's own frames do not."""

    def frames(x, w):
        try:
            return failing(x, w)
        except ValueError as error:
            found = traceback.extract_tb(error.__traceback__)
            return [(frame.name, frame.lineno) for frame in found if frame.filename == __file__]

    xs = vectors(2, 4)
    expected = [frames(x, normal(4, 4)) for x in xs]
    assert ab.map(frames, xs, w=normal(4, 4)) == expected
