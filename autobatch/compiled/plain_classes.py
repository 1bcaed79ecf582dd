"""Classes whose objects are their named parts and nothing else: compiled code makes them of these."""

import dataclasses
from typing import Any

from autobatch.facts.types import keeps_fields


def is_plain(cls: Any) -> bool:
    """Whether objects of a class are made of their parts, and nothing else happens."""
    if cls is dict:
        return True
    if dataclasses.is_dataclass(cls):
        return keeps_fields(cls) and all(field.init for field in dataclasses.fields(cls))
    return issubclass(cls, tuple) and "__new__" in vars(cls) and cls.__new__.__code__.co_filename.startswith("<string")
