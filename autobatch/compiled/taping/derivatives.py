"""Partial derivatives as text, for each function that compiled code calls on numbers: one for each operand.

In their text {0} and {1} are the operands, {y} is the result. They are the derivatives of `ops.numpy.elementwise`.
"""

import math

from autobatch.compiled.translation.exact_types import DTYPES
from autobatch.core.op import Op
from autobatch.ops.rules.dispatch import UFUNCS

_LN2, _LN10 = repr(math.log(2.0)), repr(math.log(10.0))
_ERF = repr(2.0 / math.sqrt(math.pi))

_ONE = {
    "exp": "{y}", "exp2": f"{{y}} * {_LN2}", "expm1": "{y} + 1.0", "log": "1.0 / {0}",
    "log2": f"1.0 / ({{0}} * {_LN2})",
    "log10": f"1.0 / ({{0}} * {_LN10})", "log1p": "1.0 / (1.0 + {0})", "sin": "math.cos({0})", "cos": "-math.sin({0})",
    "tan": "1.0 + {y} * {y}", "arcsin": "1.0 / math.sqrt(1.0 - {0} * {0})",
    "arccos": "-1.0 / math.sqrt(1.0 - {0} * {0})", "arctan": "1.0 / (1.0 + {0} * {0})", "sinh": "math.cosh({0})",
    "cosh": "math.sinh({0})", "tanh": "1.0 - {y} * {y}", "arcsinh": "1.0 / math.sqrt({0} * {0} + 1.0)",
    "arccosh": "1.0 / math.sqrt({0} * {0} - 1.0)", "arctanh": "1.0 / (1.0 - {0} * {0})", "negative": "-1.0",
    "positive": "1.0", "absolute": "sign_of({0})", "fabs": "sign_of({0})", "square": "2.0 * {0}",
    "reciprocal": "-{y} * {y}", "deg2rad": repr(math.pi / 180.0), "rad2deg": repr(180.0 / math.pi),
    "sqrt": "0.5 / {y}", "cbrt": "1.0 / (3.0 * {y} * {y})",
}  # fmt: skip
ROOTS = frozenset({"sqrt", "cbrt", "math.sqrt"})
"""The functions whose derivative is infinite at zero."""

_FIRST = "(1.0 if {0} %s {1} or {%d} != {%d} else 0.0)"
_SECOND = "(0.0 if {0} %s {1} or {%d} != {%d} else 1.0)"


def _extreme(sign: str, nan: int) -> tuple[str, str]:
    return _FIRST % (sign, nan, nan), _SECOND % (sign, nan, nan)


_TWO = {
    "add": ("1.0", "1.0"), "subtract": ("1.0", "-1.0"), "multiply": ("{1}", "{0}"),
    "divide": ("1.0 / {1}", "-{y} / {1}"), "maximum": _extreme(">=", 0), "minimum": _extreme("<=", 0),
    "fmax": _extreme(">=", 1), "fmin": _extreme("<=", 1),
    "hypot": ("({0} / {y} if {y} != 0.0 else 0.0)", "({1} / {y} if {y} != 0.0 else 0.0)"),
    "arctan2": ("{1} / ({1} * {1} + {0} * {0})", "-{0} / ({1} * {1} + {0} * {0})"),
    "copysign": ("math.copysign(1.0, {0}) * math.copysign(1.0, {1})", "0.0"),
    "logaddexp": ("(math.exp({0} - {y}) if {y} != -INF else math.exp({0}))",
                  "(math.exp({1} - {y}) if {y} != -INF else math.exp({1}))"),
    "power": ("power_x({0}, {1})", "power_y({0}, {y})"), "float_power": ("power_x({0}, {1})", "power_y({0}, {y})"),
    "remainder": ("1.0", "-np.floor({0} / {1})"), "fmod": ("1.0", "-np.trunc({0} / {1})"),
    "heaviside": ("0.0", "(1.0 if {0} == 0 else 0.0)"),
}  # fmt: skip

UFUNC_PARTIALS: dict[str, tuple[str, ...]] = {**{name: (text,) for name, text in _ONE.items()}, **_TWO}
"""Partial derivatives by the name of the ufunc."""

_SHARED = set(vars(math)) - {"remainder"}  # in `math` its sign is another
_OF_MATH = {
    "acos": "arccos", "asin": "arcsin", "atan": "arctan", "acosh": "arccosh", "asinh": "arcsinh", "atanh": "arctanh",
    "atan2": "arctan2", "pow": "power",
}  # fmt: skip
PARTIALS: dict[str, tuple[str, ...]] = {
    **{f"math.{name}": UFUNC_PARTIALS[ufunc] for name, ufunc in _OF_MATH.items()},
    **{f"math.{name}": partials for name, partials in UFUNC_PARTIALS.items() if name in _SHARED},
    "math.erf": (f"{_ERF} * math.exp(-{{0}} * {{0}})",), "math.erfc": (f"-{_ERF} * math.exp(-{{0}} * {{0}})",),
    "np.fmod": UFUNC_PARTIALS["fmod"], "hypot": UFUNC_PARTIALS["hypot"], "abs": UFUNC_PARTIALS["absolute"],
    "squared": ("2.0 * {0}",), "modulo": UFUNC_PARTIALS["remainder"],
    "Add": UFUNC_PARTIALS["add"], "Sub": UFUNC_PARTIALS["subtract"], "Mult": UFUNC_PARTIALS["multiply"],
    "Div": UFUNC_PARTIALS["divide"], "USub": ("-1.0",),
}  # fmt: skip
"""Partial derivatives by the name in compiled text; for operators, by the name of their syntax node."""

# The integer dtypes, and of the functions that compiled text calls (in `kernels.compiled_code.checked_arithmetic`,
# `kernels.compiled_code.checked_array_calls`, NumPy and Python) those that count, search and test.
CONSTANT = frozenset((
    *(name for name in DTYPES if "int" in name),
    "uint64", "boolean", "len", "range", "arg_extremum", "binary_search", "binary_search_each",
    "has_ties", "all_within", "overlap", "common_shape", "common_shape_ranked", "stable_argsort", "float_flags",
    "clear_flags", "nonnegative_indices", "equal_lengths", "equal_sizes", "equal_strings", "compare_strings",
    "floor_divide", "np.floor", "np.ceil", "np.trunc", "np.isnan", "np.isinf", "np.isfinite",
    "math.isnan", "math.isinf", "math.isfinite", "np.argsort", "np.nonzero", "np.arange", "float_arange",
    "nonzero_1", "nonzero_2", "spans_overlap", "address", "same_memory", "new_stream", "next_float", "next_normal",
    "next_exponential", "next_whole", "shuffle_places", "add", "subtract", "multiply",
    "integer_power", "max", "min", "math.gcd", "extent",
))  # fmt: skip
"""Functions of compiled text whose results carry no gradient."""

CONSTANT_UFUNCS = frozenset(ufunc.__name__ for ufunc, op in UFUNCS.items() if isinstance(op, Op) and op.vjp is None)
