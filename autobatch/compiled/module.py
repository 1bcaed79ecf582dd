"""The module that Numba compiles: a program's functions, and the loop that reads examples and keeps results."""

import ctypes
import dataclasses
import functools
import itertools
from collections.abc import Sequence
from types import FunctionType
from typing import Any

import numpy as np

from autobatch.compiled.changed_arguments import KernelChanges, argument_slots, changed_containers
from autobatch.compiled.functions import builtin_calls, numpy_calls, python_sources
from autobatch.compiled.python_calls import PythonCall, call_in_python
from autobatch.compiled.translation.exact_types import EITHER, INT, Array, Tuple, Type
from autobatch.compiled.translation.expression_reader import read_function
from autobatch.compiled.translation.source_program import Instance, Lines, SourceProgram, flat
from autobatch.compiled.translation.typed_text import code, rep
from autobatch.compiled.value_layout import Loader, ResultWriter, check_aliases
from autobatch.errors import Unsupported

_TABLES = builtin_calls, numpy_calls, python_sources  # importing them fills `CALLS` and `METHODS`

HEAD = """\
import heapq
import math

import numpy as np
from numba.typed import List as TypedList
from numba import boolean, float32, float64, int8, int16, int32, int64, types, uint8, uint16, uint32, uint64

from autobatch.kernels.compiled_code.checked_arithmetic import *
from autobatch.kernels.compiled_code.checked_array_calls import *
from autobatch.kernels.compiled_code.products import *
from autobatch.kernels.jit import jit

INF = np.inf
NAN = np.nan
LANES = ()

"""


@dataclasses.dataclass(eq=False)
class Module:
    """The source text of a compiled module: a function written for one kind of examples.

    Attributes:
        text: a module that defines `kernel` and its `SIGNATURE`.
        result: the type of the function's result; kept: of what the kernel stores for an example (`KernelLoop.kept`).
        steps: the packed arrays whose examples may lie apart, as in a padded batch.
        varying: for each argument, whether it differs by example; the others are shared by all.
    """

    program: SourceProgram
    root: Instance
    text: str
    result: Type
    kept: Type
    changes: KernelChanges
    steps: tuple[int, ...]
    varying: tuple[bool, ...]


def numba_array(dtype: str, ndim: int = 1) -> str:
    """A C-contiguous array, as a Numba type."""
    name = "boolean" if dtype == "bool" else dtype
    return f"types.Array(types.{name}, {ndim}, 'C')"


@dataclasses.dataclass
class KernelLoop:
    """The lines of a kernel's loop body; the lines `before` run once, before the loop, and read shared arguments.

    Attributes:
        loop: reads an example, runs it and appends the result; the variable `ok` is True if the result is valid.
        undo: removes what was appended for an invalid result.
        kept: the type of what is appended: the result, or a tuple of the result and what `changes` lists.
    """

    loader: Loader
    writer: ResultWriter
    before: Lines
    loop: Lines
    undo: Lines
    kept: Type
    changes: KernelChanges

    @classmethod
    def of(cls, program: SourceProgram, root: Instance, varying: Sequence[bool], taped: bool = False) -> "KernelLoop":
        """The loop for a program.

        Args:
            taped: the loop is for gradients; examples that change or return arguments are then left to Python.

        Raises:
            Unsupported: compiled code cannot return a result of this type.
        """
        loader, writer = Loader(), ResultWriter()
        before: Lines = []
        inside: Lines = []
        arguments = []
        for kind, is_varying in zip(root.kinds, varying, strict=True):
            arguments.append(loader.load(kind, inside if is_varying else before, at_top=is_varying))
        after: Lines = []
        separate: Lines = []
        aliases: list[str] = []
        changes = KernelChanges([], [])
        try:
            if not taped:
                containers = changed_containers(program, root.kinds, varying)
                changes = KernelChanges(argument_slots(root.result, root.kinds, varying), containers)
                aliases = _aliases(root, changes, arguments, varying, separate)
            memory = [(f"in{leaf}", dtype) for leaf, dtype in enumerate(loader.dtypes)]
            memory += [(name, each.kind.dtype) for name, each in program.captured.items()]
            check_aliases(root.result, "result", memory, separate, aliases)
            writer.append(root.result, "result", after)
            for text in _places(root.result, aliases):
                writer.append(INT, text, after)
            for place in changes.containers:
                writer.append(root.kinds[place], arguments[place], after)
        except Unsupported as error:
            raise root.refusal(f"{root.function.__qualname__}: {error}") from None
        leaves = range(len(writer.dtypes))
        loop: Lines = [
            *inside,
            code("call", "code", "result", root.name, "table", "depth", *arguments),
            "ok = code == 1",
            *(f"kept{leaf} = used{leaf}" for leaf in leaves),
            "if ok:",
            [*separate, *after] or ["pass"],
        ]
        kept = [root.result, *[INT] * sum(changes.returned), *(root.kinds[place] for place in changes.containers)]
        undo = [f"used{leaf} = kept{leaf}" for leaf in leaves]
        return cls(loader, writer, before, loop, undo, Tuple(tuple(kept)) if changes else root.result, changes)

    def start(self) -> Lines:
        """The lines that run before the loop."""
        read = [f"at{leaf} = 0" for leaf in range(len(self.loader.dtypes))]
        return [*read, *self.writer.start("max(n, 16)"), *self.before]

    def text(self, program: SourceProgram, parameters: Sequence[tuple[str, str]], body: Lines) -> str:
        """The text of the kernel, which does not count the uses of the arrays that it is given, and its signature."""
        given = [f"{name} = unowned({name})" for name, kind in parameters if kind.startswith("types.Array")]
        head = f"def kernel({', '.join(name for name, _ in parameters)}):"
        written = "\n".join(flat(["@jit", head, [*given, *body]])).replace("@extra@", program.extra())
        return f"{written}\n\nSIGNATURE = {self.returns()}({', '.join(kind for _, kind in parameters)})\n"

    def end(self) -> str:
        """The return statement."""
        outs = "".join(f"out{leaf}[:used{leaf}], " for leaf in range(len(self.writer.dtypes)))
        return f"return ({outs})" if outs else "return n"

    def returns(self) -> str:
        """The type of what the kernel returns, as a Numba type."""
        outs = "".join(numba_array(dtype) + ", " for dtype in self.writer.dtypes)
        return f"types.Tuple(({outs}))" if outs else "types.int64"

    def parameters(self, program: SourceProgram) -> list[tuple[str, str]]:
        """The kernel's parameters that hold data, each with its Numba type."""
        out = [(f"in{leaf}", numba_array(dtype)) for leaf, dtype in enumerate(self.loader.dtypes)]
        out += [(f"step{leaf}", "types.int64") for leaf in self.loader.steps]
        return out + [(name, numba_array(each.kind.dtype, each.kind.ndim)) for name, each in program.captured.items()]


def _aliases(
    root: Instance, changes: KernelChanges, arguments: Sequence[str], varying: Sequence[bool], lines: Lines
) -> list[str]:
    """Write code that finds which argument each result item is, or is a view of; returns variables that hold this."""
    items = enumerate(root.result.items) if isinstance(root.result, Tuple) else [(None, root.result)]
    names = []
    for (place, kind), count in zip(items, changes.returned, strict=True):
        names.append(f"alias{place or 0}" if count else "")
        if not count:
            continue
        where = "result" if place is None else f"result[{place}]"
        lines += [f"{names[-1]} = -1", f"{names[-1]}_at = 0"]
        for argument, (given, is_varying) in enumerate(zip(root.kinds, varying, strict=True)):
            if not is_varying or type(given) is not type(kind):
                continue
            one, found = arguments[argument], [f"{names[-1]} = {argument}"]
            if rep(given) == rep(kind):
                same = (
                    f"same_memory({where}, {one})" if isinstance(kind, Array) else f"address({where}) == address({one})"
                )
                which = isinstance(kind, Array) and kind.given & EITHER  # it may be the argument or a view of all of it
                lines += [f"if {same}:", ["ok = False"] if which else found]
            if isinstance(kind, Array) and given.dtype == kind.dtype:
                offset = f"{names[-1]}_at = {where}.ctypes.data - {one}.ctypes.data"
                lines += [f"if overlap({where}, {one}):", [*found, offset]]
    return names


def _places(result: Type, aliases: Sequence[str]) -> list[str]:
    """The expressions that say which argument each result item is; for arrays also the offset and the strides."""
    out = []
    for place, alias in enumerate(aliases):
        kind = result.items[place] if isinstance(result, Tuple) else result
        where = f"result[{place}]" if isinstance(result, Tuple) else "result"
        if alias:
            out.append(alias)
        if alias and isinstance(kind, Array):
            out += [f"{alias}_at", *(f"{where}.strides[{axis}]" for axis in range(kind.ndim))]
    return out


FIRST_PARAMETERS = [
    ("n", "types.int64"), ("careful", "types.int64"), ("table", numba_array("int64")), ("depth", "types.int64"),
    ("status", numba_array("uint8")),
]  # fmt: skip
"""`n` examples; `careful`: 1 to check flags after each; `table`: addresses of ufunc loops; `depth`: how deep calls may
nest; `status`: for each example, 1 if Python has to run it, and in the last place whether any flag was set."""


def write(program: SourceProgram, function: FunctionType, kinds: Sequence[Type], varying: Sequence[bool]) -> Module:
    """Write the module for arguments of these types.

    Args:
        varying: for each argument, whether it differs by example; the others are shared by all.

    Raises:
        Unsupported: the function has no compiled form.
    """
    root = program.settle(function, tuple(kinds))
    if root.result is None:
        raise root.refusal(f"{function.__qualname__}: compiled code would leave each example to Python")
    kernel = KernelLoop.of(program, root, varying)
    loop: Lines = [
        *kernel.loop,
        "if careful != 0 and float_flags() != 0:",
        ["clear_flags()", "ok = False"],
        "if not ok:",
        ["status[i] = 1", *kernel.undo],
    ]
    parameters = [*FIRST_PARAMETERS, *kernel.parameters(program)]
    lines = [*kernel.start(), "clear_flags()", "for i in range(n):", loop, "status[n] = float_flags() != 0"]
    text = HEAD + program.text() + "\n" + kernel.text(program, parameters, [*lines, kernel.end()])
    steps = tuple(kernel.loader.steps)
    return Module(program, root, text, root.result, kernel.kept, kernel.changes, steps, tuple(varying))


def new_program() -> SourceProgram:
    """An empty program, which reads functions by `read_function`."""
    return SourceProgram(read_function, call_in_python)


# --- the inner loops of NumPy's ufuncs, which compiled code calls to get NumPy's results bit for bit


class _UFunc(ctypes.Structure):
    """The head of NumPy's `PyUFuncObject`, which is part of its stable ABI."""

    _fields_ = (
        ("object", ctypes.c_byte * object.__basicsize__),
        ("nin", ctypes.c_int),
        ("nout", ctypes.c_int),
        ("nargs", ctypes.c_int),
        ("identity", ctypes.c_int),
        ("functions", ctypes.POINTER(ctypes.c_void_p)),
        ("data", ctypes.POINTER(ctypes.c_void_p)),
        ("ntypes", ctypes.c_int),
    )


@functools.cache
def _loop(ufunc: np.ufunc, loop: str) -> tuple[int, int]:
    """The address of an inner loop, and the data pointer that it takes as its last argument."""
    head = _UFunc.from_address(id(ufunc))
    if (head.nin, head.nout, head.ntypes) != (ufunc.nin, ufunc.nout, ufunc.ntypes):
        raise RuntimeError("NumPy's ufuncs take other arguments")
    wanted = [np.dtype(char) for char in loop.replace("->", "")]
    for place, name in enumerate(ufunc.types):
        if "O" not in name and [np.dtype(char) for char in name.replace("->", "")] == wanted:
            return head.functions[place] or 0, (head.data[place] or 0) if head.data else 0
    raise RuntimeError(f"{ufunc.__name__} has no loop {loop}")


def table_of(loops: Sequence[tuple[Any, str]]) -> np.ndarray:
    """(2 n,) int64: for each ufunc's loop, and for each call in Python, its address and its data pointer."""
    found = [(each.address, 0) if isinstance(each, PythonCall) else _loop(each, loop) for each, loop in loops]
    return np.array(list(itertools.chain.from_iterable(found)), np.int64)
