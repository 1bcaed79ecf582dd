"""The libraries whose arrays a function may compute with: NumPy (with Numba), torch and JAX, and their conversions.

Importing this imports none of them: whoever has a torch function or tensor has imported torch already.
"""

import functools
import importlib
import itertools
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from autobatch.autodiff.grad import value_and_grad
from autobatch.core.pytree import PLAIN, leaves
from autobatch.core.snapshot import cell_value
from autobatch.errors import OptionError, UnsupportedError
from autobatch.lazy.taped_forms import per_example_form

# From a list of float arrays to (any value for the caller, the float leaves that are contracted with weights).
Run = Callable[[list[Any]], tuple[Any, list[Any]]]


class Framework:
    """One library of arrays; this base class is NumPy, with functions compiled by Numba.

    Attributes:
        name: the library's name, as users write it.
    """

    name = "numpy"

    @functools.cached_property
    def _library(self) -> Any:
        return imported(self.name)

    def owns(self, x: object) -> bool:
        """True if `x` is an array of this library."""
        return isinstance(x, np.ndarray | np.generic)

    def array(self, x: np.ndarray, like: object = None) -> Any:
        """An array of this library with a copy of this data; in the dtype of `like`, if that is an array of it."""
        return np.array(x)

    def numpy(self, x: object) -> Any:
        """The NumPy array of an array of this library; anything else as it is."""
        return x

    def call(self, f: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """`f(*args, **kwargs)`, without gradients."""
        with np.errstate(all="ignore"):  # the values in padding may overflow
            return f(*args, **kwargs)

    def differentiable(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """The form of a user's function to call where gradients are taken."""
        return per_example_form(f) if self.name == "numpy" else f

    def vjp(
        self, run: Run, floats: Sequence[Any], weights: Sequence[np.ndarray], more: Sequence[Any] = ()
    ) -> list[Any]:
        """The gradients of the weighted sum of all elements of all float leaves of `run`.

        Args:
            run: computes the leaves, from this library's arrays in place of `floats`.
            floats: pairs (x, like), as for `array`.
            weights: one array per leaf.
            more: further arrays of this library, parameters that `run` reads by itself.

        Returns:
            NumPy arrays: the gradients of `floats`, then of `more`; zeros where no leaf depends on one.
        """

        def loss(values: list[Any]) -> Any:
            with np.errstate(all="ignore"):
                found = run(values)[1]
                return sum((np.sum(x * weight) for x, weight in zip(found, weights, strict=True)), start=0.0)

        return list(value_and_grad(loss)([np.array(x) for x, _ in floats])[1])


class TorchFramework(Framework):
    """torch, on the CPU."""

    name = "torch"

    def owns(self, x: object) -> bool:
        torch: Any = sys.modules.get("torch")
        return torch is not None and isinstance(x, getattr(torch, "Tensor", ()))

    def array(self, x: np.ndarray, like: Any = None) -> Any:
        out = self._library.from_numpy(np.array(x, order="C"))
        return out.to(like.dtype) if self.owns(like) and like.dtype != out.dtype else out

    def numpy(self, x: Any) -> Any:
        if not self.owns(x):
            return x
        x = x.detach()
        if x.device.type != "cpu":
            raise UnsupportedError(
                f"a tensor is on the device {x.device}; autobatch computes on the CPU: write x.cpu()"
            )
        if x.layout != self._library.strided:
            raise UnsupportedError(f"a tensor has the layout {x.layout}; expected a dense one: write x.to_dense()")
        x = x.resolve_conj().resolve_neg()
        return x.float().numpy() if x.dtype == self._library.bfloat16 else x.numpy()

    def call(self, f: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        with self._library.no_grad():
            return f(*args, **kwargs)

    def vjp(
        self, run: Run, floats: Sequence[Any], weights: Sequence[np.ndarray], more: Sequence[Any] = ()
    ) -> list[Any]:
        torch = self._library
        with torch.enable_grad():
            given = [self.array(x, like).requires_grad_() for x, like in floats]
            outputs = run(given)[1]
            used = [(x, self.array(w, x)) for x, w in zip(outputs, weights, strict=True) if x.requires_grad]
            inputs = [*given, *more]
            found: Sequence[Any] = [None] * len(inputs)
            if used and inputs:
                outs, cts = zip(*used, strict=True)
                found = torch.autograd.grad(outs, inputs, cts, allow_unused=True)
        zeros = (torch.zeros_like(x) if g is None else g.to_dense() for x, g in zip(inputs, found, strict=True))
        return [self.numpy(g) for g in zeros]


class JaxFramework(Framework):
    """JAX, on the CPU."""

    name = "jax"

    def owns(self, x: object) -> bool:
        jax: Any = sys.modules.get("jax")
        return jax is not None and isinstance(x, getattr(jax, "Array", ()))

    def array(self, x: np.ndarray, like: Any = None) -> Any:
        return self._library.numpy.asarray(np.array(x), dtype=like.dtype if self.owns(like) else None)

    def numpy(self, x: object) -> Any:
        if not self.owns(x):
            return x
        out = np.asarray(x)
        return out.astype(np.float32) if out.dtype.kind == "V" else out  # bfloat16

    def call(self, f: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return f(*args, **kwargs)

    def vjp(
        self, run: Run, floats: Sequence[Any], weights: Sequence[np.ndarray], more: Sequence[Any] = ()
    ) -> list[Any]:
        given = [self.array(x, like) for x, like in floats]
        outputs, back = self._library.vjp(lambda values: run(values)[1], given)
        found = back([self.array(weight, x) for x, weight in zip(outputs, weights, strict=True)])[0]
        return [self.numpy(g) for g in found]


FRAMEWORKS: dict[str, Framework] = {each.name: each for each in (Framework(), TorchFramework(), JaxFramework())}


def imported(name: str) -> Any:
    """Import a library by name, or raise UnsupportedError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UnsupportedError(f"{name} is not installed; pip install {name}") from None


def framework_of(f: object, examples: object = (), given: str | None = None) -> Framework:
    """The library whose arrays a function takes.

    Args:
        f: torch or JAX is found if `f`, an object that it names or a function that it calls comes from there.
        examples: its arguments, which decide if the code does not.
        given: the library's name, if the user gave it.

    >>> framework_of(np.mean).name
    'numpy'
    """
    if given is not None:
        if given not in FRAMEWORKS:
            raise OptionError(f"framework={given!r}; expected one of {', '.join(map(repr, FRAMEWORKS))}")
        return FRAMEWORKS[given]
    found = {_library_of(x) for x in reachable(f)}
    for name in ("torch", "jax"):
        if name in found:
            return FRAMEWORKS[name]
    if "numpy" not in found:
        for leaf in leaves(examples):
            for framework in FRAMEWORKS.values():
                if framework.owns(leaf):
                    return framework
    return FRAMEWORKS["numpy"]


def _library_of(x: object) -> str:
    kinds = type(x).__mro__ if not isinstance(x, types.ModuleType) else ()
    names = [x.__name__] if isinstance(x, types.ModuleType) else [each.__module__ or "" for each in kinds]
    if not isinstance(x, types.ModuleType):
        names.append(getattr(x, "__module__", None) or "")
    roots = {str(name).partition(".")[0] for name in names}
    if roots & {"torch"}:
        return "torch"
    if roots & {"jax", "jaxlib", "flax", "equinox", "haiku"}:
        return "jax"
    return "numpy" if roots & {"numpy", "numba"} else ""


_MOST = 2000  # the most objects that `reachable` visits
_LIBRARIES = {"autobatch", "jax", "jaxlib", "numba", "numpy", "torch"}  # their own code is not searched


def reachable(f: object) -> Iterator[Any]:
    """A function and all objects that it names: globals, closure, `self`, and so on through Python functions.

    >>> any(x is framework_of for x in reachable([framework_of]))
    True
    """
    found, seen = [f], {id(f)}
    for each in found:  # grows during the loop
        yield each
        for inner in itertools.islice(_referenced_by(each), max(_MOST - len(found), 0)):
            if type(inner) not in PLAIN and id(inner) not in seen:
                seen.add(id(inner))
                found.append(inner)


def _referenced_by(x: object) -> Iterator[Any]:
    if isinstance(x, types.FunctionType):
        if str(x.__module__).partition(".")[0] in _LIBRARIES:
            return
        yield from map(cell_value, x.__closure__ or ())
        codes = [x.__code__]
        for code in codes:  # grows during the loop
            codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
            yield from (x.__globals__[name] for name in code.co_names if name in x.__globals__)
        yield from x.__defaults__ or ()
    elif isinstance(x, functools.partial):
        yield from (x.func, *x.args, *x.keywords.values())
    elif isinstance(x, types.MethodType):
        yield from (x.__func__, x.__self__)
    elif isinstance(x, dict):
        yield from x.values()
    elif isinstance(x, list | tuple):
        yield from x
    elif isinstance(x, types.ModuleType | type):
        return
    elif type(x).__module__.partition(".")[0] in _LIBRARIES - {"torch"}:
        yield getattr(x, "__wrapped__", None)
    elif _library_of(x) in ("", "torch"):  # an object of the user's, a decorated function, or a model
        parts = getattr(x, "__dict__", None)
        yield from parts.values() if type(parts) is dict else ()
        if isinstance(vars(type(x)).get("__call__"), types.FunctionType):
            yield type(x).__call__
