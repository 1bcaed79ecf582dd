"""The table that decides for every NumPy function without an op: run NumPy's own code, or loop over the examples.

The other modules of this folder register functions that have ops; this one registers all others, the function objects
that NumPy keeps for `like=`, and, by name and without importing them, modules of NumPy where no function has an op.
"""

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import dtype_of
from autobatch.core.current_region import asks_batches
from autobatch.core.op import BATCH_RANK, is_boxed, rank_of
from autobatch.errors import NeedsLoop, UnsupportedError
from autobatch.ops.numpy import (  # noqa: F401  (each registers its functions in FUNCTIONS)
    contractions,
    creation,
    cumulative_and_sorting,
    elementwise,
    fourier,
    indexing,
    joining,
    linalg,
    reductions,
    selecting,
    sets,
    shaping,
    statistics,
)
from autobatch.ops.numpy.creation import CREATION
from autobatch.ops.rules.aliasing import may_overlap
from autobatch.ops.rules.dispatch import FUNCTIONS, NUMPY_OWN, UNSUPPORTED, implements, name_of, refuse, source, top_box


def _typed(x: Any) -> Any:
    weak = getattr(x, "scalar", None)
    return weak(0) if weak is not None else dtype_of(x) if is_boxed(x) else x


implements(np.result_type)(lambda *arrays_and_dtypes: np.result_type(*map(_typed, arrays_and_dtypes)))
implements(np.can_cast)(lambda from_, to, casting="safe": np.can_cast(_typed(from_), to, casting))


@implements(np.may_share_memory, np.shares_memory)
def shares_memory(a: Any, b: Any, /) -> bool:
    """False if neither array can be a view of the other; else NeedsLoop: the loop compares the real arrays."""
    if rank_of(top_box((a, b))) < BATCH_RANK and not may_overlap(a, b):
        return False
    raise NeedsLoop("whether views share memory")


_NUMPY_OWN_NAMES = """
    angle append apply_over_axes atleast_1d atleast_2d atleast_3d average column_stack common_type corrcoef cov
    cumulative_prod cumulative_sum diff digitize dsplit dstack extract fft.fft2 fft.fftn fft.fftshift fft.hfft
    fft.ifft2 fft.ifftn fft.ifftshift fft.ihfft fft.irfft2 fft.irfftn fft.rfft2 fft.rfftn fill_diagonal flatnonzero
    flip fliplr flipud gradient hsplit hstack intersect1d isclose iscomplex iscomplexobj isneginf isposinf isreal
    isrealobj ix_ linalg.cond linalg.diagonal linalg.matmul linalg.matrix_norm linalg.matrix_power
    linalg.matrix_transpose linalg.multi_dot linalg.norm linalg.outer linalg.svdvals linalg.tensordot linalg.trace
    linalg.vector_norm matrix_transpose moveaxis nan_to_num nancumprod nancumsum nanprod nansum ndim
    outer polyval ptp put_along_axis rollaxis rot90 select shape sinc size split take_along_axis tensordot trapezoid
    tril tril_indices_from triu triu_indices_from union1d unique_values unstack vsplit vstack
"""

# What compiled code reads of some of them.
source(np.append, of=(1,))(
    lambda arr, values: np.concatenate((np.asarray(arr), [values] if np.ndim(values) == 0 else np.asarray(values)))
)
source(np.atleast_2d, of=(1, 2))(lambda ary: np.asarray(ary)[None] if np.ndim(ary) == 1 else ary)
source(np.diff, of=(1,))(lambda a: np.asarray(a)[1:] - np.asarray(a)[: max(len(a) - 1, 0)])
source(np.flatnonzero)(lambda a: np.nonzero(np.asarray(a).ravel())[0])
turned = source()(lambda m, axis: np.moveaxis(np.moveaxis(m, axis, 0)[::-1], 0, axis))
source(np.flip, of=(1, 2))(
    lambda m, axis=None: turned(m, axis) if axis is not None else np.flipud(m) if np.ndim(m) == 1 else m[::-1, ::-1]
)
source(np.flipud, of=(1, 2))(lambda m: np.asarray(m)[::-1])
source(np.isclose)(lambda a, b, rtol=1e-05, atol=1e-08: abs(np.subtract(a, b)) <= atol + rtol * np.abs(b))
source(np.linalg.norm, of=(1, 2), sums=True)(
    lambda x, *, axis=None, keepdims=False: np.sqrt(np.sum(np.square(np.asarray(x) * 1.0), axis, keepdims=keepdims))
)
source(np.outer, of=(1,))(lambda a, b: np.asarray(a)[:, None] * np.asarray(b).flatten())
of_rows = source()(lambda x, places, axis: np.moveaxis(x[np.arange(len(x))[:, None], places], 1, axis).copy())
source(np.take_along_axis, of=(2,))(
    lambda arr, indices, axis=-1: of_rows(np.moveaxis(arr, axis, 1), np.moveaxis(indices, axis, 1), axis)
)
source(np.tril, of=(2,))(lambda m, k=0: np.where(linalg.below(m.shape[0], m.shape[1], k), m, np.zeros_like(m)))
source(np.triu, of=(2,))(lambda m, k=0: np.where(linalg.below(m.shape[0], m.shape[1], k - 1), np.zeros_like(m), m))

REARRANGES = (np.transpose, np.swapaxes, np.moveaxis, np.rollaxis, np.expand_dims)
"""They reorder axes and insert some of length 1."""

_TEXT = "text has a dtype that depends on its length"
_RECORDS = "structured arrays are records, not arrays of numbers"
_DTYPE = "the dtype of its result depends on the values"
_POLY = "polynomials whose degree depends on the values"

_NAMES_BY_REASON: dict[str, str] = {
    "it calls a Python function for each slice": "apply_along_axis fromfunction",
    "order statistics of this kind are computed one example at a time": (
        "argpartition lexsort nanargmax nanargmin nanmedian nanpercentile nanquantile partition"
    ),
    "it makes text of one array": "array2string array_repr array_str",
    "it compares shapes that broadcast against each other": "array_equiv",
    "the library's arrays have no memory order": "asfortranarray",
    "dates are not supported": "busday_count busday_offset datetime_as_string is_busday",
    "it needs the shape of one example": "diag_indices_from",
    "it needs the shapes of one example": "einsum_path",
    "it reads or writes a file or a buffer": (
        "frombuffer fromfile fromiter fromstring genfromtxt loadtxt save savetxt savez savez_compressed"
    ),
    "its checks depend on the values": "geomspace ravel_multi_index unravel_index",
    "the bins may follow from the values": "histogram2d histogram_bin_edges histogramdd",
    "the Bessel function has no op": "i0",
    "a factorisation whose rank or order depends on the values": (
        "linalg.eig linalg.eigvals linalg.matrix_rank linalg.tensorinv linalg.tensorsolve"
    ),
    "it is a power of np.linspace": "logspace",
    _DTYPE: "min_scalar_type real_if_close sort_complex",
    "it packs bits of one array": "packbits unpackbits",
    "it cycles through values as often as the mask asks": "place",
    _POLY: "poly polyadd polyder polydiv polyint polymul polysub roots",
    "the library's arrays have no memory layout": "require",
    "sets of this kind are computed one example at a time": "setxor1d unique_all unique_counts unique_inverse",
    "what is trimmed depends on the values": "trim_zeros",
    "each correction depends on the ones before it": "unwrap",
}
UNSUPPORTED_REASONS = {name: why for why, names in _NAMES_BY_REASON.items() for name in names.split()}

# Modules in which no function has an op.
_MODULES = {
    "numpy.lib.recfunctions": _RECORDS,
    "numpy.strings": _TEXT,
    "numpy.char": _TEXT,
    "numpy.lib.scimath": _DTYPE,
    "numpy.polynomial": _POLY,
}


_LIKE_IMPLS = {function.__name__: ours for function, ours in CREATION.items()}


def like_function(function: Any) -> Callable[..., Any] | None:
    """The implementation for the function object that NumPy dispatches on for `np.zeros(..., like=x)`; else None."""
    return None if function in FUNCTIONS or function.__module__ != "numpy" else _LIKE_IMPLS.get(function.__name__)


def unsupported_reason(function: Any) -> str | None:
    """Why a function cannot run batched, by its name or module; None if it can, or is unknown."""
    if function in UNSUPPORTED:
        return UNSUPPORTED[function]
    if function in FUNCTIONS or function in NUMPY_OWN:
        return None
    if function.__module__ == "numpy":  # the function object for `like=`
        return UNSUPPORTED_REASONS.get(function.__name__)
    return next((why for module, why in _MODULES.items() if function.__module__.startswith(module)), None)


def _numpy_attribute(name: str) -> Any:
    return functools.reduce(getattr, name.split("."), np)


@functools.cache
def _patched_globals(module: str) -> dict[str, Any]:
    """The globals of a NumPy module, with its array-creation functions replaced by this library's."""
    own = vars(sys.modules[module])
    ours = {**_LIKE_IMPLS, "broadcast_to": shaping.broadcast_to}  # whose target shape may differ by example
    names = own | {name: maker for name, maker in ours.items() if name in own}
    for name, value in own.items():
        if type(value) is types.FunctionType and value.__module__ == module and name not in ours:
            names[name] = _with_globals(value, names)
        elif type(value) is types.ModuleType and "asarray" in vars(value):  # `numpy` or `numpy._core.numeric`
            names[name] = types.SimpleNamespace(**vars(value) | ours)
    return names


def _with_globals(function: Any, names: dict[str, Any]) -> Any:
    out = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    out.__kwdefaults__ = function.__kwdefaults__
    return out


def _run_numpy_code(function: Any) -> Callable[..., Any]:
    """NumPy's Python code for a function, run with globals in which `asarray` etc. keep this library's arrays."""
    code: Any = None

    @functools.wraps(function._implementation)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal code
        if code is None:  # at the first call: copying the globals of all modules would slow down the import
            code = _with_globals(function._implementation, _patched_globals(function._implementation.__module__))
        token = asks_batches.set(True)
        try:
            return code(*args, **kwargs)
        except UnsupportedError as error:
            if isinstance(error, NeedsLoop) or rank_of(top_box((args, kwargs))) != BATCH_RANK:
                raise
            reason = f"{name_of(function)} of examples that differ in what its code asks for"
        finally:
            asks_batches.reset(token)
        return refuse(function, args, kwargs, reason)

    return call


NUMPY_OWN.update((function, _run_numpy_code(function)) for function in map(_numpy_attribute, _NUMPY_OWN_NAMES.split()))
UNSUPPORTED.update((_numpy_attribute(name), why) for name, why in UNSUPPORTED_REASONS.items())


@source(np.split, of=(1, 2, 3))
def _split_of_one(ary, indices_or_sections, axis=0):
    x = np.moveaxis(ary, axis, 0) if axis else ary
    size = len(x) // indices_or_sections
    if size * indices_or_sections != len(x):
        raise ValueError
    return [np.moveaxis(x[k * size : k * size + size], 0, axis) for k in range(indices_or_sections)]
