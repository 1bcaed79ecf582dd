"""`ab.ray`: maps over files, and training, on several processes or machines, with Ray (the extra `ray`).

Ray is imported at its first use. Without it, `map(..., workers=0)` and `train(..., communicator=...)` do the same in
this process.
"""

from autobatch.ray.communicator import Communicator, LocalCommunicator
from autobatch.ray.file_map import map
from autobatch.ray.table_mapper import Mapper
from autobatch.ray.training import train

__all__ = ["Communicator", "LocalCommunicator", "Mapper", "map", "train"]
__dir__ = __all__.copy
