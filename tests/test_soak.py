"""The long runs of `python -m tests.soak`, at a small scale."""

import pytest

from tests.soak import SOAKS


@pytest.mark.parametrize("name", SOAKS)
def test_a_short_form(name):
    assert SOAKS[name](0.004)
