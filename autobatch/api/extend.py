"""Names for declaring your own ops: the same that the library's own ops are declared with.

An elementwise op needs its NumPy implementation and the vjp of each argument; the batching rule comes with the kind.
Without a vjp an op counts as piecewise constant, with a gradient of zero; `ab.testing.check_grads` finds out if that
is wrong. An op of another kind gives its own rule (`Op(name, impl, rule=..., vjp=...)`), written for arrays with a
leading batch axis. `implements` makes a NumPy function run an op, `source` says what it does as plain Python, which
compiled code reads. The op of a ufunc needs neither: it is what calls of the ufunc are.

>>> softsign_p = elementwise(lambda x: x / (1 + abs(x)), lambda ct, out, x: ct / (1 + abs(x)) ** 2, name="softsign")
>>> softsign_p(np.array([1.0, -3.0]))
array([ 0.5 , -0.75])
"""

from autobatch.core.batched import Batched, Lengths, padding_mask
from autobatch.core.cotangent import SparseCotangent, unbroadcast
from autobatch.core.diagnostics import hiding_frames
from autobatch.core.op import Op
from autobatch.errors import Unsupported as Declined
from autobatch.ops.numpy.reductions import reduction
from autobatch.ops.rules.dispatch import implements, source
from autobatch.ops.rules.op_kinds import elementwise
from autobatch.ops.rules.padding import fill
from autobatch.ops.rules.row_gather import Scatter

padding_mask, unbroadcast = hiding_frames(padding_mask), hiding_frames(unbroadcast)

__all__ = [
    "Batched", "Declined", "Lengths", "Op", "Scatter", "SparseCotangent", "elementwise", "fill", "implements",
    "padding_mask", "reduction", "source", "unbroadcast",
]  # fmt: skip
