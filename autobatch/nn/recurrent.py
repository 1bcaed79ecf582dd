"""Recurrent layers: LSTM and GRU over the rows of one example."""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from autobatch.api.batch import batch
from autobatch.nn.layers import Seed, check_sizes, seeds_from
from autobatch.ops.nn.activations import sigmoid
from autobatch.ops.nn.init import Initializer, orthogonal, xavier_uniform


class Recurrent:
    """What the recurrent layers share: weights of `gates` gates, side by side."""

    gates: ClassVar[int]

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

    def start_biases(self) -> None:
        """Set the biases that do not start at zero, and make those that only this layer has."""


class LSTM(Recurrent):
    """A long short-term memory over the rows of (t, inputs) (Hochreiter and Schmidhuber 1997; Gers et al. 2000).

    The gates are torch's, in its order (input, forget, cell, output), so that its weights fit, transposed.

    Args:
        inputs, size: of a row, and of the state.
        init: of the weights for a row, by default `ab.nn.init.xavier_uniform()`; those for the state are orthogonal.
            The bias of the forget gate starts at one, the others at zero (Jozefowicz et al. 2015).
        seed, dtype: as for `Linear`.

    Attributes:
        w: (inputs, 4 · size). u: (size, 4 · size). b: (4 · size,).

    Raises:
        OptionError: a size that is no positive integer.

    A call gives (states, (h, c)): the state after each row, (t, size), and the last one; `state=(h, c)` starts from
    another than zeros.

    >>> states, (h, c) = LSTM(3, 4, seed=0)(np.ones((5, 3), np.float32))
    >>> states.shape, bool((states[-1] == h).all())
    ((5, 4), True)
    """

    gates = 4

    def start_biases(self) -> None:
        """The forget gate's at one."""
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

    The gates are torch's, in its order (reset, update, new), with the reset gate after the product, so that its weights
    fit, transposed.

    Args:
        inputs, size, init, seed, dtype: as for `LSTM`.

    Attributes:
        w: (inputs, 3 · size). u: (size, 3 · size). b: (3 · size,), for a row. d: (3 · size,), for the state.

    Raises:
        OptionError: a size that is no positive integer.

    A call gives (states, h): the state after each row, (t, size), and the last one; `state=h` starts from another than
    zeros.

    >>> states, h = GRU(3, 4, seed=0)(np.ones((5, 3), np.float32))
    >>> states.shape, h.shape
    ((5, 4), (4,))
    """

    gates = 3

    def start_biases(self) -> None:
        """Those for the state beside those for a row."""
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
