"""autobatch: write a model for one example, run it over a whole batch, with the results and gradients of the loop."""

from autobatch import optim, testing
from autobatch.api import extend
from autobatch.api.batch import batch
from autobatch.autodiff.grad import grad, value_and_grad
from autobatch.batches.masked import MaskedBatch
from autobatch.batches.packed import PackedBatch
from autobatch.batches.results import examples
from autobatch.core.config import config, options
from autobatch.embedding.embedding_bag import embedding_bag
from autobatch.embedding.lookup import lookup
from autobatch.embedding.segments import (
    lengths_to_offsets,
    lengths_to_segment_ids,
    segment_ids_to_lengths,
    segment_max,
    segment_mean,
    segment_min,
    segment_sum,
)
from autobatch.embedding.sparse import SparseRows
from autobatch.embedding.table import EmbeddingTable
from autobatch.lazy.context import lazy
from autobatch.lazy.mapping import map
from autobatch.ops import nn
from autobatch.report.explain import explain
from autobatch.rewrite.convert import source

__version__ = "0.1.0"

__all__ = [
    "EmbeddingTable",
    "MaskedBatch",
    "PackedBatch",
    "SparseRows",
    "batch",
    "config",
    "embedding_bag",
    "examples",
    "explain",
    "extend",
    "grad",
    "lazy",
    "lengths_to_offsets",
    "lengths_to_segment_ids",
    "lookup",
    "map",
    "nn",
    "optim",
    "options",
    "segment_ids_to_lengths",
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_sum",
    "source",
    "testing",
    "value_and_grad",
]
