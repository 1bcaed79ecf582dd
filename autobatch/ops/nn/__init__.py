"""Functions of neural networks, for one example or a batch; plain NumPy on plain arrays.

Floating dtypes are kept (float16 accumulates in float32 where a mean is taken); integers become float64.
"""

from autobatch.ops.nn import init
from autobatch.ops.nn.activations import gelu, relu, sigmoid
from autobatch.ops.nn.dimensions import join_dims, split_dim
from autobatch.ops.nn.dropout_and_masks import causal_mask, dropout
from autobatch.ops.nn.losses import cross_entropy, one_hot
from autobatch.ops.nn.softmax_and_norms import layer_norm, log_softmax, logsumexp, softmax

__all__ = [
    "causal_mask", "cross_entropy", "dropout", "gelu", "init", "join_dims", "layer_norm", "log_softmax",
    "logsumexp", "one_hot", "relu", "sigmoid", "softmax", "split_dim",
]  # fmt: skip
