"""The public names of `autobatch`: all of them, in one list."""

import importlib
from typing import TYPE_CHECKING, Any

import autobatch.lazy  # noqa: F401 - first, since the function `lazy` then takes its place
import autobatch.nn as nn  # not later: code that resolves `ab.nn.relu` reads the package's own names
from autobatch.api import extend
from autobatch.api.batch import batch
from autobatch.api.transforms import grad, jvp, lazy, map, shared, value_and_grad
from autobatch.autodiff.grad import stop_gradient
from autobatch.batches.batch_reductions import count, max, mean, min, sum
from autobatch.batches.data.collate import collate
from autobatch.batches.data.concat import concat
from autobatch.batches.data.example_sequence import Examples
from autobatch.batches.packed_batch import PackedBatch, maps_to_packed, packed_to_maps
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.batches.stacking import examples
from autobatch.core.config import config, options
from autobatch.tables import maplookup_strategies as strategies
from autobatch.tables import representations, segments
from autobatch.tables.lookup import lookup, maplookup
from autobatch.tables.protocol import Context, Table
from autobatch.tables.representations import *  # noqa: F403
from autobatch.tables.scatter import gather, scatter_add, scatter_assign, scatter_weighted_sum
from autobatch.tables.segments import *  # noqa: F403
from autobatch.tables.sparse import SparseRows
from autobatch.tables.table import EmbeddingTable, QuantizedTable, SplitTable

if TYPE_CHECKING:
    import autobatch.optim as optim
    import autobatch.ray as ray
    import autobatch.testing as testing
    from autobatch.batches.data.minibatches import minibatches
    from autobatch.bridges.jax_functions import jax_function
    from autobatch.bridges.torch_functions import torch_function
    from autobatch.checkpoint.checkpoints import Checkpoints
    from autobatch.checkpoint.single_file import load, save
    from autobatch.report.explain import explain
    from autobatch.report.marked_source import source
    from autobatch.serving.app import serve
    from autobatch.serving.batcher import Batcher
    from autobatch.tables.embedding_bag import embedding_bag
    from autobatch.tables.keyed import admission
    from autobatch.tables.keyed.features import Vocabulary, hash_keys, multi_hash
    from autobatch.tables.keyed.variable import EmbeddingVariable

# name: (module, attribute, or None for the module itself), imported at the first access: no call needs these.
_LATER = {
    "Batcher": ("autobatch.serving.batcher", "Batcher"),
    "Checkpoints": ("autobatch.checkpoint.checkpoints", "Checkpoints"),
    "EmbeddingVariable": ("autobatch.tables.keyed.variable", "EmbeddingVariable"),
    "Vocabulary": ("autobatch.tables.keyed.features", "Vocabulary"),
    "admission": ("autobatch.tables.keyed.admission", None),
    "embedding_bag": ("autobatch.tables.embedding_bag", "embedding_bag"),
    "explain": ("autobatch.report.explain", "explain"),
    "hash_keys": ("autobatch.tables.keyed.features", "hash_keys"),
    "jax_function": ("autobatch.bridges.jax_functions", "jax_function"),
    "load": ("autobatch.checkpoint.single_file", "load"),
    "minibatches": ("autobatch.batches.data.minibatches", "minibatches"),
    "multi_hash": ("autobatch.tables.keyed.features", "multi_hash"),
    "optim": ("autobatch.optim", None),
    "ray": ("autobatch.ray", None),
    "save": ("autobatch.checkpoint.single_file", "save"),
    "serve": ("autobatch.serving.app", "serve"),
    "source": ("autobatch.report.marked_source", "source"),
    "testing": ("autobatch.testing", None),
    "torch_function": ("autobatch.bridges.torch_functions", "torch_function"),
}

__all__ = [
    "Batcher",
    "Checkpoints",
    "Context",
    "EmbeddingTable",
    "EmbeddingVariable",
    "Examples",
    "MaskedBatch",
    "PackedBatch",
    "QuantizedTable",
    "SparseRows",
    "SplitTable",
    "Table",
    "Vocabulary",
    "admission",
    "batch",
    "collate",
    "concat",
    "config",
    "count",
    "embedding_bag",
    "examples",
    "explain",
    "extend",
    "gather",
    "grad",
    "hash_keys",
    "jax_function",
    "jvp",
    "lazy",
    "load",
    "lookup",
    "map",
    "maplookup",
    "maps_to_packed",
    "max",
    "mean",
    "min",
    "minibatches",
    "multi_hash",
    "nn",
    "optim",
    "options",
    "packed_to_maps",
    "ray",
    "save",
    "scatter_add",
    "scatter_assign",
    "scatter_weighted_sum",
    "serve",
    "shared",
    "source",
    "stop_gradient",
    "strategies",
    "sum",
    "testing",
    "torch_function",
    "value_and_grad",
]
__all__ += representations.__all__
__all__ += segments.__all__


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'autobatch' has no attribute {name!r}")
    module, inner = _LATER[name]
    found: Any = importlib.import_module(module)
    return found if inner is None else getattr(found, inner)
