"""autobatch: write a model for one example, run it over a whole batch, with the results and gradients of the loop.

Importing the package imports nothing else; the first access to a public name imports all of `autobatch/public.py`. So
programs that may not need it, and tools that only inspect it, start at once.
"""

import gc
import importlib
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0"


def _import_whole(name: str) -> Any:
    """Import a module that imports Numba, whole or not at all: Numba cannot be imported from where it was left.

    A Ctrl-C takes effect at the end. Anything else that is raised removes the modules that are new, so that the
    next import begins anew. Garbage collection is off: the modules' objects stay alive, and collections over
    them, and Numba's, took a third of the time.
    """
    import signal  # noqa: PLC0415  (these two are not needed by who only imports the package)
    import threading  # noqa: PLC0415

    known, collecting = set(sys.modules), gc.isenabled()
    handler: Any = signal.getsignal(signal.SIGINT)
    interrupts: list[Any] = []
    defers = callable(handler) and threading.current_thread() is threading.main_thread()
    if defers:
        signal.signal(signal.SIGINT, lambda *given: interrupts.append(given))
    gc.disable()
    try:
        return importlib.import_module(name)
    except BaseException:
        for each in sys.modules.keys() - known:
            package = each.partition(".")[0]
            if package not in sys.stdlib_module_names and package != "numpy":  # which loads once in a process
                del sys.modules[each]
        raise
    finally:
        if collecting:
            gc.enable()
        if defers:
            signal.signal(signal.SIGINT, handler)
            if interrupts:
                handler(*interrupts[0])


if TYPE_CHECKING:
    from autobatch.public import *  # noqa: F403
    from autobatch.public import __all__ as __all__
    from autobatch.tables.representations import *  # noqa: F403 - type checkers do not evaluate `__all__ +=`
    from autobatch.tables.segments import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        """A public name or a sub-package; the first access puts all public names into this module."""
        if name[:2] == "__" and name != "__all__":
            raise AttributeError(f"module 'autobatch' has no attribute {name!r}")
        public = _import_whole("autobatch.public")
        here = globals()
        here["__all__"] = public.__all__
        here |= {each: vars(public)[each] for each in public.__all__ if each in vars(public)}
        if name not in here:
            here[name] = getattr(public, name)
        return here[name]


def __dir__() -> list[str]:
    return ["__version__", *importlib.import_module("autobatch.public").__all__]
