"""`ab.nn`: functions and layers of neural networks, for one example or a batch; plain NumPy on plain arrays.

Floating dtypes are kept (float16 accumulates in float32 where a mean is taken); integers become float64. A layer is a
callable for one example whose float arrays are its parameters: what trains a dict of arrays trains a model of layers.
"""

from typing import TYPE_CHECKING, Any

import autobatch.ops.nn as _functions
from autobatch.core.diagnostics import hiding_frames
from autobatch.facts.other_libraries import NN, missing
from autobatch.nn.layers import GRU, LSTM, Conv1d, Conv2d, Dropout, Embedding, LayerNorm, Linear, MultiHeadAttention
from autobatch.ops.nn import *  # noqa: F403

__all__ = ["GRU", "LSTM", "Conv1d", "Conv2d", "Dropout", "Embedding", "LayerNorm", "Linear", "MultiHeadAttention"]
__all__ += _functions.__all__
__dir__ = __all__.copy

if not TYPE_CHECKING:  # else each name would have the type Any

    @hiding_frames
    def __getattr__(name: str) -> Any:
        raise missing("module 'autobatch.nn'", name, NN, __all__)
