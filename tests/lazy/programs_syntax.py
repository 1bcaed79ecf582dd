"""Small functions of a vector `x`, a matrix `w` and a vector `b`: the syntax that blocks stand in."""

import numpy as np

from tests.lazy.programs_effects import case


@case
def lambdas(x, w, b):
    f = lambda a, c=2: np.tanh(a @ w) * c + b
    return f(x), f(x, 3)


@case
def a_nested_function_rebinds(x, w, b):
    k = 1.0

    def inner(a):
        nonlocal k
        k += 1
        return np.tanh(a @ w) * k + b

    y = inner(x) * 2 + k
    z = inner(y) * 2 + k
    return y, z, k


@case
def comprehensions(x, w, b):
    hs = [np.tanh(x @ w) * k + b for k in range(3)]
    d = {k: (h * 2 + b).sum() for k, h in enumerate(hs)}
    return hs, list(d.values()), sum((h * 2 + 1).sum() for h in hs)


@case
def a_conditional_expression(x, w, b):
    return np.tanh(x @ w) + 1 if (x @ w + b).sum() > 0 else np.exp(x * 2) - b


@case
def branches_and_a_loop(x, w, b):
    y = x @ w + b
    if (y * 2).sum() > 0:
        y = np.tanh(y) * y
    elif y.max() + 1 > 0:
        y = y * 3 - 1
    while (y * y).sum() > 1:
        y = y * 0.5 + b * 0.01
    return y


@case
def a_generator(x, w, b):
    def g():
        for k in range(3):
            yield np.tanh(x @ w) * k + b

    return list(g())


@case
def slices(x, w, b):
    n = 2
    y = x[:n] + b[n : 2 * n] * 3
    return y @ w[:n] + x[-1]


@case
def several_outputs(x, w, b):
    i, o = np.split(x @ w + b, 2)
    c = np.tanh(i) * o
    return i, o, c


@case
def names_are_rebound(x, w, b):
    y = x @ w + b
    y = np.tanh(y) * 2
    y = y + 1
    return y


@case
def names_are_swapped(x, w, b):
    h, c = x @ w + b, np.tanh(x) * 2
    h, c = c * 2 + h, h - c * 3
    return h, c


@case
def dtypes(x, w, b):
    return (x @ w + b).astype(np.float64) * 2.5, (x * 2).astype(int) + 1, (x > 0).astype("f4") * 2


@case
def a_walrus(x, w, b):
    if (y := (x @ w + b)).sum() > 0:
        return y * 2 + b
    return y - 1 * b


@case
def a_list_of_states(x, w, b):
    hs = [x]
    for k in range(3):  # noqa: B007  (read after the loop)
        hs.append(np.tanh(hs[-1] @ w) * hs[0] + b)
    return hs[k] * 2 + hs[k - 1]


@case
def a_dict_of_states(x, w, b):
    h = {v: x * v + b for v in range(3)}
    for v in h:
        h[v] = np.tanh(h[v] @ w) + h[(v + 1) % 3]
    return list(h.values())


@case
def python_numbers(x, w, b):
    k = 0.5
    n = 3
    return x * (1 - k) + b / n**2 * k, x * n + n, x**2 + n % 2


@case
def a_match(x, w, b):
    match x.shape:
        case (4,):
            return x @ w * 2 + b
        case _:
            return x


@case
def an_assertion(x, w, b):
    y = x @ w + b
    assert (y * y).sum() + 1 > 0, "no"
    return y * 2 - 1


@case
def keywords(x, w, b):
    def g(a, *, k=2.0, **kw):
        return a * k + kw["z"] * 2

    return g(x, z=b) + g(x, k=3.0, z=x)


@case
def functions_of_two(x, w, b):
    return np.clip(x @ w, -1, 1) + np.where(x > 0, x * 2, b) + np.maximum(x, 0)


@case
def empty_arrays(x, w, b):
    return x[:0] * 2 + b[:0], np.concatenate([x[:0], b * 2 + 1])


@case
def a_loop_until(x, w, b):
    h = x
    n = 0
    while True:
        h = np.tanh(h @ w + b) * 0.9
        n += 1
        if (h * h).sum() + n > 3:
            break
    else:
        n = -1
    return h, n


@case
def a_starred_target(x, w, b):
    a, *r = x @ w + b
    return a * 2 + 1, r[0] * 2 + a


@case
def an_update_reads_what_nothing_else_does(x, w, b):
    y = np.tanh(x @ w) * 2
    z = y.sum()
    if float(z) > 100:
        return z
    y += float(z)
    for k in range(int(float(z) > 0) + 1):
        y *= k
    return z


@case
def a_name_is_deleted_that_nothing_reads(x, w, b):
    y = np.tanh(x @ w) * 2
    z = y.sum()
    if float(z) > 100:
        return z
    del y
    return z * 2
