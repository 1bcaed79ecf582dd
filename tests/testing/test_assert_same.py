"""`assert_same`: right batched functions of users pass, planted faults are found, and the message says which it is."""

import numba
import numpy as np
import pytest

import autobatch as ab
from autobatch.api.extend import elementwise
from autobatch.errors import OptionError, ShapeError, UnsupportedError
from autobatch.testing import assert_same

rng = np.random.default_rng(0)
XS = [rng.normal(size=(n, 3)) for n in (2, 5, 1, 4)]
XS32 = [x.astype(np.float32) for x in XS]
W = rng.normal(size=(3, 2))


def total(x):
    return x.sum(0)


def mean(x):
    return x.mean(0)


def valid(padded, lengths):
    return (np.arange(padded.shape[1]) < lengths[:, None])[:, :, None]


@numba.njit
def compiled_sum(padded, lengths):
    out = np.zeros((len(padded), padded.shape[2]))
    for i in range(len(padded)):
        for j in range(lengths[i]):
            out[i] += padded[i, j]
    return out


RIGHT = {
    "lengths": (mean, lambda x, lengths: np.where(valid(x, lengths), x, 0).sum(1) / lengths[:, None], XS),
    "mask": (mean, lambda x, mask: (x * mask[:, :, None]).sum(1) / mask.sum(1)[:, None], XS),
    "padding mask": (total, lambda x, padding_mask: np.where(padding_mask[:, :, None], 0, x).sum(1), XS),
    "attention mask": (total, lambda x, attention_mask: (x * attention_mask[:, :, None]).sum(1), XS),
    "zeros are padding": (total, lambda padded: padded.sum(1), XS),
    "as long as the example": (lambda x: x * 2, lambda padded: padded * 2, XS),
    "list": (mean, lambda xs: [x.mean(0) for x in xs] or np.zeros((0, 3)), XS, {"layout": "list"}),
    "packed": (total, lambda x, offsets: ab.segment_sum(x, offsets=offsets), XS),
    "segments": (
        lambda x: np.tanh(x),
        lambda x, segment_ids: [np.tanh(x[segment_ids == i]) for i in range(segment_ids.max(initial=-1) + 1)],
        XS,
        {"grad": False, "empty": False},
    ),
    "our own": (ab.batch(total), ab.batch(total), XS),
    "two arguments": (
        lambda a, b: a @ b.T,
        lambda a, b, a_lengths, b_mask: a @ b.transpose(0, 2, 1),
        [(np.ones((n, 2)), np.ones((m, 2))) for n, m in ((1, 3), (2, 2), (4, 1))],
    ),
    "a dict": (
        lambda e: {"s": e["x"].sum(0) + e["y"]},
        lambda e: {"s": e["x"].sum(1) + e["y"][:, None]},
        [{"x": x, "y": np.float64(i)} for i, x in enumerate(XS)],
    ),
    "a dict in another order": (
        lambda x: {"sum": x.sum(0), "twice": x.sum(0) * 2},
        lambda x: {"twice": x.sum(1) * 2, "sum": x.sum(1)},
        XS,
    ),
    "a tuple in place of a list": (lambda x: [x.sum(0), (x[:1],)], lambda x: (x.sum(1), [x[:, :1]]), XS),
    "a Python number": (lambda x: float(x.sum()), lambda padded: padded.sum((1, 2)), XS),
    "ids of a table": (
        lambda ids, table: table[ids].sum(0),
        lambda ids, mask, table: (table[ids] * mask[..., None]).sum(1),
        [np.array([1, 2]), np.array([4])],
        {"table": rng.normal(size=(5, 2))},
    ),
    "one length": (total, lambda x, mask: (x * mask[:, :, None]).sum(1), [np.ones((3, 2)), np.zeros((3, 2))]),
    "an empty example": (total, lambda x, lengths: np.where(valid(x, lengths), x, 0).sum(1), [*XS, XS[0][:0]]),
    "compiled": (total, compiled_sum, XS),
    "collate": (
        total,
        lambda values, counts: np.add.reduceat(values, np.cumsum([0, *counts[:-1]])),
        XS,
        {"collate": lambda xs: (np.concatenate(xs), [len(x) for x in xs]), "grad": False},
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_function_passes(name):
    per_example, batched, examples, *options = RIGHT[name]
    report = assert_same(per_example, batched, examples, **(options[0] if options else {}))
    assert report.examples == len(examples)
    compared = name not in ("compiled", "segments", "a Python number", "collate")
    assert ("gradients" not in report.skipped) == compared, report
    paddings = 1 + sum("padd" in way for way in report.ways)
    assert report.runs == 6 * paddings  # all examples, shuffled, both halves, the first and the last alone


WRONG = {
    "mean over padding": (mean, lambda padded: padded.mean(1), r"as padded\.mean\(1\) does.* divide by its length"),
    "mean over padding, and more": (
        lambda x: np.tanh(x.mean(0) + 1),
        lambda padded: np.tanh(padded.mean(1) + 1),
        r"as padded\.mean\(1\) does",
    ),
    "mean over padding, told": (mean, lambda padded, mask: padded.mean(1), r"as padded\.mean\(1\) does"),
    "sum over padding": (
        total,
        lambda padded, mask: padded.sum(1),
        "values of the padding reach the result, as in a sum",
    ),
    "max over padding": (lambda x: x.max(0), lambda x, mask: x.max(1), r"a max runs over the padding: .*-inf"),
    "min over padding": (lambda x: x.min(0), lambda x, mask: x.min(1), "a min runs over the padding"),
    "last of padding": (lambda x: x[-1], lambda x, lengths: x[:, -1], r"in its last element \(x\[:, -1\]\)"),
    "other examples": (
        lambda x: x - x.mean(0),
        lambda x, mask: x - x.sum((0, 1)) / mask.sum(),
        "depends on the other examples of its batch",
    ),
    "sorted by length": (
        total,
        lambda x, lengths: np.where(valid(x, lengths), x, 0).sum(1)[np.argsort(lengths)],
        "another order than the examples",
    ),
    "position from the end": (
        lambda x: x * np.arange(len(x))[::-1, None],
        lambda x, mask: x * np.arange(x.shape[1])[::-1, None],
        "a position, or a size, is counted from the end",
    ),
    "a window over the end": (
        lambda x: x + np.concatenate([x[1:], np.zeros((1, 3))]),
        lambda x, lengths: x + np.concatenate([x[:, 1:], np.zeros((len(x), 1, 3))], 1),
        "a window that runs on over the padding",
    ),
    "another function": (
        total,
        lambda padded, mask: padded.sum(1) * 2,
        "do not compute the same for one example alone",
    ),
    "another dtype": (total, lambda padded: padded.sum(1).astype(np.float32), "in different dtypes"),
    "random": (total, lambda padded: padded.sum(1) + np.random.random(), "draws random numbers"),
    "compiled": (
        total,
        lambda x, lengths: compiled_sum(x, 0 * lengths + x.shape[1]),
        "values of the padding reach the result, as in a sum",
    ),
    "rows": (total, lambda padded: padded.sum(0), r"returned an array of shape .*the axis of examples in front"),
    "structure": (total, lambda padded: (padded.sum(1), padded), r"returned \(\*, \*\), that of one example \*;"),
    "a key": (
        lambda x: {"sum": x.sum(0)},
        lambda padded: {"total": padded.sum(1)},
        r"returned \{'total': \*\}, that of one example \{'sum': \*\};",
    ),
    "a tuple of one": (total, lambda padded: (padded.sum(1),), r"returned \(\*,\), that of one example \*;"),
    "no examples, and nothing": (total, lambda padded: padded.sum(1) if len(padded) else (), r"returned \(\), that of"),
    "no examples": (total, lambda padded: np.stack([x.sum(0) for x in padded]), "a batch of no examples"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_fault_is_found_and_named(name):
    per_example, batched, message = WRONG[name]
    state = np.random.get_state()[1].copy()
    with pytest.raises(AssertionError, match=message):
        assert_same(per_example, batched, XS)
    assert np.array_equal(np.random.get_state()[1], state)


def test_the_smallest_batch_is_shown():
    with pytest.raises(AssertionError, match="smallest batch found that differs: 1 example of length 1, padded 1 pos"):
        assert_same(mean, lambda padded: padded.mean(1), XS)
    with pytest.raises(AssertionError, match=r"differs: 2 examples of lengths \d, \d:"):
        assert_same(mean, lambda xs: [x.mean(0) for x in xs][:1] * len(xs), XS, layout="list")


def test_without_hypothesis_the_first_batch_is_shown(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(AssertionError, match=r"4 examples of lengths 2, 5, 1, 4:\n.*\n(.*\n)*so: it divides"):
        assert_same(mean, lambda padded: padded.mean(1), XS)


def test_nan_in_the_padding_is_another_question():
    assert_same(total, lambda x, mask: (x * mask[..., None]).sum(1), XS)
    with pytest.raises(AssertionError, match=r"0 \* NaN is NaN: select instead"):
        assert_same(total, lambda x, mask: (x * mask[..., None]).sum(1), XS, poison="nan")
    assert_same(total, lambda x, mask: np.where(mask[..., None], x, 0).sum(1), XS, poison="nan")


def test_padding_is_what_the_user_pads_with():
    def ids_that_are_not_one(ids):
        return (ids != 1).sum(1)

    examples = [np.array([0, 2, 3]), np.array([5])]
    assert_same(lambda ids: np.int64(len(ids)), ids_that_are_not_one, examples, padding=1)
    with pytest.raises(AssertionError, match="is not told what is padding: give it lengths or a mask"):
        assert_same(lambda ids: np.int64(len(ids)), ids_that_are_not_one, examples)


def test_what_cannot_be_asked_is_refused():
    with pytest.raises(
        UnsupportedError, match="takes 'temperature', beside 1 argument of an example; expected lengths"
    ):
        assert_same(total, lambda padded, temperature: padded.sum(1), XS)
    with pytest.raises(OptionError, match="layout='rows'; expected one of 'padded'"):
        assert_same(total, lambda padded: padded, XS, layout="rows")
    with pytest.raises(OptionError, match="framework='tf'; expected one of 'numpy'"):
        assert_same(total, lambda padded: padded, XS, framework="tf")
    with pytest.raises(OptionError, match="poison='inf'; expected 'finite'"):
        assert_same(total, lambda padded: padded, XS, poison="inf")
    with pytest.raises(ShapeError, match="no examples"):
        assert_same(total, lambda padded: padded, [])
    with pytest.raises(ShapeError, match="example 1 differs from example 0 in structure"):
        assert_same(total, lambda padded: padded, [{"a": W}, {"b": W}])
    with pytest.raises(ShapeError, match="with \\[1, 2\\] arguments"):
        assert_same(total, lambda padded: padded, [W, (W, W)])
    with pytest.raises(ZeroDivisionError, match="zero"):  # the reference has to be defined
        assert_same(lambda x: 1 // 0, lambda padded: padded, XS)


def test_gradients_that_do_not_arrive_are_found():
    square = elementwise(np.square, lambda ct, out, x: 3 * ct * x, name="wrong_square")
    with pytest.raises(AssertionError, match="gradient of the example's own example\\[0\\]\\[0, 0\\]: value is"):
        assert_same(lambda x: np.square(x).sum(0), lambda padded: square(padded).sum(1), XS)
    with pytest.raises(AssertionError, match="gradient of w: value is"):
        assert_same(
            lambda x, w: (x * w).sum(0), lambda padded, w: (padded * ab.stop_gradient(w)).sum(1), XS, w=np.float64(2)
        )


# torch.


@pytest.fixture
def torch():
    module = pytest.importorskip("torch")
    with module.random.fork_rng():
        module.manual_seed(0)
        yield module


def attention(torch, masked):
    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k = torch.nn.Linear(3, 4), torch.nn.Linear(3, 4)

        def forward(self, x, mask=None):
            scores = self.q(x) @ self.k(x).mT
            if mask is not None and masked:
                scores = scores.masked_fill(~mask[:, None, :], -1e9)
            return scores.softmax(-1) @ x

    return Attention()


@pytest.fixture
def tensors(torch):
    return [torch.from_numpy(x) for x in XS32]


def test_torch_modules(torch, tensors):
    model = attention(torch, masked=True)
    report = assert_same(lambda x: model(x[None])[0], model, tensors)
    assert "gradients" not in report.skipped
    wrong = attention(torch, masked=False)
    with pytest.raises(AssertionError, match="attention"):
        assert_same(lambda x: wrong(x[None])[0], wrong, tensors)
    layer = torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    longer = [torch.randn(n, 4) for n in (3, 5)]
    with pytest.raises(AssertionError, match=r"Dropout is in training mode; call \.eval\(\)"):
        assert_same(lambda x: layer(x[None])[0], layer, longer, empty=False)
    layer.eval()
    assert_same(lambda x: layer(x[None])[0], layer, longer, empty=False)
    with pytest.raises(AssertionError, match="attention"):
        assert_same(lambda x: layer(x[None])[0], lambda src, src_key_padding_mask: layer(src), longer)


def test_a_torch_batch_norm_is_found_and_its_buffers_stay(torch, tensors):
    linear, norm = torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)
    with pytest.raises(AssertionError, match="BatchNorm1d is in training mode: it normalises by the mean"):
        assert_same(lambda x: linear(x.sum(0)), lambda padded: norm(linear(padded.sum(1))), tensors)
    assert norm.running_mean.abs().sum() == 0
    assert norm.num_batches_tracked == 0


def test_torch_recurrences(torch, tensors):
    lstm = torch.nn.LSTM(3, 4, batch_first=True)
    utils = torch.nn.utils.rnn

    def batched(padded, lengths):
        packed = utils.pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
        return utils.pad_packed_sequence(lstm(packed)[0], batch_first=True)[0]

    assert_same(lambda x: lstm(x)[0], batched, tensors, empty=False)
    with pytest.raises(AssertionError, match="a recurrence or a window that runs on over the padding"):
        assert_same(lambda x: lstm(x)[1][0][0], lambda padded, lengths: lstm(padded)[1][0][0], tensors)


def test_torch_gradients(torch, tensors):
    linear = torch.nn.Linear(3, 4)
    with pytest.raises(AssertionError, match=r"no gradient arrives: \.detach\(\)"):
        assert_same(lambda x: linear(x).sum(0), lambda p, mask: (linear(p.detach()) * mask[..., None]).sum(1), tensors)
    with pytest.raises(AssertionError, match=r"gradient of parameter 0 of the modules"):
        assert_same(lambda x: (x @ linear.weight.T).sum(0), lambda p: (p @ linear.weight.detach().T).sum(1), tensors)
    with pytest.raises(AssertionError, match="the gradient is NaN: padding went through a function"):
        assert_same(
            lambda x: (x**2).sum(-1).sqrt().sum(0), lambda p, mask: ((p**2).sum(-1).sqrt() * mask).sum(1), tensors
        )


def test_torch_layouts(torch, tensors):
    linear, bag = torch.nn.Linear(3, 4), torch.nn.EmbeddingBag(10, 3, mode="mean")
    ids = [torch.tensor(x) for x in ([1, 2, 3], [4], [5, 9])]
    assert_same(lambda i: bag(i[None])[0], lambda ids, offsets: bag(ids, offsets[:-1]), ids)

    def nested(xs):  # of torch's, made of one tensor, through which its gradient goes
        offsets = torch.tensor([0, *(len(x) for x in xs)]).cumsum(0)
        return torch.nested.nested_tensor_from_jagged(torch.cat(xs or [torch.zeros(0, 3)]), offsets)

    assert_same(linear, linear, tensors, collate=nested, empty=False)

    def collate(xs):
        return torch.nn.utils.rnn.pad_sequence(xs, batch_first=True), torch.tensor([len(x) for x in xs])

    def batched(padded, counts):
        return (linear(padded) * (torch.arange(padded.shape[1]) < counts[:, None])[..., None]).sum(1)

    assert_same(lambda x: linear(x).sum(0), batched, tensors, collate=collate)
    assert_same(  # the reference in NumPy
        lambda x, w: np.tanh(x @ w).sum(0),
        lambda x, mask, w: torch.where(mask[..., None], torch.tanh(x @ w), 0).sum(1),
        XS32,
        w=W.astype(np.float32),
    )


def collated(xs):
    widest = max(map(len, xs))
    return np.stack([np.pad(x, ((0, widest - len(x)), (0, 0))) for x in xs]), np.array([len(x) for x in xs])


def over_the_batch(padded, counts):
    return padded.sum(1) * 0 + padded.sum(1).mean(0)


@pytest.mark.parametrize(
    ("one", "batched", "said"),
    [
        (lambda x: x.mean(0), lambda p, n: p.mean(1), "it divides by the padded length"),
        (lambda x: np.exp(x).sum(0), lambda p, n: np.exp(p).sum(1), "not on their values: it takes in padding"),
        (lambda x: (x - 9.0).max(0), lambda p, n: (p - 9.0 * (p != 0)).max(1), "not on their values"),
        (lambda x: x[-1], lambda p, n: p[:, -1], "not on their values: it takes in padding"),
        (lambda x: x.sum(0), over_the_batch, "a reduction, sort or norm over axis 0, which counts the examples"),
    ],
    ids=["mean", "sum", "max", "last", "axis 0"],
)
def test_the_mistake_behind_a_function_that_pads_by_itself(one, batched, said):
    with pytest.raises(AssertionError, match=said) as caught:
        assert_same(one, batched, XS, collate=collated)
    assert ("axis 0" in str(caught.value)) == ("axis 0" in said)


TABLE = np.random.default_rng(0).normal(size=(9, 3))
IDS = [np.random.default_rng(n).integers(1, 9, n) for n in (3, 5, 2, 6)]


def collated_ids(xs):
    return (np.stack([np.pad(x, (0, max(map(len, xs)) - len(x))) for x in xs]),)


@pytest.mark.parametrize(
    ("one", "batched", "said"),
    [
        (lambda x: TABLE[x].sum(0), lambda p: TABLE[p].sum(1), "not on their values: it takes in padding"),
        (lambda x: TABLE[x].mean(0), lambda p: TABLE[p].mean(1), "not on their values: it takes in padding"),
        (lambda x: TABLE[x][-1], lambda p: TABLE[p][:, -1], "not on their values: it takes in padding"),
        (lambda x: TABLE[x[0]], lambda p: np.sort(TABLE[p[:, 0]], 0), "norm over axis 0, which counts the examples$"),
        (lambda x: 1.0 * x.max(), lambda p: p.max() * np.ones(len(p)), "norm over axis 0, which counts the examples$"),
    ],
    ids=["sum", "mean", "last", "sorted", "max"],
)
def test_the_mistake_with_ids_has_one_reason(one, batched, said):
    """Ids cannot be doubled, so those of the example that differs tell whether others' values matter."""
    with pytest.raises(AssertionError, match=f"(?m){said}") as caught:
        assert_same(one, batched, IDS, collate=collated_ids, grad=False)
    assert ("axis 0" in str(caught.value)) == ("axis 0" in said)


def test_jax_functions():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def per_example(x, w):
        return jnp.tanh(x @ w).mean(0)

    def right(padded, lengths, w):
        mask = jnp.arange(padded.shape[1]) < lengths[:, None]
        return jnp.where(mask[..., None], jnp.tanh(padded @ w), 0).sum(1) / lengths[:, None]

    w = W.astype(np.float32)
    report = assert_same(per_example, jax.jit(right), XS32, w=w)
    assert "gradients" not in report.skipped
    assert_same(lambda x, w: np.tanh(x @ w).mean(0), jax.jit(right), XS32, w=w)
    with pytest.raises(AssertionError, match=r"as padded\.mean\(1\) does"):
        assert_same(per_example, jax.jit(lambda padded, mask, w: jnp.tanh(padded @ w).mean(1)), XS32, w=w)
    stopped = jax.jit(lambda p, lengths, w: right(p, lengths, jax.lax.stop_gradient(w)))
    with pytest.raises(AssertionError, match="gradient of w"):
        assert_same(per_example, stopped, XS32, w=w)
