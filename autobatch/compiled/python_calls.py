"""Calls that compiled code leaves to Python: of functions that only compute and have no compiled form.

Arguments are boxed as Python would hold them: numbers of their exact types, arrays where they lie, with their strides.
The result has to be new, and of the type that calls with samples gave. If it is not, if the call raises, or if a float
operation in it would warn, the example is left to Python. A call is made like one of a ufunc's inner loop, whose
operands are words: so compiled text, which is cached, finds it by a place in the table of addresses.
"""

import contextlib
import ctypes
import functools
import inspect
import itertools
import struct
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from autobatch.compiled.translation import exact_types as types
from autobatch.compiled.translation.exact_types import BOOL, NONE
from autobatch.compiled.translation.source_program import Lines, SourceProgram, flat
from autobatch.compiled.translation.statement_reader import Reader
from autobatch.compiled.translation.typed_text import Value, code, dummy, item_text
from autobatch.compiled.value_layout import Loader, ResultWriter, pack, type_of, unpack
from autobatch.errors import Unsupported
from autobatch.facts.call_effects import effect_of, method_effect
from autobatch.facts.python_functions import COMPUTING_LIBRARIES, FRAME_READERS
from autobatch.program import normal_form as nf

_LOOP = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), *[ctypes.c_void_p] * 3)
_DRAWING = frozenset(("seed", "rng", "random_state"))


class _OfThread(threading.local):
    """What a call leaves behind: whether it would have warned, a result that waits for memory, and an interrupt."""

    warned = False
    result = b""
    interrupt: BaseException | None = None


_of_thread = _OfThread()


def _on_float_error(error: str, flags: int) -> None:
    _of_thread.warned = True


def call_kernel(kernel: Callable[..., Any], *arguments: Any) -> Any:
    """Call a kernel; a KeyboardInterrupt in a function that it calls in Python is raised at its end."""
    try:
        with np.errstate(divide="call", over="call", invalid="call", call=_on_float_error):
            return kernel(*arguments)
    finally:
        error, _of_thread.interrupt = _of_thread.interrupt, None
        if error is not None:
            raise error


def _only_computes(function: Any, args: Sequence[Value], named: Mapping[str, Value]) -> bool:
    """True if this call surely reads its arguments and nothing else, and changes nothing."""
    if type(getattr(function, "__self__", None)) is dict:
        return function.__name__ in ("__getitem__", "__contains__", "get")
    holder = getattr(function, "__objclass__", None)
    effect = effect_of(function) if holder is None else method_effect(holder, function.__name__)
    if effect is not None:
        found = dict(effect.bind(args, named))
        reads = not effect.written(args, named, lambda each: None if each.kind == NONE else each.constant)
        here = effect.changes_nothing_outside and effect.section != "memory" and effect.name not in FRAME_READERS
        return reads and here and not effect.calls & found.keys()
    if not isinstance(function, FunctionType) or function.__module__.partition(".")[0] not in COMPUTING_LIBRARIES:
        return False
    try:
        signature = inspect.signature(function)
        given = signature.bind(*args, **named).arguments
    except (TypeError, ValueError):
        return False
    writes = "out" in given or any(name.startswith("overwrite") for name in given)
    return not writes and _DRAWING.isdisjoint(signature.parameters)


def call_in_python(
    reader: Reader, node: nf.Node, function: Any, args: Sequence[Value], named: Mapping[str, Value]
) -> Value:
    """Read a call that runs in Python.

    Raises:
        Unsupported: it may do more than compute, or compiled code cannot hold its arguments or its result.
    """
    if reader.instance.jitted or not _only_computes(function, args, named):
        raise Unsupported
    given = list(map(reader.once, (*args, *named.values())))
    found = {(value.kind, value.text): value for value in given}  # an array that is given twice is one object
    order, values = [list(found).index((value.kind, value.text)) for value in given], list(found.values())
    boxed = [value for value in values if not _is_known(value)]
    if any(None in types.within(value.kind) for value in boxed):
        reader.stop()  # what a list holds is not known yet
    inside = [[repr(value.constant), *map(str, types.within(value.kind))] for value in values]
    key, known = (id(node), reader.instance.name, str((order, inside))), reader.program.python_calls
    if key not in known:
        call = PythonCall(function, (reader.function, node.at.line), values, order, list(named))
        call.find_result(reader.program, str(key))
        is_steady = type(getattr(function, "__self__", None)) is not dict
        if is_steady and not boxed and types.class_of(call.result) in types.PYTHON:
            with contextlib.suppress(Exception), np.errstate(all="raise"):
                return reader.constant(call([value.constant for value in values]), node)
        known[key] = call, f"python{len(known)}_{function.__name__}"
    call, name = known[key]
    reader.program.loops[name] = call.text(name)
    at, texts = reader.program.ufunc(call, ""), [value.text for value in boxed]
    out = types.Tuple((BOOL, call.result))
    made = reader.temp(code(name, f"table[{2 * at}]", f"table[{2 * at + 1}]", *texts), out)
    reader.fail_if(f"not {made.text}[0]")
    return reader.temp(item_text(made.text, 1), call.result)


class PythonCall:
    """One call in the user's code, of a function that runs in Python.

    Args:
        function: what is called. place: the function in which it is called, and the line: warnings name them.
        values: what it gets, each once. order: for each argument its place in `values`. names: of the last arguments.

    Attributes:
        result: the type of the result. address: of a function of C that makes the call.

    Raises:
        Unsupported: a value is an object that compiled code has no variable for.
    """

    def __init__(
        self, function: Any, place: tuple[FunctionType, int], values: Sequence[Value], order: Sequence[int],
        names: Sequence[str],
    ) -> None:  # fmt: skip
        self.function, self.values, self.order, self.names = function, values, order, names
        self.result: types.Type = None
        self._caller = _caller_at(*place)
        self._words = struct.Struct("")
        self._readers: list[Callable[[Sequence[Any]], Any]] = []
        self._entry = _LOOP(self._run)
        self.address = ctypes.cast(self._entry, ctypes.c_void_p).value or 0

    def __call__(self, values: Sequence[Any]) -> Any:
        given = [values[place] for place in self.order]
        count = len(given) - len(self.names)
        return self._caller(self.function, given[:count], dict(zip(self.names, given[count:], strict=True)))

    def find_result(self, program: SourceProgram, where: str) -> None:
        """Find the type of the result, by calls with samples; `where`: names the place of lists in it.

        Raises:
            Unsupported: each sample raises, or compiled code has no variable for the results.
        """
        for size in (1, 2, 3, 8):  # some functions take more elements than one
            found = []
            samples = [[each.constant] if _is_known(each) else _samples(each.kind, size) for each in self.values]
            if type(getattr(self.function, "__self__", None)) is dict:
                samples[self.order[0]] = [*itertools.islice(self.function.__self__, 16), *samples[self.order[0]]]
            for values in itertools.islice(itertools.product(*samples), 32):
                with contextlib.suppress(Exception), warnings.catch_warnings(), np.errstate(all="ignore"):
                    warnings.simplefilter("ignore")
                    found.append(self(values))
            self.result = type_of(program, found, where, 0)
            if not (_are_new(found) and all(_is_of(self.result, each) for each in found)):
                raise Unsupported(f"{self.function.__name__} returns {self.result}")
            if found:
                return
        raise Unsupported(f"{self.function.__name__} raises for each sample")

    def text(self, name: str) -> str:
        """The source of a function that boxes arguments and makes the call: (True, result), or (False, anything)."""
        writer, loader = ResultWriter(), Loader()
        boxed: Lines = []
        stores: list[str] = []
        self._readers, letters, names = [], "", ["address", "data"]
        for place, value in enumerate(self.values):
            if _is_known(value):
                self._readers.append(functools.partial(lambda known, words: known, value.constant))
                continue
            x, first, leaf, of, numbers = f"a{place}", len(stores), len(writer.dtypes), value.kind, "given"
            names.append(x)
            if isinstance(of, types.Scalar):
                parts, numbers = [x], "floats" if of.kind == "f" else "given"
            elif isinstance(of, types.Array):
                parts = [f"{x}.{each}[{k}]" for each in ("shape", "strides") for k in range(of.ndim)]
                parts = [f"{x}.ctypes.data", *parts]
            else:
                writer.append(of, x, boxed)
                leaves = range(leaf, len(writer.dtypes))
                parts = [part for k in leaves for part in (f"out{k}.ctypes.data", f"used{k}")]
            stores += [f"{numbers}[{first + k}] = {part}" for k, part in enumerate(parts)]
            letters += "d" if numbers == "floats" else "q" * len(parts)
            self._readers.append(_reader_of(of, first, writer.dtypes[leaf:]))
        self._words = struct.Struct(letters)
        loaded: Lines = []
        out = loader.load(self.result, loaded)
        unpacked = ["floats = made.view(np.float64)", f"start = {len(loader.dtypes) + 1}"]
        for leaf, dtype in enumerate(loader.dtypes):
            many, size, whole, view = 8 // np.dtype(dtype).itemsize, f"made[{leaf + 1}]", "made", ""
            if dtype == "float64":
                whole = "floats"
            elif many > 1:
                view = f".view(np.{'bool_' if dtype == 'bool' else dtype})[:{size}]"
                size = f"({size} + {many - 1}) // {many}"
            unpacked += [f"in{leaf} = {whole}[start:start + {size}]{view}", f"start += {size}", f"at{leaf} = 0"]
        failed = [f"return False, {dummy(self.result)}"]
        body: Lines = [
            "if float_flags() != 0:", failed,  # set before the call, whose own flags are not of this example
            f"given = np.empty({len(stores)}, np.int64)", "floats = given.view(np.float64)",
            *writer.start("16"), *boxed, *stores,
            "made = np.zeros(64, np.int64)", "apply_1(address, data, given, made)",
            "if made[0] > made.size:", ["made = np.ones(made[0], np.int64)", "apply_1(address, data, given, made)"],
            "clear_flags()",
            "if made[0] == 0:", failed,
            *unpacked, *loaded, f"return True, {out}",
        ]  # fmt: skip
        return "\n".join(flat(["@jit", f"def {name}({', '.join(names)}):", body, ""]))

    def _run(self, pointers: Any, *_: Any) -> None:
        """Make the call: `pointers[0]` are the words of the arguments, `pointers[1]` those of the result.

        The first word of the result says how many there are, 0 if the call fails. After it come the sizes of the arrays
        that the result is packed into, and the arrays. If it was not 0 before, the last result is only copied.
        """
        status = ctypes.c_int64.from_address(pointers[1])
        is_again, status.value = status.value, 0
        try:
            if not is_again:
                _of_thread.result = b"" if _of_thread.interrupt else self._made(pointers[0])
            made = _of_thread.result
            if is_again or len(made) <= 8 * 64:  # what the first call has room for
                ctypes.memmove(pointers[1], made, len(made))
                _of_thread.result = b""
            else:
                status.value = len(made) // 8
        except Exception:  # Python raises it again
            pass
        except BaseException as error:
            _of_thread.interrupt = error

    def _made(self, address: int) -> bytes:
        """The words of the result; none if the call fails."""
        words = self._words.unpack(ctypes.string_at(address, self._words.size))
        _of_thread.warned = False
        held = [self([read(words) for read in self._readers])]
        if _of_thread.warned or not (_is_of(self.result, held[0]) and _are_new(held)):
            return b""
        if isinstance(self.result, types.Scalar) and self.result != NONE:
            return struct.pack(f"qq{np.dtype(self.result.name).char}0q", 3, 1, held[0])
        arrays = pack(self.result, held)
        parts = [each.tobytes() for each in arrays]
        sizes = [1 + len(parts) + sum(-(-len(part) // 8) for part in parts), *(each.size for each in arrays)]
        return b"".join([np.array(sizes).tobytes(), *(part + bytes(-len(part) % 8) for part in parts)])


def _is_known(value: Value) -> bool:
    """True if a value is known while compiling, and is what the call would get.

    Raises:
        Unsupported: it is an object that a function may look into.
    """
    if isinstance(value.kind, types.Static) and not isinstance(value.constant, type | np.dtype):
        raise Unsupported(f"a call of {value.kind}")
    return isinstance(value.kind, types.Static) or type(value.constant) is types.class_of(value.kind)


def _called(function: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    return function(*args, **named)


def _caller_at(function: FunctionType, line: int) -> FunctionType:
    """A function like `_called`, whose call stands in this line of a function of the user's."""
    code, own = _called.__code__, function.__code__
    code = code.replace(co_filename=own.co_filename, co_firstlineno=line - 1, co_name=own.co_name)
    return FunctionType(code, function.__globals__)


class _ArrayMemory:
    """An array of compiled code, as NumPy takes it over without a copy."""

    def __init__(self, start: int, shape: Sequence[int], strides: Sequence[int], dtype: str) -> None:
        place = {"data": (start, False), "shape": shape, "strides": strides, "typestr": dtype}
        self.__array_interface__ = {"version": 3, **place}


def _reader_of(of: types.Type, first: int, dtypes: Sequence[str]) -> Callable[[Sequence[Any]], Any]:
    """What makes an argument of this type of the words, among which its own begin at `first`.

    Args:
        dtypes: of the arrays into which it was packed, if it is neither a number nor an array.
    """
    if of == NONE:
        return lambda words: None
    if isinstance(of, types.Scalar):
        make = types.class_of(of)
        return lambda words: make(words[first])
    if isinstance(of, types.Array):
        middle, last, dtype = first + 1 + of.ndim, first + 1 + 2 * of.ndim, np.dtype(of.dtype).str
        return lambda words: np.asarray(
            _ArrayMemory(words[first], words[first + 1 : middle], words[middle:last], dtype)
        )
    spans = [(first + 2 * k, np.dtype(dtype)) for k, dtype in enumerate(dtypes)]

    def packed(words: Sequence[Any]) -> Any:
        memory = [ctypes.string_at(words[at], words[at + 1] * dtype.itemsize) for at, dtype in spans]
        arrays = [np.frombuffer(bytearray(each), dtype) for each, (_, dtype) in zip(memory, spans, strict=True)]
        return unpack(of, arrays, 1)[0]

    return packed


def _samples(of: types.Type, size: int) -> list[Any]:
    """Values of a type, for each type of number that it may hold; arrays and lists are of this size.

    Raises:
        Unsupported: there is no sample.
    """
    match of:
        case types.Scalar():
            return [None if of == NONE else types.sample(of)]
        case types.Union():
            return [_samples(each, size)[0] for each in types.members(of)]
        case types.Array():
            return [np.ones((size,) * of.ndim, of.dtype)]
        case types.Text():
            return ["a", "1"]
        case types.Maybe():
            return [None, *_samples(of.inner, size)]
        case types.Tuple():
            return list(itertools.product(*(_samples(each, size) for each in of.items)))
        case types.List():
            return [[each] * size for each in _samples(of.elem, size)]
    raise Unsupported(f"a call of a {of}")


def _is_of(of: types.Type, value: Any) -> bool:
    """True if a value is exactly of a type, and compiled code can load it as it lies in memory."""
    if isinstance(of, types.Union):
        return any(_is_of(each, value) for each in of.scalars)
    if type(value) is not types.class_of(of):
        return False
    if isinstance(of, types.Array):
        in_order = value.ndim == 1 or (value.ndim > 1 and value.flags.c_contiguous)
        return in_order and value.dtype == of.dtype and value.ndim == of.ndim
    if isinstance(of, types.List):
        return all(_is_of(of.elem, each) for each in value)
    if isinstance(value, tuple):
        return len(value) == len(of.items) and all(map(_is_of, of.items, value))
    return isinstance(of, types.Scalar | types.Text)


def _are_new(values: Sequence[Any]) -> bool:
    """True if nobody else has a name for an array or a list among these values, for one in them, or for its memory."""
    for place in range(len(values)):  # no variable holds what is counted: 2 are `values` itself, and the argument
        if isinstance(values[place], np.ndarray | list) and sys.getrefcount(values[place]) > 2:
            return False
        if isinstance(values[place], np.ndarray):
            if isinstance(values[place].base, np.ndarray) and sys.getrefcount(values[place].base) > 2:
                return False
        elif isinstance(values[place], list | tuple) and not _are_new(values[place]):
            return False
    return True
