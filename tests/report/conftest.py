"""Fixtures of these tests: lines are watched to the end of a call, however busy the machine is."""

import math

import pytest

from autobatch.report import explain


@pytest.fixture(autouse=True, scope="package")
def watched_to_the_end():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(explain, "_LEAST_BUDGET", math.inf)
        yield
