"""Operands of every raggedness, and the functions that are tried on them."""

import numpy as np

from autobatch.ops.numpy import creation

rng = np.random.default_rng(7)


def normals(*shapes):
    return [rng.normal(size=shape) for shape in shapes]


def ints(high, *shapes):
    return [rng.integers(0, high, size=shape) for shape in shapes]


VECTORS = normals((3,), (1,), (5,), (2,))
VECTORS2 = normals((3,), (1,), (5,), (2,))
WITH_EMPTY = normals((0,), (3,), (1,))
ROWS = normals((3, 4), (1, 4), (5, 4))  # the first dimension varies
COLUMNS = normals((4, 2), (4, 3), (4, 1))  # the last one
BOTH = normals((3, 2), (1, 4), (2, 2))
SQUARES = normals((2, 2), (3, 3), (1, 1))
STATIC = normals((3, 4), (3, 4))
CUBES = normals((2, 3, 2), (2, 1, 2), (2, 2, 2))
ALIKE = normals((2, 2), (2, 2))  # B == T == D
ONE = normals((3, 2))
EVERY = {
    "vectors": VECTORS,
    "with_empty": WITH_EMPTY,
    "rows": ROWS,
    "columns": COLUMNS,
    "both": BOTH,
    "static": STATIC,
    "cubes": CUBES,
    "alike": ALIKE,
    "one": ONE,
}

# For arrays of any rank from 1 on.
UNARY = {
    "ravel": lambda x: x.ravel(),
    "reshape_column": lambda x: x.reshape(-1, 1),
    "reshape_F": lambda x: np.reshape(x, (-1,), order="F"),
    "reshape_same": lambda x: x.reshape(x.shape),
    "reshape_lanes": lambda x: x.reshape(x.size, 1),
    "transpose": lambda x: x.T,
    "transposed_ravel": lambda x: x.T.reshape(-1),
    "flip": lambda x: np.flip(x),
    "flip_last": lambda x: np.flip(x, -1),
    "roll": lambda x: np.roll(x, 2, 0),
    "roll_flat": lambda x: np.roll(x, -1),
    "expand": lambda x: np.expand_dims(x, (0, -1)),
    "squeeze": lambda x: np.squeeze(x[None], 0),
    "atleast": lambda x: np.atleast_3d(x),
    "concat_self": lambda x: np.concatenate([x, x[:1], x]),
    "concat_flat": lambda x: np.concatenate([x, x], axis=None),
    "append": lambda x: np.append(x, 1.5),
    "stack": lambda x: np.stack([x, 2 * x], -1),
    "vstack": lambda x: np.vstack([x, x]) if x.ndim < 3 else x,
    "hstack": lambda x: np.hstack([x, x]),
    "repeat": lambda x: np.repeat(x, 2, 0),
    "repeat_flat": lambda x: np.repeat(x, 3),
    "repeat_none": lambda x: np.repeat(x, 0, 0),
    "tile": lambda x: np.tile(x, 2),
    "tile_more": lambda x: np.tile(x, (2, 1, 2)),
    "pad": lambda x: np.pad(x, 1),
    "pad_value": lambda x: np.pad(x, (1, 2), constant_values=(3.0, -1.0)),
    "diff": lambda x: np.diff(x, axis=0),
    "ediff1d": lambda x: np.ediff1d(x),
    "nan_to_num": lambda x: np.nan_to_num(np.where(x > 0.5, np.nan, x)),
    "where": lambda x: np.where(x > 0, x, -2 * x),
    "where_scalar": lambda x: np.where(x > 0, 1.0, x),
    "clip": lambda x: x.clip(-0.5, 0.5),
    "clip_low": lambda x: np.clip(x, 0.1, None),
    "mask": lambda x: x[x > 0],
    "masked_rows": lambda x: x[np.asarray([True]) * (x.reshape(x.shape[0], -1).sum(1) > 0)],
    "last": lambda x: x[..., -1:],
    "reversed": lambda x: x[::-1],
    "every_other": lambda x: x[1::2],
    "back_two": lambda x: x[-1::-2],
    "all_but_last": lambda x: x[:-1],
    "last_two": lambda x: x[-2:],
    "half": lambda x: x[: x.shape[0] // 2],
    "other_half": lambda x: x[x.shape[0] // 2 :],
    "by_order": lambda x: x[np.argsort(x.reshape(x.shape[0], -1).sum(1))],
    "astype": lambda x: x.astype(np.float32).astype(np.float64),
    "copy": lambda x: x.copy(),
    "zeros_like": lambda x: np.zeros_like(x) + x,
    "full_like": lambda x: np.full_like(x, 2.5) * x,
    "broadcast": lambda x: np.broadcast_to(x, (2, *x.shape)),
    "select": lambda x: np.select([x > 1, x > 0], [x, 2 * x], -1.0),
    "choose": lambda x: np.choose((x > 0).astype(int), [x, -x]),
    "compress": lambda x: np.compress([True], x, axis=0),
    "extract": lambda x: np.extract(x > 0, x),
    "rollaxis": lambda x: np.rollaxis(x, -1),
    "moveaxis": lambda x: np.moveaxis(x, 0, -1),
    "swapaxes": lambda x: np.swapaxes(x, 0, -1),
    "broadcast_arrays": lambda x: np.broadcast_arrays(x, x[None])[0],
    "broadcast_arrays_of_three": lambda x: np.broadcast_arrays(x[:1], x, 2.0)[0],
    "fix": lambda x: np.fix(x) + x,
    "round": lambda x: np.round(x, 2) + x,
    "split": lambda x: np.array_split(x, 2)[0],
    "sinc": lambda x: np.sinc(x),
    "norm": lambda x: np.linalg.norm(x),
    "kron": lambda x: np.kron(x, np.array([1.0, -2.0])),
    "unique": lambda x: np.unique(x),
    "resize": lambda x: np.resize(x, (2, 3)) if x.ndim > 1 else np.append(x, 1.0),
    "union": lambda x: np.union1d(x, x * 2),
    "insert": lambda x: np.insert(x.ravel(), 0, 7.0),
}

# For matrices.
MATRIX = {
    "tril": lambda x: np.tril(x),
    "triu": lambda x: np.triu(x, 1),
    "diagonal": lambda x: np.diagonal(x),
    "diagonal_up": lambda x: np.diagonal(x, 1),
    "diag": lambda x: np.diag(x, -1),
    "trace": lambda x: np.trace(x),
    "rot90": lambda x: np.rot90(x),
    "rot270": lambda x: np.rot90(x, 3),
    "fliplr": lambda x: np.fliplr(x),
    "column": lambda x: x[:, 0],
    "rows_of_list": lambda x: x[[0, -1, 0]],
    "outer_index": lambda x: x[np.ix_([0, 0], [0, -1])],
    "split_advanced": lambda x: x[[0, -1], None, [0, 0]],
    "with_new": lambda x: x[None, :, None, 0],
    "int_and_list": lambda x: x[0, [0, -1]],
    "take": lambda x: np.take(x, [0, -1], axis=1),
    "take_flat": lambda x: np.take(x, [[0, -1]]),
    "take_clip": lambda x: np.take(x, [0, 9], axis=0, mode="clip"),
    "take_wrap": lambda x: np.take(x, [0, 9], axis=0, mode="wrap"),
    "along": lambda x: np.take_along_axis(x, np.argsort(x, axis=0), 0),
    "along_last": lambda x: np.take_along_axis(x, np.argsort(x, axis=1), 1),
    "pad_edge": lambda x: np.pad(x, ((1, 2), (0, 1)), mode="edge"),
    "pad_wrap": lambda x: np.pad(x, 2, mode="wrap"),
    "pad_symmetric": lambda x: np.pad(x, 2, mode="symmetric"),
    "pad_lanes": lambda x: np.pad(x, ((0, x.shape[1]), (0, 0))),
    "dstack": lambda x: np.dstack([x, x]),
    "column_stack": lambda x: np.column_stack([x, x[:, 0]]),
    "block": lambda x: np.block([[x, x], [x, 2 * x]]),
    "meshgrid": lambda x: np.meshgrid(x[:, 0], x[0])[1],
    "joined_axis1": lambda x: np.concatenate([x, x[:, :1], x], axis=1),
    "unstack": lambda x: np.stack(np.unstack(x[..., None], axis=2)),
    "cross_rows": lambda x: x[x[:, 0] > 0, 0],
    "trapezoid": lambda x: np.trapezoid(x, axis=0),
    "gather_scatter": lambda x: x[creation.arange(x.shape[0]), 0],
    "atleast_1d": lambda x: np.atleast_1d(x[0, 0]),
    "norm_rows": lambda x: np.linalg.norm(x, axis=1),
    "norm_one": lambda x: np.linalg.norm(x, 1, axis=0),
    "vander": lambda x: np.vander(x[0], 3),
    "convolve": lambda x: np.convolve(x[:, 0], x[0]),
    "cov": lambda x: np.cov(np.vstack([x, 2 * x, -x[::-1]]), bias=True),
    "mT": lambda x: x.mT,
    "tri": lambda x: x * np.tril(np.ones_like(x)),
}
