"""`cross_entropy` for class ids or probabilities, and `one_hot`."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.core.abstract_eval import dtype_of, ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths, padding_mask
from autobatch.core.diagnostics import hiding_frames
from autobatch.core.formatting import ArrayLike, DTypeLike
from autobatch.core.op import Op, is_boxed
from autobatch.errors import BadIdError, DTypeError
from autobatch.ops.nn.softmax_and_norms import as_numbers, log_softmax, log_softmax_p, softmax_p
from autobatch.ops.numpy.contractions import check_same
from autobatch.ops.numpy.statistics import mean_p
from autobatch.ops.rules.dispatch import as_array, leave_to_python, source
from autobatch.ops.rules.op_kinds import vjp_columns
from autobatch.ops.rules.padding import to_widths
from autobatch.ops.rules.ragged_checks import noting_lane, whole_number
from autobatch.ops.rules.sizes import as_batched, has_lengths, lane_count, size_per_lane


def _check_ids(ids: np.ndarray, classes: Any, what: str) -> np.ndarray:
    """The ids; raises BadIdError unless every one is in 0 .. classes - 1 (`classes` broadcasts against them)."""
    wrong = (ids < 0) | (ids >= classes)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        count = int(np.broadcast_to(classes, ids.shape)[at])
        place = f" at position {at if len(at) > 1 else at[0]}" if at else ""
        raise BadIdError(f"{what} {int(ids[at])}{place} is not one of the {count} classes 0 .. {count - 1}")
    return ids


def _check_lanes(ids: Batched, classes: Any, what: str) -> np.ndarray:
    """The checked ids, with zeros at the padding; the error is that of the first failing example."""
    data = np.asarray(ids.data)
    mask = padding_mask(ids.sizes, data.shape[1:])
    data = data if mask is None else np.where(mask, data, np.zeros((), data.dtype))
    limit = np.asarray(classes).reshape((-1,) + (1,) * (data.ndim - 1))
    wrong = (data < 0) | (data >= limit)
    wrong = wrong if mask is None else wrong & mask
    if np.logical_or.reduce(wrong, axis=None):
        lane = int(np.argwhere(wrong)[0][0])
        corner = tuple(slice(s.values[lane] if isinstance(s, Lengths) else s) for s in ids.sizes)
        noting_lane(lane, lambda: _check_ids(data[lane][corner], int(np.broadcast_to(classes, len(data))[lane]), what))
    return data


# Its operand, checked when the values are known; for programs, whose rules are traced without values.
_known_classes_p = Op("known_classes", lambda ids, *, classes: _check_ids(ids, classes, "label"), kind="loss")


def _picked(log_p: Any, labels: Any) -> Any:
    return -log_p.reshape(-1, log_p.shape[-1])[np.arange(labels.size), labels.reshape(-1)].reshape(labels.shape)


# Minus the log-probability of each row's label. Labels must have been checked.
_picked_p = Op("nll", _picked, kind="loss", vjp=vjp_columns([lambda ct, out, log_p, labels: (
    np.where(labels[..., None] == np.arange(shape_of(log_p)[-1]), -ct[..., None], np.zeros((), dtype_of(ct)))
), None]))  # fmt: skip


def _cross_entropy(logits: Any, labels: Any) -> Any:
    logits, labels = np.asarray(logits), np.asarray(labels)
    if labels.shape != logits.shape[:-1]:
        raise ValueError(
            f"cross_entropy: labels of shape {labels.shape} for logits of shape {logits.shape}; integer labels are "
            "class ids, one for each row of logits: for one-hot labels pass label.argmax(-1), or make them floats"
        )
    _check_ids(labels, logits.shape[-1], "label")
    rows = _picked(log_softmax_p.impl(logits, axis=logits.ndim - 1), labels)
    return rows.mean() if rows.ndim else rows[()]


def _cross_entropy_vjp(ct: Any, out: Any, logits: Any, labels: Any) -> Any:
    p = softmax_p(logits, axis=ndim_of(logits) - 1)
    hit = np.expand_dims(labels, -1) == np.arange(shape_of(logits)[-1])
    return (p - hit.astype(dtype_of(p))) * (ct / max(math.prod(shape_of(logits)[:-1]), 1))


def _cross_entropy_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    lanes = lane_count(operands)
    logits, labels = (as_batched(x, lanes) for x in operands)
    if labels.rank != logits.rank - 1:
        has = f"labels of rank {labels.rank} for logits of rank {logits.rank}"
        raise ValueError(f"cross_entropy: {has}; a label for each example is a batch, ab.collate(labels)")
    for a, b in zip(logits.sizes, labels.sizes, strict=False):
        check_same(a, b, "cross_entropy")
    is_plain = logits.rank == 1 and not has_lengths(logits.sizes)
    if is_plain and is_boxed(labels.data):
        ids = _known_classes_p(labels.data, classes=logits.sizes[0])
    else:
        ids = _check_lanes(labels, size_per_lane(logits.sizes[-1]), "label")
    if is_plain:
        return Batched(_picked_p(log_softmax_p(logits.data, axis=1), ids), ())
    log_p = log_softmax_p.rule(log_softmax_p, [logits], {"axis": logits.rank - 1})  # type: ignore[misc]
    rows = Batched(_picked_p(log_p.data, to_widths(ids, log_p.data.shape[1:-1])), labels.sizes)
    if not rows.rank:
        return rows
    return mean_p.rule(mean_p, [rows], {"axis": tuple(range(rows.rank))})  # type: ignore[misc]


# cross_entropy_p(logits, labels): the mean over rows; labels are class ids of shape logits.shape[:-1].
cross_entropy_p = Op("cross_entropy", _cross_entropy, rule=_cross_entropy_rule,
                     vjp=vjp_columns([_cross_entropy_vjp, None]), kind="loss")  # fmt: skip


def _one_hot(ids: Any, *, classes: int, dtype: np.dtype) -> Any:
    ids = _check_ids(np.asarray(ids), classes, "id")
    return (ids[..., None] == np.arange(classes)).astype(dtype)


def _one_hot_rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    ids = operands[0]
    return Batched(op(_check_lanes(ids, params["classes"], "id"), **params), (*ids.sizes, params["classes"]))


one_hot_p = Op("one_hot", _one_hot, rule=_one_hot_rule, kind="loss")


@hiding_frames
def one_hot(ids: ArrayLike, num_classes: int, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Ids as one-hot vectors: 1 at the position of the id, 0 elsewhere.

    Args:
        ids: integers of any shape.
        num_classes: the largest possible id plus one.
        dtype: the result's dtype.

    Returns:
        An array of shape ids.shape + (num_classes,), of `dtype`.

    Raises:
        DTypeError: the ids are not integers.
        BadIdError: an id outside 0 .. num_classes - 1.

    >>> one_hot([0, 2], 3).tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    ids = as_array(ids)
    if dtype_of(ids).kind not in "iu":
        raise DTypeError(f"one_hot: ids of dtype {dtype_of(ids)}; expected integers")
    return one_hot_p(ids, classes=whole_number(num_classes, "num_classes"), dtype=np.dtype(dtype))


@hiding_frames
def cross_entropy(logits: ArrayLike, label: ArrayLike) -> NDArray[Any]:
    """Minus the log-probability of the label under softmax(logits); for several rows, their mean.

    Args:
        logits: (..., C), of any real dtype.
        label: class ids of shape (...), or probabilities of the shape of the logits.

    Returns:
        A number, of the logits' floating dtype.

    Raises:
        BadIdError: a class id outside 0 .. C - 1.
        ValueError: shapes that do not fit.

    >>> float(cross_entropy(np.array([0.0, 0.0]), 1).round(6))
    0.693147
    """
    logits, label = as_numbers(logits), as_array(label)
    if ndim_of(logits) == 0:
        raise ValueError("cross_entropy: logits of shape (); expected (..., C): write cross_entropy(logits, label)")
    if dtype_of(label).kind in "iu":
        return cross_entropy_p(logits, label)
    if ndim_of(label) != ndim_of(logits):
        raise ValueError(
            f"cross_entropy: label of dtype {dtype_of(label)} and shape {shape_of(label)} for logits of shape "
            f"{shape_of(logits)}; expected integer class ids, or probabilities of the shape of the logits"
        )
    rows = -np.sum(label * log_softmax(logits), axis=-1)
    return np.mean(rows) if ndim_of(rows) else rows


@source(cross_entropy, of=(1, 2), sums=True)
def _cross_entropy_of_one(logits, label):
    y = log_softmax(logits)
    if label < 0 if y.ndim == 1 else np.any(np.less(label, 0)):
        leave_to_python()
    return -y[label] if y.ndim == 1 else np.mean(-y[np.arange(len(y)), label])
