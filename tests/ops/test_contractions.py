"""Products over ragged and static dimensions, batched on either side or both."""

import numpy as np
import pytest

from autobatch import MaskedBatch, nn
from autobatch.errors import ShapeError
from autobatch.ops.numpy import contractions
from tests import inspect
from tests.inspect import Op
from tests.law import Shared, as_operands, check, check_grads

T = (3, 5, 0, 1)
S = (2, 4, 3, 0)


def lanes(shape, dtype="f8", seed=0):
    rng = np.random.default_rng(seed)
    return [_draw(rng, shape(t, s), dtype) for t, s in zip(T, S, strict=True)]


def _draw(rng, shape, dtype):
    if np.dtype(dtype).kind in "iub":
        return rng.integers(0, 4, size=shape).astype(dtype)
    return rng.normal(size=shape).astype(dtype)


def one(*shape, dtype="f8"):
    return Shared(_draw(np.random.default_rng(5), shape, dtype))


# name: the function and its operands for a dtype
CASES = {
    "step": lambda d: (np.matmul, lanes(lambda t, s: (4,), d), one(4, 3, dtype=d)),
    "rows": lambda d: (np.matmul, lanes(lambda t, s: (t, 4), d), one(4, 3, dtype=d)),
    "rows times vector": lambda d: (np.matmul, lanes(lambda t, s: (t, 4), d), one(4, dtype=d)),
    "shared left": lambda d: (np.matmul, one(3, 4, dtype=d), lanes(lambda t, s: (4, t), d)),
    "shared left vector": lambda d: (np.matmul, one(3, 4, dtype=d), lanes(lambda t, s: (4,), d)),
    "vector left": lambda d: (np.matmul, one(4, dtype=d), lanes(lambda t, s: (4, t), d)),
    "dot": lambda d: (np.dot, lanes(lambda t, s: (t,), d), lanes(lambda t, s: (t,), d, 1)),
    "vector matrix": lambda d: (np.matmul, lanes(lambda t, s: (t,), d), lanes(lambda t, s: (t, s), d, 1)),
    "matrix vector": lambda d: (np.matmul, lanes(lambda t, s: (t, s), d), lanes(lambda t, s: (s,), d, 1)),
    "scores": lambda d: (lambda a, b: a @ b.T, lanes(lambda t, s: (t, 4), d), lanes(lambda t, s: (s, 4), d, 1)),
    "mix": lambda d: (np.matmul, lanes(lambda t, s: (3, t), d), lanes(lambda t, s: (t, 2), d, 1)),
    "static": lambda d: (np.matmul, lanes(lambda t, s: (3, 2), d), lanes(lambda t, s: (2, 3), d, 1)),
    "heads": lambda d: (np.matmul, lanes(lambda t, s: (2, t, s), d), lanes(lambda t, s: (2, s, 3), d, 1)),
    "stack of one": lambda d: (np.matmul, lanes(lambda t, s: (1, t, s), d), lanes(lambda t, s: (2, s, 3), d, 1)),
    "ranks": lambda d: (np.matmul, lanes(lambda t, s: (2, t, s), d), lanes(lambda t, s: (s, 3), d, 1)),
    "ragged stack": lambda d: (np.matmul, lanes(lambda t, s: (t, 2, 4), d), lanes(lambda t, s: (t, 4, 3), d, 1)),
    "shared stack": lambda d: (np.matmul, lanes(lambda t, s: (2, t, 4), d), one(2, 4, 3, dtype=d)),
    "tall stack": lambda d: (np.matmul, lanes(lambda t, s: (t, 2, 4), d), one(4, 3, dtype=d)),
    "dot of ranks": lambda d: (np.dot, lanes(lambda t, s: (t, 4), d), lanes(lambda t, s: (2, 4, s), d, 1)),
    "dot of a scalar": lambda d: (np.dot, lanes(lambda t, s: (), d), lanes(lambda t, s: (t,), d, 1)),
    "vdot": lambda d: (np.vdot, lanes(lambda t, s: (t,), d), lanes(lambda t, s: (t,), d, 1)),
    "inner": lambda d: (np.inner, lanes(lambda t, s: (t, 4), d), lanes(lambda t, s: (s, 4), d, 1)),
    "inner shared": lambda d: (np.inner, lanes(lambda t, s: (t, 4), d), one(3, 4, dtype=d)),
    "outer": lambda d: (np.outer, lanes(lambda t, s: (t,), d), lanes(lambda t, s: (s,), d, 1)),
    "outer shared": lambda d: (np.outer, lanes(lambda t, s: (t,), d), one(3, dtype=d)),
    "tensordot": lambda d: (np.tensordot, lanes(lambda t, s: (3, t, s), d), lanes(lambda t, s: (t, s, 2), d, 1)),
    "tensordot axes": lambda d: (
        lambda a, b: np.tensordot(a, b, ([0, -1], [1, 0])),
        lanes(lambda t, s: (t, 2, s), d),
        lanes(lambda t, s: (s, t), d, 1),
    ),
    "tensordot nothing": lambda d: (
        lambda a, b: np.tensordot(a, b, 0),
        lanes(lambda t, s: (t,), d),
        lanes(lambda t, s: (s, 2), d, 1),
    ),
    "vecdot": lambda d: (np.vecdot, lanes(lambda t, s: (s, t), d), lanes(lambda t, s: (t,), d, 1)),
    "matvec": lambda d: (np.matvec, lanes(lambda t, s: (s, t), d), lanes(lambda t, s: (t,), d, 1)),
    "vecmat": lambda d: (np.vecmat, lanes(lambda t, s: (t,), d), lanes(lambda t, s: (t, s), d, 1)),
}
SUBSCRIPTS = {
    "ti,si->ts": ((0, 4), (1, 4)),
    "ti,ti->t": ((0, 4), (0, 4)),
    "ti,ti->": ((0, 4), (0, 4)),
    "ti,ij": ((0, 4), (4, 3)),
    "tt->t": ((0, 0),),
    "tt": ((0, 0),),
    "ts->st": ((0, 1),),
    "ts->": ((0, 1),),
    "ts->s": ((0, 1),),
    "t,s->ts": ((0,), (1,)),
    "...t,ts->...s": ((2, 0), (0, 1)),
    "...i,...i->...": ((0, 4), (4,)),
    "...": ((0, 1),),
    "hti,hsi,sj->htj": ((2, 0, 3), (2, 1, 3), (1, 2)),
    "t,t,t->": ((0,), (0,), (0,)),
    "ti,ti,i->ti": ((0, 3), (0, 3), (3,)),
    "tij,tjk->tik": ((0, 2, 3), (0, 3, 2)),
    "ab,cd->ad": ((0, 2), (3, 1)),
}


def einsum_operands(spec, dtype):
    """Lanes where the shape says 0 for T and 1 for S; other numbers are lengths. Operands without either are shared."""
    out = []
    for seed, shape in enumerate(SUBSCRIPTS[spec]):
        if 0 in shape or 1 in shape:
            out.append(lanes(lambda t, s, shape=shape: tuple({0: t, 1: s}.get(n, n) for n in shape), dtype, seed))
        else:
            out.append(one(*shape, dtype=dtype))
    return out


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4", "?", "c16"])
@pytest.mark.parametrize("case", CASES)
def test_product(case, dtype):
    f, *operands = CASES[case](dtype)
    check(f, *operands)


@pytest.mark.parametrize("case", CASES)
def test_product_gradients(case):
    f, *operands = CASES[case]("f8")
    check_grads(f, *operands)


@pytest.mark.parametrize("spec", SUBSCRIPTS)
def test_einsum(spec):
    for dtype in ("f4", "f8", "i8"):
        check(lambda *xs: np.einsum(spec, *xs), *einsum_operands(spec, dtype))
    check_grads(lambda *xs: np.einsum(spec, *xs), *einsum_operands(spec, "f8"))


def test_every_contraction_is_in_a_case():
    ops = {op for op in vars(contractions).values() if isinstance(op, Op) and op.kind == "contraction"}
    assert ops == {contractions.matmul_p, contractions.einsum_p}


def test_dtypes_mix():
    a, b = lanes(lambda t, s: (t, 4), "f4"), lanes(lambda t, s: (4, s), "i8", 1)
    check(np.matmul, a, b)
    check(np.matmul, a, Shared(np.ones((4, 2))))
    check(lambda x, y: np.einsum("ti,is->ts", x, y), a, b)


def test_contracted_lengths_that_disagree_name_the_example():
    a, b = [np.ones((2, 3)), np.ones((2, 4))], [np.ones((3, 2)), np.ones((5, 2))]
    with pytest.raises(ShapeError, match="4 and 5 in example 1"):
        np.matmul(*as_operands((a, b)))
    with pytest.raises(ShapeError, match="4 and 3 in example 1"):
        np.matmul(*as_operands((a, Shared(np.ones((3, 2))))))
    check(lambda x, y: np.tensordot(x, y, 1), [np.ones(1), np.ones(4)], [np.ones(1), np.ones(1)])
    check(np.matmul, a, b)
    check(np.matmul, [np.ones(()), np.ones(())], a)


def test_a_shared_weight_makes_one_tall_product():
    x, w = as_operands((lanes(lambda t, s: (t, 4)), one(4, 3)), 0)
    with inspect.watched(np, "matmul", before=lambda x, y, **_: (np.shape(x), np.shape(y))) as calls:
        contractions.matmul_p(x, w)
    assert calls == [((20, 4), (4, 3))]


def test_an_einsum_that_is_a_product_of_matrices_is_computed_as_one():
    x, y = as_operands((lanes(lambda t, s: (t, 4)), lanes(lambda t, s: (s, 4), seed=1)), 0)
    with inspect.watched(np, "matmul", before=lambda x, y, **_: (np.shape(x), np.shape(y))) as calls:
        np.einsum("ti,si->st", x, y)
    assert calls == [((4, 5, 4), (4, 4, 4))]


def test_a_batch_of_no_examples():
    none = MaskedBatch(np.zeros((0, 4, 3)), lengths=np.zeros(0, int))
    w = np.ones((3, 2))
    for out, ndim in ((none @ w, 2), (w.T @ none.T, 2), (none @ none.T, 2), (np.einsum("ti,ti->i", none, none), 1)):
        assert out.batch_size == 0
        assert out.ndim == ndim
    for f in (nn.softmax, nn.gelu, nn.layer_norm, nn.logsumexp):
        assert f(none).batch_size == 0
    assert nn.softmax(none, axis=0).batch_size == 0
    ids = MaskedBatch(np.zeros((0, 4), int), lengths=np.zeros(0, int))
    assert nn.cross_entropy(none, ids).batch_size == 0
    assert nn.one_hot(ids, 3).ndim == 2
