"""Fourier transforms: an op for each in one dimension; the others are composed.

A cotangent of a complex number z is what its product with dz has as real part: so the vjp of a linear map is its
transpose, and a Fourier transform is its own.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.core.abstract_eval import ndim_of, shape_of
from autobatch.core.batched import Batched, Lengths
from autobatch.core.cotangent import unbroadcast
from autobatch.core.op import Op, is_boxed
from autobatch.ops.rules.dispatch import Declined, implements
from autobatch.ops.rules.op_kinds import by_length
from autobatch.ops.rules.padding import closed, fill, quietly, to_width
from autobatch.ops.rules.sizes import normalise_axis

_INVERSE = {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}
_HERE = {None: "backward", "backward": "backward", "ortho": "ortho", "forward": "forward"}


def _rule(op: Op, operands: Sequence[Any], params: dict[str, Any]) -> Batched:
    (x,) = operands
    at = x.rank + params["axis"]
    if isinstance(x.sizes[at], Lengths):
        return by_length(op, x, params, (at,))
    data = closed(x.data, x.sizes)
    out = quietly(lambda: op(data, **params), lambda: op(fill(x, 0), **params))
    sizes = (*x.sizes[:at], shape_of(out)[at + 1], *x.sizes[at + 1 :])
    return Batched(closed(out, sizes), sizes)


def _transform(function: Callable[..., Any], vjp: Callable[..., Any]) -> Op:
    """An op along one axis, counted from the end: `vjp(ct, n, axis, norm)`, n the length along it."""

    def backward(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        at = params["axis"]
        return unbroadcast(vjp(ct, shape_of(args[0])[at], at, params["norm"]), args[0])

    return Op(function.__name__, function, rule=_rule, vjp=backward, kind="fourier")


def _rfft_vjp(ct: Any, n: int, axis: int, norm: str) -> Any:
    return fft_p(_to_length(ct, n, axis), axis=axis, norm=norm)


def _irfft_vjp(ct: Any, m: int, axis: int, norm: str) -> Any:
    n = shape_of(ct)[axis]
    places = np.arange(m).reshape((-1,) + (1,) * (-axis - 1))
    twice = np.where((places > 0) & (places <= (n - 1) // 2), 2, 1).astype(np.real(ct).dtype)
    return np.conjugate(rfft_p(ct, axis=axis, norm=_INVERSE[norm])) * twice


# fmt: off
fft_p: Op   = _transform(np.fft.fft,   lambda ct, n, axis, norm: fft_p(ct, axis=axis, norm=norm))
ifft_p: Op  = _transform(np.fft.ifft,  lambda ct, n, axis, norm: ifft_p(ct, axis=axis, norm=norm))
rfft_p: Op  = _transform(np.fft.rfft,  _rfft_vjp)
irfft_p: Op = _transform(np.fft.irfft, _irfft_vjp)
# fmt: on


def _to_length(x: Any, n: int, axis: int) -> Any:
    """Cropped or padded by zeros to a length along an axis that is counted from the end."""
    shape = shape_of(x)
    if is_boxed(shape[axis]):
        raise Declined("a Fourier transform of a given length, of examples whose lengths differ")
    return to_width(x, axis + len(shape), n)


def _register(op: Op, function: Callable[..., Any], to_input: Callable[[int], int] | None = None) -> Callable[..., Any]:
    """Register a transform along one axis; `to_input` gives the input's length where `n` is the result's."""

    @implements(function)
    def transform(a: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
        if norm not in _HERE:
            raise ValueError(f'Invalid norm value {norm}; should be "backward", "ortho" or "forward".')
        axis = normalise_axis(axis, ndim_of(a)) - ndim_of(a)
        if n is None:
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


@implements(np.fft.hfft)
def hfft(a: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
    return irfft(np.conjugate(a), n, axis, _INVERSE.get(norm, norm))


@implements(np.fft.ihfft)
def ihfft(a: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
    return np.conjugate(rfft(a, n, axis, _INVERSE.get(norm, norm)))


def _register_several(
    every: Callable[..., Any], two: Callable[..., Any], function: Callable[..., Any], last: Callable[..., Any]
) -> None:
    """A transform along all axes, and along two: one after the other; `last` is that of the last axis."""

    def transform(a: Any, s: Any, axes: Any, norm: Any) -> Any:
        if axes is None:
            if s is not None:
                raise Declined("a Fourier transform with s= and without axes=")
            axes = range(ndim_of(a))
        if any(not -ndim_of(a) <= axis < ndim_of(a) for axis in axes):
            raise Declined("a Fourier transform along an axis that is not there")
        if s is None:
            lengths: list[Any] = [None] * len(axes)
        elif len(s) != len(axes):
            raise ValueError("Shape and axes have different lengths.")
        else:
            lengths = [shape_of(a)[axis] if n == -1 else n for n, axis in zip(s, axes, strict=True)]
        steps = list(zip([*[function] * (len(axes) - 1), last], lengths, axes, strict=True))
        for step, n, axis in steps if last is irfft else reversed(steps):
            a = step(a, n, axis, norm)
        return a

    @implements(every)
    def along_all(a: Any, s: Any = None, axes: Any = None, norm: Any = None) -> Any:
        return transform(a, s, axes, norm)

    @implements(two)
    def along_two(a: Any, s: Any = None, axes: Any = (-2, -1), norm: Any = None) -> Any:
        return transform(a, s, axes, norm)


_register_several(np.fft.fftn, np.fft.fft2, fft, fft)
_register_several(np.fft.ifftn, np.fft.ifft2, ifft, ifft)
_register_several(np.fft.rfftn, np.fft.rfft2, fft, rfft)
_register_several(np.fft.irfftn, np.fft.irfft2, ifft, irfft)


@implements(np.fft.fftshift)
def fftshift(x: Any, axes: Any = None) -> Any:
    return _shifted(x, axes, 1)


@implements(np.fft.ifftshift)
def ifftshift(x: Any, axes: Any = None) -> Any:
    return _shifted(x, axes, -1)


def _shifted(x: Any, axes: Any, sign: int) -> Any:
    for axis in range(ndim_of(x)) if axes is None else axes if isinstance(axes, list | tuple) else (axes,):
        x = np.roll(x, sign * (shape_of(x)[axis] // 2), axis)
    return x
