"""`ab.jax_function` with the real JAX: values and gradients are those of JAX's own code, under grad, jit and vmap."""

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import DTypeError, ShapeError, UnsupportedError
from tests import inspect

jax = pytest.importorskip("jax")
jnp = jax.numpy

rng = np.random.default_rng(0)


def rnn(x, params):
    h = np.zeros(params["u"].shape[0], np.float32)
    for row in x:
        h = np.tanh(row @ params["w"] + h @ params["u"])
    return h @ params["out"]


def jax_rnn(x, params):
    h = jnp.zeros(4)
    for row in x:
        h = jnp.tanh(row @ params["w"] + h @ params["u"])
    return h @ params["out"]


PARAMS = {
    name: jnp.asarray(rng.normal(size=shape), jnp.float32)
    for name, shape in {"w": (3, 4), "u": (4, 4), "out": (4, 2)}.items()
}
XS = jnp.asarray(rng.normal(size=(5, 2, 3)), jnp.float32)
XXS = jnp.stack([XS, XS * 2])


def close(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for x, y in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-5)


def squares(f):
    return lambda x, params: (f(x, params) ** 2).sum()


def gradient(f):
    return jax.grad(squares(f), (0, 1))


def vmap(f):
    return jax.vmap(f, (0, None))


ours = ab.jax_function(rnn)
batched = ab.jax_function(rnn, in_axes=(0, None))

CASES = {
    "plain": (ours, jax_rnn, XS[0]),
    "grad": (gradient(ours), gradient(jax_rnn), XS[0]),
    "jit": (jax.jit(ours), jax_rnn, XS[0]),
    "jit of grad": (jax.jit(gradient(ours)), gradient(jax_rnn), XS[0]),
    "vmap": (vmap(ours), vmap(jax_rnn), XS),
    "vmap of grad": (vmap(gradient(ours)), vmap(gradient(jax_rnn)), XS),
    "grad of vmap": (gradient(vmap(ours)), gradient(vmap(jax_rnn)), XS),
    "jit of grad of vmap": (jax.jit(gradient(vmap(ours))), gradient(vmap(jax_rnn)), XS),
    "vmap of vmap": (vmap(vmap(ours)), vmap(vmap(jax_rnn)), XXS),
    "grad of vmap of vmap": (gradient(vmap(vmap(ours))), gradient(vmap(vmap(jax_rnn))), XXS),
    "in_axes": (batched, vmap(jax_rnn), XS),
    "grad of in_axes": (gradient(batched), gradient(vmap(jax_rnn)), XS),
    "jit of grad of in_axes": (jax.jit(gradient(batched)), gradient(vmap(jax_rnn)), XS),
    "vmap of grad of in_axes": (vmap(gradient(batched)), vmap(gradient(vmap(jax_rnn))), XXS),
}


@pytest.mark.parametrize("case", CASES)
def test_transformations(case):
    f, expected, x = CASES[case]
    close(f(x, PARAMS), expected(x, PARAMS))


def test_examples_run_together():
    """One product for all examples, as in lock-step; counted."""
    for f in (ab.jax_function(lambda x: x * 2.0, in_axes=0), jax.vmap(ab.jax_function(lambda x: x * 2.0))):
        with inspect.op_calls() as calls:
            f(XS)
        assert len(XS) in [call.lanes for call in calls if call.op == "multiply" and call.computes]


def test_several_results_of_any_dtype():
    def f(ids, table):
        return {"sum": table[ids].sum(0), "count": len(ids), "first": (ids[0] > 1, "name")}

    table = jnp.asarray(rng.normal(size=(5, 2)), jnp.float32)
    ids = jnp.array([1, 4, 1])
    for call in (ab.jax_function(f), lambda *args: jax.jit(lambda *a: ab.jax_function(f)(*a)["sum"])(*args)):
        out = call(ids, table)
        close(out["sum"] if isinstance(out, dict) else out, table[ids].sum(0))
    out = ab.jax_function(f)(ids, table)
    assert (int(out["count"]), bool(out["first"][0]), out["first"][1]) == (3, False, "name")
    g = jax.grad(lambda table: ab.jax_function(f)(ids, table)["sum"].sum())(table)
    assert g.sum(1).tolist() == [0, 4, 0, 0, 2]


def test_none_is_a_value_like_others():
    f = ab.jax_function(lambda x: (None, x * 2.0, None))
    for call in (f, jax.jit(f), jax.vmap(f)):
        first, doubled, last = call(XS[0])
        assert first is None is last
        close(doubled, XS[0] * 2)
    g = jax.grad(lambda x: f(x)[1].sum())(XS[0])
    assert (g == 2).all()


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, lambda f: lambda x: jax.vmap(f)(x[None])[0]])
def test_complex_gradients_are_refused_and_never_dropped(transform):
    x = jnp.arange(1.0, 4.0)
    f = ab.jax_function(lambda x: (x * 1j, x * 2.0))
    assert transform(jax.grad(lambda x: f(x)[1].sum()))(x).tolist() == [2, 2, 2]
    with pytest.raises(UnsupportedError, match="gradient of a complex result; return its real and imaginary parts"):
        transform(jax.grad(lambda x: jnp.abs(f(x)[0]).sum() + x.sum()))(x)
    size = ab.jax_function(lambda x, z: np.abs(x * z).sum())
    z = x + 0j
    assert transform(jax.grad(lambda x: size(x, z)))(x).tolist() == [1, 2, 3]
    with pytest.raises(DTypeError, match=r"with respect to a complex array; .* or jax\.lax\.stop_gradient\(x\)"):
        transform(jax.grad(lambda z: size(x, z)))(z)


def test_no_examples():
    out = jax.jit(ab.jax_function(rnn, in_axes=(0, None)))(XS[:0], PARAMS)
    assert (out.shape, out.dtype) == ((0, 2), jnp.float32)
    g = gradient(batched)(XS[:0], PARAMS)[1]
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(g))


def test_batches_of_ours_are_constants():
    xs = ab.PackedBatch.from_examples([np.ones((2, 3), np.float32), np.ones((1, 3), np.float32)])
    g = jax.grad(lambda w: ab.jax_function(lambda x, w: np.tanh(x @ w).sum())(xs, w).sum())(jnp.zeros(3))
    assert g.tolist() == [3, 3, 3]


def test_ragged_examples_are_padded_arrays_and_lengths():
    """JAX has no ragged array: the function takes its own part, and what is padding has no gradient."""
    padded = jnp.asarray(rng.normal(size=(4, 5, 3)), jnp.float32)
    lengths = jnp.array([2, 5, 0, 1])
    poisoned = jnp.where(jnp.arange(5)[:, None] < lengths[:, None, None], padded, jnp.nan)

    def own_part(x, n, params):
        return rnn(x[:n], params)

    def masked(x, n, params):
        h = jnp.zeros(4)
        for t, row in enumerate(x):
            h = jnp.where(t < n, jnp.tanh(row @ params["w"] + h @ params["u"]), h)
        return h @ params["out"]

    def gradients(f, x):
        return jax.grad(lambda x, params: (f(x, lengths, params) ** 2).sum(), (0, 1))(x, PARAMS)

    theirs = jax.vmap(masked, (0, 0, None))
    for ours in (ab.jax_function(own_part, in_axes=(0, 0, None)), jax.vmap(ab.jax_function(own_part), (0, 0, None))):
        close(ours(poisoned, lengths, PARAMS), theirs(padded, lengths, PARAMS))
        close(jax.jit(ours)(poisoned, lengths, PARAMS), theirs(padded, lengths, PARAMS))
        close(gradients(ours, poisoned), gradients(theirs, padded))
        close(jax.jit(lambda x, ours=ours: gradients(ours, x))(poisoned), gradients(theirs, padded))


def test_the_form_of_a_result_can_be_said():
    def f(n):
        assert n > 3, "too few"
        return np.zeros(2) + n

    with pytest.raises(AssertionError, match="too few") as caught:
        jax.jit(ab.jax_function(f))(jnp.float32(5))
    assert any("pass result= instead" in note for note in caught.value.__notes__)
    told = ab.jax_function(f, result=jax.ShapeDtypeStruct((2,), np.float64))
    assert jax.jit(told)(jnp.float32(5)).tolist() == [5, 5]
    wrong = ab.jax_function(f, result=np.zeros(3))
    with pytest.raises(Exception, match=r"returned an array of shape \(2,\) where JAX was told \(3,\)"):
        jax.jit(wrong)(jnp.float32(5)).block_until_ready()


def test_what_cannot_be_is_refused():
    f = ab.jax_function(lambda x: (x**3).sum())
    with pytest.raises(UnsupportedError, match="differentiated again"):
        jax.grad(lambda x: jax.grad(f)(x).sum())(XS[0])
    with pytest.raises(DTypeError, match="dtype bfloat16"):
        f(jnp.ones(2, jnp.bfloat16))
    with pytest.raises(ShapeError, match="in_axes=1 for 1 arguments"):
        ab.jax_function(lambda x: x, in_axes=1)(XS)
    with pytest.raises(ShapeError, match="results of different shapes"):
        ab.jax_function(lambda x: np.zeros(int(x)), in_axes=0)(jnp.arange(3))
