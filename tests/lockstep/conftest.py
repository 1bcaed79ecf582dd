"""What several files of tests watch."""

import pytest

from tests import inspect


@pytest.fixture
def step_by_step():
    """Every step of a loop is a launch of its own."""
    with inspect.step_by_step():
        yield


@pytest.fixture
def products():
    """(the length of the rows, how many) of the products in launches of blocks, those of the items first."""
    with inspect.block_launches() as launches:
        yield _Products(launches)


class _Products:
    """A view of the launches so far."""

    def __init__(self, launches):
        self.launches = launches

    def __iter__(self):
        return ((width, each.rows) for each in self.launches for width in each.products)

    def clear(self):
        self.launches.clear()


@pytest.fixture
def gathers():
    """The number of lanes of every gather of lanes."""
    with inspect.gathers() as seen:
        yield seen


@pytest.fixture
def decisions():
    """The number of lanes at each condition."""
    with inspect.decisions() as seen:
        yield seen


@pytest.fixture
def op_calls():
    with inspect.op_calls() as seen:
        yield seen


@pytest.fixture
def scans():
    """How many steps each scan ran."""
    with inspect.scans() as seen:
        yield seen
