"""The module that Numba compiles for gradients: a program's functions with a tape, and the loop over the examples.

Each number of an argument that is differentiated is a leaf. Its place on the tape follows from where it lies in the
packed arrays, those of shared arguments first. For each example the function runs and records, then the cotangents of
its result go in and the tape is walked back. The tape is then used again, so it never holds more than one example. For
shared arguments its first adjoints are summed over the examples, unless `each_shared` has a row for each.
"""

import dataclasses
from collections.abc import Sequence

from autobatch.compiled.module import FIRST_PARAMETERS, HEAD, KernelLoop, Module, numba_array
from autobatch.compiled.taping.tape_writer import SEED, Shadows
from autobatch.compiled.translation.exact_types import INT
from autobatch.compiled.translation.source_program import Instance, Lines
from autobatch.compiled.value_layout import leaves as packed_leaves
from autobatch.errors import Unsupported

TAPE = """\
from autobatch.kernels.compiled_code.gradient_tape import *
from autobatch.kernels.compiled_code.tape_walk import *
"""


@dataclasses.dataclass(eq=False)
class TapedModule:
    """The source text of a module for gradients, for one kind of examples.

    Attributes:
        leaves: the packed arrays whose elements are leaves, in the order of their places.
        shared: how many of these arrays belong to shared arguments; they come first.
        tables: the packed arrays that are the weights of differentiated tables, in the order of their numbers.
        real: the dtype of the tape: float32 if all numbers that carry a gradient are, else float64.
        seeded: the arrays of results that have cotangents; the others are constant.
        dtypes: of all arrays of results.
    """

    text: str
    leaves: tuple[int, ...]
    shared: int
    tables: tuple[int, ...]
    real: str
    seeded: tuple[int, ...]
    dtypes: tuple[str, ...]


def write_taped(module: Module, differentiated: Sequence[bool]) -> TapedModule:
    """Write the module for gradients with respect to some of the arguments.

    Raises:
        Unsupported: these gradients have no compiled form.
    """
    program, root = module.program, module.root
    if program.writes:
        raise root.refusal(f"{root.function.__qualname__} changes an argument")
    kernel = KernelLoop.of(program, root, module.varying, taped=True)
    tables = kernel.loader.tables
    *leaves, looked_up = _leaves(module, differentiated, frozenset(tables))
    if not all(tables[leaf] for leaf in looked_up):
        raise Unsupported("a gradient with respect to tables in a list is not compiled")
    loop: Lines = [
        "clear_flags()",
        "start_tape(tape, i)",
        *kernel.loop,
        "if float_flags() != 0:",
        ["ok = False"],
        "if is_short(tape):",
        ["if not is_longest:", ["status[n] = 1", "break"], "ok = False"],
        "if not ok:",
        ["status[i] = 1", *kernel.undo],
        "else:",
        [SEED],
    ]
    body: Lines = [*kernel.start(), "for i in range(n):", loop, "clear_flags()", kernel.end()]
    counters = [f"{name}{leaf}" for leaf in range(len(kernel.writer.dtypes)) for name in ("used", "kept")]
    kinds = {**kernel.loader.kinds, **dict.fromkeys(counters, INT), "result": module.result}
    own = (*leaves[0], *leaves[1])
    names = [f"in{leaf}" for leaf in own]
    parameters = [*FIRST_PARAMETERS, *kernel.parameters(program)]
    lines = Instance("kernel", root.function, (), body=body, variables=kinds)
    shadows = Shadows(program, lines, [name for name, _ in parameters], names, [tables[leaf] for leaf in looked_up])
    if any(kernel.loader.dtypes[leaf] != "float32" for leaf in own):
        shadows.real = "float64"
    real = shadows.real
    seeded = tuple(int(name[3:]) for name in shadows.seeds())
    if not seeded:
        raise root.refusal(f"the result of {root.function.__qualname__} does not depend on what is differentiated")
    shadows.kernel.seeding = [
        *(f"seed(tape, out{k}_p[kept{k}:used{k}], cotangents{k}, starts{k}[i])" for k in seeded),
        "walk(tape)",
        "if each_shared.size > 0:",
        ["move_shared(tape, each_shared[i])"],
    ]
    parameters += [("tape_at", "types.int64"), ("is_longest", "types.boolean"), ("each_shared", numba_array(real, 2))]
    for k in seeded:
        parameters += [(f"cotangents{k}", numba_array("float64")), (f"starts{k}", numba_array("int64"))]
    start: Lines = [f"tape = tape_at, {real}(0)", "leaf = int64(1)"]
    for name in names:
        start += [f"{name}_p = places_from(tape, leaf, {name}.size)", f"leaf += {name}.size"]
    written = kernel.text(program, parameters, [*start, *shadows.kernel.body()])  # first: it finds containers to make
    text = f"{HEAD}{TAPE}\nreal = {real}\n\n{program.makers()}{shadows.text()}"
    dtypes = tuple(kernel.writer.dtypes)
    return TapedModule(text + written, own, len(leaves[0]), tuple(looked_up), real, seeded, dtypes)


def _leaves(module: Module, differentiated: Sequence[bool], tables: frozenset[int]) -> tuple[list[int], ...]:
    """The packed arrays of floats of differentiated arguments: of shared ones, of those that differ by example, tables.

    Raises:
        Unsupported: a table differs by example.
    """
    shared: list[int] = []
    own: list[int] = []
    looked_up: list[int] = []
    first = 0
    for kind, is_varying, is_wanted in zip(module.root.kinds, module.varying, differentiated, strict=True):
        dtypes = packed_leaves(kind)
        if is_wanted:
            found = [first + k for k, dtype in enumerate(dtypes) if dtype.startswith("float")]
            mine = tables.intersection(found)
            if mine and is_varying:
                raise Unsupported("a gradient with respect to a table of each example is not compiled")
            (own if is_varying else shared).extend(leaf for leaf in found if leaf not in mine)
            looked_up += sorted(mine)
        first += len(dtypes)
    return shared, own, looked_up
