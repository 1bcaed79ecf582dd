"""Functions of NumPy and `ab.nn`, written as plain Python that is compiled like a helper of the user's.

Products of matrices, and what is computed from them, add in another order than BLAS and LAPACK do.
"""

import bisect

import numpy as np

from autobatch.compiled.functions.python_sources import method
from autobatch.compiled.translation.exact_types import RandomStream
from autobatch.ops.nn import activations, softmax_and_norms
from autobatch.ops.rules.dispatch import leave_to_python, source


@source(np.roll, of=(1,))
def roll(a, shift):
    x = np.asarray(a)
    out = np.empty_like(x)
    for i in range(len(x)):
        out[(i + shift) % len(x)] = x[i]
    return out


@source(np.flip, np.flipud, of=(1, 2))
def flip(m):
    return np.asarray(m)[::-1] if np.asarray(m).ndim == 1 else np.asarray(m)[::-1, ::-1]


@method(RandomStream, "permutation")
def permutation(generator, x):
    if isinstance(x, np.ndarray):
        out = x.copy()
    else:
        out = np.zeros(x, np.int64)
        for i in range(x):
            out[i] = i
    generator.shuffle(out)
    return out


@source(np.repeat, of=(1,))
def repeat(a, repeats):
    x = np.asarray(a)
    out = np.empty(len(x) * repeats, x.dtype)
    for i in range(len(out)):
        out[i] = x[i // repeats]
    return out


@source(np.append, of=(1,))
def append(arr, values):
    return np.concatenate((np.asarray(arr), np.asarray(values)))


@source(np.stack, np.vstack)
def stack(arrays):
    return np.array(list(arrays))


@source(np.round, np.around)
def rounded(a):
    return np.rint(a)


@source(np.diag, of=(1,))
def diag(v):
    x = np.asarray(v)
    out = np.zeros((len(x), len(x)), x.dtype)
    for i in range(len(x)):
        out[i, i] = x[i]
    return out


@source(np.linspace)
def linspace(start, stop, num=50):
    first, last = float(start), float(stop)
    if num < 2 or first == last:
        leave_to_python()
    out = np.arange(num) * ((last - first) / (num - 1)) + first
    out[num - 1] = last
    return out


@source()
def half(m, k, sign):
    out = np.zeros_like(m)
    for i in range(m.shape[0]):
        for j in range(m.shape[1]):
            if sign * (j - i - k) >= 0:
                out[i, j] = m[i, j]
    return out


@source(np.triu, of=(2,))
def triu(m, k=0):
    return half(m, k, 1)


@source(np.tril, of=(2,))
def tril(m, k=0):
    return half(m, k, -1)


@source(np.count_nonzero, of=(1,))
def count_nonzero(a):
    return _counted((np.asarray(a) != 0).sum())


_counted = type(np.count_nonzero(np.ones(1)))  # Python's int before NumPy 2.4


@source(np.unique, of=(1,))
def unique(ar):
    x = np.sort(np.asarray(ar))
    out, many = np.empty_like(x), 0
    for i in range(len(x)):
        if x[i] != x[i]:
            leave_to_python()
        if i == 0 or x[i] != x[i - 1]:
            out[many] = x[i]
            many += 1
    return out[:many].copy()


@source(np.cumsum, np.add.accumulate, of=(1,))
def cumsum(a):
    x = np.asarray(a)
    out = np.full(len(x), x[:0].sum())
    for i in range(len(x)):
        out[i] = x[i] if i == 0 else out[i - 1] + x[i]
    return out


@source(np.sort, of=(1,))
def sort(a):
    out = np.asarray(a).copy()
    out.sort()
    return out


@source(np.diff, of=(1,))
def diff(a):
    x = np.asarray(a)
    return x[1:] - x[: max(len(x) - 1, 0)]


@source(np.outer, of=(1,))
def outer(a, b):
    return np.asarray(a)[:, None] * np.asarray(b).flatten()


@source(np.bincount, of=(1,))
def bincount(x, weights=None, minlength=0):
    ids = np.asarray(x)
    if ids.dtype == float or ids.dtype == np.float32 or ids.dtype == bool:
        leave_to_python()
    many = minlength
    if many < 0:
        raise ValueError
    for each in ids:
        if each < 0:
            raise ValueError
        many = max(many, int(each) + 1)
    if weights is None:
        counts = np.zeros(many, np.int64)
        for each in ids:
            counts[each] += 1
        return counts
    given = np.asarray(weights)
    if len(given) != len(ids) or len(ids) == 0:  # NumPy gives integers then
        leave_to_python()
    out = np.zeros(many)
    for i in range(len(ids)):
        out[ids[i]] += given[i]
    return out


@source()
def triangle(n, k, sign):
    at = np.flatnonzero(half(np.ones((n, n)), k, sign).ravel())
    return at // max(n, 1), at % max(n, 1)


@source(np.triu_indices)
def triu_indices(n, k=0):
    return triangle(n, k, 1)


@source(np.tril_indices)
def tril_indices(n, k=0):
    return triangle(n, k, -1)


@source(np.eye, np.identity)
def eye(N, dtype=float):  # noqa: N803
    return diag(np.ones(N, dtype))


@source(np.interp)
def interp(x, xp, fp):
    places, values = np.asarray(xp), np.asarray(fp)
    if len(places) != len(values) or len(places) == 0:
        raise ValueError
    at = float(x)
    if at != at:
        leave_to_python()
    last = len(places) - 1
    if at > places[last]:
        return np.float64(values[last])
    if at < places[0]:
        return np.float64(values[0])
    j = bisect.bisect_right(places, at) - 1
    if j == last or places[j] == at:
        return np.float64(values[j])
    slope = (values[j + 1] - values[j]) / (places[j + 1] - places[j])
    return np.float64(slope * (at - places[j]) + values[j])


@source(np.isclose)
def isclose(a, b, rtol=1e-05, atol=1e-08):
    return np.less_equal(np.abs(np.subtract(a, b)), atol + rtol * np.abs(b))


@source(np.allclose)
def allclose(a, b, rtol=1e-05, atol=1e-08):
    return bool(np.all(np.less_equal(np.abs(np.subtract(a, b)), atol + rtol * np.abs(b))))


@source(np.array_equal, of=(1, 2))
def array_equal(a1, a2):
    x, y = np.asarray(a1), np.asarray(a2)
    return x.shape == y.shape and bool((x == y).all())


@source(np.linalg.norm, of=(1, 2), sums=True)
def norm(x):
    y = np.asarray(x).ravel() * 1.0
    return np.sqrt(np.dot(y, y))


@source()
def factored(a):
    """LU with partial pivoting: both factors in one matrix, the order of the rows, and the sign of the permutation."""
    if a.shape[0] != a.shape[1]:
        leave_to_python()
    n = a.shape[0]
    lu = a * 1.0
    order = list(range(n))
    sign = 1.0
    for k in range(n):
        best = k
        for i in range(k + 1, n):
            if abs(lu[i, k]) > abs(lu[best, k]):
                best = i
        if best != k:
            sign = -sign
            order[k], order[best] = order[best], order[k]
            for j in range(n):
                held = lu[k, j]
                lu[k, j] = lu[best, j]
                lu[best, j] = held
        if lu[k, k] == 0:
            leave_to_python()
        for i in range(k + 1, n):
            lu[i, k] /= lu[k, k]
            for j in range(k + 1, n):
                lu[i, j] -= lu[i, k] * lu[k, j]
    return lu, order, sign


@source(np.linalg.solve, of=(2,), sums=True)
def solve(a, b):
    lu, order, _ = factored(a)
    n = len(order)
    if b.shape[0] != n:
        leave_to_python()
    columns = b.reshape(n, -1)
    out = np.empty(columns.shape, (lu[:0, :0] * b.ravel()[:0].reshape(0, 1)).dtype)
    for c in range(columns.shape[1]):
        for i in range(n):
            out[i, c] = columns[order[i], c]
            for j in range(i):
                out[i, c] -= lu[i, j] * out[j, c]
        for i in range(n - 1, -1, -1):
            for j in range(i + 1, n):
                out[i, c] -= lu[i, j] * out[j, c]
            out[i, c] /= lu[i, i]
    return out.reshape(b.shape)


@source(np.linalg.inv, of=(2,), sums=True)
def inv(a):
    return solve(a, np.eye(a.shape[0], dtype=(a[:0] * 1.0).dtype))


@source(np.linalg.det, of=(2,), sums=True)
def det(a):
    lu, order, sign = factored(a)
    out = np.ones(1, lu.dtype)
    for i in range(len(order)):
        out[0] *= lu[i, i]
    out[0] *= sign
    return out[0]


@source(np.linalg.cholesky, of=(2,), sums=True)
def cholesky(a):
    if a.shape[0] != a.shape[1]:
        leave_to_python()
    n = a.shape[0]
    out = np.zeros_like(a * 1.0)
    for j in range(n):
        for i in range(j, n):
            out[i, j] = a[i, j]
            for k in range(j):
                out[i, j] -= out[i, k] * out[j, k]
            if i == j:
                if not out[i, j] > 0:
                    leave_to_python()
                out[i, j] = np.sqrt(out[i, j])
            else:
                out[i, j] /= out[j, j]
    return out


@source(activations.sigmoid, of=(1, 2))
def sigmoid(x):
    return 1 / (np.exp(-(np.asarray(x) * 1.0)) + 1)


@source()
def below_peak(x):
    """The numbers minus the largest of them, as floats."""
    y = np.asarray(x) * 1.0
    return y - np.max(y) if len(y) else y


@source(softmax_and_norms.softmax, of=(1,), sums=True)
def softmax(x):
    weights = np.exp(below_peak(x))
    return weights / weights.sum()


@source(softmax_and_norms.log_softmax, of=(1,), sums=True)
def log_softmax(x):
    y = below_peak(x)
    return y - np.log(np.exp(y).sum()) if len(y) else y
