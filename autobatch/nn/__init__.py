"""`ab.nn`: the functions and layers of neural networks, of one example as of a batch; plain NumPy on plain arrays.

Floating dtypes are kept (float16 accumulates in float32 where a mean is taken); integers become float64. A layer is a
class of one example whose float arrays are its parameters: whatever trains a dict of arrays trains a model of layers.
"""

from autobatch.nn.attention import MultiHeadAttention
from autobatch.nn.layers import Conv1d, Dropout, Embedding, LayerNorm, Linear
from autobatch.nn.recurrent import GRU, LSTM
from autobatch.ops.nn import init
from autobatch.ops.nn.activations import dropout, gelu, relu, sigmoid
from autobatch.ops.nn.losses import causal_mask, cross_entropy, one_hot
from autobatch.ops.nn.normalisation import layer_norm, log_softmax, logsumexp, softmax

__all__ = [
    "GRU",
    "LSTM",
    "Conv1d",
    "Dropout",
    "Embedding",
    "LayerNorm",
    "Linear",
    "MultiHeadAttention",
    "causal_mask",
    "cross_entropy",
    "dropout",
    "gelu",
    "init",
    "layer_norm",
    "log_softmax",
    "logsumexp",
    "one_hot",
    "relu",
    "sigmoid",
    "softmax",
]


def __dir__() -> list[str]:
    return __all__
