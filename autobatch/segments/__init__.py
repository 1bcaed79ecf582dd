"""`ab.segments`: reductions of rows by segment, scatters, and conversions between representations of ragged data.

>>> import autobatch as ab
>>> ab.segments.segment_sum([1.0, 2.0, 3.0], lengths=[2, 1])
array([3., 3.])
"""

from autobatch.batches.packed_batch import maps_to_packed, packed_to_maps
from autobatch.tables import representations
from autobatch.tables import segments as _reductions
from autobatch.tables.representations import *  # noqa: F403
from autobatch.tables.scatter import gather, scatter_add, scatter_assign, scatter_weighted_sum
from autobatch.tables.segments import *  # noqa: F403

__all__ = ["gather", "maps_to_packed", "packed_to_maps", "scatter_add", "scatter_assign", "scatter_weighted_sum"]
__all__ += representations.__all__
__all__ += _reductions.__all__
__dir__ = __all__.copy
