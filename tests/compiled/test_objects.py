"""Objects of the user's classes in compiled code: the results are those of the loop, and what it has no form of."""

import numpy as np
import pytest

import autobatch as ab
from autobatch.compiled import compiled_map
from tests.compiled.interpreted import each_as_text
from tests.compiled.law import outcome, same
from tests.compiled.object_programs import EXAMPLES, OBJECTS, REFUSED


@each_as_text(("f",), [(each,) for each in OBJECTS], {"an_object_of_many_kinds"})
def test_equals_the_loop(f, text_or_compiled):
    column = [np.array(x) for x in EXAMPLES]
    compiled_map.wait_until_compiled(f, [column], {})
    want = [outcome(lambda x=x: f(x.copy())) for x in column]
    error = next((each for each in want if isinstance(each, Exception)), None)
    got = outcome(lambda: compiled_map.compiled_map(f, [[x.copy() for x in column]], {}))
    assert same(got, want if error is None else error), (got, want)


@pytest.mark.parametrize("f", REFUSED)
def test_has_no_form(f):
    assert ab.testing.forms(f, [np.array(x) for x in EXAMPLES])["compiled"]
