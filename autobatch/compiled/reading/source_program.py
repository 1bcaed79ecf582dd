"""A program: a function of one example and what it calls, read until its types settle, then written for Numba."""

import ast
import dataclasses
import types as python_types
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.compiled.reading.exact_types import (
    FLOAT,
    MakingPlace,
    Mismatch,
    Static,
    Type,
    is_number,
    join,
    members,
    union_of,
)
from autobatch.compiled.reading.machine import Value, constructor, convert, dummy, rep
from autobatch.syntax.liveness import annotate
from autobatch.syntax.source import NoSourceError, own_tree

__all__ = ["Captured", "Inline", "Instance", "Lines", "SourceProgram", "Unreadable"]

_PASSES = 40
_INSTANCES = 60


class Unreadable(Exception):  # noqa: N818  # a signal, as `NeedsLoop` is
    """Compiled code has no form for what the user wrote; the message names the line and says why."""


Lines = list[Any]  # of text, and of lines that are indented


@dataclasses.dataclass
class Inline:
    """Lines that are found later, and are not indented."""

    place: Lines


@dataclasses.dataclass(eq=False)
class Captured:
    """Something outside of the function that it reads.

    Attributes:
        read: gives what it is now.
        seen: what it was, where the program was written for exactly that.
        name: what it is called there.
    """

    read: Callable[[], Any]
    seen: Any = None
    kind: Type = None
    name: str = ""


@dataclasses.dataclass(eq=False)
class Instance:
    """A function for arguments of certain types.

    Attributes:
        variables: the types of the variables of its text; lines: the user's lines that they were written for.
    """

    name: str
    function: python_types.FunctionType
    kinds: tuple[Type, ...]
    jitted: bool = False
    result: Type = None
    text: str = ""
    recursive: bool = False
    open: bool = False
    variables: dict[str, Type] = dataclasses.field(default_factory=dict)
    lines: dict[str, int] = dataclasses.field(default_factory=dict)


class SourceProgram:
    """What is compiled together.

    Args:
        read_function: reads one function for its types: fills in an `Instance`.
    """

    def __init__(self, read_function: Callable[["SourceProgram", Instance], None]) -> None:
        self._read = read_function
        self.changes = [0]
        self.sites: dict[Any, MakingPlace] = {}
        self.instances: dict[Any, Instance] = {}
        self.done: set[Instance] = set()
        self.captured: dict[str, Captured] = {}
        self.constants: list[Captured] = []
        self.kinds: dict[Any, Type] = {}
        self.ufuncs: list[tuple[Any, str]] = []
        self.approximate = False
        self.scopes = 0
        self.trees: dict[Any, ast.FunctionDef] = {}

    def site(self, key: Any, size: int = 1, given: bool = False) -> MakingPlace:
        """The site of this key."""
        if key not in self.sites:
            self.sites[key] = MakingPlace(len(self.sites), self.changes, size, given)
        return self.sites[key]

    def tree(self, function: python_types.FunctionType) -> ast.FunctionDef:
        """The syntax of a function, annotated with what is live.

        Raises:
            Unreadable: there is none.
        """
        code = function.__code__
        if code not in self.trees:
            try:
                tree = own_tree(function)
            except NoSourceError as error:
                raise Unreadable(str(error)) from None
            annotate(tree)
            self.trees[code] = tree
        return self.trees[code]

    def call(self, function: python_types.FunctionType, kinds: tuple[Type, ...], jitted: bool = False) -> Instance:
        """The instance of a function for these types, read in this pass; its result may not be known yet."""
        key = (id(function), tuple(map(rep, kinds)), kinds, jitted)
        instance = self.instances.get(key)
        if instance is None:
            if len(self.instances) >= _INSTANCES:
                raise Unreadable(f"{function.__qualname__} is called with ever other types")
            instance = Instance(f"f{len(self.instances)}_{_plain(function.__name__)}", function, kinds, jitted)
            self.instances[key] = instance
        if instance.open:
            instance.recursive = True
        elif instance not in self.done:
            instance.open = True
            try:
                self._read(self, instance)
            finally:
                instance.open = False
            self.done.add(instance)
        return instance

    def settle(self, function: python_types.FunctionType, kinds: tuple[Type, ...]) -> Instance:
        """Read until nothing changes.

        Raises:
            Unreadable: compiled code has no form for it.
        """
        for _ in range(_PASSES):
            before = self.changes[0]
            self.done = set()
            self.ufuncs = []
            root = self.call(function, kinds)
            if self.changes[0] == before:
                return root
        raise Unreadable(f"the types of {function.__qualname__} do not settle")

    def ufunc(self, ufunc: Any, loop: str) -> int:
        """The place in the table of addresses of a ufunc's loop."""
        if (ufunc, loop) not in self.ufuncs:
            self.ufuncs.append((ufunc, loop))
        return self.ufuncs.index((ufunc, loop))

    def makers(self) -> str:
        """The functions that make empty containers."""
        sites = [site for site in self.sites.values() if site.find() is site and site.container is not None]
        return "".join(constructor(site.container(site)) + "\n" for site in sites)

    def text(self) -> str:
        """All functions, without those that read examples and keep results."""
        extra = "".join(f", {name}" for name in self.captured)
        made = [instance.text for instance in self.instances.values() if instance in self.done]
        return self.makers() + "\n".join(made).replace("@extra@", extra)


def _plain(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else "lambda"


def joined_results(instance: Instance, kinds: list[Type]) -> Type:
    """The type of what a function returns."""
    out = None
    for kind in kinds:
        out = join(out, kind)
    if instance.jitted:  # Numba's functions give Python's numbers, and one type of them
        scalars = {dataclasses.replace(each, python=True) for each in members(out) if is_number(each)}
        if scalars and len(scalars) == len({s.name for s in members(out)}):
            out = FLOAT if FLOAT in scalars else union_of(scalars)
    return out


def flat(lines: Lines, depth: int = 0) -> list[str]:
    """The lines as text."""
    out: list[str] = []
    for line in lines:
        out += flat(line, depth + 1) if isinstance(line, list) else ["    " * depth + line]
    return out


__all__ += ["flat", "joined_results"]
_ = (np, Mismatch, Static, Value, convert, dummy)
