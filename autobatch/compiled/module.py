"""The module that Numba compiles: a program's functions, and the loop that reads examples and keeps results."""

import dataclasses
from collections.abc import Sequence
from types import FunctionType
from typing import Any

from autobatch.compiled.data import Keeper, Loader, apart
from autobatch.compiled.reading.exact_types import Mismatch, Type
from autobatch.compiled.reading.expression_reader import read_function
from autobatch.compiled.reading.machine import convert
from autobatch.compiled.reading.source_program import Instance, Lines, SourceProgram, Unreadable, flat

__all__ = ["Module", "write"]

_HEAD = """\
import heapq
import math

import numpy as np
from numba import boolean, float32, float64, int8, int16, int32, int64, types, uint8, uint16, uint32, uint64

from autobatch.kernels.guarded import *
from autobatch.kernels.guarded_arrays import *
from autobatch.kernels.jit import jit

INF = np.inf
NAN = np.nan
LANES = ()

"""


@dataclasses.dataclass(eq=False)
class Module:
    """A function for one kind of examples, as text.

    Attributes:
        text: a module with `kernel` and its `SIGNATURE`.
        steps: the arrays in which examples may lie apart.
        shared: how many arrays what all examples share takes, after those of the examples.
    """

    program: SourceProgram
    root: Instance
    text: str
    result: Type
    steps: tuple[int, ...]
    leaves: tuple[str, ...]


def _numba(dtype: str, ndim: int = 1) -> str:
    name = "boolean" if dtype == "bool" else dtype
    return f"types.Array(types.{name}, {ndim}, 'C')"


def write(program: SourceProgram, function: FunctionType, kinds: Sequence[Type], own: Sequence[bool]) -> Module:
    """The module for arguments of these types.

    Args:
        own: which of the arguments each example has of its own; the others all share.

    Raises:
        Unreadable: compiled code has no form for the function.
    """
    root = program.settle(function, tuple(kinds))
    result = root.result
    loader, keeper = Loader(), Keeper()
    before: Lines = []
    inside: Lines = []
    arguments = []
    for kind, is_own in zip(kinds, own, strict=True):
        arguments.append(loader.load(kind, inside if is_own else before, at_top=is_own))
    after: Lines = []
    separate: Lines = []
    try:
        memory = [(f"in{leaf}", dtype) for leaf, dtype in enumerate(loader.dtypes)]
        memory += [(name, each.kind.dtype) for name, each in program.captured.items()]
        apart(result, "result", memory, separate)
        keeper.keep(result, "result", after)
    except Mismatch as error:
        code = function.__code__
        raise Unreadable(f"{code.co_filename}:{code.co_firstlineno}: {function.__qualname__}: {error}") from None
    names = [f"in{leaf}" for leaf in range(len(loader.dtypes))]
    parameters = [
        "n",
        "careful",
        "table",
        "depth",
        "status",
        *names,
        *(f"step{leaf}" for leaf in loader.steps),
        *program.captured,
    ]
    types = ["types.int64", "types.int64", _numba("int64"), "types.int64", _numba("uint8"), *map(_numba, loader.dtypes)]
    types += ["types.int64"] * len(loader.steps)
    types += [_numba(each.kind.dtype, each.kind.ndim) for each in program.captured.values()]
    extra = "".join(f", {name}" for name in program.captured)
    lines: Lines = [f"at{leaf} = 0" for leaf in range(len(names))]
    for leaf, dtype in enumerate(keeper.dtypes):
        lines += [f"out{leaf} = np.empty(max(n, 16), np.{'bool_' if dtype == 'bool' else dtype})", f"used{leaf} = 0"]
    lines += [*before, "clear_flags()", "for i in range(n):"]
    kept: Lines = [f"used{leaf} = kept{leaf}" for leaf in range(len(keeper.dtypes))]
    loop: Lines = [
        *inside,
        f"ok, result = {root.name}({', '.join(['table', 'depth', *arguments])}{extra})",
        *(f"kept{leaf} = used{leaf}" for leaf in range(len(keeper.dtypes))),
        "if ok:",
        [*separate, *after] or ["pass"],
        "if careful != 0 and float_flags() != 0:",
        ["clear_flags()", "ok = False"],
        "if not ok:",
        ["status[i] = 1", *kept],
    ]
    outs = "".join(f"out{leaf}[:used{leaf}], " for leaf in range(len(keeper.dtypes)))
    lines += [loop, "status[n] = float_flags() != 0", f"return ({outs})" if outs else "return n"]
    returns = f"types.Tuple(({''.join(_numba(dtype) + ', ' for dtype in keeper.dtypes)}))" if outs else "types.int64"
    text = _HEAD + program.text() + "\n"
    text += "\n".join(flat(["@jit", f"def kernel({', '.join(parameters)}):", lines])) + "\n\n"
    text += f"SIGNATURE = {returns}({', '.join(types)})\n"
    return Module(program, root, text, result, tuple(loader.steps), tuple(loader.dtypes))


def new_program() -> SourceProgram:
    """An empty program."""
    return SourceProgram(read_function)


__all__ += ["new_program"]
_ = (Any, convert)
