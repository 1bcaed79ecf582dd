"""autobatch: write a model for one example, run it over a whole batch, with the results and gradients of the loop.

Importing the package imports nothing else; the first access to a public name imports all of `autobatch/public.py`. So
programs that may not need it, and tools that only inspect it, start at once.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0"


if TYPE_CHECKING:
    from autobatch.public import *  # noqa: F403
    from autobatch.public import __all__ as __all__
    from autobatch.segments import *  # noqa: F403 - the names of both are importable from here, too
    from autobatch.tables import *  # noqa: F403
    from autobatch.tables.representations import *  # noqa: F403 - type checkers do not evaluate `__all__ +=`
    from autobatch.tables.segments import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        """A public name or a sub-package; the first access puts all public names into this module."""
        if name[:2] == "__" and name != "__all__":
            raise AttributeError(f"module 'autobatch' has no attribute {name!r}", name=name)
        public = importlib.import_module("autobatch.core.memory").import_whole("autobatch.public")
        here = globals()
        here |= {each: vars(public)[each] for each in ("__all__", *public.__all__) if each in vars(public)}
        here |= {each: getattr(public.segments, each) for each in public.segments.__all__}
        here["__getattr__"] = public.hiding_frames(getattr(__getattr__, "__wrapped__", __getattr__))
        return here[name] if name in here else here.setdefault(name, getattr(public, name))


def __dir__() -> list[str]:
    return ["__version__", *importlib.import_module("autobatch.public").__all__]
