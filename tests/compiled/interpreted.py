"""The text of compiled programs run by Python: what is read of a program, tested without waiting for a compiler.

Each intrinsic has a stand-in of the same meaning, the processor's floating-point flags and the inner loops of NumPy's
ufuncs among them, so values, types, guards and flags are those of the machine code. What Numba makes of the text is for
the tests that compile it.
"""

import ast
import contextlib
import contextvars
import ctypes
import ctypes.util
import importlib
import inspect
import math
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from autobatch.compiled import compiled_map
from autobatch.compiled.module import HEAD
from autobatch.compiled.taping import backward

_IMPORTED = [
    importlib.import_module(str(node.module))
    for node in ast.parse(HEAD + vars(inspect.getmodule(backward.write_taped))["TAPE"]).body
    if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
]  # what compiled text calls
_FLAGS: int = next(vars(module)["FLAGS"] for module in _IMPORTED if hasattr(module, "FLAGS"))
_WORD = 2**64
_LOOP = ctypes.CFUNCTYPE(
    None, *[ctypes.POINTER(kind) for kind in (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)], ctypes.c_void_p
)
_libm = ctypes.CDLL(ctypes.util.find_library("m"))
_flags = 0  # that NumPy has seen, and cleared
_outside = contextvars.copy_context()  # of the kernel: where its calls in Python run


def _signed(value: Any) -> int:
    return (int(value) + _WORD // 2) % _WORD - _WORD // 2


def _with_overflow(operation: Callable[[int, int], int]) -> Callable[[Any, Any], tuple[int, int]]:
    def guarded_operation(a: Any, b: Any) -> tuple[int, int]:
        exact = operation(int(a), int(b))
        return _signed(exact), int(_signed(exact) != exact)

    return guarded_operation


def _float_flags() -> int:
    return _flags | _libm.fetestexcept(_FLAGS)


def _clear_flags() -> int:
    global _flags
    _flags = 0
    return _libm.feclearexcept(_FLAGS)


def _heard(kind: str, flag: int) -> None:
    global _flags
    _flags |= kind != "underflow"


def _loop(address: Any, data: Any, pointers: list[Any], count: Any, steps: list[Any]) -> None:
    global _flags
    _libm.feclearexcept(_FLAGS)
    places = (ctypes.c_void_p * len(pointers))(*map(int, pointers))
    sizes = (ctypes.c_int64 * len(steps))(*map(int, steps))
    _outside.copy().run(_LOOP(int(address)), places, (ctypes.c_int64 * 1)(int(count)), sizes, int(data) or None)
    _flags |= _libm.fetestexcept(_FLAGS)


def _scalar(address: Any, data: Any, *values: Any) -> Any:
    """`loop(x)` or `loop(x, y)`; the last value is of the result's type."""
    arrays = [np.array([value]) for value in values]
    _loop(address, data, [each.ctypes.data for each in arrays], 1, [8] * len(arrays))
    return arrays[-1][0]


def _reduce(address: Any, data: Any, x: Any, count: Any, step: Any, start: Any) -> Any:
    total = np.array([start])
    _loop(address, data, [total.ctypes.data, x, total.ctypes.data], count, [0, step, 0])
    return total[0]


def _extent(x: np.ndarray) -> tuple[int, int]:
    first, last = np.lib.array_utils.byte_bounds(x)
    return first, last - 1


def _array_at(address: Any, count: Any, like: Any) -> np.ndarray:
    dtype = np.asarray(like).dtype
    return np.frombuffer((ctypes.c_char * int(count * dtype.itemsize)).from_address(int(address)), dtype)


class _Math:
    """`math` as Numba has it: of single precision where the number is, and no error but a flag."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(math, name)

        def call(*values: Any) -> Any:
            out = function(*values)
            return np.float32(out) if isinstance(out, float) and isinstance(values[0], np.float32) else out

        return call if callable(function) else function


_INTRINSICS: dict[str, Any] = {
    "add": _with_overflow(lambda a, b: a + b), "subtract": _with_overflow(lambda a, b: a - b),
    "multiply": _with_overflow(lambda a, b: a * b), "float_flags": _float_flags, "clear_flags": _clear_flags,
    "opaque": lambda value: value, "list_item": lambda items, index: items[index],
    "list_put": lambda items, index, value: items.__setitem__(index, value), "scalar_1": _scalar, "scalar_2": _scalar,
    "select": lambda condition, a, b: a if condition else b,
    "squared": lambda value: math.pow(value, 2.0),
    "_call_1": lambda address, data, x, y, count, *steps: _loop(address, data, [x, y], count, list(steps)),
    "_call_2": lambda address, data, x, y, z, count, *steps: _loop(address, data, [x, y, z], count, list(steps)),
    "tuple_setitem": lambda items, place, value: (*items[:place], value, *items[place + 1 :]), "address": id,
    "unowned": lambda x: x, "array_at": _array_at, "lanes_of": lambda *_: 0, "extent": _extent,
    "_reduce": _reduce,
}  # fmt: skip
_NUMBERS: dict[str, Any] = {
    "int64": _signed, "uint64": lambda value: int(value) % _WORD, "float64": np.float64, "boolean": bool,
    "TypedList": list,
    **{name: getattr(np, name) for name in ("float32", "int8", "int16", "int32", "uint8", "uint16", "uint32")},
}  # fmt: skip


def _plain(name: str, text: str) -> types.ModuleType:
    """The module of this text, in which nothing is compiled and nothing is an intrinsic."""
    module = types.ModuleType(name)
    exec(compile(text, f"<{name}>", "exec"), module.__dict__)
    for key, value in list(vars(module).items()):
        if key in _INTRINSICS:
            setattr(module, key, _INTRINSICS[key])
        elif hasattr(value, "py_func") and value.py_func.__module__ != name:
            delattr(module, key)  # imported: what stands for it is in another of these modules
        elif hasattr(value, "py_func"):
            function = types.FunctionType(value.py_func.__code__, module.__dict__, key)
            setattr(module, key, function)
    return module


LIBRARY = [_plain(module.__name__, inspect.getsource(module)) for module in _IMPORTED]
for _module in LIBRARY:
    for _other in LIBRARY:
        vars(_module).update({name: value for name, value in vars(_other).items() if callable(value)})


class InterpretedKernel:
    """Stands for a `CachedKernel`: it is there at once.

    Attributes:
        errors: what its text raised, which compiled text does not.
    """

    failed = False
    errors: ClassVar[list[Exception]] = []

    def __init__(self, text: str) -> None:
        module = types.ModuleType("interpreted")
        exec(compile(text, "<interpreted>", "exec"), module.__dict__)
        for key, value in vars(module).items():
            if hasattr(value, "py_func"):
                known = next((vars(each)[key] for each in LIBRARY if key in vars(each)), None)
                setattr(module, key, known or types.FunctionType(value.py_func.__code__, module.__dict__, key))
        vars(module).update({k: v for k, v in _INTRINSICS.items() if k[0] != "_"}, **_NUMBERS, math=_Math())
        self._kernel = module.kernel

    def poll(self, wait: bool = True) -> bool:
        return True

    def entry(self, *arguments: Any) -> Any:
        global _outside
        _outside = contextvars.copy_context()
        with np.errstate(all="call"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            before = np.seterrcall(_heard)
            try:
                return self._kernel(*arguments)
            except (ArithmeticError, ValueError):  # where C sets a flag
                raise
            except Exception as error:
                self.errors.append(error)
                raise
            finally:
                np.seterrcall(before)
                _clear_flags()


@contextlib.contextmanager
def interpreted() -> Iterator[None]:
    """Programs that are written within are run by Python; none of them is remembered."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (compiled_map, backward):
            patch.setattr(module, "kernel_of", InterpretedKernel)
        patch.setattr(compiled_map, "_forms", {})
        InterpretedKernel.errors.clear()
        yield
    assert not InterpretedKernel.errors, InterpretedKernel.errors


def map_as_text(f: Callable[..., Any], columns: list[Any], shared: dict[str, Any]) -> Any:
    """The results of a map by the text that would be compiled; NotImplemented if there is none for these examples."""
    with interpreted():
        try:
            out = compiled_map.compiled_map(f, columns, shared)
        except compiled_map.Unsupported:
            return NotImplemented
    return out if isinstance(out, list) else NotImplemented


def each_as_text(names: tuple[str, ...], cases: list[Any], compiled: set[str]) -> pytest.MarkDecorator:
    """Cases whose text Python runs, and that are also compiled: those of these names always, the others under `slow`.

    A case begins with a function; its name is that of the function, and its place where functions come again.
    """
    functions = [case[0].__name__ for case in cases]
    made = []
    for place, (case, name) in enumerate(zip(cases, functions, strict=True)):
        name = name if functions.count(name) == 1 else f"{name}-{place}"
        made.append(pytest.param(*case, "text", id=f"{name}-text"))
        made.append(pytest.param(*case, "compiled", id=name, marks=() if name in compiled else pytest.mark.slow))
    unknown = compiled - {each.id for each in made}
    assert not unknown, unknown
    return pytest.mark.parametrize((*names, "text_or_compiled"), made, indirect=["text_or_compiled"])
