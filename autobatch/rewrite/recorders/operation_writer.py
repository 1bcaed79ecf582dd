"""Operations that are no blocks: made with recorded arrays as Python has them, as they are where an example runs."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from autobatch.lazy.array import LazyArray
from autobatch.rewrite.recorders.line_writer import Dead, LineWriter
from autobatch.rewrite.recorders.recorded_kinds import (
    PLAIN,
    Const,
    Listed,
    NodeOrNumber,
    NotCovered,
    Parts,
    RecordedNode,
    RecorderKind,
    Term,
    built,
    constants_of,
    has_any_length,
    is_empty,
)
from autobatch.rewrite.recorders.versions import Misfit, Recipe


def refuse_to_wait(urgent: bool) -> None:
    """What a recorder does where a value is needed.

    Raises:
        Misfit: always.
    """
    raise Misfit


def _called(function: Callable[..., Any], count: int, names: tuple[str, ...], *args: Any) -> Any:
    """A call with so many arguments by position, the others by name."""
    return function(*args[:count], **dict(zip(names, args[count:], strict=True)))


class OperationWriter(LineWriter):
    """Writes calls of operations on recorded arrays."""

    def apply(self, function: Callable[..., Any], args: Sequence[Term], key: Any, **named: Term) -> Term:
        """Call an operation with recorded arrays as Python has them.

        Raises:
            NotCovered: it is not known what it gives.
        """
        for at, arg in enumerate(args):
            if isinstance(arg.kind, NodeOrNumber):
                return self.either(
                    arg,
                    lambda each, at=at: self.apply(function, [*args[:at], each, *args[at + 1 :]], key, **named),  # type: ignore[misc]
                )
        values = [*args, *named.values()]
        if all(each.kind is PLAIN or (isinstance(each.kind, Const) and each.kind.is_scalar) for each in values) and any(
            each.kind is PLAIN for each in values
        ):
            raise NotCovered("an operation on numbers of the example's alone")
        if any(is_empty(each.kind) for each in values):
            raise Dead
        if any(has_any_length(each.kind) for each in values):
            raise NotCovered("an operation on arrays of any length that is no part of a block")
        constant = constants_of(values)
        if constant is not None:
            if any(type(each.value) is LazyArray for each in constant):
                called = functools.partial(_called, function, len(args), tuple(named))
                quietly = self.written.constants.compute_quietly
                return self.read(quietly, (key, len(args), *named), called, *[each.number for each in constant])
            return self.read(
                self.written.constants.compute,
                (key, len(args), *named),
                functools.partial(_called, function, len(args), tuple(named)),
                *[each.number for each in constant],
            )
        trace, constants = self.written.trace, self.written.constants
        segment = trace.segment
        lengths = itertools.repeat(2)
        nodes, refs = len(segment.sigs), len(segment.refs)
        park, trace.park = trace.park, refuse_to_wait
        try:
            for number in (1, 0, 1.0):  # what an example's own number may be: what comes of it is looked at there
                given = [
                    number if each.kind is PLAIN else built(each.kind, trace, constants.values, lengths)
                    for each in values
                ]
                with contextlib.suppress(TypeError, IndexError):
                    found = function(*given[: len(args)], **dict(zip(named, given[len(args) :], strict=True)))
                    break
            else:
                raise NotCovered("an operation that fails")
            kind = self._kind_of(found)
        except NotCovered:
            raise
        except Exception as error:
            raise NotCovered(f"an operation that fails: {type(error).__name__}") from error
        finally:
            trace.park = park
            trace.failed = None
            del segment.sigs[nodes:]
            del segment.refs[refs:]
        self.written.recipes.append(Recipe(function, kind))
        texts = [self.boxed(each) for each in args]
        texts += [f"{name}={self.boxed(each)}" for name, each in named.items()]
        at = len(self.written.recipes) - 1
        return self.kept(Term(kind, f"_ab_unbox{at}(_ab_apply{at}({', '.join(texts)}))"))

    def _kind_of(self, found: Any) -> RecorderKind:
        """The kind of what an operation gave."""
        if type(found) is LazyArray and found.segment is self.written.trace.segment and not found.aval.shared:
            return RecordedNode(found.aval)
        if type(found) is tuple and found:
            return Parts(tuple(map(self._kind_of, found)))
        raise NotCovered("an operation whose result is no array")

    def boxed(self, value: Term) -> str:
        """A value as Python has it."""
        kind = value.kind
        if isinstance(kind, Const) and not kind.is_scalar:
            return self.written.named(kind.number)
        if kind is PLAIN and value.simple:
            return self.text(value)
        return self.boxed_text(kind, self.text(value if value.parts is not None else self.kept(value)))

    def boxed_text(self, kind: RecorderKind, text: str) -> str:
        if isinstance(kind, RecordedNode):
            return f"_ab_box({text}, {self.written.named(self.written.constants.literal(kind.aval))})"
        if isinstance(kind, Parts):
            if kind.make is not None:
                raise NotCovered("an operation on an object")
            name = self.fresh() + "p"
            parts = [self.boxed_text(part, f"{name}[{i}]") for i, part in enumerate(kind.parts)]
            return f"[({', '.join(parts)},) for {name} in (({text}),)][0]"
        if isinstance(kind, Listed):
            name = self.fresh() + "e"
            return f"[{self.boxed_text(kind.item, name)} for {name} in {text}]"
        if kind is PLAIN:
            return f"_ab_own({text})"
        return text
