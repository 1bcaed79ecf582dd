"""Array functions called by users' compiled code: NumPy's searches, counts and joins, on operands already checked."""

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from autobatch.kernels.jit import jit


@jit
def all_within(x, low, high):
    """True if every element is in [low, high]; NaN is not."""
    for value in x.flat:  # noqa: SIM110  # a loop that Numba compiles well
        if not low <= value <= high:
            return False
    return True


@jit
def reshapes_alike(x, shape):
    """True if NumPy, too, reshapes an array to a copy, or to a view of an array whose elements follow each other."""
    if x.flags.c_contiguous or x.size == 0:
        return True
    many, step = 1, x.itemsize  # elements of the axes so far, from the last on; a stride with which the next continues
    for axis in range(x.ndim - 1, -1, -1):
        if x.shape[axis] != 1:
            count, made = 1, len(shape)
            while count < many and x.strides[axis] != step:
                made -= 1
                count *= shape[made]
            if count > many:
                return True  # an axis of the result would have several strides
            many, step = many * x.shape[axis], x.shape[axis] * x.strides[axis]
    return False


@jit
def table_row(weights, k):
    """The row of an id, copied."""
    return weights[k].copy()


@jit
def table_rows(weights, ids):
    """(ids, dim): the row of each id, in C order."""
    out = np.empty((ids.size, weights.shape[1]), weights.dtype)
    for k, each in enumerate(ids):
        for j in range(out.shape[1]):  # Numba's `out[k] = ...` takes twice as long
            out[k, j] = weights[each, j]
    return out


@jit
def sum_rows(x):
    """The sums of an array of three axes over the second, in order."""
    out = np.zeros((x.shape[0], x.shape[2]), x.dtype)
    for i in range(x.shape[0]):
        for k in range(x.shape[1]):
            for j in range(x.shape[2]):
                out[i, j] += x[i, k, j]
    return out


@jit
def extreme_rows(x, largest):
    """The largest (or least) numbers of an array of three axes over the second, which is not empty; a NaN wins."""
    out = x[:, 0].copy()
    for i in range(x.shape[0]):
        for k in range(1, x.shape[1]):
            for j in range(x.shape[2]):
                value, most = x[i, k, j], out[i, j]
                wins = value >= most if largest else value <= most  # of zeros the later one, as in NumPy's loops
                out[i, j] = value if wins | (value != value) else most
    return out


@jit
def fill_parts(out, parts):
    """Copy the elements of arrays, one after the other, into a contiguous array."""
    flat, at = out.ravel(), 0
    for part in parts:
        for each in part.flat:
            flat[at] = each
            at += 1


@jit
def taken(x, places):
    """Parts of an array of three axes, of the second one: `x[:, places]`."""
    out = np.empty((x.shape[0], places.size, x.shape[2]), x.dtype)
    for i in range(x.shape[0]):
        for k in range(places.size):
            part, source = out[i, k], x[i, places[k]]
            for j in range(part.size):
                part[j] = source[j]
    return out


@jit
def array_of(items, like):
    """The numbers of a list as an array of numbers like `like`."""
    out = np.empty(len(items), np.dtype(type(like)))
    for k in range(len(items)):
        out[k] = items[k]
    return out


@jit
def listed(items):
    """The elements in a new list."""
    return list(items)


@jit
def reorder(items, order):
    """`items[k] = items[order[k]]` for all k at once."""
    items[:] = [items[k] for k in order]


@jit
def repeated_text(text, times):
    """`text * times` of a string's code points."""
    out = np.empty(text.size * max(times, 0), text.dtype)
    for k in range(out.size):
        out[k] = text[k % text.size]
    return out


@jit
def where_aligned(condition, x, y):
    """`np.where` of arrays of the same shape, in C order; a new array."""
    out = np.empty_like(x)
    for i in range(x.size):
        out.flat[i] = x.flat[i] if condition.flat[i] else y.flat[i]
    return out


@jit
def arg_extremum(x, largest):
    """The first index of the largest (or smallest) element, or of the first NaN; x must not be empty."""
    place = 0
    for i in range(x.size):
        if x[i] != x[i]:
            return i
        if x[i] > x[place] if largest else x[i] < x[place]:
            place = i
    return place


@jit
def overlap(a, b):
    """True if the memory ranges of two arrays overlap."""
    if a.size == 0 or b.size == 0:
        return False
    a_first, a_last = extent(a)
    b_first, b_last = extent(b)
    return a_first <= b_last and b_first <= a_last


@jit
def spans_overlap(spans):
    """True if two of the spans (first byte, last byte) overlap; sorts the list."""
    spans.sort()
    for i in range(1, len(spans)):  # noqa: SIM110
        if spans[i][0] <= spans[i - 1][1]:
            return True
    return False


@jit
def same_memory(a, b):
    """True if two arrays of the same rank have the same address, shape and strides."""
    return a.ctypes.data == b.ctypes.data and a.shape == b.shape and a.strides == b.strides


@intrinsic
def address(typing_context, container):
    """The memory address of a list or a dict."""

    def generate(context, builder, signature, args):
        proxy = cgutils.create_struct_proxy(signature.args[0])(context, builder, value=args[0])
        return builder.ptrtoint(proxy.meminfo, ir.IntType(64))

    return types.int64(container), generate


@intrinsic
def unowned(typing_context, x):
    """An array that the caller keeps alive, without the count of its users, each step of which is an atomic one."""

    def generate(context, builder, signature, args):
        out = context.make_array(x)(context, builder, args[0])
        out.meminfo = out.meminfo.type(None)
        return out._getvalue()

    return x(x), generate


@intrinsic
def array_at(typing_context, address, count, like):
    """The array of `count` numbers of the type of `like` at an address, which the caller keeps alive."""
    dtype = types.unliteral(like)  # type: ignore[attr-defined]
    made = types.Array(dtype, 1, "C")

    def generate(context, builder, signature, args):
        out, number = context.make_array(made)(context, builder), context.get_data_type(dtype)
        size = context.get_constant(types.intp, context.get_abi_sizeof(number))
        shape, strides = cgutils.pack_array(builder, [args[1]]), cgutils.pack_array(builder, [size])
        data = builder.inttoptr(args[0], number.as_pointer())
        populate_array(out, data=data, shape=shape, strides=strides, itemsize=size, meminfo=None)
        return out._getvalue()

    return made(types.int64, types.int64, dtype), generate


@jit
def extent(x):
    """The addresses of the first and the last byte of a nonempty array."""
    first = last = x.ctypes.data
    for axis in range(x.ndim):
        step = (x.shape[axis] - 1) * x.strides[axis]
        if step < 0:
            first += step
        else:
            last += step
    return first, last + x.itemsize - 1
