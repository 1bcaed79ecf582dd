"""The docstrings of public functions and classes say what goes in, what comes out and what is raised."""

import ast
import enum
import inspect
import re
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import autobatch as ab

METHODS = {
    "MaskedBatch": ("from_examples", "examples"),
    "PackedBatch": (
        "from_examples", "from_lengths", "from_segment_ids", "from_padded", "from_sparse", "to_masked", "to_padded",
        "to_sparse", "examples",
    ),
    "SparseRows": ("coalesce", "to_dense"),
    "optim.Optimizer": ("init", "update", "scratch"),
}  # fmt: skip

CLASSES = [name for name in ab.__all__ if inspect.isclass(getattr(ab, name))]
CLASSES = [name for name in CLASSES if not issubclass(getattr(ab, name), enum.Enum)]


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The functions that `autobatch` and its public modules name, and the methods above."""
    for name in ab.__all__:
        value = getattr(ab, name)
        inner = value.__all__ if isinstance(value, types.ModuleType) else ()
        for full, each in [(name, value), *((f"{name}.{part}", getattr(value, part)) for part in inner)]:
            if inspect.isfunction(each):
                yield full, each
            yield from ((f"{full}.{method}", getattr(each, method)) for method in METHODS.get(full, ()))


def raises(function: Callable[..., Any]) -> bool:
    """Whether there is a `raise` in the function's own code."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return any(isinstance(node, ast.Raise) for node in ast.walk(tree))


@pytest.mark.parametrize(("name", "function"), [pytest.param(*each, id=each[0]) for each in public_functions()])
def test_a_docstring_has_its_sections(name, function):
    text = inspect.getdoc(function) or ""
    signature = inspect.signature(function)
    parameters = [parameter for parameter in signature.parameters if parameter != "self"]
    wanted = {
        "Args": bool(parameters),
        "Returns": signature.return_annotation is not None,
        "Raises": raises(function),
    }
    told = "" if not re.search(r"\b[Aa]s for `\w+`", text) else "by the function that it names"
    missing = [part for part, needed in wanted.items() if needed and not re.search(rf"^{part}:", text, re.MULTILINE)]
    assert told or not missing, f"autobatch.{name}: no {', '.join(missing)}"


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in ab.__all__
        if inspect.isclass(getattr(ab, name)) and not issubclass(getattr(ab, name), enum.Enum)
    ],
)
def test_a_class_says_what_it_is_made_from(name):
    cls = getattr(ab, name)
    text = inspect.getdoc(cls) or ""
    takes = len(inspect.signature(cls).parameters) > 0
    assert not takes or re.search(r"^(Args|Attributes|Members):", text, re.MULTILINE), f"autobatch.{name}: no Args"


def test_every_argument_in_a_docstring_is_one():
    """An argument that was renamed or taken away is not described any more."""
    wrong = []
    for name, function in public_functions():
        text = inspect.getdoc(function) or ""
        section = re.search(r"^Args:\n((?:    .*\n|\n)*)", text + "\n", re.MULTILINE)
        described = re.findall(r"^    (\w+(?:, \w+)*):", section[1], re.MULTILINE) if section else []
        given = inspect.signature(function).parameters
        for argument in (part.strip() for group in described for part in group.split(",")):
            if argument not in given:
                wrong.append(f"{name}: {argument}")
    assert not wrong, wrong
