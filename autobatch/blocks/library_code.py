"""What compiled kernels call: functions of the library are compiled once on a machine, not again in each kernel.

Numba links the code of all that a kernel calls into it. Of a gradient's kernel, four fifths were the library's own
functions, such as the walk along the tape: without these it compiles in half of the time.
"""

from typing import Any

from llvmlite import binding, ir
from llvmlite.ir.instructions import CallInstr, Ret
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.compiler_lock import global_compiler_lock

from autobatch.kernels.disk_cache import COUNTS, drop_shape_messages, linked, objects_of, prepare_loading, whole_library

_LARGE = 1000  # instructions before they are optimised; calls of shorter functions are inlined: a step took 1.4 times


class _Part(JITCodeLibrary):
    """A compiled function that is only linked into another, which makes machine code of all.

    Attributes:
        objects: the object code of large functions of the library that it calls, by name.
        size: how many instructions it has before it is optimised.
    """

    def __init__(self, codegen: JITCPUCodegen, name: str) -> None:
        super().__init__(codegen, name)
        self.objects: dict[str, bytes] = {}
        self.size = 0

    def add_ir_module(self, ir_module: ir.Module) -> None:
        for block in (block for each in ir_module.functions for block in each.blocks):
            self.size += len(block.instructions)
            calls = [each for each in block.instructions if isinstance(each, CallInstr)]
            released = [each for each in calls if getattr(each.callee, "name", "") == COUNTS[1]]
            # seldom, each guard of a long function returns so: half of its code, if that is inlined. It was a step's
            # twenty-fifth where the few arrays of short functions are, too.
            if isinstance(block.terminator, Ret) and len(released) > 3:
                for each in released:
                    each.attributes.add("noinline")
        super().add_ir_module(ir_module)

    def add_llvm_module(self, ll_module: binding.ModuleRef) -> None:
        self._optimize_functions(ll_module)  # here, once, and not in each of its callers
        self._final_module.link_in(ll_module)

    def finalize(self) -> None:
        self._finalized = True

    def serialize_using_object_code(self) -> tuple[str, bytes, dict[str, bytes]]:
        return self.name, self._final_module.as_bitcode(), self.objects

    @classmethod
    def _unserialize(cls, codegen: Any, state: tuple[str, bytes, dict[str, bytes]]) -> Any:
        out = codegen.create_library(state[0])
        out._final_module, out.objects = binding.parse_bitcode(state[1]), state[2]
        out.finalize()
        return out

    def close(self, made: Any) -> None:
        """Link in what a function of the library calls, under names that no other part has; if it is large, keep only
        its declaration, and its object code."""
        name, module = made.fndesc.llvm_func_name, linked(self)
        for each in module.functions:
            if not each.is_declaration and each.name != name:
                each.linkage = "internal"
        self.objects = objects_of(self)
        if self.size > _LARGE:
            self.objects[name] = whole_library(name, module)._get_compiled_object()
            declared = ir.Module()
            made.target_context.declare_function(declared, made.fndesc)
            module = binding.parse_assembly(str(declared))
        self._final_module, self._shared_module = module, None
        self._linking_libraries.clear()


def compiled_whole(dispatcher: Any, signature: Any) -> tuple[Any, dict[str, bytes]]:
    """A function together with all that it calls, as a `CompileResult`, and the object code of large functions of the
    library that it calls, by name; in a process that runs none of them.

    Numba would optimise each function, and make machine code of it, with all that it calls, and so again in each of
    its callers. Here this is done once, which takes half of the time.
    """
    context, standard = dispatcher.targetctx, JITCPUCodegen._library_class
    prepare_loading(context)
    drop_shape_messages()
    codegen = context.codegen()
    with global_compiler_lock:
        JITCPUCodegen._library_class = _Part
        codegen.set_env = context.create_cfunc_wrapper = lambda *given, **named: None  # Python and C call no part
        try:
            dispatcher.compile(signature)
        finally:
            JITCPUCodegen._library_class = standard
            del codegen.set_env, context.create_cfunc_wrapper
        made = dispatcher.overloads[signature.args]
        library = whole_library(f"{made.library.name}_whole", linked(made.library))
        return made._replace(library=library), objects_of(made.library)
