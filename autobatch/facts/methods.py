"""A table lists the effects of the methods of NumPy's and Python's types; `facts.call_effects` defines its format."""

import collections
import random
import re
import types

import numpy as np

from autobatch.facts import numpy_functions
from autobatch.facts.operators import ARITHMETIC, BINARY, UNARY

_READS = """
    __contains__ __len__ __hash__ __repr__ __str__ __format__ __bool__ __int__ __float__ __index__ __complex__
    __sizeof__ __abs__ __round__ __divmod__ __rdivmod__
"""
_OPERATORS = " ".join([
    *dict.fromkeys(name for each in BINARY for name in (each.method, each.reflected)),
    *(f"__{each.name}__" for each in UNARY),
])  # fmt: skip
_ITEMS = "&__getitem__ &__iter__ &__reversed__"
_STORES = "!__setitem__ !__delitem__ " + " ".join(f"!&{each.inplace_method}" for each in ARITHMETIC)
_TEXT = f"""
    {numpy_functions.TEXT} casefold format format_map fromhex hex isascii isidentifier isprintable maketrans
    removeprefix removesuffix
"""
_NUMBER = """
    as_integer_ratio bit_count bit_length from_bytes fromhex hex is_integer to_bytes from_number __floor__ __ceil__
    __trunc__
"""
_SET = "copy difference intersection isdisjoint issubset issuperset symmetric_difference union"
_OF_ARRAYS = re.findall(r"(\w+)\(a,([^)]*!out)\)", numpy_functions.TABLES[np]["computes"])  # functions of NumPy
_SHAPED_OF_ARRAYS = f"""
    {" ".join(f"{name}({more})" for name, more in _OF_ARRAYS if hasattr(np.ndarray, name))} copy flatten repeat
    astype(dtype,order,casting,subok,copy=&self) &conj(!out) &diagonal &ravel &reshape &squeeze &swapaxes &transpose
"""
_READS_OF_ARRAYS = """
    compress(condition,axis,!out) choose(choices,!out) argpartition argsort item nonzero searchsorted tobytes tolist
    dumps byteswap(inplace=!self) &conjugate(!out) &view &getfield &to_device &__array__ __copy__ __deepcopy__
"""
_WRITES_OF_ARRAYS = "!fill !partition !put !resize !setfield !setflags !sort !itemset !__setstate__"
_DRAWS = f"""
    {numpy_functions.DRAWS} integers multivariate_hypergeometric permuted(x,*,!out) random(size,dtype,!out) spawn
    standard_exponential(size,dtype,method,!out) standard_gamma(shape,size,dtype,!out) standard_normal(size,dtype,!out)
    tomaxint
"""

TABLES: dict[type, dict[str, str]] = {
    np.ndarray: {
        "computes": f"{_READS} {_OPERATORS} {_ITEMS} {_STORES} {_READS_OF_ARRAYS} {_WRITES_OF_ARRAYS}",
        "shaped": _SHAPED_OF_ARRAYS,
        "outside": "dump tofile",
    },
    np.generic: {
        "computes": f"{_READS} {_OPERATORS} {_SHAPED_OF_ARRAYS} {_READS_OF_ARRAYS} {_NUMBER}"
        " fill partition put resize setfield setflags sort itemset __setitem__",  # these raise
        "outside": "dump tofile",
    },
    list: {
        "computes": f"{_READS} {_OPERATORS} {_ITEMS} {_STORES} !append !clear copy count !extend &index !insert !&pop"
        " !remove !reverse !sort(@key)"
    },
    dict: {
        "computes": f"{_READS} {_OPERATORS} {_ITEMS} {_STORES} !clear copy fromkeys &get &items &keys !&pop !&popitem"
        " !&setdefault !update &values"
    },
    collections.OrderedDict: {"computes": "!move_to_end"},
    collections.defaultdict: {"computes": "!&__getitem__ !&__missing__"},
    collections.Counter: {"computes": "total most_common &elements !subtract"},
    set: {
        "computes": f"{_READS} {_OPERATORS} {_ITEMS} {_STORES} {_SET} !add !clear !difference_update !discard"
        " !intersection_update !&pop !remove !symmetric_difference_update !update"
    },
    frozenset: {"computes": f"{_READS} {_OPERATORS} {_ITEMS} {_SET}"},
    collections.deque: {
        "computes": f"{_READS} {_OPERATORS} {_ITEMS} {_STORES} !append !appendleft !clear copy count !extend"
        " !extendleft &index !insert !&pop !&popleft !remove !reverse !rotate"
    },
    tuple: {"computes": f"{_READS} {_OPERATORS} {_ITEMS} count &index"},
    str: {"computes": f"{_READS} {_OPERATORS} {_ITEMS} {_TEXT}"},
    bytes: {"computes": f"{_READS} {_OPERATORS} {_ITEMS} {_TEXT}"},
    bytearray: {
        "computes": f"{_READS} {_OPERATORS} {_ITEMS} {_STORES} {_TEXT} !append !clear copy !extend !insert !pop"
        " !remove !reverse"
    },
    int: {"computes": f"{_READS} {_OPERATORS} {_NUMBER} conjugate"},
    float: {"computes": f"{_READS} {_OPERATORS} {_NUMBER} conjugate"},
    complex: {"computes": f"{_READS} {_OPERATORS} {_NUMBER} conjugate"},
    range: {"computes": f"{_READS} {_ITEMS} count index"},
    slice: {"computes": "indices"},
    types.GeneratorType: {"computes": "!&__next__ !&send !&throw !close"},
    np.random.Generator: {"draws": _DRAWS},
    np.random.RandomState: {"draws": _DRAWS},
    random.Random: {"draws": _DRAWS + " betavariate expovariate gauss getrandbits choices randrange sample"},
}
OF_UFUNCS = """
    reduce(array,axis,dtype,!out) accumulate(array,axis,dtype,!out) reduceat(array,indices,axis,dtype,!out)
    outer(A,B,*,!out) at(!a) resolve_dtypes
"""  # fmt: skip
