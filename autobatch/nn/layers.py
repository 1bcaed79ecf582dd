"""The layers: each is a class for one example, in a few lines of NumPy, whose float arrays are its parameters."""

import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from autobatch.api.batch import batch
from autobatch.core.formatting import DTypeLike, layer_repr, public_names
from autobatch.errors import OptionError
from autobatch.facts.other_libraries import Spelled, layer_attribute
from autobatch.ops.nn.activations import sigmoid
from autobatch.ops.nn.dropout_and_masks import causal_mask, dropout
from autobatch.ops.nn.init import Initializer, normal, orthogonal, uniform, xavier_uniform
from autobatch.ops.nn.softmax_and_norms import layer_norm, softmax
from autobatch.ops.rules.ragged_checks import whole_option
from autobatch.tables.table import EmbeddingTable

Seed = int | np.random.Generator | None


def seeds_from(seed: Any, count: int) -> list[int]:
    """`count` seeds, from an integer, a generator shared by a model's layers, or (None) NumPy's global generator."""
    if seed is None:
        seed = int(np.random.randint(2**31))
    if not isinstance(seed, np.random.Generator):
        seed = np.random.default_rng(seed)
    return seed.integers(2**31, size=count).tolist()


def check_sizes(**sizes: object) -> None:
    """Raise OptionError if a size of a layer is not a positive integer."""
    for name, value in sizes.items():
        whole_option(value, name)


class Layer(metaclass=Spelled):
    """The base of the layers: prints what a layer was made from, and says in notes of errors what it takes."""

    _ab_takes: ClassVar[str] = "(..., {0})"  # filled in with what it was made from
    _ab_own_names: ClassVar[str] = "beside gates start_biases"

    def _made_from(self) -> tuple[Any, ...]:
        raise TypeError(f"{type(self).__name__} does not say what it was made from")

    if not TYPE_CHECKING:  # else each attribute would have the type Any
        __getattr__ = layer_attribute

    __repr__, __dir__ = layer_repr, public_names


class Linear(Layer):
    """x @ weight + bias, for a vector, a matrix of rows, or any array whose last dimension is `inputs`.

    Args:
        inputs, outputs: the sizes of the last dimension, before and after.
        bias: whether a bias is added.
        init: of the weight; by default `ab.nn.init.xavier_uniform()`. The bias starts at zero.
        seed: an integer; a `np.random.Generator` that the layers of a model share; None: drawn from NumPy's global
            generator, so that `np.random.seed` makes it repeatable.
        dtype: of the parameters.

    Attributes:
        weight: (inputs, outputs). bias: (outputs,), or None.

    Raises:
        OptionError: a size that is not a positive integer.

    >>> layer = Linear(3, 2, seed=0)
    >>> layer(np.ones((5, 3), np.float32)).shape
    (5, 2)
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        bias: bool = True,
        init: Initializer | None = None,
        seed: Seed = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        check_sizes(inputs=inputs, outputs=outputs)
        (own,) = seeds_from(seed, 1)
        self.weight = (init or xavier_uniform())((inputs, outputs), own, dtype)
        self.bias = np.zeros(outputs, dtype) if bias else None

    def _made_from(self) -> tuple[Any, ...]:
        return self.weight.shape

    @batch
    def __call__(self, x: NDArray[Any]) -> NDArray[Any]:
        y = x @ self.weight
        return y if self.bias is None else y + self.bias


class Embedding(Layer):
    """Looks up the rows of a table by ids, with a sparse gradient.

    Args:
        rows, dim: the shape of the table.
        init: by default `ab.nn.init.normal(std=0.01)`.
        seed, dtype: as for `Linear`.

    Attributes:
        weight: an `ab.EmbeddingTable` of (rows, dim).

    Raises:
        OptionError: a size that is not a positive integer. A call raises `BadIdError` for an id outside of the table.

    >>> Embedding(10, 4, seed=0)(np.array([3, 1, 3])).shape
    (3, 4)
    """

    _ab_takes = "integer ids below {0}"

    def __init__(
        self, rows: int, dim: int, *, init: Initializer | None = None, seed: Seed = None, dtype: DTypeLike = np.float32
    ) -> None:
        check_sizes(rows=rows, dim=dim)
        (own,) = seeds_from(seed, 1)
        self.weight = EmbeddingTable((init or normal(std=0.01))((rows, dim), own, dtype))

    def _made_from(self) -> tuple[Any, ...]:
        return self.weight.shape

    @batch
    def __call__(self, ids: NDArray[Any]) -> NDArray[Any]:
        return self.weight[ids]


class LayerNorm(Layer):
    """Layer normalisation of the last dimension: (x - mean) / deviation * scale + shift (Ba, Kiros and Hinton 2016).

    Args:
        size: of the last dimension.
        eps: added to the variance.
        dtype: of the parameters.

    Attributes:
        scale: (size,), ones at first. shift: (size,), zeros.

    Raises:
        OptionError: a size that is not a positive integer.

    >>> LayerNorm(2)(np.array([[1.0, 3.0]], np.float32)).round(2).tolist()
    [[-1.0, 1.0]]
    """

    def __init__(self, size: int, *, eps: float = 1e-5, dtype: DTypeLike = np.float32) -> None:
        check_sizes(size=size)
        self.eps = eps
        self.scale, self.shift = np.ones(size, dtype), np.zeros(size, dtype)

    def _made_from(self) -> tuple[Any, ...]:
        return self.scale.shape

    @batch
    def __call__(self, x: NDArray[Any]) -> NDArray[Any]:
        return layer_norm(x, eps=self.eps) * self.scale + self.shift


class Dropout(Layer):
    """Applies `ab.nn.dropout` at a rate, while `training` is True.

    Args:
        rate: the fraction of elements that is dropped, at least 0 and below 1.

    Attributes:
        rate: as given. training: True if elements are dropped; set it to False for predictions, or pass it in the call.

    Raises:
        OptionError: a rate outside of 0 <= rate < 1.

    >>> layer = Dropout(0.5)
    >>> layer(np.ones(3), training=False).tolist()
    [1.0, 1.0, 1.0]
    """

    _ab_takes = "floats"

    def __init__(self, rate: float = 0.5) -> None:
        if not 0 <= rate < 1:
            raise OptionError(f"rate={rate!r}; expected 0 <= rate < 1")
        self.rate, self.training = rate, True

    def _made_from(self) -> tuple[Any, ...]:
        return (self.rate,)

    @batch
    def __call__(self, x: NDArray[Any], training: bool | None = None) -> NDArray[Any]:
        return dropout(x, self.rate, training=self.training if training is None else training)


class Conv1d(Layer):
    """A convolution along the first dimension of (t, inputs): position i of the result sees `width` positions from i.

    Args:
        inputs, outputs: the number of channels before and after.
        width: the number of positions in the window.
        padding: "valid": t - width + 1 positions, none if t is less than the width; "same": t positions, with zeros at
            both ends, (width - 1) // 2 before the first; "full": t + width - 1 positions, all windows that overlap the
            input; "causal": t positions, with zeros before the first only.
        bias, init, seed, dtype: as for `Linear`; by default uniform within ± 1 / √(width · inputs).

    Attributes:
        weight: (width, inputs, outputs). bias: (outputs,), or None.

    Raises:
        OptionError: a size that is not a positive integer, or another padding.

    >>> Conv1d(3, 2, 5, padding="same", seed=0)(np.ones((7, 3), np.float32)).shape
    (7, 2)
    """

    _ab_takes = "(length, {0})"

    def __init__(
        self,
        inputs: int,
        outputs: int,
        width: int,
        *,
        padding: str = "valid",
        bias: bool = True,
        init: Initializer | None = None,
        seed: Seed = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        check_sizes(inputs=inputs, outputs=outputs, width=width)
        self.beside = _zeros_beside(padding, width, "valid", "same", "full", "causal")
        (own,) = seeds_from(seed, 1)
        bound = 1 / math.sqrt(width * inputs)
        self.weight = (init or uniform(-bound, bound))((width, inputs, outputs), own, dtype)
        self.bias = np.zeros(outputs, dtype) if bias else None

    def _made_from(self) -> tuple[Any, ...]:
        return (*self.weight.shape[1:], self.weight.shape[0])

    @batch
    def __call__(self, x: NDArray[Any]) -> NDArray[Any]:
        before, after = self.beside
        width, inputs, outputs = self.weight.shape
        if before or after:
            x = np.pad(x, ((before, after), (0, 0)))
        y = x @ self.weight.transpose(1, 0, 2).reshape(inputs, width * outputs)  # every position times every tap
        count = max(x.shape[0] - width + 1, 0)
        out = y[:count, :outputs]
        for k in range(1, width):
            out = out + y[k : k + count, k * outputs : (k + 1) * outputs]
        return out if self.bias is None else out + self.bias


class Conv2d(Layer):
    """A convolution over (height, width, inputs): each position of the result sees a window that begins there.

    Args:
        inputs, outputs: the number of channels before and after.
        window: (height, width) of the window, or one number for both.
        padding: "valid", "same" or "full" in both dimensions, as for `Conv1d`.
        bias, init, seed, dtype: as for `Conv1d`.

    Attributes:
        weight: (height, width, inputs, outputs). bias: (outputs,), or None.

    Raises:
        OptionError: a size that is not a positive integer, or another padding.

    >>> Conv2d(3, 2, (5, 3), padding="same", seed=0)(np.ones((7, 4, 3), np.float32)).shape
    (7, 4, 2)
    """

    _ab_takes = "(height, width, {0})"

    def __init__(
        self,
        inputs: int,
        outputs: int,
        window: int | tuple[int, int],
        *,
        padding: str = "valid",
        bias: bool = True,
        init: Initializer | None = None,
        seed: Seed = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        height, width = window if isinstance(window, tuple) else (window, window)
        check_sizes(inputs=inputs, outputs=outputs, height=height, width=width)
        self.beside = [_zeros_beside(padding, size, "valid", "same", "full") for size in (height, width)]
        (own,) = seeds_from(seed, 1)
        bound = 1 / math.sqrt(height * width * inputs)
        self.weight = (init or uniform(-bound, bound))((height, width, inputs, outputs), own, dtype)
        self.bias = np.zeros(outputs, dtype) if bias else None

    def _made_from(self) -> tuple[Any, ...]:
        return (*self.weight.shape[2:], self.weight.shape[:2])

    @batch
    def __call__(self, x: NDArray[Any]) -> NDArray[Any]:
        x = np.pad(x, (*self.beside, (0, 0)))
        height, width = self.weight.shape[:2]
        rows, columns = max(x.shape[0] - height + 1, 0), max(x.shape[1] - width + 1, 0)
        out = x[:rows, :columns] @ self.weight[0, 0]
        for k in range(1, height * width):
            i, j = k // width, k % width
            out = out + x[i : i + rows, j : j + columns] @ self.weight[i, j]
        return out if self.bias is None else out + self.bias


def _zeros_beside(padding: str, width: int, *known: str) -> tuple[int, int]:
    """The numbers of zeros to add before and after the input of a window of this width."""
    if padding not in known:
        raise OptionError(f"padding={padding!r}; expected one of {', '.join(map(repr, known))}")
    each = {"same": ((width - 1) // 2, width // 2), "full": (width - 1, width - 1), "causal": (width - 1, 0)}
    return each.get(padding, (0, 0))


class MultiHeadAttention(Layer):
    """Multi-head attention: each row of the result is a weighted mean of all rows, per head (Vaswani et al. 2017).

    Args:
        size: of a row, before and after.
        heads: the number of heads; a divisor of the size.
        init, seed, dtype: as for `Linear`.

    Attributes:
        query, key, value, out: (size, size).
        heads: their number.

    Raises:
        OptionError: a size that is not a positive integer, or heads that do not divide it.

    A call takes (t, size), and optionally `context`, (s, size), rows to attend to instead of these; `causal=True`: a
    row attends only to rows up to itself; and `mask`, (t, s) bool, True where a row may attend (TypeError for floats).

    >>> MultiHeadAttention(8, heads=2, seed=0)(np.ones((5, 8), np.float32)).shape
    (5, 8)
    """

    _ab_takes = "(rows, {0}); masks are bools, True where a row may attend"

    def __init__(
        self,
        size: int,
        heads: int,
        *,
        init: Initializer | None = None,
        seed: Seed = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        check_sizes(size=size, heads=heads)
        if size % heads:
            raise OptionError(f"heads={heads} for a size of {size}; expected a divisor of it")
        init = init or xavier_uniform()
        self.query, self.key, self.value, self.out = (init((size, size), own, dtype) for own in seeds_from(seed, 4))
        self.heads = heads

    def _made_from(self) -> tuple[Any, ...]:
        return self.query.shape[0], self.heads

    @batch
    def __call__(self, x: NDArray[Any], context: Any = None, mask: Any = None, causal: bool = False) -> NDArray[Any]:
        rows = x if context is None else context
        heads, size = self.heads, self.query.shape[0]
        dim = size // heads
        q = (x @ self.query).reshape(x.shape[0], heads, dim).transpose(1, 0, 2)
        k = (rows @ self.key).reshape(rows.shape[0], heads, dim).transpose(1, 2, 0)
        v = (rows @ self.value).reshape(rows.shape[0], heads, dim).transpose(1, 0, 2)
        scores = q @ k * dim**-0.5
        if causal:
            scores = causal_mask(scores)
        if mask is not None:
            scores = np.where(np.bitwise_or(mask, False), scores, -np.inf)  # raises for torch's masks of floats
        return (softmax(scores) @ v).transpose(1, 0, 2).reshape(x.shape[0], size) @ self.out


class Recurrent(Layer):
    """The base of the recurrent layers: holds the weights of `gates` gates, side by side."""

    gates: ClassVar[int]

    _ab_takes = "(rows, {0})"

    def __init__(
        self,
        inputs: int,
        size: int,
        *,
        init: Initializer | None = None,
        seed: Seed = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        check_sizes(inputs=inputs, size=size)
        first, second = seeds_from(seed, 2)
        self.w = (init or xavier_uniform())((inputs, self.gates * size), first, dtype)
        self.u = orthogonal()((size, self.gates * size), second, dtype)
        self.b = np.zeros(self.gates * size, dtype)
        self.start_biases()

    def _made_from(self) -> tuple[Any, ...]:
        return self.w.shape[0], self.u.shape[0]

    def start_biases(self) -> None:
        """Set the biases that do not start at zero, and make biases that only the subclass has."""


class LSTM(Recurrent):
    """A long short-term memory over the rows of (t, inputs) (Hochreiter and Schmidhuber 1997; Gers et al. 2000).

    Gates and their order (input, forget, cell, output) are torch's, so torch's weights fit when transposed.

    Args:
        inputs, size: of a row, and of the state.
        init: of the weights for a row, by default `ab.nn.init.xavier_uniform()`; those for the state are orthogonal.
            The bias of the forget gate starts at one, the others at zero (Jozefowicz et al. 2015).
        seed, dtype: as for `Linear`.

    Attributes:
        w: (inputs, 4 · size). u: (size, 4 · size). b: (4 · size,).

    Raises:
        OptionError: a size that is not a positive integer.

    A call gives (states, (h, c)): h after each row, (t, size), and the last state; `state=(h, c)` is the initial state,
    by default zeros.

    >>> states, (h, c) = LSTM(3, 4, seed=0)(np.ones((5, 3), np.float32))
    >>> states.shape, bool((states[-1] == h).all())
    ((5, 4), True)
    """

    gates = 4

    def start_biases(self) -> None:
        """Start the forget gate's bias at one."""
        self.b.reshape(self.gates, -1)[1] = 1

    @batch
    def __call__(self, xs: NDArray[Any], state: Any = None) -> Any:
        w, u, b, size = self.w, self.u, self.b, self.u.shape[0]
        h, c = (np.zeros(size, w.dtype), np.zeros(size, w.dtype)) if state is None else state
        states = []
        for x in xs:
            z = x @ w + h @ u + b
            i, f, g, o = z[:size], z[size : 2 * size], z[2 * size : 3 * size], z[3 * size :]
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            states.append(h)
        return np.stack(states) if states else np.zeros((0, size), w.dtype), (h, c)


class GRU(Recurrent):
    """Gated recurrent units over the rows of (t, inputs) (Cho et al. 2014).

    Gates and their order (reset, update, new) are torch's, with the reset gate applied after the product, so torch's
    weights fit when transposed.

    Args:
        inputs, size, init, seed, dtype: as for `LSTM`.

    Attributes:
        w: (inputs, 3 · size). u: (size, 3 · size). b: (3 · size,), for a row. d: (3 · size,), for the state.

    Raises:
        OptionError: a size that is not a positive integer.

    A call gives (states, h): the state after each row, (t, size), and the last one; `state=h` is the initial state, by
    default zeros.

    >>> states, h = GRU(3, 4, seed=0)(np.ones((5, 3), np.float32))
    >>> states.shape, h.shape
    ((5, 4), (4,))
    """

    gates = 3

    def start_biases(self) -> None:
        """Make `d`, the biases of the state's product, beside `b`, those of the row's product."""
        self.d = np.zeros_like(self.b)

    @batch
    def __call__(self, xs: NDArray[Any], state: Any = None) -> Any:
        w, u, b, d, size = self.w, self.u, self.b, self.d, self.u.shape[0]
        h = np.zeros(size, w.dtype) if state is None else state
        states = []
        for x in xs:
            y, z = x @ w + b, h @ u + d
            r = sigmoid(y[:size] + z[:size])
            keep = sigmoid(y[size : 2 * size] + z[size : 2 * size])
            n = np.tanh(y[2 * size :] + r * z[2 * size :])
            h = (1 - keep) * n + keep * h
            states.append(h)
        return np.stack(states) if states else np.zeros((0, size), w.dtype), h
