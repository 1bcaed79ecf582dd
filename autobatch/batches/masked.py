"""`MaskedBatch`: padded examples under one leading batch axis."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.batched import Batched, Lengths
from autobatch.core.lanes import current_region
from autobatch.core.op import BATCH_RANK, Op
from autobatch.ops.face import ArrayFace

__all__ = ["MaskedBatch"]


class MaskedBatch(Batched, ArrayFace):
    """A batch of examples of one rank and dtype, padded to a common shape."""

    __slots__ = ("region",)
    _ab_rank = BATCH_RANK

    @classmethod
    def of(cls, batched: Batched) -> "MaskedBatch":
        self = object.__new__(cls)
        self.data, self.sizes, self.scalar = batched.data, batched.sizes, batched.scalar
        self.region = current_region()
        return self

    @classmethod
    def from_examples(cls, examples: Sequence[Any], dims: Sequence[bool] | None = None) -> "MaskedBatch":
        arrays = [np.asarray(x) for x in examples]
        sizes = []
        for axis in range(arrays[0].ndim):
            lengths = [x.shape[axis] for x in arrays]
            sizes.append(lengths[0] if len(set(lengths)) == 1 and not (dims and dims[axis]) else Lengths(lengths))
        shape = [size.max() if isinstance(size, Lengths) else size for size in sizes]
        data = np.zeros((len(arrays), *shape), arrays[0].dtype)
        for i, x in enumerate(arrays):
            data[(i, *map(slice, x.shape))] = x
        return cls.of(Batched(data, sizes))

    def examples(self) -> list[Any]:
        corners = zip(*(s.values.tolist() if isinstance(s, Lengths) else [s] * self.batch_size for s in self.sizes))
        corners = list(corners) if self.sizes else [()] * self.batch_size
        return [self.data[(i, *map(slice, corner))] for i, corner in enumerate(corners)]

    @property
    def ndim(self) -> int:
        return len(self.sizes)

    @property
    def dtype(self) -> np.dtype:
        return self.data.dtype

    def _ab_apply(self, op: Op, args: Sequence[Any], params: dict[str, Any]) -> Any:
        return MaskedBatch.of(op.rule(op, args, params))

    def _ab_unsupported(self, function: Any, args: Any, kwargs: Any, reason: str = "") -> Any:
        raise TypeError(f"no rule for {function}")
