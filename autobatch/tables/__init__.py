"""`ab.tables`: classes of tables, look-ups in several tables, admission of keys, hashes of features.

Tables of rows: look-ups, bags and segments as one reduction, sparse gradients.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autobatch.tables import maplookup_strategies as strategies
    from autobatch.tables.keyed import admission
    from autobatch.tables.keyed.features import multi_hash
    from autobatch.tables.lookup import maplookup
    from autobatch.tables.protocol import Context, Table
    from autobatch.tables.table import QuantizedTable, SplitTable

# name: its module below this one, imported at the first access: modules of this folder are imported one by one
_PLACES = {
    "Context": "protocol",
    "QuantizedTable": "table",
    "SplitTable": "table",
    "Table": "protocol",
    "admission": "keyed.admission",
    "maplookup": "lookup",
    "multi_hash": "keyed.features",
    "strategies": "maplookup_strategies",
}
_MODULES = ("admission", "strategies")

__all__ = [
    "Context",
    "QuantizedTable",
    "SplitTable",
    "Table",
    "admission",
    "maplookup",
    "multi_hash",
    "strategies",
]
__dir__ = __all__.copy


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'autobatch.tables' has no attribute {name!r}")
    module = importlib.import_module(f"autobatch.tables.{_PLACES[name]}")
    globals()[name] = found = module if name in _MODULES else getattr(module, name)
    return found
