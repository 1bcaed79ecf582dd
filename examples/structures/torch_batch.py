"""A test of a torch model's batch: what it gives an example among others is what it gives the example alone.

Three ways to mean-pool an LSTM's states over padded sequences; the test finds the two that let padding in.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

Encoder = Callable[[torch.nn.LSTM, torch.Tensor, torch.Tensor], torch.Tensor]


def careless(lstm: torch.nn.LSTM, padded: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Reads on over the padding, and counts it."""
    return lstm(padded)[0].mean(1)


def half_careful(lstm: torch.nn.LSTM, padded: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Adds up the right states, and divides by the longest length."""
    packed = pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
    return pad_packed_sequence(lstm(packed)[0], batch_first=True)[0].mean(1)


def careful(lstm: torch.nn.LSTM, padded: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    packed = pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
    return pad_packed_sequence(lstm(packed)[0], batch_first=True)[0].sum(1) / lengths[:, None]


def mistakes(encode: Encoder, lengths: tuple[int, ...] = (5, 1, 3), seed: int = 0) -> list[str]:
    """What is wrong with a batched encoder, in words: each example alone is the reference."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    lstm = torch.nn.LSTM(4, 6, batch_first=True)
    examples = [torch.from_numpy(rng.normal(size=(n, 4)).astype(np.float32)) for n in lengths]
    alone = [lstm(x[None])[0][0].mean(0) for x in examples]
    found = []
    for kind, order, value in (("padding", (0, 1, 2), 0.0), ("poison", (0, 1, 2), 1e3), ("order", (2, 0, 1), 0.0)):
        padded = pad_sequence([examples[i] for i in order], batch_first=True, padding_value=value)
        together = encode(lstm, padded, torch.tensor([lengths[i] for i in order]))
        wrong = [i for i, y in zip(order, together, strict=True) if not torch.allclose(y, alone[i], atol=1e-5)]
        found += [f"{kind}: example {i} of length {lengths[i]} differs" for i in wrong]
    return found


def run() -> dict[str, Any]:
    return {encode.__name__: mistakes(encode) for encode in (careless, half_careful, careful)}


if __name__ == "__main__":
    for name, wrong in run().items():
        print(f"{name}: {'; '.join(wrong) or 'equal to each example alone'}")
