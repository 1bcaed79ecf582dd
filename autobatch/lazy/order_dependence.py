"""Whether a function does what can be told apart by the order of the examples: prints, draws, reads an iterator.

On the fly, an example that needs a value waits while the others run on. What it prints then comes behind what they
print, and what it draws from a generator of the process is another number than in the loop over the examples. Changes
of containers, objects and arrays are no matter here: `core.snapshot` sees those and takes them back. What it cannot
take back, the state of a file, an iterator or an `array.array`, is.
"""

import collections
import dis
import functools
import itertools
import random
from collections.abc import Collection
from types import BuiltinFunctionType, CodeType, FunctionType, WrapperDescriptorType
from typing import Any

import numpy as np

from autobatch.batches.any_batch import Batch
from autobatch.core.snapshot import Snapshot
from autobatch.facts.python_functions import ACTING_MODULES
from autobatch.syntax.source import is_library

__all__ = ["shows_order"]

_METHODS = frozenset(("write", "writelines"))  # of files: a function of the user's may have such a name
_NAMES = ACTING_MODULES | {"input", "open", "print"} | _METHODS
_OF_OBJECTS = frozenset(("LOAD_ATTR", "LOAD_METHOD"))
_LOADS = frozenset(("LOAD_NAME", "LOAD_GLOBAL", "IMPORT_NAME", "IMPORT_FROM")) | _OF_OBJECTS
_MAKERS = frozenset(("default_rng", "Generator", "RandomState", "SeedSequence", "PCG64", "Random"))  # of generators
_KEPT = (dict, list, set, collections.deque, bytearray, np.ndarray, random.Random)


def shows_order(state: Snapshot, kinds: Collection[type] = (), batches: bool = False) -> bool:
    """Whether what was reached prints, draws, or is used up by reading it.

    Args:
        state: a function and what it is given; kinds: the classes of what is in its examples.
        batches: whether a batch counts as well, in which nothing is recorded.

    >>> shows_order(Snapshot([iter([1])]))
    True
    >>> shows_order(Snapshot([[1], 2.0]))
    False
    """
    methods = (vars(kind)[name] for kind in kinds for name in state.named & vars(kind).keys())
    own = (each for each in methods if isinstance(each, FunctionType))
    codes = [function.__code__ for function in (*state.functions, *state.methods, *own)]
    reached = state.places.values()
    if batches and any(isinstance(value, Batch) for value in reached):
        return True
    codes = [code for code in codes if not is_library(code.co_filename)]
    return any(map(_names_one, codes)) or any(map(_is_of_one, kinds)) or any(map(_is_one, reached))


@functools.lru_cache(maxsize=1024)
def _names_one(code: CodeType) -> bool:
    if not _NAMES.isdisjoint(code.co_names):
        loads = [(each.argval, each.opname) for each in dis.get_instructions(code) if each.opname in _LOADS]
        for (name, how), (following, _) in itertools.pairwise([*loads, ("", "")]):
            if name in _METHODS and how not in _OF_OBJECTS:
                continue
            if name in _NAMES and not (name == "random" and following in _MAKERS):
                return True
    return any(_names_one(const) for const in code.co_consts if isinstance(const, CodeType))


def _is_one(value: Any) -> bool:
    """Whether a value is an iterator, or acts outside."""
    acts = isinstance(value, BuiltinFunctionType) and value.__name__ in _NAMES
    return acts or _is_of_one(type(value)) or (callable(value) and _is_in_module(value))


def _is_of_one(kind: type) -> bool:
    """Whether a snapshot cannot keep the state of an object of a class: an iterator, an `array.array`, a file."""
    if issubclass(kind, _KEPT):
        return issubclass(kind, random.SystemRandom)
    stores = isinstance(getattr(kind, "__setitem__", None), WrapperDescriptorType)
    return stores or hasattr(kind, "__next__") or _is_in_module(kind)


def _is_in_module(made: Any) -> bool:
    module = getattr(made, "__module__", None)
    return isinstance(module, str) and module.lstrip("_").partition(".")[0] in ACTING_MODULES
