"""The law for single ops: names of `tests.law`."""

from tests.law import Shared, as_operands, check, check_grads, dense, lane, size_of

__all__ = ["Shared", "as_operands", "check", "check_grads", "dense", "lane", "size_of"]
