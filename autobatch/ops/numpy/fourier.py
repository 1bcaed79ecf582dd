"""Fourier transforms: one op for each transform in one dimension; the others are composed of these.

The cotangent ct of a complex z is defined by d(loss) = real(ct * dz), without a conjugate. So the vjp of a linear map
is its transpose, and the Fourier transform is its own transpose.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths
from autobatch.core.cotangent import unbroadcast
from autobatch.core.op import Op, is_boxed
from autobatch.errors import Unsupported
from autobatch.ops.rules.dispatch import implements
from autobatch.ops.rules.op_kinds import run_by_length
from autobatch.ops.rules.padding import fill, mask_cotangent, speculate, to_width
from autobatch.ops.rules.sizes import differ_somewhere, normalise_axis

_INVERSE = {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}
_HERE = {None: "backward", "backward": "backward", "ortho": "ortho", "forward": "forward"}


def _rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    (x,) = operands
    at = x.rank + params["axis"]
    if isinstance(x.sizes[at], Lengths):
        return run_by_length(op, operands, params, (at,))
    data = mask_cotangent(x.data, x.sizes)
    out = speculate(lambda: op(data, **params), lambda: op(fill(x, 0), **params))
    sizes = (*x.sizes[:at], shape_of(out)[at + 1], *x.sizes[at + 1 :])
    return Batched(mask_cotangent(out, sizes), sizes)


def _transform(function: Callable[..., Any], vjp: Callable[..., Any]) -> Op:
    """Make an op along one axis, counted from the end; `vjp(ct, n, axis, norm)`: n is the input's length along it."""

    def backward(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        at = params["axis"]
        return unbroadcast(vjp(ct, shape_of(args[0])[at], at, params["norm"]), args[0])

    return Op(function.__name__, function, rule=_rule, vjp=backward, kind="fourier")


def _irfft_vjp(ct: Any, m: int, axis: int, norm: str) -> Any:
    n = shape_of(ct)[axis]
    places = np.arange(m).reshape((-1,) + (1,) * (-axis - 1))
    twice = np.where((places > 0) & (places <= (n - 1) // 2), 2, 1).astype(np.real(ct).dtype)
    return np.conjugate(rfft_p(ct, axis=axis, norm=_INVERSE[norm])) * twice


# fmt: off
fft_p: Op   = _transform(np.fft.fft,   lambda ct, n, axis, norm: fft_p(ct, axis=axis, norm=norm))
ifft_p: Op  = _transform(np.fft.ifft,  lambda ct, n, axis, norm: ifft_p(ct, axis=axis, norm=norm))
rfft_p: Op  = _transform(np.fft.rfft,  lambda ct, n, axis, norm: fft_p(_to_length(ct, n, axis), axis=axis, norm=norm))
irfft_p: Op = _transform(np.fft.irfft, _irfft_vjp)
# fmt: on


def _to_length(x: Any, n: int, axis: int) -> Any:
    """x cropped or zero-padded to length n along an axis that is counted from the end."""
    shape = shape_of(x)
    if is_boxed(shape[axis]):
        raise Unsupported("a Fourier transform of a given length, of examples whose lengths differ")
    return to_width(x, axis + len(shape), n)


def _register(op: Op, function: Callable[..., Any], to_input: Callable[[int], int] | None = None) -> Callable[..., Any]:
    """Register a transform along one axis; `to_input(n)`: the input's length where `n` is the result's (irfft)."""

    @implements(function)
    def transform(a: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
        if norm not in _HERE:
            raise ValueError(f'Invalid norm value {norm}; should be "backward", "ortho" or "forward".')
        axis = normalise_axis(axis, ndim_of(a)) - ndim_of(a)
        if n is None or (to_input is None and not differ_somewhere(n, shape_of(a)[axis])):
            return op(a, axis=axis, norm=_HERE[norm])
        if n < 1:
            raise ValueError(f"Invalid number of FFT data points ({n}) specified.")
        if to_input is None:
            return op(_to_length(a, n, axis), axis=axis, norm=_HERE[norm])
        return op(_to_length(a, to_input(n), axis), n=n, axis=axis, norm=_HERE[norm])

    return transform


fft = _register(fft_p, np.fft.fft)
ifft = _register(ifft_p, np.fft.ifft)
rfft = _register(rfft_p, np.fft.rfft)
irfft = _register(irfft_p, np.fft.irfft, lambda n: n // 2 + 1)
