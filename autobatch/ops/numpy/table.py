"""The table that decides about every NumPy function: what NumPy's own code serves, and what runs as a loop.

Functions that an op stands for are entered by the modules of this folder (`MODULES`). Here are the others, the twins
that NumPy keeps of functions with a `like=` argument, and whole modules of NumPy's where no function has an op, which
are not imported for this.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import dtype_of
from autobatch.core.op import BATCH_RANK, is_boxed, rank_of
from autobatch.errors import NeedsLoop
from autobatch.ops.numpy import (
    contractions,
    creation,
    elementwise,
    fourier,
    indexing,
    joining,
    linalg,
    reductions,
    scans,
    selecting,
    sets,
    shaping,
    statistics,
)
from autobatch.ops.numpy.creation import CREATION
from autobatch.ops.rules.aliasing import may_overlap
from autobatch.ops.rules.dispatch import FUNCTIONS, NUMPY_OWN, UNSUPPORTED, implements, top_box

__all__ = ["MODULES", "UNSUPPORTED_REASONS", "reason", "twin"]


def _typed(x: Any) -> Any:
    return dtype_of(x) if is_boxed(x) and getattr(x, "scalar", None) is None else _weak(x)


def _weak(x: Any) -> Any:
    kind = getattr(x, "scalar", None)
    return x if kind is None else kind(0)


@implements(np.result_type)
def result_type(*arrays_and_dtypes: Any) -> np.dtype:
    return np.result_type(*(_typed(x) for x in arrays_and_dtypes))


@implements(np.can_cast)
def can_cast(from_: Any, to: Any, casting: Any = "safe") -> bool:
    return np.can_cast(_typed(from_), to, casting)


@implements(np.common_type)
def common_type(*arrays: Any) -> Any:
    return np.common_type(*(np.empty(0, dtype_of(x)) for x in arrays))


@implements(np.may_share_memory, np.shares_memory)
def shares_memory(a: Any, b: Any, /) -> bool:
    """Of arrays made apart: no. Of views of one array the examples' own arrays decide."""
    if rank_of(top_box((a, b))) < BATCH_RANK and not may_overlap(a, b):
        return False
    raise NeedsLoop("whether views share memory")


NUMPY_OWN.update(
    (
        np.dsplit,
        np.hsplit,
        np.iscomplexobj,
        np.isrealobj,
        np.linalg.matmul,
        np.linalg.tensordot,
        np.ndim,
        np.shape,
        np.size,
        np.vsplit,
    )
)

_TEXT = "text has a dtype that depends on its length"
_RECORDS = "structured arrays are records, not arrays of numbers"
_FILES = "it reads or writes a file or a buffer"
_FACTOR = "a factorisation whose rank or order depends on the values"
_DTYPE = "the dtype of its result depends on the values"
_DATES = "dates have no batched form"
_SHOW = "it makes text of one array"
_CALLS = "it calls a Python function for each slice"
_ORDER = "order statistics of this kind are computed one example at a time"
_POLY = "polynomials whose degree depends on the values"
_PACK = "it packs bits of one array"
_BINS = "bins follow from the values"

UNSUPPORTED_REASONS: dict[str, str] = {
    "apply_along_axis": _CALLS,
    "argpartition": _ORDER,
    "array2string": _SHOW,
    "array_equiv": "it compares shapes that broadcast against each other",
    "array_repr": _SHOW,
    "array_str": _SHOW,
    "asfortranarray": "arrays of ours have no memory order",
    "busday_count": _DATES,
    "busday_offset": _DATES,
    "datetime_as_string": _DATES,
    "diag_indices_from": "it needs the shape of one example",
    "einsum_path": "it needs the shapes of one example",
    "frombuffer": _FILES,
    "fromfile": _FILES,
    "fromfunction": _CALLS,
    "fromiter": _FILES,
    "fromstring": _FILES,
    "genfromtxt": _FILES,
    "geomspace": "its checks depend on the values",
    "histogram2d": _BINS,
    "histogram_bin_edges": _BINS,
    "histogramdd": _BINS,
    "i0": "the Bessel function has no op",
    "is_busday": _DATES,
    "linalg.eig": _FACTOR,
    "linalg.eigvals": _FACTOR,
    "linalg.lstsq": _FACTOR,
    "linalg.matrix_rank": _FACTOR,
    "linalg.tensorinv": _FACTOR,
    "linalg.tensorsolve": _FACTOR,
    "loadtxt": _FILES,
    "logspace": "it is a power of np.linspace",
    "min_scalar_type": _DTYPE,
    "nanargmax": _ORDER,
    "nanargmin": _ORDER,
    "nanmedian": _ORDER,
    "nanpercentile": _ORDER,
    "nanquantile": _ORDER,
    "packbits": _PACK,
    "partition": _ORDER,
    "place": "it cycles through values as often as the mask asks",
    "poly": _POLY,
    "polyadd": _POLY,
    "polyder": _POLY,
    "polydiv": _POLY,
    "polyfit": _POLY,
    "polyint": _POLY,
    "polymul": _POLY,
    "polysub": _POLY,
    "ravel_multi_index": "its checks depend on the values",
    "real_if_close": _DTYPE,
    "require": "arrays of ours have no memory layout",
    "roots": _POLY,
    "save": _FILES,
    "savetxt": _FILES,
    "savez": _FILES,
    "savez_compressed": _FILES,
    "setxor1d": "sets of this kind are computed one example at a time",
    "sort_complex": _DTYPE,
    "tril_indices_from": "it needs the shape of one example",
    "trim_zeros": "what is trimmed depends on the values",
    "triu_indices_from": "it needs the shape of one example",
    "unique_all": "sets of this kind are computed one example at a time",
    "unique_counts": "sets of this kind are computed one example at a time",
    "unique_inverse": "sets of this kind are computed one example at a time",
    "unpackbits": _PACK,
    "unravel_index": "its checks depend on the values",
    "unwrap": "each correction depends on the ones before it",
}

# Whole modules, where no function has an op.
_MODULES = {
    "numpy.lib.recfunctions": _RECORDS,
    "numpy.strings": _TEXT,
    "numpy.char": _TEXT,
    "numpy.lib.scimath": _DTYPE,
    "numpy.polynomial": _POLY,
}


_TWINS = {function.__name__: ours for function, ours in CREATION.items()}


def twin(function: Any) -> Callable[..., Any] | None:
    """Ours for a function that makes arrays, of which NumPy keeps a twin for `like=`."""
    if function in FUNCTIONS or function.__module__ != "numpy":
        return None
    return _TWINS.get(function.__name__)


def reason(function: Any) -> str | None:
    """Why a function has no op, by its name or the module it is in; None if it has one, or is not known."""
    if function in UNSUPPORTED:
        return UNSUPPORTED[function]
    if function in FUNCTIONS or function in NUMPY_OWN:
        return None
    if function.__module__ == "numpy":  # a twin with `like=`
        return UNSUPPORTED_REASONS.get(function.__name__)
    return next((why for module, why in _MODULES.items() if function.__module__.startswith(module)), None)


for _name, _why in UNSUPPORTED_REASONS.items():
    _function: Any = functools.reduce(getattr, _name.split("."), np)
    UNSUPPORTED[_function] = _why


# Each module of this folder, which by its import enters its functions into `FUNCTIONS`.
MODULES = (
    contractions,
    creation,
    elementwise,
    fourier,
    indexing,
    joining,
    linalg,
    reductions,
    scans,
    selecting,
    sets,
    shaping,
    statistics,
)
