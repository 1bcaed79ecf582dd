"""The library's functions in compiled kernels: each is compiled once on a machine, not again in each kernel.

Numba links the code of all that a kernel calls into it. Of a gradient's kernel, four fifths were the library's own
functions, such as the walk along the tape: without the large ones it compiles in half of the time. These are object
code of their own, under names that do not depend on the process.
"""

import contextlib
import hashlib
import pathlib
import pickle
import re
from collections.abc import Iterable
from typing import Any

from llvmlite import binding

from autobatch.kernels import disk_cache

_LARGE = 1000  # lines of LLVM code before it is optimised; calls of shorter ones are inlined, or a step takes 1.4 times
_NAME = r'@("[^"]+"|[-\w.$]+)'
_ITEM = re.compile(rf"^(?:define [^@]*{_NAME}\(.*?^\}}|{_NAME} = [^\n]*)\n", re.MULTILINE | re.DOTALL)
_IS_KERNEL = re.compile(r"define (?!linkonce|internal)")
_IS_LIBRARY = re.compile(r"_ZN9autobatch7kernels(?!.*locals)")  # Numba's spelling; an enclosed function may hold values
_COUNTER = re.compile(r"B\d+v\d+")  # Numba's number of a function, another in each process


def compiled_apart(linked: binding.ModuleRef, folder: pathlib.Path | None, objects: dict[str, bytes]) -> Any:
    """A kernel's LLVM module, in which large functions of the library are only declared.

    Args:
        linked: the kernel's module, with all that it calls.
        folder: where object code is cached.
        objects: takes the object code of each function of the library that is needed, by name.
    """
    code = _LinkedCode(str(linked))
    module, left = code.module(name for name, item in code.items.items() if _IS_KERNEL.match(item))
    for name in left:  # which grows
        if name not in objects:
            objects[name], calls = _cached(name, folder) or _compiled(name, code, folder)
            binding.add_symbol(name, 1)  # nothing runs in this process, but what is called must have an address
            left += calls
    return module


def _cached(name: str, folder: pathlib.Path | None) -> tuple[bytes, list[str]] | None:
    """The object code of a function, and the names of what it calls; None if it is not on disk."""
    found = folder and disk_cache.read_trusted(folder / (name + disk_cache.SUFFIX))
    with contextlib.suppress(ValueError):  # it is damaged
        return pickle.loads(disk_cache.verified_content(name, found)) if found else None
    return None


def _compiled(name: str, code: "_LinkedCode", folder: pathlib.Path | None) -> tuple[bytes, list[str]]:
    module, calls = code.module([name])
    module.get_function(name).linkage = "external"
    for each in calls:
        binding.add_symbol(each, 1)
    made = disk_cache.whole_library(name, module).serialize_using_object_code()[2][0], calls
    if folder is not None:
        content = disk_cache.with_checksum(name, pickle.dumps(made))
        disk_cache.write_atomically(folder / (name + disk_cache.SUFFIX), content)
    return made


class _LinkedCode:
    """The LLVM code of a kernel and of all that it calls.

    Attributes:
        items: the definitions of functions and variables, by name.
        large: names of large functions of the library; each is that of its object code.
    """

    def __init__(self, text: str) -> None:
        items = {found[1] or found[2]: found[0] for found in _ITEM.finditer(text)}
        self._rest, digest = _ITEM.sub("", text), disk_cache.environment_digest()
        large = {
            name: "autobatch_" + hashlib.sha256((digest + _COUNTER.sub("", name)).encode()).hexdigest()[:32]
            for name, item in items.items()
            if _IS_LIBRARY.match(name) and item.count("\n") > _LARGE
        }
        self.large = set(large.values())  # a function is there twice if two processes compiled it
        self.items = {
            large.get(name, name): re.sub(_NAME, lambda found: "@" + large.get(found[1], found[1]), item)
            for name, item in items.items()
        }

    def module(self, names: Iterable[str]) -> tuple[binding.ModuleRef, list[str]]:
        """The LLVM module of functions and what they use, and the names of the object code that they call."""
        parts, calls, left = [self._rest], [], list(names)
        seen = set(left)
        for name in left:  # which grows
            parts.append(self.items[name])
            for other in set(re.findall(_NAME, self.items[name])) & self.items.keys() - seen:
                seen.add(other)
                if other in self.large:
                    calls.append(other)
                    head = self.items[other].partition("{\n")[0].replace("define linkonce_odr ", "declare ")
                    parts.append(re.sub(rf" %{_NAME[1:]}(?=[,)])", "", head).rpartition(")")[0] + ")\n")
                else:
                    left.append(other)
        return binding.parse_assembly("".join(parts)), calls
