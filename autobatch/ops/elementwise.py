"""Elementwise ops: one line each, the vjp of each argument beside it."""

import numpy as np

from autobatch.ops.kinds import elementwise
from autobatch.ops.table import ufunc_table

__all__ = ["UFUNCS"]

# fmt: off
neg_p     = elementwise(np.negative, lambda ct, out, x: -ct)
exp_p     = elementwise(np.exp,      lambda ct, out, x: ct * out, pad=0.0)
log_p     = elementwise(np.log,      lambda ct, out, x: ct / x, pad=1.0)
tanh_p    = elementwise(np.tanh,     lambda ct, out, x: ct * (1 - out * out))
add_p     = elementwise(np.add,      lambda ct, out, x, y: ct,
                                     lambda ct, out, x, y: ct)
sub_p     = elementwise(np.subtract, lambda ct, out, x, y: ct,
                                     lambda ct, out, x, y: -ct)
mul_p     = elementwise(np.multiply, lambda ct, out, x, y: ct * y,
                                     lambda ct, out, x, y: ct * x)
div_p     = elementwise(np.divide,   lambda ct, out, x, y: ct / y,
                                     lambda ct, out, x, y: -ct * out / y, pad=1.0)
greater_p = elementwise(np.greater)
less_p    = elementwise(np.less)
# fmt: on

UFUNCS = ufunc_table(neg_p, exp_p, log_p, tanh_p, add_p, sub_p, mul_p, div_p, greater_p, less_p)
