"""Products of small matrices, whose sums are held in vector registers while their terms are added.

BLAS needs 0.2 us to begin, twice the time of a product with a vector of 64 numbers. A patch is a few rows of a result,
and as many of their columns as registers hold: a term of it is one fused operation, and only its sum is stored.
"""

import numpy as np
from llvmlite import ir
from numba.core import cgutils, codegen, types
from numba.extending import intrinsic

from autobatch.kernels.jit import jit
from autobatch.kernels.simd_rows import splat

_BYTES, _VECTORS = (64, 4) if "+avx512f" in codegen.get_host_cpu_features() else (32, 2)  # of a vector; in a patch


def _patch(rows, vectors, chains, part=1):
    """An intrinsic: `out[r] += sum(a[r, k] * b[k] for k in range(count))` for a patch of so many rows and vectors.

    A vector fills `_BYTES`, or that part of them. Matrices are given by addresses and by the bytes between their rows
    and between their terms; `count` is a multiple of `chains`, the number of sums that are added up side by side, so
    that none waits for the one before.
    """

    @intrinsic
    def add_patch(typing_context, a, a_row, a_term, b, b_term, count, out, out_row, like):
        dtype = types.unliteral(like)  # type: ignore[attr-defined]

        def generate(context, builder, signature, args):
            number = context.get_data_type(dtype)
            if dtype not in (types.float32, types.float64):  # nobody calls it
                return context.get_dummy_value()
            item = context.get_abi_sizeof(number)
            vector = ir.VectorType(number, max(_BYTES // item // part, 1))
            size = item * vector.count
            takes = ir.FunctionType(vector, [vector] * 3)
            name = f"llvm.fmuladd.v{vector.count}{number.intrinsic_name}"
            fused = cgutils.get_or_insert_function(builder.module, takes, name)
            a, a_row, a_term, b, b_term, count, out, out_row = args[:-1]
            word, zero = a.type, ir.Constant(vector, None)

            def at(address, pointed):
                return builder.inttoptr(address, pointed.as_pointer())

            sums = [cgutils.alloca_once_value(builder, zero) for _ in range(chains * rows * vectors)]
            with cgutils.for_range_slice(builder, word(0), count, word(chains), word) as (k, _):
                places = iter(sums)
                for chain in range(chains):
                    term = builder.add(k, word(chain))
                    b_at = builder.add(b, builder.mul(term, b_term))
                    parts = [at(builder.add(b_at, word(size * v)), vector) for v in range(vectors)]
                    terms = [builder.load(each, align=1) for each in parts]
                    for r in range(rows):
                        a_at = builder.add(builder.add(a, builder.mul(a_row, word(r))), builder.mul(term, a_term))
                        factor = splat(builder, builder.load(at(a_at, number)), vector.count)
                        for each in terms:
                            place = next(places)
                            builder.store(builder.call(fused, [factor, each, builder.load(place)]), place)
            for r in range(rows):
                for v in range(vectors):
                    place = at(builder.add(out, builder.add(builder.mul(out_row, word(r)), word(size * v))), vector)
                    total = builder.load(place, align=1)
                    for chain in range(chains):
                        total = builder.fadd(total, builder.load(sums[(chain * rows + r) * vectors + v]))
                    builder.store(total, place, align=1)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8, dtype), generate

    return add_patch


_add_rows, _add_wide, _add_row, _add_part, _add_few, _add_one = (
    _patch(4, _VECTORS, 1),
    _patch(1, 4 * _VECTORS, 1),
    _patch(1, _VECTORS, 8 // _VECTORS),
    _patch(1, 1, 4),
    _patch(1, 1, 4, _BYTES // 16),
    _patch(1, 1, 4, 16),
)


@intrinsic
def lanes_of(typing_context, a, b, out):
    """How many numbers are in a vector; 0 for arrays of other dtypes than float32 or float64, or of several."""
    is_real = a.dtype == b.dtype == out.dtype and out.dtype in (types.float32, types.float64)
    lanes = 8 * _BYTES // out.dtype.bitwidth if is_real else 0
    return types.int64(a, b, out), lambda context, *_: context.get_constant(types.int64, lanes)


@jit(reorders=True)
def add_product(a, b, out):
    """`out += a @ b` of matrices; the numbers in a row of out lie together."""
    if b.shape[1] > 1 and b.strides[0] < b.strides[1]:  # as in `keys.T`
        for i in range(a.shape[0]):
            add_inner(b.T, a[i], out[i])
        return
    rows, count, columns, size, zero = a.shape[0], a.shape[1], out.shape[1], out.itemsize, out.dtype.type(0)
    lanes = lanes_of(a, b, out)  # a constant, so nothing is divided below
    patch, few = max(_VECTORS * lanes, 1), max(16 // size, 1)
    wide, done = columns - columns % patch, columns - columns % max(lanes, 1)
    near, last = columns - columns % few, columns
    if lanes == 0 or b.strides[1] != size:
        wide = done = near = last = 0
    a_row, a_term, b_term, out_row = a.strides[0], a.strides[1], b.strides[0], out.strides[0]
    four, most = rows - rows % 4, count - count % 4
    for i in range(rows):
        left, right, into = a.ctypes.data + i * a_row, b.ctypes.data, out.ctypes.data + i * out_row
        for j in range(0, wide * size if i < four and i % 4 == 0 else 0, patch * size):
            _add_rows(left, a_row, a_term, right + j, b_term, count, into + j, out_row, zero)
        alone = wide if i < four else 0  # first of the columns that are added for this row only
        whole = wide - wide % (4 * patch)  # of a large matrix, whose rows are read whole, since it is not in the cache
        for j in range(alone * size, whole * size, 4 * patch * size):
            _add_wide(left, a_row, a_term, right + j, b_term, count, into + j, out_row, zero)
        for j in range(max(alone, whole) * size, wide * size, patch * size):
            _add_row(left, a_row, a_term, right + j, b_term, most, into + j, out_row, zero)
        for j in range(wide * size, done * size, _BYTES):
            _add_part(left, a_row, a_term, right + j, b_term, most, into + j, out_row, zero)
        for j in range(done * size, near * size, 16):
            _add_few(left, a_row, a_term, right + j, b_term, most, into + j, out_row, zero)
        for j in range(near * size, last * size, size):
            _add_one(left, a_row, a_term, right + j, b_term, most, into + j, out_row, zero)
        for k in range(most, count):
            for j in range(max(alone, whole), last):
                out[i, j] += a[i, k] * b[k, j]
        for j in range(last, columns):
            for k in range(count):
                out[i, j] += a[i, k] * b[k, j]


@jit(reorders=True)
def add_inner(b, x, out):
    """`out += b @ x` of a matrix, the numbers in each of whose rows lie together, four rows at a time."""
    four = out.size - out.size % 4
    for k in range(0, four, 4):
        one = two = three = last = out.dtype.type(0)
        for j in range(x.size):
            one += b[k, j] * x[j]
            two += b[k + 1, j] * x[j]
            three += b[k + 2, j] * x[j]
            last += b[k + 3, j] * x[j]
        out[k] += one
        out[k + 1] += two
        out[k + 2] += three
        out[k + 3] += last
    for k in range(four, out.size):
        out[k] += product_11(b[k], x, out.dtype.type(0))


@jit(reorders=True)
def product_11(a, b, zero):
    """The inner product of two vectors."""
    for i in range(a.size):
        zero += a[i] * b[i]
    return zero


@jit
def product_21(a, b, zero):
    """A matrix times a vector."""
    out = np.full(a.shape[0], zero)
    add_inner(a, b, out)
    return out


@jit
def product_12(a, b, zero):
    """A vector times a matrix."""
    return product_22(np.expand_dims(a, 0), b, zero)[0]


@jit
def product_22(a, b, zero):
    """A matrix times a matrix."""
    out = np.full((a.shape[0], b.shape[1]), zero)
    add_product(a, b, out)
    return out
