"""`ab.torch_function` with the real torch: values and gradients are those of torch's own loop over the examples."""

import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import DTypeError, ShapeError, UnsupportedError
from tests import inspect

torch = pytest.importorskip("torch")
nested = torch.nested.nested_tensor

rng = np.random.default_rng(0)
LENGTHS = (2, 4, 0, 1)


def rnn(x, params):
    h = np.zeros(params["u"].shape[0], params["u"].dtype)
    for row in x:
        h = np.tanh(row @ params["w"] + h @ params["u"])
    return h @ params["out"]


def torch_rnn(x, params):
    h = torch.zeros(len(params["u"]), dtype=params["u"].dtype)
    for row in x:
        h = torch.tanh(row @ params["w"] + h @ params["u"])
    return h @ params["out"]


def new_params(dtype):
    shapes = {"w": (3, 4), "u": (4, 4), "out": (4, 2)}
    return {
        name: torch.tensor(rng.normal(size=shape), dtype=dtype, requires_grad=True) for name, shape in shapes.items()
    }


def new_examples(dtype=torch.float64):
    return [torch.tensor(rng.normal(size=(n, 3)), dtype=dtype) for n in LENGTHS]


def jagged(examples, **options):
    return nested(examples, layout=torch.jagged, **options)


def close(left, right, tolerance=1e-6):
    assert left.dtype == right.dtype
    assert left.shape == right.shape
    assert torch.allclose(left, right, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_training_loop_is_that_of_torch(dtype):
    """Several steps of Adam on a jagged batch, parameters in a dict, the inputs differentiated too."""
    tolerance = 1e-6 if dtype == torch.float64 else 2e-5
    ours, examples = new_params(dtype), new_examples(dtype)
    theirs = {name: p.detach().clone().requires_grad_() for name, p in ours.items()}
    x = jagged(examples, requires_grad=True)
    leaves = [each.clone().requires_grad_() for each in examples]
    f = ab.torch_function(rnn)
    optimizers = [torch.optim.Adam(params.values(), 0.05) for params in (ours, theirs)]
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        x.grad = None  # torch does not add up gradients of jagged leaves
        for each in leaves:
            each.grad = None
        scores = f(x, ours)
        expected = torch.stack([torch_rnn(each, theirs) for each in leaves])
        close(scores, expected, tolerance)
        (scores**2).sum().backward()
        (expected**2).sum().backward()
        for name in ours:
            close(ours[name].grad, theirs[name].grad, tolerance)
        for optimizer in optimizers:
            optimizer.step()
    for mine, other in zip(x.grad.unbind(), leaves, strict=True):
        close(mine, torch.zeros_like(other) if other.grad is None else other.grad, 3 * tolerance)


def test_gradcheck():
    """torch's own comparison with central differences."""
    params = new_params(torch.float64)
    offsets = torch.tensor([0, 2, 3])
    f = ab.torch_function(lambda x, w: np.tanh(x @ w).sum(0) / 2)

    def of_values(values, w):
        return f(torch.nested.nested_tensor_from_jagged(values, offsets), w)

    values = torch.tensor(rng.normal(size=(3, 3)), requires_grad=True)
    assert torch.autograd.gradcheck(of_values, (values, params["w"]))
    assert torch.autograd.gradcheck(ab.torch_function(rnn), (values, params))  # one example


def test_what_a_result_looks_like():
    w = torch.ones(3, 2, requires_grad=True)
    x = jagged(new_examples(torch.float32))

    def everything(x, w):
        return {"rows": x @ w, "sum": (x @ w).sum(0), "length": len(x), "pair": (x.max(initial=0.0), x[:1] > 0)}

    out = ab.torch_function(everything)(x, w)
    assert out["rows"].is_nested
    assert [tuple(each.shape) for each in out["rows"].unbind()] == [(n, 2) for n in LENGTHS]
    assert out["sum"].shape == (4, 2)
    assert out["length"].tolist() == list(LENGTHS)
    assert not out["length"].requires_grad
    assert out["pair"][0].shape == (4,)
    assert out["pair"][1].dtype == torch.bool
    (out["rows"].values().sum() + 2 * out["sum"].sum()).backward()
    expected = 3 * sum(each.sum(0) for each in x.unbind())
    close(w.grad, expected[:, None].expand(3, 2), 1e-5)


def test_results_of_which_two_dimensions_vary():
    x = jagged(new_examples())
    w = torch.ones(3, dtype=torch.float64, requires_grad=True)
    out = ab.torch_function(lambda x, w: (x * w) @ x.T)(x, w)
    assert [tuple(each.shape) for each in out] == [(n, n) for n in LENGTHS]
    sum(each.sum() for each in out).backward()
    close(w.grad, sum(torch.outer(each.sum(0), each.sum(0)).diagonal() for each in x.unbind()))


def test_axes_of_examples_are_those_of_vmap():
    x, w = torch.randn(5, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64, requires_grad=True)

    def f(x, w):
        return np.tanh(x @ w) if x[0] > 0 else x @ w

    out = ab.torch_function(f, in_dims=(0, None))(x, w)
    expected = torch.stack([torch.tanh(each @ w) if each[0] > 0 else each @ w for each in x])
    close(out, expected)
    close(*(torch.autograd.grad(y.sum(), w)[0] for y in (out, expected)))
    with pytest.raises(ShapeError, match=r"in_dims=\(0,\) for 2 arguments"):
        ab.torch_function(f, in_dims=(0,))(x, w)
    with pytest.raises(ShapeError, match="a tensor without dimensions"):
        ab.torch_function(f, in_dims=(0, 0))(x, torch.tensor(1.0))


def test_no_examples():
    w = torch.ones(3, 2, requires_grad=True)
    empty = torch.nested.nested_tensor_from_jagged(torch.zeros(0, 3), torch.zeros(1, dtype=torch.int64))
    out = ab.torch_function(lambda x, w: (x @ w).sum(0))(empty, w)
    assert out.shape == (0, 2)
    out.sum().backward()
    assert (w.grad == 0).all()


def test_ids_need_no_gradient():
    table = torch.nn.Embedding(5, 3)
    ids = nested([torch.tensor([1, 2, 2]), torch.tensor([4])], layout=torch.jagged)
    out = ab.torch_function(lambda ids, table: table[ids].sum(0))(ids, table.weight)
    out.sum().backward()
    assert table.weight.grad.sum(1).tolist() == [0, 3, 6, 0, 3]


def test_modules_parameters():
    f = ab.torch_function(lambda x, p: (x @ p["w"] + p["b"][0]).sum())
    params = torch.nn.ParameterDict({"w": torch.ones(3), "b": torch.nn.ParameterList([torch.ones(1)])})
    f(jagged(new_examples(torch.float32)), params).sum().backward()
    assert params["b"][0].grad.tolist() == [sum(LENGTHS)]
    linear = torch.nn.Linear(3, 1)
    with pytest.raises(UnsupportedError, match=r"is a Linear; expected its parameters: dict\(module\.named_parameters"):
        f(torch.ones(2, 3), linear)


def test_without_gradients_nothing_is_recorded():
    w = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert not ab.torch_function(lambda x, w: x @ w)(torch.ones(2, 3), w).requires_grad
    assert not ab.torch_function(lambda x: x.sum())(torch.ones(2, 3)).requires_grad
    out = ab.torch_function(lambda x, w: x @ w)(torch.ones(2, 3), w)
    out.sum().backward(retain_graph=True)
    out.sum().backward()
    assert w.grad.tolist() == [4, 4, 4]
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        out.sum().backward()


def test_torchs_functional_gradient():
    w = torch.randn(3, dtype=torch.float64)
    f = ab.torch_function(lambda w: np.tanh(w).sum())
    close(torch.func.grad(f)(w), 1 - torch.tanh(w) ** 2)


def functional(f, of_vmap):
    """What `torch.func` makes of a function of one example, and of the same for a batch."""
    func = torch.func

    def grad(f):
        return func.grad(lambda x, params: (f(x, params) ** 2).sum(), (0, 1))

    def vmap(f):
        return func.vmap(f, (0, None))

    return {
        "vmap": (1, vmap(f)),
        "vmap of grad": (1, vmap(grad(f))),
        "grad of vmap": (1, grad(vmap(f))),
        "vmap of vmap": (2, vmap(vmap(f))),
        "grad of vmap of vmap": (2, grad(vmap(vmap(f)))),
        "vmap of vmap of grad": (2, vmap(vmap(grad(f)))),
        "vmap of grad of vmap": (2, vmap(grad(vmap(f)))),
        "jacrev": (0, func.jacrev(f)),
        "vmap of jacrev": (1, vmap(func.jacrev(f))),
        "jacrev of vmap": (1, func.jacrev(vmap(f))),
        "another axis": (1, lambda x, params: func.vmap(f, (1, None), out_dims=1)(x.movedim(0, 1), params)),
        "grad of in_dims": (1, grad(of_vmap)),
        "vmap of grad of in_dims": (2, vmap(grad(of_vmap))),
        "jacrev of in_dims": (1, func.jacrev(of_vmap)),
    }


OURS = functional(ab.torch_function(rnn), ab.torch_function(rnn, in_dims=(0, None)))
THEIRS = functional(torch_rnn, torch.func.vmap(torch_rnn, (0, None)))


@pytest.mark.parametrize("case", OURS)
def test_functional_transformations(case):
    axes, f = OURS[case]
    x = torch.tensor(rng.normal(size=(2, 5, 2, 3)))[(0,) * (2 - axes)]
    params = {name: p.detach() for name, p in new_params(torch.float64).items()}
    found, expected = ([*torch.utils._pytree.tree_leaves(each(x, params))] for each in (f, THEIRS[case][1]))
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        close(ours, theirs)


def test_vmap_runs_the_examples_together():
    with inspect.op_calls() as calls:
        torch.func.vmap(ab.torch_function(lambda x: x * 2.0))(torch.ones(7, 3))
    assert 7 in [call.lanes for call in calls if call.op == "multiply" and call.computes]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # which torch.func.jvp calls
def test_what_torchs_transformations_cannot_have_is_refused():
    ids = torch.arange(3)
    assert torch.func.vmap(ab.torch_function(lambda n: n + 1))(ids).tolist() == [1, 2, 3]
    with pytest.raises(ShapeError, match=r"different shapes, which torch\.func\.vmap has no tensor for"):
        torch.func.vmap(ab.torch_function(lambda n: np.zeros(int(n))))(ids)
    x = torch.ones(3)
    with pytest.raises(UnsupportedError, match=r"has no forward mode .* write torch\.func\.jacrev"):
        torch.func.jvp(ab.torch_function(lambda x: x * 2.0), (x,), (x,))
    with pytest.raises(UnsupportedError, match="differentiated again"):
        torch.func.grad(lambda x: torch.func.grad(ab.torch_function(lambda x: (x**3).sum()))(x).sum())(x)


def test_second_derivatives_are_refused():
    w = torch.ones(3, requires_grad=True)
    (g,) = torch.autograd.grad(ab.torch_function(lambda w: (w**3).sum())(w), w, create_graph=True)
    close(g, 3 * w.detach() ** 2)
    with pytest.raises(UnsupportedError, match=r"differentiated again.* with ab\.grad\(ab\.grad\(f\)\)"):
        g.sum().backward()


def test_parameters_that_were_written_into_are_noticed():
    w = torch.ones(3, requires_grad=True)
    out = ab.torch_function(lambda w: (w * w).sum())(w)
    with torch.no_grad():
        w += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


@pytest.mark.parametrize("name", ["tanh", "exp", "sqrt"])
def test_a_result_that_is_written_into_leaves_the_gradient_as_it_is(name):
    """The gradients of these are computed from their results, which torch does not know."""
    x = torch.linspace(0.1, 1, 3, requires_grad=True)
    out = ab.torch_function(getattr(np, name))(x)
    out.add_(1)
    out.sum().backward()
    close(x.grad, torch.autograd.grad(getattr(torch, name)(x).sum(), x)[0])


@pytest.mark.parametrize("requires_grad", [False, True])
def test_results_that_are_one_array_are_tensors_of_their_own(requires_grad):
    def twice(x):
        y = x * 2
        return y, y

    first, second = ab.torch_function(twice)(torch.ones(3, requires_grad=requires_grad))
    first.mul_(0)
    assert second.tolist() == [2, 2, 2]


def test_complex_gradients_are_refused_and_never_dropped():
    x = torch.ones(2, requires_grad=True)
    f = ab.torch_function(lambda x: (x * 1j, x * 2))
    f(x)[1].sum().backward()
    assert x.grad.tolist() == [2, 2]
    with pytest.raises(UnsupportedError, match="gradient of a complex result; return its real and imaginary parts"):
        (f(x)[0].abs().sum() + x.sum()).backward()
    with pytest.raises(UnsupportedError, match="gradient of a complex result"):
        torch.func.vmap(torch.func.grad(lambda x: f(x)[0].abs().sum()))(torch.ones(3, 2))
    absolute = ab.torch_function(lambda z: np.abs(z).sum())
    z = torch.ones(2, dtype=torch.complex64, requires_grad=True)
    with pytest.raises(DTypeError, match=r"a complex tensor requires a gradient; .* or x\.detach\(\)"):
        absolute(z)
    assert float(absolute(z.detach())) == 2


def test_tensors_that_numpy_has_no_array_for():
    f = ab.torch_function(lambda x: x.sum())
    with pytest.raises(UnsupportedError, match=r"on the device meta; .* write x\.cpu\(\)"):
        f(torch.ones(2, device="meta"))
    with pytest.raises(DTypeError, match=r"dtype torch\.bfloat16.* write x\.float\(\)"):
        f(torch.ones(2, dtype=torch.bfloat16))
    with pytest.raises(UnsupportedError, match=r"layout torch\.sparse_coo.* write x\.to_dense\(\)"):
        f(torch.eye(2).to_sparse())
    with (
        warnings.catch_warnings(action="ignore"),
        pytest.raises(UnsupportedError, match=r"make it with layout=torch\.jagged"),
    ):
        f(nested([torch.ones(2)], layout=torch.strided))
    with pytest.raises(ShapeError, match="x has 3, y has 2 examples"):
        ab.torch_function(lambda x, y: x.sum() + y.sum())(jagged([torch.ones(2)] * 3), jagged([torch.ones(2)] * 2))


def test_errors_name_the_example():
    f = ab.torch_function(lambda x, table: table[x].sum(0))
    ids = nested([torch.tensor([1]), torch.tensor([7, 2])], layout=torch.jagged)
    with pytest.raises(IndexError, match="7") as caught:
        f(ids, torch.ones(3, 2))
    assert "raised for example 1" in caught.value.__notes__
