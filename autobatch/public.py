"""The public names of `autobatch`: all of them, in one list."""

import importlib
from typing import TYPE_CHECKING, Any

import autobatch.lazy  # noqa: F401 - first, since the function `lazy` then takes its place
import autobatch.nn as nn  # not later: code that resolves `ab.nn.relu` reads the package's own names
import autobatch.segments as segments
import autobatch.tables as tables
from autobatch.api import extend
from autobatch.api.batch import batch
from autobatch.api.transforms import grad, jvp, lazy, map, shared, value_and_grad
from autobatch.autodiff.grad import stop_gradient
from autobatch.batches.batch_reductions import count, max, mean, min, sum
from autobatch.batches.data.collate import collate
from autobatch.batches.data.concat import concat
from autobatch.batches.data.example_sequence import Examples
from autobatch.batches.packed_batch import PackedBatch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.batches.stacking import examples
from autobatch.core.config import config, options
from autobatch.core.diagnostics import hiding_frames
from autobatch.facts.other_libraries import MODULE, missing
from autobatch.tables.lookup import lookup
from autobatch.tables.sparse import SparseRows
from autobatch.tables.table import EmbeddingTable

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
    from autobatch.report.source_lines import source
    from autobatch.serving.app import serve
    from autobatch.serving.batcher import Batcher
    from autobatch.tables.embedding_bag import embedding_bag
    from autobatch.tables.keyed.features import Vocabulary, hash_keys
    from autobatch.tables.keyed.variable import EmbeddingVariable

# name: (module, attribute, or None for the module itself), imported at the first access: no call needs these.
_LATER = {
    "Batcher": ("autobatch.serving.batcher", "Batcher"),
    "Checkpoints": ("autobatch.checkpoint.checkpoints", "Checkpoints"),
    "EmbeddingVariable": ("autobatch.tables.keyed.variable", "EmbeddingVariable"),
    "Vocabulary": ("autobatch.tables.keyed.features", "Vocabulary"),
    "embedding_bag": ("autobatch.tables.embedding_bag", "embedding_bag"),
    "explain": ("autobatch.report.explain", "explain"),
    "hash_keys": ("autobatch.tables.keyed.features", "hash_keys"),
    "jax_function": ("autobatch.bridges.jax_functions", "jax_function"),
    "load": ("autobatch.checkpoint.single_file", "load"),
    "minibatches": ("autobatch.batches.data.minibatches", "minibatches"),
    "optim": ("autobatch.optim", None),
    "ray": ("autobatch.ray", None),
    "save": ("autobatch.checkpoint.single_file", "save"),
    "serve": ("autobatch.serving.app", "serve"),
    "source": ("autobatch.report.source_lines", "source"),
    "testing": ("autobatch.testing", None),
    "torch_function": ("autobatch.bridges.torch_functions", "torch_function"),
}

__all__ = [
    "Batcher",
    "Checkpoints",
    "EmbeddingTable",
    "EmbeddingVariable",
    "Examples",
    "MaskedBatch",
    "PackedBatch",
    "SparseRows",
    "Vocabulary",
    "batch",
    "collate",
    "concat",
    "config",
    "count",
    "embedding_bag",
    "examples",
    "explain",
    "extend",
    "grad",
    "hash_keys",
    "jax_function",
    "jvp",
    "lazy",
    "load",
    "lookup",
    "map",
    "max",
    "mean",
    "min",
    "minibatches",
    "nn",
    "optim",
    "options",
    "ray",
    "save",
    "segments",
    "serve",
    "shared",
    "source",
    "stop_gradient",
    "sum",
    "tables",
    "testing",
    "torch_function",
    "value_and_grad",
]

options = hiding_frames(options)
EARLIER = {**dict.fromkeys(segments.__all__, segments), **dict.fromkeys(tables.__all__, tables)}
"""Names that stood here before they had a namespace of their own, and where they are now."""


def __getattr__(name: str) -> Any:
    if name in EARLIER:
        return getattr(EARLIER[name], name)
    if name not in _LATER:
        spaces = {"nn": nn, "optim": importlib.import_module("autobatch.optim")}
        within = [f"{space}.{each}" for space, its in spaces.items() for each in its.__all__]
        raise missing("module 'autobatch'", name, MODULE, [*__all__, *within])
    module, inner = _LATER[name]
    return getattr(importlib.import_module(module), inner) if inner else importlib.import_module(module)
