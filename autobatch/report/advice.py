"""Explains why a line is slow and advises what to write instead, from its measured figures and its source."""

import ast
import dataclasses
from collections.abc import Callable, Iterator

from autobatch.errors import Reason
from autobatch.facts.numpy_functions import WHOLE_ARRAYS
from autobatch.program.scopes import target_names
from autobatch.report.line_profile import Figures
from autobatch.report.source_lines import Source, enclosing_loops, names_read, names_written

Advice = tuple[str, str]
_MANY_STEPS = 8  # launches of one line from which on advice is given
_COMPILED = 'try ab.options(way="compiled"): compiled code has no overhead between operations'


@dataclasses.dataclass(frozen=True)
class Facts:
    """Facts about the whole call.

    Attributes:
        way: the execution mode, in words; examples: how many it had, 0 if not known.
        refusals: {mode: why it cannot run this}.
        batched: it was given batches; mend: what keeps lock-step from running it, and what to write, "" for nothing.
        slower: the modes that have cost more than the one that ran; untried: those that may yet run.
        calls, launches: of all recorded or batched operations.
        mapped: False if examples were run by the user's own loop; numeric: steps on single numbers, better compiled.
    """

    way: str
    examples: int
    refusals: dict[str, Reason]
    batched: bool = False
    mend: str = ""
    slower: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()
    calls: int = 0
    launches: int = 0
    mapped: bool = True
    numeric: bool = False

    @property
    def lock_step(self) -> str:
        """Advice on how to run a line in lock-step; "" if it did, or cannot."""
        if self.mend:
            return self.mend
        if not self.mapped:
            return "give all examples to one call, ab.map(model, examples, params=params): it runs equal ones together"
        refused = self.refusals.get("lock-step") or "lock-step" in self.slower
        if self.batched or self.numeric or self.way == "lock-step" or refused:
            return ""
        return "give a batch, f(ab.collate(examples), …): lock-step runs each step once for all examples, of any length"

    def other_mode(self) -> str:
        """Advice for overhead that is the mode's own, not a line's; "" if no other mode may have less."""
        compiled = self.mapped and "compiled" in self.untried and not self.refusals.get("compiled")
        return "; or ".join(filter(None, (self.lock_step, _COMPILED if compiled else "")))


def advice(
    source: Source,
    line: int,
    figures: Figures,
    facts: Facts,
    waits: int = 0,
    notes: tuple[Reason, ...] = (),
    expensive: bool = True,
) -> Advice:
    """(reason, what to write instead) for a line; "" where there is nothing to say.

    Args:
        source: the file; line: where the statement begins.
        waits: how often an example's value was needed here; notes: what did not run for all examples at once, and why.
        expensive: it takes enough of the time to speak of how often it runs.
    """
    node = source.statement(line)
    for reason in notes:
        return reason, reason.instead
    if node is None:
        return "", ""
    for found in _pattern_advice(source, node):
        return found
    if waits:
        return _wait_advice(node, waits, facts)
    if not expensive:
        return "", ""
    loops = enclosing_loops(source, node)
    if facts.way == "tracing":
        return _tracing_advice(figures, facts, bool(loops) or isinstance(node, ast.For | ast.While))
    if facts.way == "lock-step":
        return _lockstep_advice(node, loops, figures, facts)
    if facts.way == "the loop" and figures.runs >= _MANY_STEPS:
        return _loop_advice(figures, facts)
    return "", ""


def mended(reason: Reason) -> str:
    """What to do about a line that keeps a function from running batched."""
    better = reason.instead or "write it with arrays: np.where, or a lookup in an array"
    return f"line {reason.where and reason.where[1]} cannot run batched: {reason}; {better}"


def general_advice(figures: Figures, facts: Facts) -> Advice:
    """For the line with the largest share, where nothing is known about its statement."""
    if facts.way == "compiled":
        return "single lines of compiled code are not timed", ""
    if facts.way == "tracing":
        each = f"{figures.calls:,} calls are recorded one by one" if figures.calls else "once or more for each example"
        return f"{each}; that takes as long for a small array as for a large one", _fewer(facts)
    if facts.way == "lock-step":
        return "it runs once for all examples; what it takes is its arithmetic and the making of its results", ""
    return "each example runs it by itself, and each operation has Python's overhead", facts.other_mode()


def overhead(part: str, facts: Facts) -> Advice:
    """(reason, what to do) for time that belongs to no line.

    Args:
        part: "backward", or "library".
    """
    if part == "backward":
        why = "the gradient runs the derivative of each operation, from the last one to the first"
        return why, facts.lock_step or "use fewer, larger operations: compute for all steps at once, before a loop"
    if facts.way == "tracing" and facts.calls:
        many = f"{facts.calls:,} operations were recorded and run in {facts.launches:,} launches"
        return f"{many}; this takes as long for small arrays as for large ones", _fewer(facts)
    if facts.way == "tracing":
        return "nothing was recorded, so nothing runs together", facts.other_mode() or "give arrays as arguments"
    if facts.way == "lock-step":
        return "each call reads its arguments and packs its result", "give more examples to one call"
    if facts.way == "compiled":
        return "each call checks its arguments and packs its result", "collate once, and give more examples to one call"
    return "Python takes each example from the arguments and keeps its result", facts.other_mode()


def _fewer(facts: Facts) -> str:
    return facts.other_mode() or "use fewer, larger operations: compute for all rows of an example at once"


def _tracing_advice(figures: Figures, facts: Facts, looped: bool) -> Advice:
    if figures.launches >= 4 and figures.calls < 4 * figures.launches < 4 * figures.calls:
        why = f"{figures.calls} calls took {figures.launches} launches, since examples differ in shape or in depth here"
        return why, facts.lock_step
    if looped and figures.runs >= 4 * max(facts.examples, 2):
        return f"Python runs it {figures.runs} times, for each step of each example", facts.lock_step
    return "", ""


def _loop_advice(figures: Figures, facts: Facts) -> Advice:
    if 0 < facts.examples < 16:  # examples below which running them together gains little
        why = f"{facts.examples} examples are too few to gain from running together"
        return why, "give more examples to one call"
    refused = facts.refusals.get("compiled")
    if refused is not None and refused.instead:
        return f"Python runs it {figures.runs} times; it cannot be compiled: {refused.placed}", refused.instead
    return "", ""


def _wait_advice(node: ast.stmt, waits: int, facts: Facts) -> Advice:
    why = f"each example waits for a value here ({waits} times), which ends what can be launched together"
    or_batch = f", or {facts.lock_step}" if facts.lock_step and not facts.mend else ""
    if isinstance(node, ast.While):
        return why, "let the number of steps follow from a shape or an id" + or_batch
    if isinstance(node, ast.If):
        return why, "choose with np.where" + or_batch
    return why, "keep it an array: no float(), int(), .item() or print before the end"


def _lockstep_advice(node: ast.stmt, loops: list[ast.For | ast.While], figures: Figures, facts: Facts) -> Advice:
    """Advice for an expensive line in lock-step that runs once per step, or for few examples."""
    rows = figures.calls / figures.launches if figures.launches else facts.examples
    times = f"{figures.launches} launches" if figures.launches > 1 else f"{figures.runs} times"
    each = f", {rows:.0f} rows each" if rows else ""
    why = f"runs once for each step: {times}{each}" if loops else ""
    if facts.numeric:
        return why or "a step on one number costs as much as one on an array", _COMPILED
    if loops and max(figures.launches, figures.runs) >= _MANY_STEPS:
        before = _loop_carried_names(loops[0])
        if not figures.last:  # a block computes what does not depend on the previous step ahead
            for product in ast.walk(node):
                is_product = isinstance(product, ast.BinOp) and isinstance(product.op, ast.MatMult)
                if is_product and not names_read(product) & before:
                    text = ast.unparse(product)
                    return why, f"`{text}` does not depend on the step before: multiply all rows before the loop"
            if isinstance(node, ast.Assign):
                carried = ", ".join(sorted(names_read(node.value) & before))
                what = f"only {carried} comes from the step before; compute the rest" if carried else (
                    f"{', '.join(sorted(names_written(node)))} does not depend on the step before: compute it"
                )  # fmt: skip
                return why, f"{what} for all steps at once, before the loop"
        if isinstance(node, ast.If) and all(isinstance(x, ast.Assign | ast.AugAssign) for x in node.body + node.orelse):
            return why, "choose with np.where, np.maximum or the like: examples of different branches run separately"
    if 0 < facts.examples < 128:  # examples from which on the work of a step exceeds its overhead
        return why or f"{facts.examples} examples share what each step costs", "give more examples to one call"
    return why, ""


def _loop_carried_names(loop: ast.For | ast.While) -> set[str]:
    """The names whose values in a loop step depend on the previous step."""
    bound: set[str] = target_names(loop.target) if isinstance(loop, ast.For) else set()
    all_set = set().union(*[names_written(each) for each in loop.body])
    found: set[str] = set()
    for each in loop.body:
        found |= names_read(each) & all_set - bound
        bound |= target_names(each)
    while True:
        more = set().union(*[names_written(x) for x in ast.walk(loop) if isinstance(x, ast.stmt) and x is not loop
                             and names_read(x) & found])  # fmt: skip
        if more <= found:
            return found
        found |= more


# Patterns in the source that are slow in every mode.


def _pattern_advice(source: Source, node: ast.stmt) -> Iterator[Advice]:
    for each in node.body if isinstance(node, ast.For) else [node]:
        summed = _summed_items(source, each)
        if summed is not None:
            yield summed
    for part in _own_nodes(node):
        if isinstance(part, ast.Call):
            name = ast.unparse(part.func)
            for names, finds in _CALLS:
                if name in names:
                    found = finds(source, node, part, name)
                    if found is not None:
                        yield found
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.MatMult):
            for side in (part.left, part.right):
                if isinstance(side, ast.Call) and ast.unparse(side.func) in ("np.linalg.inv", "numpy.linalg.inv"):
                    better = "np.linalg.solve(a, b) gives inv(a) @ b in a third of the time, and closer"
                    yield "an inverse is made to be multiplied by", better
                if isinstance(side, ast.Call) and ast.unparse(side.func) in ("np.diag", "numpy.diag"):
                    yield "a diagonal matrix is multiplied as a full one", "v[:, None] * m is np.diag(v) @ m"


def _own_nodes(node: ast.stmt) -> Iterator[ast.AST]:
    """The syntax nodes of a statement, without those of nested statements."""
    stack: list[ast.AST] = [node]
    while stack:
        each = stack.pop()
        yield each
        stack += [child for child in ast.iter_child_nodes(each) if not isinstance(child, ast.stmt)]


def _summed_items(source: Source, node: ast.stmt) -> Advice | None:
    """Advice on a loop that sums single items by index, `score = score + table[i, j]`; None if it is none."""
    loops = enclosing_loops(source, node)
    if not loops or not isinstance(loops[0], ast.For):
        return None
    match node:
        case ast.AugAssign(ast.Name(name), ast.Add(), value):
            terms = _terms(value)
        case ast.Assign([ast.Name(name)], value):
            terms = [each for each in _terms(value) if not (isinstance(each, ast.Name) and each.id == name)]
            if len(terms) != len(_terms(value)) - 1:
                return None
        case _:
            return None
    places = target_names(loops[0].target)
    items = [term for term in terms if isinstance(term, ast.Subscript) and names_read(term.slice) & places]
    if not items or len(items) < len(terms) or any(name in names_read(term) for term in items):
        return None
    array = ast.unparse(items[0].value)
    better = f"read them all at once, with arrays of places: {name} = {array}[rows, columns].sum()"
    return "single items are read and added up, step by step", better


def _terms(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*_terms(node.left), *_terms(node.right)]
    return [node]


def _growing_array(source: Source, node: ast.stmt, call: ast.Call, name: str) -> Advice | None:
    loops = enclosing_loops(source, node)
    if not loops or not target_names(node) & names_read(call):
        return None
    grown = ", ".join(sorted(target_names(node) & names_read(call)))
    better = f"append to a list, and write {grown} = np.stack(list) after the loop"
    return f"{name} copies all of {grown} in each step", better


def _lookup_in_loop(source: Source, node: ast.stmt, call: ast.Call, name: str) -> Advice | None:
    loops = enclosing_loops(source, node)
    for_ = next((each for each in loops if isinstance(each, ast.For)), None)
    if for_ is None or len(call.args) < 2 or not names_read(call.args[1]) & target_names(for_.target):
        return None
    return "rows are looked up one by one", "look all of them up before the loop: ab.lookup(table, ids)"


def _python_sum(source: Source, node: ast.stmt, call: ast.Call, name: str) -> Advice | None:
    if len(call.args) == 1 and isinstance(call.args[0], ast.GeneratorExp):
        return f"{name}() runs in Python, value by value", f"make one array of them: np.stack(values).{name}(axis=0)"
    return None


_Finder = Callable[[Source, ast.stmt, ast.Call, str], Advice | None]
_JOINS, _VECTORIZE = (
    {f"{module}.{name}" for module in ("np", "numpy") for name in names.split()}
    for names in ("append concatenate vstack hstack", "vectorize apply_along_axis frompyfunc")
)
_CALLS: list[tuple[set[str], _Finder]] = [
    (_JOINS, _growing_array),
    (_VECTORIZE, lambda source, node, call, name: (f"{name} calls Python for each element", WHOLE_ARRAYS)),
    ({"ab.lookup", "autobatch.lookup"}, _lookup_in_loop),
    ({"sum", "max", "min"}, _python_sum),
]
