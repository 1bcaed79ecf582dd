"""Explains why a line is slow and advises what to write instead, from its measured figures and its source."""

import ast
from typing import NamedTuple

from autobatch.errors import Reason
from autobatch.report.line_profile import Figures
from autobatch.report.source_lines import Source

Advice = tuple[str, str]
_MANY_STEPS = 8  # launches of one line from which on advice is given
_COMPILED = 'try ab.options(way="compiled"): compiled code has no overhead between operations'
_CHEAP = "an example takes so little that running several together would cost more than it saves"
_ONE_BY_ONE = "each example runs it by itself, and each operation has Python's overhead"


class Facts(NamedTuple):
    """Facts about the whole call.

    Attributes:
        way: the execution mode, in words; examples: how many it had, 0 if not known.
        refusals: {mode: why it cannot run this}.
        batched: it was given batches; mend: what keeps lock-step from running it, and what to write, "" for nothing.
        slower: the modes that have cost more than the one that ran; untried: those that may yet run.
        calls, launches: of all recorded or batched operations.
        mapped: False if examples were run by the user's own loop; numeric: steps on single numbers, better compiled.
        cheap: the loop takes less for an example than other modes add to one.
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
    cheap: bool = False

    @property
    def lock_step(self) -> str:
        """Advice on how to run a line in lock-step; "" if it did, or cannot."""
        if self.mend or self.cheap:
            return self.mend
        if not self.mapped:
            return "give all examples to one call, ab.map(model, examples, params=params): it runs equal ones together"
        refused = self.refusals.get("lock-step") or "lock-step" in self.slower
        if self.batched or self.numeric or self.way == "lock-step" or refused:
            return ""
        return "give a batch, f(ab.collate(examples), …): lock-step runs each step once for all examples, of any length"

    def other_mode(self) -> str:
        """Advice for overhead that is the mode's own, not a line's; "" if no other mode may have less."""
        compiled = self.mapped and not self.cheap and "compiled" in self.untried and not self.refusals.get("compiled")
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
    if waits:
        return _wait_advice(node, waits, facts)
    if not expensive:
        return "", ""
    loops = source.enclosing_loops(node)
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
        return "it runs once for all examples; its time is arithmetic, and making the results", ""
    return (_CHEAP if facts.cheap else _ONE_BY_ONE), facts.other_mode()


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
    return (_CHEAP if facts.cheap else "Python takes each example and keeps its result"), facts.other_mode()


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
        return f"it cannot be compiled: {refused.placed}", refused.instead
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
        if not figures.last and isinstance(node, ast.Assign):  # a block computes ahead what it can by itself
            return why, "compute what does not depend on the previous step for all steps at once, before the loop"
        if isinstance(node, ast.If) and all(isinstance(x, ast.Assign | ast.AugAssign) for x in node.body + node.orelse):
            return why, "choose with np.where, np.maximum or the like: examples of different branches run separately"
    if 0 < facts.examples < 128:  # examples from which on the work of a step exceeds its overhead
        return why or f"{facts.examples} examples share what each step costs", "give more examples to one call"
    return why, ""
