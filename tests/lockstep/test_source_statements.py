"""A function's tree is read from the statement that it stands in, and is that of the whole file."""

import ast
import importlib.util
import textwrap

import pytest

from autobatch.syntax import source

TEXT = '''
    """A module whose text has lines that look like
    import of_nothing
    code."""

    import math as m
    import os.path, sys
    from functools import (
        cache,
        wraps,
    )


    def same(f):
        return f


    def plain(x):
        return m.sqrt(x) + len(sys.argv) * 0


    @same
    # between
    @same
    def decorated(x):
        return m.floor(x)


    def with_a_text(x):
        text = """
    at the left
    """
        return m.floor(x) + len(text)


    class Model:
        @same
        def method(self, x):
            return m.exp(x) * self.__scale()

        def __scale(self):
            return 1.0


    first, second = lambda x: m.sin(x), lambda x: m.cos(x)

    if sys:
        def under_if(x):
            return m.tan(x)
    else:
        def never(x):
            return x

    try:
        import json as j
    except ImportError:
        pass


    def of_an_import_that_is_tried(x):
        return j.dumps(x)


    def outer(x):
        def inner(y):
            return m.sqrt(y) + x
        return inner


    def last(x): return x
'''


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    path = tmp_path_factory.mktemp("written") / "statements.py"
    path.write_text(textwrap.dedent(TEXT).lstrip("\n"))
    spec = importlib.util.spec_from_file_location("statements", path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


FUNCTIONS = {
    "plain": lambda module: module.plain,
    "decorated": lambda module: module.decorated,
    "a text at the left": lambda module: module.with_a_text,
    "method": lambda module: module.Model.method,
    "private": lambda module: module.Model._Model__scale,
    "lambda": lambda module: module.first,
    "second lambda of the line": lambda module: module.second,
    "under if": lambda module: module.under_if,
    "an import that is tried": lambda module: module.of_an_import_that_is_tried,
    "inner": lambda module: module.outer(1.0),
    "last": lambda module: module.last,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_tree_is_that_of_the_whole_file(module, name):
    function = FUNCTIONS[name](module)
    with open(module.__file__) as file:
        node, owner = source._found_in(file.read(), function.__code__)
    found, of = source.find(function)
    assert ast.dump(found, include_attributes=True) == ast.dump(node, include_attributes=True)
    assert of == owner


@pytest.mark.parametrize("name", ["plain", "decorated", "method", "second lambda of the line", "inner", "last"])
def test_only_the_statement_is_read(module, name, monkeypatch):
    read = []
    monkeypatch.setattr(source, "_functions", lambda text, real=source._functions: read.append(text) or real(text))
    source.find(FUNCTIONS[name](module))
    (text,) = read
    assert "never" not in text


def test_no_lines_have_no_tree():
    assert source._find_in([], (lambda: 0).__code__) is None
