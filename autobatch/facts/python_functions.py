"""A table lists the effects of builtins and standard library functions; `facts.call_effects` defines its format.

Consuming an iterator does not count as writing it.
"""

import bisect
import builtins
import cmath
import collections
import copy
import dataclasses
import functools
import heapq
import itertools
import math
import operator
import random
import re
import statistics
from types import ModuleType
from typing import Any

from autobatch.facts.operators import ARITHMETIC

_BUILTINS = """
    abs all any ascii bin bool bytearray bytes callable chr complex dict dict.fromkeys dir divmod enumerate(&iterable)
    filter(@function,&iterable) float format frozenset getattr(&object,name,&default) hasattr hash hex int isinstance
    issubclass iter(&iterable) len list locals map(@function,*&iterables) max(*&args,*,@key) memoryview(&object)
    min(*&args,*,@key) next(!&iterator,&default) object oct ord pow range repr reversed(&sequence) round set slice
    sorted(iterable,*,@key) str sum(iterable,&start) super tuple(&iterable) type zip(*&iterables) setattr(!object)
    delattr(!object) vars(&object) property staticmethod classmethod
"""
_BUILTINS_OUTSIDE = "aiter anext breakpoint compile eval exec globals help input open print __import__"
_OPERATOR = """
    abs add and_ attrgetter concat contains countOf eq floordiv ge getitem(&a) gt index indexOf inv invert
    itemgetter le length_hint lshift lt matmul methodcaller mod mul ne neg not_ or_ pos pow rshift sub truediv truth xor
    call(@obj) delitem(!a) setitem(!a) iconcat(!&a,b)
""" + " ".join(f"i{each.name}(!&a,b)" for each in ARITHMETIC)
_ITERTOOLS = """
    accumulate(iterable,@func) chain(*&iterables) chain.from_iterable(&iterable) combinations(&iterable)
    combinations_with_replacement(&iterable) compress(&data) count cycle(&iterable) dropwhile(@predicate,&iterable)
    filterfalse(@predicate,&iterable) groupby(&iterable,@key) islice(&iterable) pairwise(&iterable)
    permutations(&iterable) product(*&iterables) repeat(&object) starmap(@function,&iterable)
    takewhile(@predicate,&iterable) tee(&iterable) zip_longest(*&iterables) batched(&iterable)
"""
_HEAPQ = """
    heapify(!heap) heappop(!&heap) heappush(!heap) heappushpop(!&heap,&item) heapreplace(!&heap) merge(*&iterables)
    nlargest(n,iterable,@key) nsmallest(n,iterable,@key)
"""
_BISECT = "bisect bisect_left bisect_right insort(!a) insort_left(!a) insort_right(!a)"
_RANDOM = """
    betavariate choice choices expovariate gammavariate gauss getrandbits getstate lognormvariate normalvariate
    paretovariate randbytes randint random randrange sample seed setstate shuffle(!x) triangular uniform vonmisesvariate
    weibullvariate
"""


def _functions_of(module: ModuleType) -> str:
    """The names of a module's own public functions; what is called after kernel densities draws random numbers."""
    own = {name: each for name, each in vars(module).items() if getattr(each, "__module__", "") == module.__name__}
    return " ".join(name for name, each in own.items() if not (isinstance(each, type) or re.match("_|kde", name)))


TABLES: dict[ModuleType, dict[str, str]] = {
    builtins: {"computes": _BUILTINS, "outside": _BUILTINS_OUTSIDE, "memory": "id"},
    math: {"computes": _functions_of(math)},
    cmath: {"computes": _functions_of(cmath)},
    operator: {"computes": _OPERATOR, "memory": "is_ is_not"},
    itertools: {"computes": _ITERTOOLS},
    functools: {"computes": "reduce(@function,&iterable,&initial) partial(@func,*&args) cmp_to_key(@func)"},
    heapq: {"computes": _HEAPQ},
    bisect: {"computes": _BISECT},
    copy: {"computes": "copy deepcopy"},
    collections: {"computes": "deque defaultdict(@default_factory) OrderedDict Counter ChainMap(*&maps)"},
    dataclasses: {"computes": "replace asdict astuple fields is_dataclass"},
    statistics: {"computes": _functions_of(statistics)},
    random: {"draws": _RANDOM},
}
_ACTING = "contextvars io logging os posix random secrets shutil socket subprocess sys tempfile threading uuid warnings"
ACTING_MODULES = frozenset(_ACTING.split())
"""Modules whose functions draw random numbers, or read or change state outside the call."""
COMPUTING_LIBRARIES = frozenset(("array_api_compat", "einops", "numpy", "scipy"))
"""Packages whose Python functions only compute; the functions of all other packages may do anything."""
_PASSING = """
    autobatch bisect builtins cmath collections contextlib copy dataclasses functools heapq itertools math operator
    types typing
"""
PASSING_MODULES = COMPUTING_LIBRARIES | frozenset(_PASSING.split())
"""Modules and packages whose functions and classes keep or pass on what they get, or use its operators and methods."""
READERS = frozenset((bytes, bytearray, memoryview, operator.concat, operator.iconcat, type(functools.cache(len))))
"""Those in `PASSING_MODULES` that read the memory or the class of what they get, or keep it for a later call."""
FRAME_READERS = frozenset(("locals", "globals", "vars", "dir", "eval", "exec"))
"""Builtins that access the caller's variables."""
PAUSES = frozenset(("breakpoint", "set_trace"))
"""Names of functions that stop in the caller's frame: the builtin, and `set_trace` of debuggers."""
NEW_CONTAINERS: tuple[Any, ...] = (
    list, dict, set, frozenset, bytearray, sorted, collections.deque, collections.defaultdict, collections.OrderedDict,
    collections.Counter, copy.copy, copy.deepcopy,
)  # fmt: skip
"""Callables that return a new container, whose items may be shared with others."""
