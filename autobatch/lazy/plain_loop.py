"""The loop over the examples: what every other way is compared with, and what runs where none does."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from autobatch.core.current import Example, example, reset_example, set_example
from autobatch.core.op import BATCH_RANK, rank_of
from autobatch.errors import ShapeError, UnsupportedError, note_example

Arguments = Callable[[Sequence[Any], dict[str, Any]], tuple[Sequence[Any], dict[str, Any]]]


class _Running(Example):
    """The example that a loop has come to: as many results as there are say which one it is."""

    __slots__ = ("_at", "_first", "results")

    def __init__(self, first: int) -> None:
        self.index = self._first = self._at = first  # what `Example` sets, without calling it: most loops are short
        self.calls, self._own_seed = 0, None
        self.results: list[Any] = []

    def next_key(self, seed: int | None) -> Any:
        self.index = self._first + len(self.results)
        if self.index != self._at:
            self._at, self.calls = self.index, 0
        return super().next_key(seed)


def run_loop(
    function: Callable[..., Any],
    columns: Iterable[Iterable[Any]],
    shared: dict[str, Any],
    arguments_of: Arguments | None = None,
    first: int = 0,
) -> list[Any]:
    """One example after the other; `first` is the place of the first one in its batch."""
    running = _Running(first)
    results = running.results
    token = set_example(running)  # `with example(...)` takes longer than a small function
    try:
        if arguments_of is not None:
            for values in zip(*columns, strict=True):
                positional, named = arguments_of(values, shared)
                results.append(function(*positional, **named))
        else:  # the list grows as the examples end, so its length says which one runs
            results.extend(map(functools.partial(function, **shared) if shared else function, *columns))
    except Exception as error:
        raise note_example(error, first + len(results))  # noqa: B904 - the same error, with its note
    finally:
        reset_example(token)
    return results


def run_plain(
    function: Callable[..., Any],
    columns: Sequence[list[Any]],
    index: int,
    shared: dict[str, Any],
    arguments_of: Arguments | None = None,
    first: int = 0,
) -> Any:
    """One example as the loop runs it; so does a map inside an example, whose lazy values go to the one trace.

    There, plain arrays stay plain: the example goes on with them, and may write into them, right after.
    """
    with example(Example(first + index)):
        try:
            values = [column[index] for column in columns]
            positional, named = (values, shared) if arguments_of is None else arguments_of(values, shared)
            return function(*positional, **named)
        except Exception as error:
            raise note_example(error, first + index)  # noqa: B904 - the same error, with its note


def examples_in(sequence: Any, taker: str = "ab.map") -> list[Any]:
    """The examples of a sequence, an iterable or a batch; `taker` is what the message says was called.

    Raises:
        UnsupportedError: not iterable, or a dict, whose keys are never the examples.
    """
    if type(sequence) is list:
        return sequence.copy()
    if rank_of(sequence) == BATCH_RANK:
        return sequence.examples()
    if not isinstance(sequence, Mapping):
        try:
            return list(sequence)
        except TypeError:
            pass
    raise UnsupportedError(
        f"{taker} takes sequences of examples by position; got {type(sequence).__name__}: "
        f"give what all examples share by keyword, {taker}(f, examples, params=params)"
    )


def common_length(columns: Sequence[list[Any]]) -> int:
    """The number of examples, of which every sequence has one.

    Raises:
        UnsupportedError: no sequence. ShapeError: their lengths differ.
    """
    if len(columns) == 1:
        return len(columns[0])
    if not columns:
        raise UnsupportedError("ab.map got no sequence of examples; expected ab.map(f, examples, name=shared)")
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        raise ShapeError(
            f"the sequences of examples have lengths {lengths}; expected one length, and what all examples share by "
            "keyword: ab.map(f, examples, params=params)"
        )
    return lengths[0]
