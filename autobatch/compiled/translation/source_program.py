"""A program: a function of one example and what it calls, read until its types settle, then written for Numba."""

import dataclasses
import types as python_types
from collections.abc import Callable, Sequence
from typing import Any

from autobatch.compiled.translation import exact_types as types
from autobatch.compiled.translation.exact_types import FLOAT
from autobatch.compiled.translation.typed_text import constructor, dummy, rep
from autobatch.errors import Unsupported
from autobatch.program import normal_form as nf
from autobatch.program.python_text import text_of
from autobatch.program.source import find, written_lines

Lines = list[Any]  # strings, and lists of lines that are indented by one level more


@dataclasses.dataclass
class Inline:
    """A place for lines that are filled in later, at the same indentation."""

    place: Lines


@dataclasses.dataclass(eq=False)
class Captured:
    """An object from outside of the function that the function reads.

    Attributes:
        read: returns its value now.
        seen: its value when the program was written.
        name: the name by which the function reads it.
    """

    read: Callable[[], Any]
    seen: Any = None
    kind: types.Type = None
    name: str = ""


class OutsideDict:
    """A dict from outside of the function: its items are read in Python, as they are when the program runs."""

    def __init__(self, found: dict[Any, Any]) -> None:
        self.held, self.item, self.has, self.get = found, found.__getitem__, found.__contains__, found.get

    def __bool__(self) -> bool:
        raise Unsupported("whether a dict from outside of the function is true")


@dataclasses.dataclass(eq=False)
class Instance:
    """A function, specialised to the types of its arguments.

    Attributes:
        local: the `LocalFunction`, if it is made in another function; outer: variables of the functions around it that
            are passed to it, with their types; binds: those of them that it returns beside its result.
        raised: the exceptions that it can report to its caller; any other one leaves the example to Python.
        parameters, body: its text; variables: the type of each variable in it; lines: the user's line that each was
            written for.
    """

    name: str
    function: python_types.FunctionType
    kinds: tuple[types.Type, ...]
    jitted: bool = False
    local: Any = None
    outer: tuple[tuple[str, types.Type], ...] = ()
    binds: tuple[str, ...] = ()
    result: types.Type = None
    raised: list[Any] = dataclasses.field(default_factory=list)
    parameters: list[str] = dataclasses.field(default_factory=list)
    body: Lines = dataclasses.field(default_factory=list)
    open: bool = False
    variables: dict[str, types.Type] = dataclasses.field(default_factory=dict)
    lines: dict[str, int] = dataclasses.field(default_factory=dict)

    def refusal(self, why: str) -> Unsupported:
        """The signal that the function as a whole is not compiled."""
        code = self.function.__code__
        return Unsupported(why, where=(code.co_filename, code.co_firstlineno))


class SourceProgram:
    """All the functions that are compiled together.

    Args:
        read_function: reads one function for the types of an `Instance`, and fills that in.
        in_python: reads a call that runs in Python.
    """

    def __init__(self, read_function: Callable[["SourceProgram", Instance], None], in_python: Any = None) -> None:
        self._read, self.in_python = read_function, in_python
        self.changes = [0]
        self.sites: dict[Any, types.AllocationSite] = {}
        self.instances: dict[Any, Instance] = {}
        self.done: set[Instance] = set()
        self.captured: dict[str, Captured] = {}
        self.constants: list[Captured] = []
        self.ufuncs: list[tuple[Any, str]] = []
        self.loops: dict[str, str] = {}  # {name: text} of the loops over arrays that are used
        self.python_calls: dict[Any, Any] = {}  # the calls that run in Python, and the names of what makes them
        self.approximate = False
        self.recursive = False  # some function calls itself, maybe through others: all count their frames
        self.in_place: dict[int, Any] = {}  # functions that are read in place: their bodies, and the names in them
        self.containers = 0
        self.errors: list[Any] = []
        self.writes: list[types.Type] = []
        self.fills: set[str] = set()  # the dtypes of arrays of its own that it writes into
        self.local_functions: dict[int, Any] = {}
        self.sums_of_arrays: set[int] = set()  # the calls of `sum` whose items turned out to be arrays
        self.otherwise: set[tuple[int, str]] = set()  # the nodes that are read in the second of two ways, by function
        self.dicts: dict[int, OutsideDict] = {}
        self.refusals = 0  # of the first of two ways
        self.split: set[int] = set()  # branches whose arms leave a variable with values of types that cannot be joined
        self.forms: dict[Any, nf.Closure] = {}  # of the functions made in others, by their code

    def site(self, key: Any, size: int = 1, given: int = 0) -> types.AllocationSite:
        """The `AllocationSite` of this key, made on first use."""
        if key not in self.sites:
            self.sites[key] = types.AllocationSite(len(self.sites), self.changes, size, given)
        return self.sites[key]

    def may_split(self, node: nf.Node) -> bool:
        """Record that what follows a branch is read once for each arm from now on; False if there are too many."""
        if len(self.split) == 4:  # each doubles what is read
            return False
        self.split.add(id(node))
        self.changes[0] += 1
        return True

    def note_write(self, kind: types.Type) -> None:
        """Record that an argument of this type, which differs by example, or an array of its own is changed."""
        if isinstance(kind, types.Array) and not kind.given:
            self.changes[0] += kind.dtype not in self.fills
            self.fills.add(kind.dtype)
        elif not self.may_change(kind):
            self.writes.append(kind)
            self.changes[0] += 1

    def may_change(self, kind: types.Type) -> bool:
        """True if arguments like this may be changed: arrays of its dtype, containers of its site."""
        if isinstance(kind, types.Array):
            return any(isinstance(each, types.Array) and each.dtype == kind.dtype for each in self.writes)
        return kind in self.writes

    def error_number(self, instance: Instance | None, error: type[BaseException]) -> int:
        """The status that a function returns if it raises this exception; records that `instance` may raise it."""
        if error not in self.errors:
            self.errors.append(error)
        if instance is not None and error not in instance.raised:
            instance.raised.append(error)
            self.changes[0] += 1
        return 2 + self.errors.index(error)

    def form(self, function: python_types.FunctionType) -> nf.Closure:
        """The normal form of a function.

        Raises:
            Unsupported: its source is not found.
        """
        return self.forms.get(function.__code__) or find(function).form

    def call(
        self, function: python_types.FunctionType, kinds: tuple[types.Type, ...], jitted: bool = False,
        local: Any = None, outer: tuple[tuple[str, types.Type], ...] = (), binds: tuple[str, ...] = (),
    ) -> Instance:  # fmt: skip
        """The instance of a function for these types, read in this pass; in a recursion its result may be unknown."""
        key = (id(function), tuple(map(rep, kinds)), kinds, jitted, tuple(rep(kind) for _, kind in outer), outer)
        instance = self.instances.get(key)
        if instance is None:
            instance = self._open_call(function, (*kinds, *(kind for _, kind in outer)), jitted)
        if instance is None:
            if len(self.instances) >= 60:
                raise Unsupported(f"{function.__qualname__} is called with new types again and again")
            name = f"f{len(self.instances)}_{_plain(function.__name__)}"
            instance = Instance(name, function, kinds, jitted, local, outer, binds)
            self.instances[key] = instance
        if instance.open:
            self.changes[0] += not self.recursive
            self.recursive = True
        elif instance not in self.done:
            instance.open = True
            try:
                self._read(self, instance)
            finally:
                instance.open = False
            self.done.add(instance)
        return instance

    def _open_call(
        self, function: python_types.FunctionType, kinds: tuple[types.Type, ...], jitted: bool
    ) -> Instance | None:
        """The open call of the same function whose types differ only in where containers were made, or None.

        Without this, a recursion that makes lists for itself would be another function at each depth.
        """
        for instance in self.instances.values():
            own = (*instance.kinds, *(kind for _, kind in instance.outer))
            alike = instance.open and instance.function is function and instance.jitted == jitted
            if alike and len(own) == len(kinds) and list(map(_form, own)) == list(map(_form, kinds)):
                for one, two in zip(own, kinds, strict=True):
                    types.join(one, two)
                if own == kinds:
                    return instance
        return None

    def settle(self, function: python_types.FunctionType, kinds: tuple[types.Type, ...]) -> Instance:
        """Read the function, and what it calls, until no type changes any more.

        Raises:
            Unsupported: something in it has no compiled form, or the types do not settle.
        """
        for _ in range(40):  # until the types settle
            before = self.changes[0]
            self.done = set()
            self.ufuncs = []
            root = self.call(function, kinds)
            if self.changes[0] == before:
                for kind in [types.Object(site) for site in self.sites.values() if site.find().cls is not None]:
                    if any(each == kind for item in kind.site.find().items for each in types.within(item)):
                        raise Unsupported(f"a {kind} nested without end")
                return root
        raise Unsupported(f"the types of {function.__qualname__} keep changing")

    def ufunc(self, ufunc: Any, loop: str) -> int:
        """The index of a ufunc's loop in the table of addresses."""
        if (ufunc, loop) not in self.ufuncs:
            self.ufuncs.append((ufunc, loop))
        return self.ufuncs.index((ufunc, loop))

    def makers(self) -> str:
        """The source of the functions that make empty containers, and of the loops over arrays."""
        sites = [site for site in self.sites.values() if site.find() is site and site.container is not None]
        return "".join([*(constructor(site.container(site)) + "\n" for site in sites), *self.loops.values()])

    def extra(self) -> str:
        """The arguments that all functions take: captured arrays."""
        return "".join(f", {name}" for name in self.captured)

    def written(self) -> list[Instance]:
        """The functions, all but the kernel."""
        return [instance for instance in self.instances.values() if instance in self.done]

    def text(self) -> str:
        """The source of all functions but the kernel."""
        made = [self.function(each, each.body) for each in self.written()]
        return self.makers() + "\n".join(made)

    def function(self, instance: Instance, body: Lines, more: Sequence[str] = ()) -> str:
        """The source of one function with this body, and with more parameters."""
        parameters = ", ".join(instance.parameters) + "@extra@" + "".join(f", {name}" for name in more)
        lines = flat(["@jit", f"def {instance.name}({parameters}):", body, ""])
        return "\n".join(lines).replace("@dummy@", dummy(instance.result)).replace("@extra@", self.extra())


def _form(kind: types.Type) -> str:
    """A type as text, without where its containers were made."""
    if isinstance(kind, types.Object):
        return str(kind)
    if isinstance(kind, types.List | types.Set | types.Dict):
        return f"{type(kind).__name__}[{', '.join(_form(item) for item in kind.site.find().items)}]"
    if isinstance(kind, types.Tuple | types.Struct):
        return f"({', '.join(map(_form, kind.items))})"
    return rep(kind)


def _plain(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else "lambda"


def joined_results(instance: Instance, kinds: list[types.Type]) -> types.Type:
    """The type that covers all that a function returns."""
    out = None
    for kind in kinds:
        out = types.join(out, kind)
    if instance.jitted:  # Numba's functions return Python's numbers, of one type
        scalars = {dataclasses.replace(each, python=True) for each in types.members(out) if types.is_number(each)}
        if scalars and len(scalars) == len({s.name for s in types.members(out)}):
            out = FLOAT if FLOAT in scalars else types.union_of(scalars)
    return out


def flat(lines: Lines, depth: int = 0) -> list[str]:
    """Nested lines as lines of text, indented."""
    parts = [flat(each, depth + 1) if isinstance(each, list) else ["    " * depth + each] for each in lines]
    return [line for part in parts for line in part]


def text_at(code: python_types.CodeType, node: nf.Node) -> str:
    """The text of a node as the user wrote it, in backticks: its first line, at most 80 characters."""
    at, lines = node.at, written_lines(code)
    line = lines[at.line - 1].encode() if 0 < at.line <= len(lines) else b""
    text = line[at.column : at.end_column if at.end_line == at.line else None].decode(errors="replace").strip()
    text = text or text_of(node).partition("\n")[0]
    return f"`{text if len(text) <= 80 else text[:79] + '…'}`"
