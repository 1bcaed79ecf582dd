"""How each kind of table is stored: one declaration converts it to settings and named arrays, and back."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from autobatch.errors import CheckpointError
from autobatch.tables.keyed.features import Vocabulary
from autobatch.tables.sparse import SparseRows
from autobatch.tables.table import EmbeddingTable, QuantizedTable, SplitTable


@dataclasses.dataclass(frozen=True, slots=True)
class StoredKind:
    """How objects of one class are stored and rebuilt.

    Attributes:
        name: is written into files, so it must not change. cls: the class, subclasses excluded.
        take: gives an object's settings, as JSON values, and its arrays by name.
        build: makes the object from settings and arrays.
        grows: its arrays have any length, so settings and shapes are the saved ones, not those of `like`.
    """

    name: str
    cls: type
    take: Callable[[Any], tuple[dict[str, Any], Mapping[str, np.ndarray]]]
    build: Callable[[dict[str, Any], dict[str, np.ndarray]], Any]
    grows: bool = False


KINDS: dict[str, StoredKind] = {}


def declare(name: str, cls: type, take: Callable[[Any], Any], build: Callable[[Any, Any], Any], **more: Any) -> None:
    """Declare how a class is stored; the arguments are the fields of `StoredKind`."""
    KINDS[name] = StoredKind(name, cls, take, build, **more)


def kind_of(value: object) -> StoredKind | None:
    """The kind of a leaf; None if it has none.

    >>> kind_of(EmbeddingTable(np.zeros((2, 3)))).name
    'EmbeddingTable'
    """
    return next((each for each in KINDS.values() if type(value) is each.cls), None)


def _quantized(settings: dict[str, Any], arrays: dict[str, np.ndarray]) -> QuantizedTable:
    if settings.get("bits", 8) != 8:  # as earlier versions could save
        raise CheckpointError(f"a QuantizedTable of {settings['bits']!r:.20} bits, which this version does not support")
    return QuantizedTable(arrays["packed"])


declare(
    "EmbeddingTable",
    EmbeddingTable,
    lambda table: ({"static": table.static}, {"weights": table.weights}),
    lambda settings, arrays: EmbeddingTable(arrays["weights"], settings["static"]),
)
declare(
    "SplitTable",
    SplitTable,
    lambda table: ({}, {str(i): chunk for i, chunk in enumerate(table.chunks)}),
    lambda settings, arrays: SplitTable([arrays[str(i)] for i in range(len(arrays))]),
)
declare("QuantizedTable", QuantizedTable, lambda table: ({}, {"packed": table.packed}), _quantized)
declare(
    "SparseRows",
    SparseRows,
    lambda grad: ({"num_rows": grad.num_rows}, {"ids": np.asarray(grad.ids), "rows": np.asarray(grad.rows)}),
    lambda settings, arrays: SparseRows(arrays["ids"], arrays["rows"], settings["num_rows"]),
    grows=True,
)
declare(
    "Vocabulary",
    Vocabulary,
    lambda words: ({"grow": words.grow}, words.arrays()),
    lambda settings, arrays: Vocabulary.from_arrays(arrays, grow=settings["grow"]),
    grows=True,
)
