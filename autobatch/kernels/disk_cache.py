"""The on-disk cache of machine code: which files may be read, how they are validated, and how Numba finds them.

The content is executed, so a file is read only if no other user can have written it, and never through a symbolic link.
It is loaded only if the checksum at its start matches its name, its content, the kernel sources and the versions of the
compiler, libraries and CPU. A file that is wrong or unreadable counts as missing.
"""

import contextlib
import functools
import hashlib
import importlib.util
import os
import pathlib
import pickle
import pkgutil
import stat
import sys
import tempfile
import warnings
from typing import Any

import llvmlite
import numba
import numpy as np
from llvmlite import binding, ir
from numba.core import cgutils, registry, serialize
from numba.core.caching import FunctionCache
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen, RuntimeLinker
from numba.core.runtime import rtsys
from numba.extending import overload

import autobatch.kernels

SUFFIX = ".kernel"
_CHECKSUM_BYTES = hashlib.sha256().digest_size
_warned: set[str] = set()


def warn_once(message: str) -> None:
    """Warn, but only once in a process for each message."""
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=2)


def is_trusted(status: os.stat_result) -> bool:
    """True if only this user (or root) could have written the file."""
    return not hasattr(os, "getuid") or (status.st_uid == os.getuid() and not status.st_mode & 0o022)


def read_trusted(path: pathlib.Path) -> bytes | None:
    """The content of a file; None if it cannot be read or others could have written it."""
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, flags)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not (stat.S_ISREG(status.st_mode) and is_trusted(status)):
            warn_once(f"{path} is ignored, as it is not yours, or others can write to it: delete it")
            return None
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    except OSError:
        return None
    finally:
        os.close(descriptor)


def write_atomically(path: pathlib.Path, made: bytes) -> None:
    """Write a file that other processes may read: via a temporary file and a rename. Errors of the disk are ignored."""
    with contextlib.suppress(OSError):
        descriptor, temporary = tempfile.mkstemp(dir=path.parent)  # a random name, for this user only
        try:
            with open(descriptor, "wb") as file:
                file.write(made)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise


@functools.cache
def _sources() -> bytes:
    """The source of the modules in `autobatch.kernels`: a kernel's code contains that of the kernels it calls."""
    found = []
    for each in pkgutil.walk_packages(autobatch.kernels.__path__, "autobatch.kernels."):
        spec: Any = importlib.util.find_spec(each.name)
        found.append(spec.loader.get_data(spec.origin))
    return b"".join(found)


@functools.cache
def environment_digest() -> str:
    """A digest of what, besides its own text, determines a kernel's machine code: versions, CPU and other kernels."""
    cpu = registry.cpu_target.target_context.codegen().magic_tuple()
    digest = hashlib.sha256(repr((sys.version, np.__version__, numba.__version__, llvmlite.__version__, cpu)).encode())
    digest.update(_sources())
    return digest.hexdigest()


def _checksum(name: str, content: bytes) -> bytes:
    return hashlib.sha256(f"{environment_digest()} {name}\n".encode() + content).digest()


def with_checksum(name: str, content: bytes) -> bytes:
    """The content of a cache file: the checksum, then `content`."""
    return _checksum(name, content) + content


def verified_content(name: str, kept: bytes) -> bytes:
    """The content of a cache file without its checksum.

    Raises:
        ValueError: the checksum does not match the name, the content or this environment.
    """
    content = kept[_CHECKSUM_BYTES:]
    if kept[:_CHECKSUM_BYTES] != _checksum(name, content):
        raise ValueError(f"{name} is damaged: its checksum does not match")
    return content


def prepare_loading(context: object) -> None:
    """Register with LLVM the symbols that cached code may use: Numba's runtime for memory, and its hash secrets.

    Numba itself would call `context.refresh()`, which imports everything it can compile, such as SciPy support and
    extensions of other libraries. That takes half a second, and is needed only for compiling, which still does it.
    """
    rtsys.initialize(context)
    importlib.import_module("numba.cpython.hashing")


def _called(library: Any) -> list[Any]:
    """A function and all that it calls; what is called comes first."""
    order: dict[Any, None] = {}

    def visit(each: Any) -> None:
        entered.add(each)
        for called in each._linking_libraries:
            if called not in entered:
                visit(called)
        order[each] = None

    entered: set[Any] = {rtsys.library}  # whose functions are there where the code is loaded
    visit(library)
    return list(order)


def objects_of(library: Any) -> dict[str, bytes]:
    """The object code of all large functions of the library that a function calls, by name."""
    return {name: code for each in _called(library) for name, code in each.objects.items()}


def linked(library: Any) -> Any:
    """The LLVM module of a function and of all that it calls.

    Functions may call each other in a circle. Numba calls the one of them that is not compiled yet through a variable
    that it sets in this process only; here the variable is a constant.

    Raises:
        TypeError: one of them is not compiled.
    """
    parts = [each._get_module_for_linking() for each in _called(library)]
    prefix, address = RuntimeLinker.PREFIX, ir.IntType(8).as_pointer()
    names = {each.name for part in parts for each in part.global_variables if each.name.startswith(prefix)}
    definitions = ir.Module()
    for name in sorted(names):
        function = ir.Function(definitions, ir.FunctionType(ir.VoidType(), ()), name.removeprefix(prefix))
        variable = ir.GlobalVariable(definitions, address, name)
        variable.initializer, variable.global_constant = function.bitcast(address), True
    linked = library._final_module.clone()
    for part in (binding.parse_assembly(str(definitions)), *parts[-2::-1]):  # what is not used yet would be dropped
        linked.link_in(part, preserve=True)
    for name in names:
        if linked.get_function(name.removeprefix(prefix)).is_declaration:
            raise TypeError(f"{name} is not compiled")
        linked.get_global_variable(name).linkage = "internal"
    return linked


def _refuse_shapes(source, target):
    """In place of Numba's function, for which it compiles 30 others, on strings: nobody reads the message."""
    raise ValueError("the shapes differ")


overload(_refuse_shapes)(lambda source, target: _refuse_shapes)


def drop_shape_messages() -> None:
    """Have Numba compile code that says only that shapes differ."""
    arrays: Any = importlib.import_module("numba.np.arrayobj")  # a third of Numba's own import
    arrays.raise_with_shape_context = _refuse_shapes


COUNTS = "NRT_incref", "NRT_decref", "NRT_MemInfo_data_fast"
_RESHAPE, _ALLOCATE = "numba_attempt_nocopy_reshape", "NRT_MemInfo_alloc_aligned"
_HEAD = 6  # words of an array's memory before its numbers; the first counts its users, the fourth points at them


def _inlined() -> Any:
    """An LLVM module with functions of Numba's run time, to be inlined.

    The users of an array are counted by plain additions. An array is given another shape if it is contiguous; else
    that is refused. The head of a new array is written by plain stores; Numba's wait for all stores before.
    """
    module = ir.Module()
    _add_reshape(module)
    _add_allocate(module)
    word, info = ir.IntType(64), ir.IntType(8).as_pointer()
    takes = ir.FunctionType(ir.VoidType(), [info])
    free = ir.Function(module, takes, "NRT_MemInfo_call_dtor")
    data = ir.Function(module, ir.FunctionType(info, [info]), COUNTS[2])
    counts = {ir.Function(module, takes, name): step for name, step in zip(COUNTS[:2], (1, -1), strict=True)}
    for function in (data, *counts):
        function.linkage = "linkonce_odr"
        function.attributes.add("alwaysinline")
    for function, step in counts.items():
        builder, (given,) = ir.IRBuilder(function.append_basic_block()), function.args
        with builder.if_then(builder.icmp_unsigned("!=", given, info(None))):
            place = builder.bitcast(given, word.as_pointer())
            count = builder.add(builder.load(place, typ=word), word(step))
            builder.store(count, place)
            if step < 0:
                with builder.if_then(builder.icmp_unsigned("==", count, word(0))):
                    builder.call(free, [given])
        builder.ret_void()
    builder, (given,) = ir.IRBuilder(data.append_basic_block()), data.args
    fields = builder.bitcast(given, info.as_pointer())
    builder.ret(builder.load(builder.gep(fields, [word(3)], source_etype=info), typ=info))
    return module


def _add_allocate(module: Any) -> None:
    word, memory = ir.IntType(64), ir.IntType(8).as_pointer()
    found = ir.Function(module, ir.FunctionType(memory, [word]), "NRT_Allocate")
    function = ir.Function(module, ir.FunctionType(memory, [word, ir.IntType(32)]), _ALLOCATE)
    function.linkage = "linkonce_odr"
    function.attributes.add("alwaysinline")
    builder = ir.IRBuilder(function.append_basic_block())
    size, align = function.args[0], builder.zext(function.args[1], word)  # a power of two
    before = builder.add(align, word(8 * _HEAD - 1))
    made = builder.call(found, [builder.add(size, builder.add(before, align))])
    with builder.if_then(builder.icmp_unsigned("!=", made, memory(None))):
        head = builder.bitcast(made, word.as_pointer())
        first = builder.and_(builder.add(builder.ptrtoint(made, word), before), builder.neg(align))
        for k, value in enumerate((word(1), word(0), word(0), first, size, word(0))):
            builder.store(value, builder.gep(head, [word(k)], source_etype=word))
    builder.ret(made)


def _add_reshape(module: Any) -> None:
    number, word = ir.IntType(32), ir.IntType(64)
    words = word.as_pointer()
    takes = ir.FunctionType(number, [word, words, words, word, words, words, word, number])
    function = ir.Function(module, takes, _RESHAPE)
    function.linkage = "linkonce_odr"
    function.attributes.add("alwaysinline")
    rank, sizes, strides, new_rank, new_sizes, new_strides, item_size, _ = function.args
    builder = ir.IRBuilder(function.append_basic_block())

    def at(array: Any, place: Any) -> Any:
        return builder.gep(array, [place], source_etype=word)

    def walk(rank: Any, sizes: Any, visit: Any) -> Any:
        """Call `visit(place, size, stride)` for each dimension of a contiguous array, the last one first."""
        stride = cgutils.alloca_once_value(builder, item_size)
        with cgutils.for_range(builder, rank) as loop:
            place = builder.sub(builder.sub(rank, loop.index), word(1))
            size = builder.load(at(sizes, place), typ=word)
            expected = builder.load(stride, typ=word)
            visit(place, size, expected)
            builder.store(builder.mul(expected, size), stride)
        return builder.load(stride, typ=word)

    ok = cgutils.alloca_once_value(builder, number(1))

    def check(place: Any, size: Any, expected: Any) -> None:
        is_other = builder.icmp_unsigned("!=", builder.load(at(strides, place), typ=word), expected)
        with builder.if_then(builder.and_(builder.icmp_signed(">", size, word(1)), is_other)):
            builder.store(number(0), ok)

    bytes_in_all = walk(rank, sizes, check)
    walk(new_rank, new_sizes, lambda place, size, stride: builder.store(stride, at(new_strides, place)))
    is_empty = builder.zext(builder.icmp_unsigned("==", bytes_in_all, word(0)), number)
    builder.ret(builder.or_(builder.load(ok, typ=number), is_empty))


class _Whole(JITCodeLibrary):
    """A function with all that it calls, whose arrays only the thread sees that makes them.

    So their users are counted by plain additions. Numba's are atomic, and took a quarter of a gradient's time.
    """

    def add_llvm_module(self, ll_module: binding.ModuleRef) -> None:
        self._final_module.link_in(ll_module)

    def _optimize_final_module(self) -> None:
        codegen, module = self._codegen, self._final_module

        def run(**options: object) -> None:
            made = codegen._module_pass_manager(**options)
            manager, *builder = made if isinstance(made, tuple) else (made,)  # alone before Numba 0.62
            manager.run(module, *builder)

        # as Numba does it, which drops pairs of counts that it knows by their names, before they are inlined
        run(loop_vectorize=codegen._loopvect, slp_vectorize=False, opt=codegen._opt_level, cost="cheap")
        module.link_in(binding.parse_assembly(str(_inlined())))
        for function in module.functions:
            if function.name in (*COUNTS, _RESHAPE, _ALLOCATE) and not function.is_declaration:
                function.linkage = "internal"
        run()

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        if self._dynamic_globals:
            raise TypeError(f"{self.name} holds addresses of this process")
        self._compiled_object = self._codegen._tm.emit_object(self._final_module)
        self._finalized = True


def whole_library(name: str, module: Any) -> Any:
    """The library of an LLVM module, with its object code; TypeError if it holds addresses of this process."""
    library = _Whole(registry.cpu_target.target_context.codegen(), name)
    library.enable_object_caching()
    library.add_llvm_module(module)
    library.finalize()
    return library


class MachineCodeCache(FunctionCache):
    """A Numba function's cache of machine code on disk, with one file for each tuple of argument types.

    It uses the folder of Numba's own cache, which it replaces: that one has a single index file, which two processes
    may write at once, loads files unchecked, and raises if the disk is full.
    """

    def __init__(self, function: Any, options: str) -> None:
        super().__init__(function)
        self._options = options

    def _file_name(self, sig: object) -> str | None:
        shown = repr(sig)
        if " at 0x" in shown:  # the address of an object in this process
            return None
        code, cells = self._py_func.__code__, self._py_func.__closure__ or ()
        # closures of the same code differ by the values they hold, as in Numba's own cache
        held = serialize.dumps(tuple([cell.cell_contents for cell in cells]))
        source = self._impl.locator.get_source_stamp()
        library = JITCPUCodegen._library_class.__name__
        made_of = (shown, self._options, library, source, code.co_code.hex(), repr(code.co_names), held)
        return f"{self._impl.filename_base}-{hashlib.sha256(repr(made_of).encode()).hexdigest()[:16]}{SUFFIX}"

    def load_overload(self, sig: object, target_context: object) -> Any:
        """The cached code for these argument types; None if there is no valid file."""
        prepare_loading(target_context)
        name = self._file_name(sig)
        with contextlib.suppress(Exception):
            if name is not None and (kept := read_trusted(pathlib.Path(self.cache_path, name))) is not None:
                return self._impl.rebuild(target_context, pickle.loads(verified_content(name, kept)))
        return None

    def save_overload(self, sig: object, data: Any) -> None:
        """Write the compiled code for these argument types to the cache, if possible."""
        name = self._file_name(sig)
        if hasattr(data.library, "close"):
            data.library.close(data)
        if name is not None and self._impl.check_cachable(data):
            with contextlib.suppress(OSError):
                self._impl.locator.ensure_cache_path()
                content = with_checksum(name, serialize.dumps(self._impl.reduce(data)))
                write_atomically(pathlib.Path(self.cache_path, name), content)
