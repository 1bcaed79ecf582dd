"""A function's tree is read from the statement that it stands in, and is that of the whole file."""

import ast
import importlib.util
import linecache
import textwrap

import pytest

from autobatch.errors import Unsupported
from autobatch.program import source
from autobatch.program.bounded_caches import CodeCache

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
        expected = source._found_in(file.read(), function.__code__)
    found = source.find(function)
    assert ast.dump(found.node, include_attributes=True) == ast.dump(expected.node, include_attributes=True)
    assert found.owner == expected.owner


@pytest.mark.parametrize("name", ["plain", "decorated", "method", "second lambda of the line", "inner", "last"])
def test_only_the_statement_is_read(module, name, monkeypatch):
    monkeypatch.setattr(source, "_found", CodeCache())
    read = []
    monkeypatch.setattr(source, "_functions", lambda text, real=source._functions: read.append(text) or real(text))
    source.find(FUNCTIONS[name](module))
    (text,) = read
    assert "never" not in text


def by_statement(text, filename):
    """What a cell defines, run as IPython does it: the imports are not in the unit of the functions."""
    names = {}
    linecache.cache[filename] = len(text), None, text.splitlines(keepends=True), filename
    for statement in ast.parse(text).body:
        exec(compile(ast.Module([statement], []), filename, "exec", dont_inherit=True), names)
    return names


CELL = """
import math, math as m, json
from os import path; import sys; joined = lambda x: sys.intern(x)
def plain(x):
    return m.sqrt(x) + math.sin(x)
def same(f):
    return f
@same
# between
@same
def decorated(x): return math.floor(x)
class Model:
    @same
    def method(self, x):
        return math.exp(x) * self.__scale()
    def __scale(self):
        return math.e
first, second = lambda x: math.sin(x), lambda x: math.sin(x) + 1
if m:
    def under_if(x):
        return json.dumps(x)
def outer(x):
    def inner(y):
        import sys
        return m.sqrt(y) + x + sys.getsizeof(y)
    return inner
try: import json as j
except ImportError: pass
def of_an_import_that_is_tried(x): return j.dumps(x)
async def coroutine(x): return m.sqrt(x)
"""
OF_A_CELL = {
    "joined": lambda names: names["joined"],
    "plain": lambda names: names["plain"],
    "decorated": lambda names: names["decorated"],
    "method": lambda names: names["Model"].method,
    "private": lambda names: names["Model"]._Model__scale,
    "lambda": lambda names: names["first"],
    "second lambda of the line": lambda names: names["second"],
    "under if": lambda names: names["under_if"],
    "inner": lambda names: names["outer"](1.0),
    "an import that is tried": lambda names: names["of_an_import_that_is_tried"],
    "coroutine": lambda names: names["coroutine"],
}


@pytest.mark.parametrize("name", OF_A_CELL)
def test_a_cell_that_is_compiled_statement_by_statement(name):
    """CPython compiles `m.sqrt(x)` differently if the same compilation imports `m`."""
    alone = OF_A_CELL[name](by_statement(CELL, "<by statement>"))
    whole = {}
    exec(compile(CELL, "<by statement>", "exec"), whole)
    found, expected = source.find(alone), source.find(OF_A_CELL[name](whole))
    assert ast.dump(found.node, include_attributes=True) == ast.dump(expected.node, include_attributes=True)
    assert found.owner == expected.owner


def test_a_changed_cell_is_not_taken_for_the_code_that_runs():
    older = by_statement(CELL, "<edited>")["plain"]
    by_statement(CELL.replace("math.sin(x)", "math.cos(x)"), "<edited>")
    with pytest.raises(Unsupported, match="the source of plain in <edited> changed since it was imported"):
        source.find(older)


def test_the_cells_of_a_marimo_script():
    """The block of a function is compiled at the left, in its place in the file; functions of the top without their
    decorator."""
    text = """
        @app.cell
        def _(
            helper,
        ):
            import math

            @helper
            def f(x):
                return math.sqrt(x) + helper(x)
            f(1.0)
            return

        @app.function
        def alone(x):
            return math.sqrt(x)
    """
    text = textwrap.dedent(text)
    lines = text.splitlines(keepends=True)
    linecache.cache["<marimo>"] = len(text), None, lines, "<marimo>"
    names = {"helper": lambda f: f}
    for cell in (slice(5, 11), slice(14, 16)):
        made = ast.parse("\n" * cell.start + textwrap.dedent("".join(lines[cell])))
        exec(compile(made, "<marimo>", "exec", dont_inherit=True), names)
    assert ast.unparse(source.find(names["f"]).tree) == "def f(x):\n    return math.sqrt(x) + helper(x)"
    assert ast.unparse(source.find(names["alone"]).tree) == "def alone(x):\n    return math.sqrt(x)"


def test_no_lines_have_no_tree():
    assert source._find_in([], (lambda: 0).__code__) is None
