"""The layers of `ab.nn`: each way equals the loop, in lock-step without a fallback; values are torch's."""

import pickle

import numpy as np
import pytest

import autobatch as ab
from tests.inspect import block_launches, map_with_stats
from tests.law import assert_same

nn = ab.nn


def rows(*lengths, width=4, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(n, width)).astype(np.float32) for n in lengths]


IMAGES = [rows(n, width=m * 2)[0].reshape(n, m, 2) for n, m in ((4, 5), (3, 2), (5, 5))]

LAYERS = {
    "linear": (lambda: nn.Linear(4, 3, seed=0), rows(5, 1, 0)),
    "linear without bias": (lambda: nn.Linear(4, 3, bias=False, seed=0), rows(3, 1)),
    "layer norm": (lambda: nn.LayerNorm(4), rows(5, 1, 0)),
    "convolution": (lambda: nn.Conv1d(4, 3, 3, seed=0), rows(5, 1, 0)),
    "same convolution": (lambda: nn.Conv1d(4, 3, 4, padding="same", seed=0), rows(3, 1, 5)),
    "causal convolution": (lambda: nn.Conv1d(4, 3, 3, padding="causal", bias=False, seed=0), rows(3, 1, 5)),
    "full convolution": (lambda: nn.Conv1d(4, 3, 4, padding="full", seed=0), rows(5, 1, 0)),
    "convolution in two dimensions": (lambda: nn.Conv2d(2, 3, (3, 2), seed=0), IMAGES),
    "same convolution in two dimensions": (lambda: nn.Conv2d(2, 3, (3, 2), padding="same", seed=0), IMAGES),
    "full convolution in two dimensions": (lambda: nn.Conv2d(2, 3, 3, padding="full", bias=False, seed=0), IMAGES),
    "attention": (lambda: nn.MultiHeadAttention(4, 2, seed=0), rows(3, 1, 5)),
    "lstm": (lambda: nn.LSTM(4, 3, seed=0), rows(5, 1, 0)),
    "gru": (lambda: nn.GRU(4, 3, seed=0), rows(5, 1, 0)),
    "embedding": (lambda: nn.Embedding(9, 3, seed=0), [np.array([1, 8, 1]), np.zeros(0, np.int64), np.array([0])]),
}


@pytest.mark.parametrize("name", LAYERS)
def test_every_way_equals_the_loop(name):
    make, examples = LAYERS[name]
    ab.testing.assert_equivalent(lambda x, layer: layer(x), examples, layer=make())


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_takes_a_batch_itself_without_a_fallback(name):
    make, examples = LAYERS[name]
    layer = make()
    examples = [x for x in examples if len(x)] if name == "convolution" else examples
    with ab.options(strict=True):
        found = ab.examples(layer(ab.collate(examples)))
    for batched, x in zip(found, examples, strict=True):
        assert_same(batched, layer(x))


def gru_by_hand(xs, w, u, b, d):
    size = u.shape[0]
    h = np.zeros(size, w.dtype)
    states = []
    for x in xs:
        y, z = x @ w + b, h @ u + d
        r = nn.sigmoid(y[:size] + z[:size])
        keep = nn.sigmoid(y[size : 2 * size] + z[size : 2 * size])
        n = np.tanh(y[2 * size :] + r * z[2 * size :])
        h = (1 - keep) * n + keep * h
        states.append(h)
    return np.stack(states), h


def test_a_layer_launches_what_a_cell_written_by_hand_does():
    layer, xs = nn.GRU(4, 3, seed=0), ab.collate(rows(3, 1, 5, 2))
    cell = ab.batch(gru_by_hand)
    for _ in range(4):  # a loop that has run knows its operations when it begins, and has compiled them
        with block_launches() as of_layer:
            states, last = layer(xs)
        with block_launches() as by_hand:
            expected = cell(xs, layer.w, layer.u, layer.b, layer.d)
    assert [(each.ops, each.rows, each.products) for each in of_layer] == [
        (each.ops, each.rows, each.products) for each in by_hand
    ]
    assert of_layer
    assert_same(ab.examples((states, last)), ab.examples(expected))


def test_a_step_of_a_layer_is_one_call_on_the_fly():
    layer = ab.nn.GRU(3, 4, seed=0)
    examples = [np.ones((n, 3), np.float32) for n in (3, 5, 2)]
    with ab.options(way="fly"):
        found, stats = map_with_stats(lambda x: layer(x)[1], examples)
    assert stats.calls == sum(map(len, examples)) + len(examples)  # and the states of an example in one array
    assert_same(found, [layer(x)[1] for x in examples])


def test_two_inputs_and_masks():
    layer = nn.MultiHeadAttention(4, 2, seed=0)
    ab.testing.assert_equivalent(lambda x, y, layer: layer(x, y), rows(3, 1, 5), rows(2, 6, 1, seed=1), layer=layer)
    causal = lambda x, layer: layer(x, causal=True)
    ab.testing.assert_equivalent(causal, rows(3, 1, 5), layer=layer)
    x = rows(5)[0]
    for t in range(1, 6):
        assert_same(causal(x, layer)[:t], causal(x[:t], layer))
    masked = lambda x, layer: layer(x, mask=np.arange(x.shape[0]) <= np.arange(x.shape[0])[:, None])
    assert_same(masked(x, layer), causal(x, layer))
    ab.testing.assert_equivalent(masked, rows(3, 1, 5), layer=layer)


def test_dropout_is_that_of_the_loop():
    layer = nn.Dropout(0.5)
    with ab.options(seed=3):
        ab.testing.assert_equivalent(lambda x, layer: layer(x), rows(3, 1, 5), layer=layer)
    assert_same(layer(rows(3)[0], training=False), rows(3)[0])
    layer.training = False
    assert_same(layer(rows(3)[0]), rows(3)[0])


def test_all_parameters_count():
    """Biases and shifts start at zero, scales at one: each is set to something else here."""
    rng = np.random.default_rng(0)
    (x,) = rows(5)
    scale, shift, bias, weight = (rng.normal(size=shape).astype(np.float32) for shape in (4, 4, 3, (4, 3)))
    norm, linear = nn.LayerNorm(4, eps=0.1), nn.Linear(4, 3)
    norm.scale, norm.shift, linear.weight, linear.bias = scale, shift, weight, bias
    centred = x - x.mean(1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 0.1) * scale + shift
    np.testing.assert_allclose(norm(x), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(linear(x), x @ weight + bias, rtol=1e-5, atol=1e-6)


def test_states_go_on_where_they_were():
    x = rows(6)[0]
    for layer in (nn.LSTM(4, 3, seed=0), nn.GRU(4, 3, seed=0)):
        states, last = layer(x)
        first, state = layer(x[:2])
        rest, again = layer(x[2:], state)
        assert_same(np.concatenate([first, rest]), states)
        assert_same(again, last)


class Tagger:
    """A model of layers: its parts train, its settings stay."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.words = nn.Embedding(9, 4, seed=rng)
        self.read = nn.LSTM(4, 3, seed=rng)
        self.norm, self.drop, self.out = nn.LayerNorm(3), nn.Dropout(0.1), nn.Linear(3, 2, seed=rng)

    @ab.batch
    def __call__(self, ids):
        states, _ = self.read(self.words(ids))
        return self.out(self.drop(self.norm(states), training=False)).sum(0)


def test_a_model_of_layers_trains():
    ids = [np.array([1, 2, 3]), np.array([4]), np.array([5, 1])]
    targets = [0, 1, 1]
    model = Tagger(0)

    def loss(model, batch):
        return ab.mean(ab.batch(lambda x, y: nn.cross_entropy(model(x), y))(*batch))

    batch = ab.collate((ids, targets))
    loop = sum(
        ab.grad(lambda m, x=x, y=y: nn.cross_entropy(m(x), y))(model).out.weight
        for x, y in zip(ids, targets, strict=True)
    )
    assert_same(ab.grad(loss)(model, batch).out.weight, loop / 3)
    optimizer = ab.optim.Adam(0.05)
    state = optimizer.init(model)
    first = loss(model, batch)
    for _ in range(30):
        gradient = ab.grad(loss)(model, batch)
        model, state = optimizer.update(model, gradient, state)
    assert loss(model, batch) < first / 4
    assert_same(pickle.loads(pickle.dumps(model))(ids[0]), model(ids[0]))


def test_seeds():
    for make in (lambda seed: nn.Linear(3, 2, seed=seed).weight, lambda seed: nn.GRU(3, 2, seed=seed).u):
        assert_same(make(1), make(1))
        assert (make(1) != make(2)).any()
        assert_same(make(np.random.default_rng(1)), make(np.random.default_rng(1)))
        np.random.seed(0)
        one, two = make(None), make(None)
        np.random.seed(0)
        assert_same(make(None), one)
        assert (one != two).any()
    cell = nn.LSTM(3, 3, seed=0)
    assert np.allclose(cell.u @ cell.u.T, np.eye(3), atol=1e-5)
    assert nn.Linear(3, 2, seed=0, dtype=np.float64).weight.dtype == np.float64
    assert (nn.Linear(3, 2, init=nn.init.zeros()).weight == 0).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Linear(0, 2), "inputs=0"),
        (lambda: nn.Embedding(3, 2.0), "dim=2.0"),
        (lambda: nn.LSTM(True, 2), "inputs=True"),
        (lambda: nn.MultiHeadAttention(4, 3), "heads=3 for a size of 4"),
        (lambda: nn.Conv1d(1, 1, 3, padding="half"), "padding='half'"),
        (lambda: nn.Conv2d(1, 1, 3, padding="causal"), "padding='causal'"),
        (lambda: nn.Conv2d(1, 1, (3, 0)), "width=0"),
        (lambda: nn.Dropout(1.0), "rate=1.0"),
        (lambda: nn.LayerNorm(-1), "size=-1"),
    ],
)
def test_wrong_settings_are_errors(make, message):
    with pytest.raises(ab.errors.OptionError, match=message):
        make()


# torch's values, with the same weights


def torch_():
    return pytest.importorskip("torch")


def close(found, expected):
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_recurrent_layers_are_torchs(name):
    torch = torch_()
    theirs = getattr(torch.nn, name)(4, 3)
    ours = getattr(nn, name)(4, 3, seed=0)
    ours.w, ours.u = theirs.weight_ih_l0.detach().numpy().T, theirs.weight_hh_l0.detach().numpy().T
    if name == "LSTM":
        ours.b = (theirs.bias_ih_l0 + theirs.bias_hh_l0).detach().numpy()
    else:
        ours.b, ours.d = theirs.bias_ih_l0.detach().numpy(), theirs.bias_hh_l0.detach().numpy()
    x = rows(6)[0]
    states, last = theirs(torch.from_numpy(x))
    found, own = ours(x)
    close(found, states)
    for a, b in zip(own, last, strict=True) if name == "LSTM" else [(own, last)]:
        close(a, b[0])


@pytest.mark.parametrize(
    ("layer", "reached"),
    [(lambda: nn.Conv1d(40, 50, 5, seed=0), 200), (lambda: nn.Conv2d(10, 50, (4, 5), seed=0), 200)],
)
def test_kernels_are_uniform_within_one_over_the_root_of_what_they_reach(layer, reached):
    weight = layer().weight
    assert np.isclose(np.abs(weight).max(), 1 / np.sqrt(reached), rtol=1e-2)
    assert np.isclose(weight.std(), 1 / np.sqrt(3 * reached), rtol=2e-2)


PADDINGS = {"valid": "valid", "same": "same", "full": 4}


@pytest.mark.parametrize("padding", PADDINGS)
def test_convolutions_in_two_dimensions_are_torchs(padding):
    torch = torch_()
    ours = nn.Conv2d(2, 3, 5, padding=padding, seed=0)
    ours.bias = np.array([1.0, 2.0, 3.0], np.float32)
    weight = torch.from_numpy(ours.weight.transpose(3, 2, 0, 1).copy())
    x = rows(7, width=12)[0].reshape(7, 6, 2)
    image = torch.from_numpy(x.transpose(2, 0, 1).copy())[None]
    conv2d = torch.nn.functional.conv2d
    expected = conv2d(image, weight, torch.from_numpy(ours.bias), padding=PADDINGS[padding])
    close(ours(x), expected[0].permute(1, 2, 0))


@pytest.mark.parametrize("padding", PADDINGS)
def test_convolutions_are_torchs(padding):
    torch = torch_()
    ours = nn.Conv1d(4, 3, 5, padding=padding, seed=0)
    ours.bias = np.array([1.0, 2.0, 3.0], np.float32)
    weight = torch.from_numpy(ours.weight.transpose(2, 1, 0).copy())
    x = rows(7)[0]
    expected = torch.nn.functional.conv1d(
        torch.from_numpy(x.T.copy())[None], weight, torch.from_numpy(ours.bias), padding=PADDINGS[padding]
    )
    close(ours(x), expected[0].T)


def test_attention_is_torchs():
    torch = torch_()
    ours = nn.MultiHeadAttention(4, 2, seed=0)
    theirs = torch.nn.MultiheadAttention(4, 2, bias=False)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.from_numpy(np.concatenate([ours.query, ours.key, ours.value], 1).T.copy()))
        theirs.out_proj.weight.copy_(torch.from_numpy(ours.out.T.copy()))
    x, y = rows(5)[0], rows(3, seed=1)[0]
    mask = np.tri(5, dtype=bool)
    close(ours(x, mask=mask), theirs(*[torch.from_numpy(x)] * 3, attn_mask=torch.from_numpy(~mask))[0])
    close(ours(x, y), theirs(torch.from_numpy(x), *[torch.from_numpy(y)] * 2)[0])
