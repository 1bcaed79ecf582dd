"""Products of few rows with a matrix that stays the same: the matrix laid out in blocks of columns, once.

BLAS packs the matrix anew in every product of more than a million multiplications, which for few rows takes longer than
multiplying. Below that size OpenBLAS (with AVX-512) multiplies without packing. So a product of few rows is made of
smaller ones, each with some columns that lie together in memory.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.batched import Batched
from autobatch.core.op import Op
from autobatch.ops.contractions import matmul_p

__all__ = ["blocked_matmul_p", "column_blocks_p", "has_blocks"]

_UNPACKED = 1_000_000  # multiplications, up to which a product is made without packing
_ROWS = 120  # the blocks are made for products of up to so many
_FEWEST = 32  # a matrix of which products of so many rows are below that size has no blocks
_NARROWEST = 16


@functools.cache
def _is_faster() -> bool:
    """Whether this machine's BLAS is one that packs as described."""
    blas = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {}).get("name", "")
    features = getattr(np._core._multiarray_umath, "__cpu_features__", {})  # type: ignore[attr-defined]
    return "openblas" in str(blas) and bool(features.get("AVX512_SKX"))


def _width(inner: int, columns: int) -> int:
    """How many columns make a block; 0 where blocks gain nothing."""
    if inner * columns * _FEWEST <= _UNPACKED:
        return 0
    width = max(_UNPACKED // (_ROWS * max(inner, 1)), _NARROWEST)
    while width >= _NARROWEST and columns % width:
        width -= 1
    return width if _NARROWEST <= width < columns else 0


def has_blocks(shape: tuple[int, ...], dtype: np.dtype) -> bool:
    """Whether products of few rows with a matrix of this shape are faster by blocks."""
    return len(shape) == 2 and dtype.char in "fd" and _is_faster() and _width(*shape) > 0


def _column_blocks(y: Any) -> Any:
    width = _width(*y.shape)
    return np.ascontiguousarray(np.swapaxes(y.reshape(y.shape[0], -1, width), 0, 1))


def _blocked_matmul(x: Any, y: Any, blocks: Any) -> Any:
    parts, inner, width = blocks.shape
    if x.ndim == 2 and type(x) is np.ndarray:
        least = len(x) * inner * width
        if least <= _UNPACKED < least * parts and x.dtype is y.dtype:
            out = np.empty((len(x), parts, width), x.dtype)
            np.matmul(x, blocks, out=np.swapaxes(out, 0, 1))
            return out.reshape(len(x), parts * width)
    return matmul_p.impl(x, y)


def _rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    x, y, blocks = operands
    return Batched(op(x.data, y, blocks), (y.shape[1],))


def _vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    return None if position == 2 else matmul_p.vjp(position, ct, out, args[:2], params)  # type: ignore[misc]


# column_blocks(y): (blocks, rows, width) of a (rows, blocks * width) matrix. blocked_matmul(x, y, column_blocks(y)) is
# x @ y; the gradient is that of x and y.
column_blocks_p = Op("column_blocks", _column_blocks, kind="layout")
blocked_matmul_p = Op("blocked_matmul", _blocked_matmul, rule=_rule, vjp=_vjp, kind="contraction")
