"""The normal form of twenty functions, as it is printed: a change of what is read shows here first.

`python -m tests.program.test_printed` writes the page anew; read what changed before it is committed.
"""

import inspect
import pathlib

import pytest

from autobatch.program.python_text import printed
from autobatch.program.source import normal_form
from tests.test_programs import PROGRAMS

PAGE = pathlib.Path(__file__).with_name("printed.txt")
NAMES = (
    "rnn", "is_even", "one_armed", "guarded_by_and", "caught_for_some", "nested_ranges", "closure_counts",
    "breaks_with_an_else", "comprehension", "boolean_index", "lengths_that_disagree", "rebinds_its_list",
    "memoised_recursion", "operators_of_the_users", "partial_functions", "scaled_while_entered",
    "matches_a_count_and_a_vector", "searches_with_walrus", "descent_with_line_search", "a_ring_buffer",
)  # fmt: skip


def page() -> str:
    return "\n\n".join(printed(normal_form(inspect.unwrap(PROGRAMS[name].f))) for name in NAMES) + "\n"


def test_the_normal_form_of_twenty_functions_is_as_printed():
    assert page() == PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_every_program_can_be_printed(name):
    f = PROGRAMS[name].f
    text = printed(normal_form(inspect.unwrap(f)))
    assert f"def {inspect.unwrap(f).__name__}(" in text or "<lambda>" in text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
