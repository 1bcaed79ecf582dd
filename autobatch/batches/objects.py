"""`ObjectBatch`: any Python object per example, for lanes that differ in structure, rank or dtype."""

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from autobatch.batches.any_batch import (
    ARRAY_SLOTS,
    BINARY_OPERATORS,
    COMPARISONS,
    SLOTS,
    UNARY_OPERATORS,
    Batch,
    mixed_reason,
    narrow_tree,
    narrowed,
    refusal,
    register_form,
)
from autobatch.batches.stacking import loop_over_examples, map_lanes
from autobatch.core.current_region import current_region
from autobatch.core.op import Op, is_boxed
from autobatch.core.pytree import leaves


@register_form("objects")
class ObjectBatch(Batch):
    """One Python object per example.

    Operators, attributes, calls and NumPy functions run lane by lane; if the results of all lanes agree in structure,
    rank and dtype, they are stacked to a padded batch again.

    >>> ObjectBatch(["a", [1, 2]]).examples()
    ['a', [1, 2]]
    >>> ObjectBatch(["ab", "c"]) + "!"
    ObjectBatch(['ab!', 'c!'])
    """

    __slots__ = (*SLOTS, "values")
    _varies = "objects that differ by example"

    def __init__(self, values: Iterable[Any]) -> None:
        self.values = list(values)
        self.region = current_region()

    @property
    def batch_size(self) -> int:
        return len(self.values)

    def examples(self) -> list[Any]:
        """The objects themselves, not copies."""
        return list(self.values)

    def _lane(self, index: int) -> Any:
        return self.values[index]

    def _take(self, index: Any, memo: dict[Any, Any]) -> "ObjectBatch":
        return ObjectBatch([self.values[i] for i in index.tolist()])

    def _prefix(self, count: int, memo: dict[Any, Any]) -> "ObjectBatch":
        return ObjectBatch(self.values[:count])

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self.values[:3])) + (", ..." if self.batch_size > 3 else "")
        count = f", batch_size={self.batch_size}" if self.batch_size > 3 else ""
        return f"ObjectBatch([{shown}]{count})"

    def __reduce__(self) -> Any:
        return ObjectBatch, (self.values,)

    def _each(self, function: Callable[..., Any], *args: object, **kwargs: object) -> Any:
        args = tuple(map(narrowed, args))
        if not any(isinstance(arg, ObjectBatch) for arg in args):
            return function(*args, **kwargs)
        first = self.values[0] if self.values else None
        if isinstance(first, np.ndarray) or is_boxed(first):
            return loop_over_examples(function, args, kwargs, mixed_reason(args))
        return map_lanes(function, *args, **kwargs)

    def _looped(self, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        args, kwargs = narrow_tree(tuple(args)), narrow_tree(kwargs)
        if not any(isinstance(leaf, ObjectBatch) for leaf in leaves((args, kwargs))):
            return function(*args, **kwargs)
        return loop_over_examples(function, args, kwargs, mixed_reason(args))

    def _ab_apply(self, op: Op, args: object, params: dict[str, Any]) -> Any:
        return self._looped(op, args, params)

    def _ab_unsupported(self, function: Any, args: Any, kwargs: Any, reason: str = "") -> Any:
        return loop_over_examples(function, args, kwargs, reason or mixed_reason(args))

    def _ab_rebind(self, new: Any) -> None:
        if new.region is not self.region:
            raise refusal("a batch of objects that several examples share is written for some of them")
        self.values = new.examples()

    def __array_ufunc__(self, ufunc: object, method: str, *inputs: object, **kwargs: object) -> Any:
        return self._looped(getattr(ufunc, method), inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return self._looped(func, args, kwargs)

    def __array__(self, dtype: Any = None, copy: object = None) -> np.ndarray:
        raise refusal(
            "a batch of objects is not an array; .examples() gives the object of each example",
            "a plain array is needed of objects that differ by example",
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "_ab_")) or name in (*ARRAY_SLOTS, "values", "scalar"):
            raise AttributeError(name)
        return self._each(getattr, self, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._each(lambda f, *rest, **named: f(*rest, **named), self, *args, **kwargs)

    def __getitem__(self, key: object) -> Any:
        return self._each(operator.getitem, self, key)

    def __setitem__(self, key: object, value: object) -> None:
        map_lanes(operator.setitem, self, key, value)

    def __contains__(self, item: object) -> bool:
        self._refuse_outside("`in`")
        return bool(map_lanes(operator.contains, self, item))

    def __len__(self) -> int:
        raise self._no_len()

    def __iter__(self) -> Iterator[Any]:
        here = narrowed(self) if current_region() is not None else self
        if not isinstance(here, ObjectBatch):
            return iter(here)
        raise self._no_iteration()


def _binary(function: Callable[..., Any], *, reflected: bool = False) -> Callable[..., Any]:
    if reflected:
        return lambda self, other: self._each(function, other, self)
    return lambda self, other: self._each(function, self, other)


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args: self._each(function, self, *args)


for _name, _function in BINARY_OPERATORS.items():
    setattr(ObjectBatch, f"__{_name}__", _binary(_function))
    if _name not in COMPARISONS:
        setattr(ObjectBatch, f"__r{_name}__", _binary(_function, reflected=True))
    if hasattr(operator, f"i{_name}"):
        setattr(ObjectBatch, f"__i{_name}__", _binary(getattr(operator, f"i{_name}")))
ObjectBatch.__round__ = _unary(round)  # type: ignore[attr-defined]
for _name, _function in UNARY_OPERATORS.items():
    setattr(ObjectBatch, f"__{_name}__", _unary(_function))
