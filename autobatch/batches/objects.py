"""`ObjectBatch`: any Python object per example, for lanes that differ in structure, rank or dtype."""

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from autobatch.batches.base import Batch, form, narrow_tree, narrowed, per_lane, refuse
from autobatch.batches.examples import loop_over_examples, stack_results
from autobatch.core.lanes import current_region
from autobatch.core.op import Op, is_boxed
from autobatch.core.pytree import leaves

__all__ = ["ObjectBatch"]

_SEQUENCES = (tuple, list, str, range, np.ndarray)
_WHY = "the examples differ in structure, rank or dtype, so no op takes them together"


@form("objects")
class ObjectBatch(Batch):
    """One Python object per example.

    Operators, attributes, calls and NumPy functions run lane by lane; where the results of all lanes agree in
    structure, rank and dtype they are one padded batch again.

    >>> ObjectBatch(["a", [1, 2]]).examples()
    ['a', [1, 2]]
    >>> ObjectBatch(["ab", "c"]) + "!"
    ObjectBatch(['ab!', 'c!'])
    """

    __slots__ = ("__weakref__", "region", "values")

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

    def _each(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        args = tuple(map(narrowed, args))
        if not any(isinstance(arg, ObjectBatch) for arg in args):
            return function(*args, **kwargs)
        first = self.values[0] if self.values else None
        if isinstance(first, np.ndarray) or is_boxed(first):
            return loop_over_examples(function, args, kwargs, _WHY)
        return stack_results(per_lane(function, args, kwargs))

    def _ab_apply(self, op: Op, args: Any, params: dict[str, Any]) -> Any:
        args = [narrowed(arg) for arg in args]
        if not any(isinstance(arg, ObjectBatch) for arg in args):
            return op(*args, **params)
        return loop_over_examples(op, args, params, _WHY)

    def _ab_unsupported(self, function: Any, args: Any, kwargs: Any, reason: str = "") -> Any:
        return loop_over_examples(function, args, kwargs, reason or _WHY)

    def _ab_rebind(self, new: Any) -> None:
        if new.region is not self.region:
            raise refuse("a batch of objects that more examples have is written for some of them")
        self.values = new.examples()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        inputs = tuple(map(narrowed, inputs))
        if not any(isinstance(each, ObjectBatch) for each in (*inputs, *kwargs.values())):
            return getattr(ufunc, method)(*inputs, **kwargs)
        return loop_over_examples(getattr(ufunc, method), inputs, kwargs, _WHY)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = narrow_tree(args), narrow_tree(kwargs)
        if not any(isinstance(leaf, ObjectBatch) for leaf in leaves((args, kwargs))):
            return func(*args, **kwargs)
        return loop_over_examples(func, args, kwargs, _WHY)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise refuse(
            "a batch of objects is no array; .examples() gives the object of each example",
            "a plain array is needed of objects that differ by example",
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "_ab_")) or name in ("region", "values", "scalar", "_view", "_views"):
            raise AttributeError(name)
        return self._each(getattr, self, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._each(lambda f, *rest, **named: f(*rest, **named), self, *args, **kwargs)

    def __getitem__(self, key: Any) -> Any:
        return self._each(operator.getitem, self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        per_lane(operator.setitem, (self, key, value), {})

    def __contains__(self, item: Any) -> bool:
        return bool(stack_results(per_lane(operator.contains, (self, item), {})))

    def __len__(self) -> int:
        raise refuse(
            "len() of a batch: write .batch_size for the number of examples",
            "len() of objects that differ by example",
        )

    def __iter__(self) -> Iterator[Any]:
        here = narrowed(self) if current_region() is not None else None
        values = getattr(here, "values", None)
        if isinstance(here, ObjectBatch) and values and all(type(each) in _SEQUENCES for each in values):
            if all(len(each) == len(values[0]) for each in values):
                return iter([stack_results([each[i] for each in values]) for i in range(len(values[0]))])
        elif here is not None and here is not self and not isinstance(here, ObjectBatch):
            return iter(here)
        raise refuse(
            "iteration over a batch of objects outside converted code; .examples() lists the objects",
            "iteration over objects that differ by example",
        )

    def __bool__(self) -> bool:
        return _unanimous(bool, narrowed(self))

    def __int__(self) -> int:
        return _unanimous(int, narrowed(self))

    def __float__(self) -> float:
        return _unanimous(float, narrowed(self))

    def __index__(self) -> int:
        return _unanimous(operator.index, narrowed(self))

    def __hash__(self) -> int:
        raise refuse("a batch is not hashable: its examples may differ")

    def __format__(self, spec: str) -> str:
        if current_region() is not None:
            raise refuse("formatting a value that differs by example")
        return format(repr(self), spec)


def _unanimous(function: Callable[[Any], Any], batch: Any) -> Any:
    """One Python value for all lanes, where they agree."""
    results = per_lane(function, (batch,), {})
    if not results or any(x != results[0] for x in results[1:]):
        raise refuse(
            f"{function.__name__}() of a batch whose examples differ; in converted code (@ab.batch) it is per example",
            f"{function.__name__}() of a value that differs by example",
        )
    return results[0]


def _binary(function: Callable[..., Any], *, reflected: bool = False) -> Callable[..., Any]:
    if reflected:
        return lambda self, other: self._each(function, other, self)
    return lambda self, other: self._each(function, self, other)


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args: self._each(function, self, *args)


_COMPARISONS = {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}
_ARITHMETIC = {name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")}
_ARITHMETIC |= {name: getattr(operator, name) for name in ("matmul", "lshift", "rshift", "xor")}
_ARITHMETIC |= {"and": operator.and_, "or": operator.or_}
for _name, _function in {**_COMPARISONS, **_ARITHMETIC, "divmod": divmod}.items():
    setattr(ObjectBatch, f"__{_name}__", _binary(_function))
for _name, _function in {**_ARITHMETIC, "divmod": divmod}.items():
    setattr(ObjectBatch, f"__r{_name}__", _binary(_function, reflected=True))
for _name in _ARITHMETIC:
    setattr(ObjectBatch, f"__i{_name}__", _binary(getattr(operator, f"i{_name}")))
_UNARY: dict[str, Callable[..., Any]] = {"neg": operator.neg, "pos": operator.pos, "invert": operator.invert}
_UNARY |= {"abs": abs, "round": round}
for _name, _function in _UNARY.items():
    setattr(ObjectBatch, f"__{_name}__", _unary(_function))
