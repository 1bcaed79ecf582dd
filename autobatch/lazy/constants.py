"""Arrays that were not made in the trace but are operands there: constants, closures, values of other interpreters.

The user may write into one before the launch. A small one is copied, and known by its content; of a large one the
launch finds out; of a value of another interpreter the state at the call is kept.
"""

import copy
from typing import Any

import numpy as np

from autobatch.core.layout import is_crooked
from autobatch.lazy.aval import Aval, aval_of

__all__ = ["constant"]

_SMALL = 8192  # bytes; a larger constant that several examples read is shared by identity, a smaller one is stacked
_STATE = ("index", "value", "wave", "ref", "source")


def constant(trace: Any, arg: Any) -> tuple[Aval | None, int]:
    """The kind and the reference of such an operand; (None, 0) if it cannot be recorded."""
    wave, consts = trace.wave, trace.consts
    known = consts.get(id(arg))
    if known is not None:
        ref = known
        large = wave.large[ref]
        if type(arg) is np.ndarray or _same(arg, large[0]):
            if large[1] != trace.example or trace.example < 0:
                large[2] = True
            return large[3], ref
    if type(arg) is np.ndarray:
        return _array(trace, arg)
    if hasattr(arg, "_ab_rank"):
        value = getattr(arg, "value", None)
        if type(value) is not float and getattr(arg, "_ab_lookup", None) is None:
            aval = aval_of(tuple(arg.shape), np.dtype(arg.dtype), crooked=is_crooked(arg))
            held = copy.copy(arg)  # another name for the value of now: a write gives `arg` another one
            ref = wave.external(held, -1)
            wave.large[ref] = [held, trace.example, False, aval, None]
            wave.keep.append(arg)
            consts[id(arg)] = ref
            return aval, ref
    elif isinstance(arg, np.generic):
        return aval_of((), arg.dtype, True), wave.external(arg, -1)
    elif isinstance(arg, list | tuple | np.ndarray):
        return constant(trace, np.asarray(arg))
    handle = trace.shared(arg)
    return handle.aval, handle.ref if handle.wave is wave else trace.external(handle)


def _array(trace: Any, arg: np.ndarray) -> tuple[Aval | None, int]:
    if arg.dtype.kind not in "biufc":
        return None, 0
    wave = trace.wave
    aval = aval_of(arg.shape, arg.dtype, False, is_crooked(arg))
    if arg.nbytes < _SMALL:
        key = (aval, arg.tobytes())
        ref = trace.consts.get(key)
        if ref is None:
            ref = trace.consts[key] = wave.external(arg.copy(), -1)
        return aval, ref
    ref = trace.consts[id(arg)] = wave.external(arg, -1)
    wave.large[ref] = [arg, trace.example, False, aval, arg.copy() if arg.flags.writeable else None]
    wave.keep.append(arg)
    return aval, ref


def _same(a: Any, b: Any) -> bool:
    """Whether two values of another interpreter are still one."""
    return all(getattr(a, name, None) is getattr(b, name, None) for name in _STATE)
