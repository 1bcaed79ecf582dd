"""autobatch: write a model for one example, run it over a whole batch, with the results and gradients of the loop."""

from autobatch import optim, testing
from autobatch.api import extend
from autobatch.api.batch import batch
from autobatch.autodiff.grad import grad, value_and_grad
from autobatch.batches.masked import MaskedBatch
from autobatch.batches.packed import PackedBatch
from autobatch.batches.results import examples
from autobatch.core.config import config, options
from autobatch.embedding import strategies
from autobatch.embedding.embedding_bag import embedding_bag
from autobatch.embedding.lookup import lookup
from autobatch.embedding.maplookup import maplookup
from autobatch.embedding.protocol import Context, Table
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
from autobatch.embedding.tables import QuantizedTable, SplitTable
from autobatch.lazy.context import lazy
from autobatch.lazy.mapping import map
from autobatch.ops import nn
from autobatch.report.explain import explain
from autobatch.rewrite.convert import source

__version__ = "0.1.0"

__all__ = [
    "Context",
    "EmbeddingTable",
    "MaskedBatch",
    "PackedBatch",
    "QuantizedTable",
    "SparseRows",
    "SplitTable",
    "Table",
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
    "maplookup",
    "nn",
    "optim",
    "options",
    "segment_ids_to_lengths",
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_sum",
    "source",
    "strategies",
    "testing",
    "value_and_grad",
]
