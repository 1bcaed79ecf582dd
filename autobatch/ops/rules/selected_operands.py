"""Ops that select one of several shared values by a per-example number, to join calls that differ in a shared operand.

`chosen(index, *values)` is `values[index]`; `chosen_matmul(x, index, *matrices)` is `x @ matrices[index]`. For a batch
the latter is one product per matrix with the rows that select it; matrices are not copied per row.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import ndim_of, shape_of
from autobatch.core.batched import Batched
from autobatch.core.op import Op
from autobatch.errors import UnsupportedError
from autobatch.ops.rules.row_gather import rows_p
from autobatch.ops.rules.sizes import as_batched, lane_count


def _group_by_number(index: np.ndarray, count: int) -> tuple[np.ndarray, list[int]]:
    """The order that sorts rows by their number, and the (count + 1) offsets of each number's rows in it."""
    order = np.argsort(index, kind="stable")
    return order, [0, *np.cumsum(np.bincount(index, minlength=count)).tolist()]


def _products(x: Any, index: Any, *matrices: Any) -> np.ndarray:
    order, bounds = _group_by_number(np.asarray(index), len(matrices))
    sorted_rows = x.take(order, axis=0)
    out = np.empty((*x.shape[:-1], matrices[0].shape[1]), np.result_type(x, matrices[0]))
    for number, matrix in enumerate(matrices):
        rows = slice(bounds[number], bounds[number + 1])
        if rows.start < rows.stop:
            out[order[rows]] = np.matmul(sorted_rows[rows], matrix)
    return out


def _products_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    x, index, *matrices = args
    if position == 0:
        return products_by_number_p(ct, index, *[np.swapaxes(each, 0, 1) for each in matrices])
    return None if position == 1 else _outer_p(x, ct, index, number=position - 2)


def _flat(x: Any) -> Any:
    return np.reshape(x, (-1, shape_of(x)[-1])) if ndim_of(x) > 2 else x


def _outer(x: Any, ct: Any, index: Any, *, number: int) -> np.ndarray:
    mine = np.flatnonzero(np.asarray(index) == number)
    return np.matmul(_flat(x.take(mine, axis=0)).T, _flat(ct.take(mine, axis=0)))


def _outer_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    if position == 2:
        return None
    x, other, index = args
    given = np.matmul(other, np.swapaxes(ct, 0, 1)) if position == 0 else np.matmul(x, ct)
    mine = np.reshape(np.equal(index, params["number"]), (-1,) + (1,) * (ndim_of(given) - 1))
    return np.where(mine, given, np.zeros((), given.dtype))


# products_by_number(x, index, *matrices): (n, ..., m), x[i] @ matrices[index[i]] for (n, ..., d) rows.
products_by_number_p = Op("products_by_number", _products, vjp=_products_vjp, kind="numbered")
# outer(x, ct, index, number=): the sum of the outer products of x[i] and ct[i] over the rows with index[i] == number.
_outer_p = Op("outer_by_number", _outer, vjp=_outer_vjp, kind="numbered")


def _rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    index, *values = operands
    if any(isinstance(value, Batched) for value in values):
        raise UnsupportedError("values that differ by example")
    return Batched(rows_p(np.stack(values), as_batched(index, lane_count(operands)).data), shape_of(values[0]))


def _matmul_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    x, index, *matrices = operands
    if any(isinstance(matrix, Batched) for matrix in matrices):
        raise UnsupportedError("matrices that differ by example")
    rows, numbers = (as_batched(each, lane_count(operands)) for each in (x, index))
    data = products_by_number_p(rows.data, numbers.data, *matrices)
    return Batched(data, (*rows.sizes[:-1], shape_of(matrices[0])[1]))


def _chosen_matmul_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    x, index, *matrices = args
    number = int(index)
    if position == 0:
        return np.matmul(ct, np.swapaxes(matrices[number], 0, 1))
    if position != number + 2:
        return None
    wide, given = (each if ndim_of(x) > 1 else np.expand_dims(each, 0) for each in (x, ct))
    return np.matmul(np.swapaxes(_flat(wide), 0, 1), _flat(given))


# chosen(index, *values): values[index].
chosen_p = Op(
    "chosen", lambda index, *values: values[int(index)], rule=_rule,
    vjp=lambda position, ct, out, args, params: ct if position == int(args[0]) + 1 else None, kind="chosen",
)  # fmt: skip
# chosen_matmul(x, index, *matrices): x @ matrices[index].
chosen_matmul_p = Op(
    "chosen_matmul", lambda x, index, *matrices: np.matmul(x, matrices[int(index)]), rule=_matmul_rule,
    vjp=_chosen_matmul_vjp, kind="chosen",
)  # fmt: skip
