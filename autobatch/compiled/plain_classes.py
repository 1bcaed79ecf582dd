"""Classes whose objects are their named parts and nothing else: compiled code makes them of these."""

import dataclasses
from types import FunctionType
from typing import Any


def is_plain(cls: Any) -> bool:
    """Whether objects of a class are made of their parts, and nothing else happens."""
    if cls is dict:
        return True
    if dataclasses.is_dataclass(cls):
        plain = all(field.init for field in dataclasses.fields(cls)) and not hasattr(cls, "__post_init__")
        maker = vars(cls).get("__init__")
        return plain and isinstance(maker, FunctionType) and maker.__code__.co_filename == "<string>"
    return issubclass(cls, tuple) and "__new__" in vars(cls) and cls.__new__.__code__.co_filename.startswith("<string")
