"""The measured costs of each function's calls, kept by the function's code and the kind of its inputs.

A kind is a hashable key: types, ranks and dtypes of the arguments, sizes rounded to powers of two, and whether a
gradient is taken. Each kind has a `History` of `api.chooser`; `_expected` gives a way's cost before it has run.
"""

import collections
import dis
import functools
import inspect
import math
import statistics
from collections.abc import Iterable, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np

from autobatch.api.batch import small_calls
from autobatch.api.chooser import EACH, READING, Expectation, History, Spent
from autobatch.api.run_record import COMPILED, FLY, LOCKSTEP
from autobatch.autodiff.grad import Gradient
from autobatch.autodiff.tape import active_tape
from autobatch.batches.any_batch import Batch
from autobatch.batches.packed_batch import PackedBatch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.core.diagnostics import is_library
from autobatch.core.pytree import is_node, leaves_of_kind
from autobatch.facts.python_functions import PAUSES
from autobatch.program.bounded_caches import MOST_FUNCTIONS, BoundedDict


class FunctionCosts:
    """One function's costs: a `History` per kind of input, the newest kind last, and facts about its code.

    Attributes:
        size: the length of its code and of the functions that it names, in instructions.
        learned: the ways that it was set up for.
    """

    __slots__ = ("array_code", "code", "has_compiled_gradient", "kinds", "learned", "pauses", "size")

    def __init__(self, code: Any, function: Any) -> None:
        self.code = code  # keeps the code object alive, so that no other one gets its id, the key in `functions`
        self.pauses = uses_debugger(code)
        self.kinds: dict[Any, History] = {}
        self.array_code: bool | None = None
        self.learned: set[str] = set()
        self.size = code_size(code, function)
        self.has_compiled_gradient = True  # until a kind of input is refused: others are, too, as a rule


WAYS = (LOCKSTEP, FLY, COMPILED)  # of maps and of calls on batches, besides the loop
_FEW = 63  # inputs of at most so many elements are of one kind
functions: BoundedDict[int, FunctionCosts] = BoundedDict(MOST_FUNCTIONS)
_LOADING = "loading"
_COMPILING = 0.02  # seconds, the least price of compiled code: many calls are over before another process has made it
# Seconds that it took to set ways up, for each instruction of a function's code: those of the last nine functions. At
# first the median of the 54 functions of `benchmarks.new_functions`, of 14 to 230 instructions: reading and typing took
# 2.6-10 ms, lock-step 3-24, tracing 3-40; loading what was compiled 0.3-1.5 ms, whatever the length.
_rates = {
    way: collections.deque([each], maxlen=9)
    for way, each in {LOCKSTEP: READING, FLY: READING, COMPILED: 4e-5, _LOADING: 1e-5}.items()
}


def _price(way: str, size: int) -> float:
    """Seconds that setting up a way will take for code of this size: the median of what it took so far."""
    return statistics.median(_rates[way]) * (EACH + size)


def learned(known: FunctionCosts, way: str, seconds: float, loaded: bool) -> None:
    """Note how long it took to set a way up, or (`loaded`) to load what was compiled in the background.

    Only what was done first for a function counts: for inputs of another kind most of it is there already.
    """
    what = _LOADING if loaded else way
    if what not in known.learned:
        known.learned.add(what)
        _rates[what].append(seconds / (EACH + known.size))


def code_size(code: Any, function: Any) -> int:
    """The number of instructions of a function's code, its inner functions, and user functions that it names."""
    if not isinstance(code, CodeType):
        return 0
    total, codes = 0, [(code, getattr(inspect.unwrap(function), "__globals__", {}))]
    seen = {code}
    for each, names in codes:  # the list grows during the loop
        total += len(each.co_code) // 2
        found = [(const, names) for const in each.co_consts if isinstance(const, CodeType)]
        for name in each.co_names:
            value = getattr(value := names.get(name), "__wrapped__", value)
            if type(value) is FunctionType and not is_library(value.__code__.co_filename):
                found.append((value.__code__, value.__globals__))
        codes += [(inner, own) for inner, own in found if inner not in seen]
        seen.update(inner for inner, _ in found)
    return total


def code_of(function: Any) -> Any:
    """A function's code object, which is the same however often a `def` or lambda runs; else the callable itself."""
    while True:
        if isinstance(function, FunctionType):
            return function.__code__
        if isinstance(function, MethodType):
            function = function.__func__
        elif isinstance(function, functools.partial):
            function = function.func
        elif hasattr(type(function), "_ab_batch"):
            function = function.__wrapped__
        else:
            call = getattr(type(function), "__call__", None)  # noqa: B004  (not whether: which)
            call = getattr(call, "__wrapped__", call)
            return call.__code__ if isinstance(call, FunctionType) else function


def uses_debugger(code: Any) -> bool:
    """True if a function names `breakpoint` or a like call: it then runs in the user's own frames, with no tries."""
    return isinstance(code, CodeType) and not PAUSES.isdisjoint(code.co_names)


def history_of(function: Any, key: tuple[Any, ...], ways: tuple[str, ...]) -> History | None:
    """The `History` of a function on inputs of one kind, made if there is none; None if it stops for a debugger."""
    plain = type(function) is FunctionType and not function.__dict__
    gradient = None if plain else gradient_of(function)
    if gradient is not None:
        function, key = gradient.function, (*key, gradient.positions, gradient.has_aux, gradient.with_value)
    code = function.__code__ if plain else code_of(function)
    known = functions.get(id(code))
    if known is None:
        known = functions[id(code)] = FunctionCosts(code, function)
    if known.pauses:
        return None
    kind = known.kinds.get(key)
    if kind is None:
        if len(known.kinds) >= 64:
            known.kinds.pop(next(iter(known.kinds)), None)
        taped = gradient is not None or active_tape() is not None
        expected = functools.partial(_expected, known, taped)
        spent = None
        if isinstance(code, CodeType) and not taped:
            if id(code) not in small_calls:
                small_calls.put(code, Spent(len(code.co_code) // 2))
            spent = small_calls[id(code)][1]
        kind = known.kinds[key] = History(ways, expected, functools.partial(learned, known), spent, known.kinds)
    return kind


def _expected(known: FunctionCosts, taped: bool, way: str) -> Expectation:
    """A way's expected cost: estimates from timing many functions on one machine, relative to the loop's cost."""
    price = _price(way, known.size) * (0.5 if way in known.learned else 1.0)  # for inputs of another kind, half is done
    if known.array_code is None:
        known.array_code = isinstance(known.code, CodeType) and is_array_code(known.code)
    if way == COMPILED:  # the price of reading the code; compiling it, or loading it from disk, is in the background
        share = 0.3 if known.array_code else 0.02
        return Expectation(max(price, _COMPILING), _price(_LOADING, known.size), 1e-4, example=2e-6, share=share)
    if way == LOCKSTEP:  # an op on a batch costs a multiple of the op on one example, nearly independent of batch size
        if taped:  # the loop would record each operation of each example
            return Expectation(price, call=5e-4, steps=2.0 if known.array_code else 20.0, share=0.05)
        if known.array_code:
            return Expectation(price, call=2e-4, steps=15.0, share=0.1)
        return Expectation(price, call=1e-3, steps=500.0, share=0.2)
    if taped:
        return Expectation(price, call=1e-3, share=0.4, divides=True)
    if known.array_code:  # a launch for each op, as in lock-step, besides recording it for each example
        return Expectation(price, call=1e-3, steps=15.0, example=1e-4, share=0.5, divides=True)
    return Expectation(price, call=1e-3, example=1e-4, share=5.0, divides=True)


def is_array_code(code: CodeType) -> bool:
    """True if a function mostly does calls, products and slices, not arithmetic on numbers; loops count eightfold."""
    found = list(dis.get_instructions(code))
    back = [(each.argval, each.offset) for each in found if "JUMP_BACKWARD" in each.opname]
    calls = numbers = 0.0
    for each in found:
        times = 8.0 ** sum(start <= each.offset <= end for start, end in back)
        if each.opname.startswith("CALL") or each.opname in ("BUILD_SLICE", "BINARY_SLICE", "STORE_SLICE"):
            calls += times
        elif each.opname in ("BINARY_OP", "COMPARE_OP", "BINARY_SUBSCR", "STORE_SUBSCR"):
            numbers += times
            if each.argrepr in ("@", "@="):
                calls += 2 * times
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    return 3 * calls >= numbers and not (back and any(not is_array_code(each) for each in inner))


def gradient_of(function: Any) -> Gradient | None:
    """The `Gradient` that describes a function made by `ab.grad`: what it differentiates; None for other functions."""
    return getattr(function, "_ab_differentiated", None)


_READ = (np.ndarray, Batch)


def read_call(args: tuple[Any, ...], kwargs: dict[str, Any], key: list[Any]) -> list[Any]:
    """Collect the batches of a call; append its kind (types, ranks, dtypes, sizes by powers of two) to `key`."""
    batches: list[Any] = []
    for arg in (*args, *kwargs.values()) if kwargs else args:
        kind = type(arg)
        if kind is MaskedBatch:
            batches.append(arg)
            data, sizes = arg.unguarded(), arg.sizes
            width = 1 if not sizes else data.shape[1] if len(sizes) == 1 else math.prod(data.shape[1:])
            key += (data.dtype.num, len(sizes), len(data).bit_length(), (width | _FEW).bit_length(), arg.scalar)
        elif kind is np.ndarray:
            key.append((arg.size | _FEW).bit_length())
        elif isinstance(arg, Batch):
            batches.append(arg)
            key += _kind_of_batch(arg)
        elif kind is dict or hasattr(arg, "__dict__") or is_node(arg):
            total = _FEW
            for part in leaves_of_kind(arg, _READ):
                if type(part) is np.ndarray:
                    total += part.size
                elif isinstance(part, Batch):
                    batches.append(part)
                    key += _kind_of_batch(part)
            key.append(total.bit_length())
        else:
            key.append(kind)
    return batches


def _kind_of_batch(batch: Any) -> tuple[Any, ...]:
    if isinstance(batch, MaskedBatch):
        key: list[Any] = []
        read_call((batch,), {}, key)
        return tuple(key)
    if isinstance(batch, PackedBatch):
        values, count = batch.values, len(batch.offsets) - 1
        size = 0 if isinstance(values, PackedBatch) else math.prod(values.shape) // (count or 1)
        return type(values), values.ndim, count.bit_length(), (size | _FEW).bit_length()
    return type(batch), batch.batch_size.bit_length()


def map_key(columns: Sequence[list[Any]], count: int, shared: Iterable[Any]) -> tuple[Any, ...]:
    """The kind of a map: types and sizes (by powers of two) of up to four of its examples, and of shared arguments."""
    key: list[Any] = [FLY, active_tape() is not None, count.bit_length()]
    places = (0,) if count == 1 else (0, count // 3, 2 * count // 3, count - 1)
    for column in columns:
        total = _FEW
        for place in places:
            value = column[place]
            kind = type(value)
            if kind is np.ndarray:
                total += value.size
            elif kind in (list, tuple, str, dict, set):
                total += len(value)
        key += (kind, total.bit_length())
    for value in shared:
        key.append((value.size | _FEW).bit_length() if type(value) is np.ndarray else type(value))
    return tuple(key)
