"""Small functions of a vector and two shared arrays, whose aliases, writes, errors and effects a block must keep."""

import types

import numpy as np

import autobatch as ab

CASES = {}
LOG = []


def case(f):
    """Register a function under its name."""
    CASES[f.__name__] = f
    return f


@case
def a_view_is_written_to(x, w, b):
    h = x @ w + b
    v = h[:2]
    u = np.tanh(v) + 1
    v += 1
    return h, u, v


@case
def two_names_of_one_array(x, w, b):
    h = np.tanh(x @ w)
    g = h
    g += b
    return h, g


@case
def views_of_an_argument(x, w, b):
    y = x.T
    z = x[:3]
    y2 = np.tanh(y) * 2
    y += 1
    return x, y, z, y2


@case
def an_argument_is_written_to(x, w, b):
    x += b
    y = x @ w + b
    x *= 2
    return y, x


@case
def an_array_of_its_own_is_written_to(x, w, b):
    y = x @ w
    y += b
    y *= 2
    z = y[1:]
    z -= 1
    return y


@case
def a_scalar_grows(x, w, b):
    s = 0.0
    for i in range(3):
        s += (x * w[i]).sum()
    return s


class Shifted:
    __array_ufunc__ = None

    def __init__(self, v):
        self.v = v

    def __add__(self, o):
        LOG.append("add")
        return self.v + o

    __radd__ = __add__

    def __matmul__(self, o):
        LOG.append("mm")
        return self.v @ o


@case
def operators_of_the_users_own(x, w, b):
    p = Shifted(x)
    return (p @ w) + b * 2 + p


class Triple:
    @property
    def w(self):
        LOG.append("w")
        return 3.0


@case
def a_property(x, w, b):
    q = Triple()
    return np.tanh(x @ w) * q.w + q.w


class Counting:
    def __init__(self, x):
        self.x = x

    @property
    def two(self):
        self.x += 1
        return 2.0


@case
def a_property_writes(x, w, b):
    r = Counting(x)
    return (x @ w + b) * r.two + x


def side(x):
    LOG.append("side")
    x += 1
    return x


@case
def a_call_writes_between(x, w, b):
    return x @ w + side(x) * 2 + x


@case
def a_call_writes_first(x, w, b):
    return (x + side(x) * 2) @ w + x


@case
def a_call_changes_a_container(x, w, b):
    p = {"w": w}

    def f():
        p["w"] = p["w"] * 2
        return 1.0

    return np.tanh(x @ p["w"] * f() + (x @ p["w"]))


@case
def a_value_is_noted(x, w, b):
    y = x @ w + b
    LOG.append(str(y.sum() > 0))
    z = np.tanh(y) * 2
    return z + 1


@case
def shapes_disagree(x, w, b):
    a = np.tanh(x @ w)
    c = a + b[:3]
    return c * 2


@case
def an_error_is_caught(x, w, b):
    y = b
    try:
        y = np.tanh(x @ w) * 2
        z = y + b[:3]
    except ValueError as e:
        return y, str(e)[:20]
    return z


@case
def a_key_is_missing(x, w, b):
    p = {"a": w}
    try:
        return x @ p["a"] + x @ p["zz"]
    except KeyError:
        return x


@case
def a_division_raises(x, w, b):
    with np.errstate(divide="raise"):
        try:
            return np.log(x * 0) + 1
        except FloatingPointError:
            return "fpe"


@case
def a_name_without_a_value(x, w, b):
    if x[0] > 0:
        k = 2.0
    try:
        return np.tanh(x @ w) * k + b
    except UnboundLocalError:
        return b


@case
def a_local_np(x, w, b):
    np = types.SimpleNamespace(tanh=lambda v: v * 0 + 7)
    return np.tanh(x @ w) + b


@case
def a_part_and_its_whole(x, w, b):
    z = x @ w + b
    i, o = np.split(z, 2)
    i += 1
    return z, i, o


@case
def views_of_views(x, w, b):
    y = (x @ w).reshape(2, 2)
    z = y.T
    q = y[0] * 2 + y[1]
    z += 1
    return y, z, q


@case
def a_name_is_deleted(x, w, b):
    y = x @ w + b
    z = y * 2 + 1
    del y
    try:
        return y
    except NameError:
        return z


@case
def scalars_and_0_d_arrays(x, w, b):
    return x[0] * 2 + x[1], np.array(x.sum() * 2 + 1)


@case
def a_finally(x, w, b):
    y = x
    try:
        y = x @ w + b
        y = y * 2 + 1
        return y + np.ones(3)
    except ValueError:
        return y
    finally:
        LOG.append("f")


@case
def it_looks_at_its_names(x, w, b):
    a = x @ w + b
    c = a * 2 + 1
    return sorted(locals()), c


@case
def a_gradient_inside(x, w, b):
    g = ab.grad(lambda w: np.sum(np.tanh(x @ w) * 2 + b))(w)
    return g * 2 + 1


@case
def the_same_object(x, w, b):
    return np.asarray(x) + 0 * b, np.asarray(x), x


@case
def a_flat_view(x, w, b):
    y = (x @ w + b).reshape(2, 2)
    z = y.ravel()
    z += 1
    return y, z


@case
def a_reversed_view(x, w, b):
    y = np.tanh(x @ w) + b
    q = y[::-1]
    q += 1
    return y


@case
def an_errstate(x, w, b):
    with np.errstate(invalid="ignore", divide="ignore"):
        y = np.log(x * 0) + b
    return np.exp(y) * 2 + x


@case
def a_part_is_written_to_after_the_run(x, w, b):
    z = x @ w + b
    i, o = np.split(z, 2)
    i[0] = 5.0
    return z, i, o


@case
def an_argument_is_written_to_through_a_view(x, w, b):
    y = x[:2]
    z = y * 2 + b[:2]
    y[0] = 3.0
    return x, y, z


def first_half(x, b):
    y = x + b
    return x[:2], y * 2


@case
def a_helper_returns_a_view(x, w, b):
    part, y = first_half(x, b)
    part[0] = 7.0
    return x, part, y


@case
def a_call_changes_what_was_read(x, w, b):
    weights = {"b": b}

    def replaced():
        weights["b"] = weights["b"] * 2
        return x

    return np.add(weights["b"], replaced()) * weights["b"] + 1


@case
def a_call_changes_an_attribute_that_was_read(x, w, b):
    holder = types.SimpleNamespace(b=b)

    def replaced():
        holder.b = holder.b * 2
        return x

    return np.add(holder.b, replaced()) * holder.b + 1


@case
def a_call_rebinds_a_name_that_was_read(x, w, b):
    k = b

    def replaced():
        nonlocal k
        k = k * 2
        return x

    return np.add(k, replaced()) * k + 1


@case
def a_handler_reads_what_a_run_assigned(x, w, b):
    y, k = b, 0
    try:
        y = np.tanh(x @ w) + 1
        z = y * 2 + b
        k = int((z * z).sum() * 0) + len(y) // 0
        return z
    except ZeroDivisionError:
        return y, k


@case
def a_with_ends_early(x, w, b):
    y = b
    with np.errstate(all="ignore"):
        y = x @ w + b
        y = np.tanh(y) * 2
        if float((y * y).sum()) + 1 > 0:
            return y + x
        y = y * 2 + 1
    return y


@case
def a_loop_carries_its_names(x, w, b):
    h = x
    for k in range(3):
        if k == 0:
            i = x @ w + b
        i = i * 2 + h
        h = np.tanh(i) * 2 + h
        i = i * h + 1
    return h, i
