"""The README's table: its models give the loop's gradients, as its peers do, and the page shows what it was run for."""

import pytest

from benchmarks import first_form
from benchmarks.first_form import MODELS, Row


@pytest.mark.chosen
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a first call may loop, with a warning
@pytest.mark.parametrize("name", MODELS)
def test_a_model_and_its_peers_agree(name):
    row = first_form.measure(name, examples=3, hidden=8, settling=0, steps=1)  # compared within
    assert {"autobatch", "loop"} <= set(row.seconds)


def test_the_table_names_the_best_peer_and_says_where_it_is_faster():
    seconds = {"autobatch": 2e-3, "loop": 30e-3, "torch padded": 1.5e-3, "torch packed": 1e-3}
    rows = [Row("recurrent", 16, 64, seconds), Row("recurrent", 64, 64, seconds | {"torch packed": 8e-3})]
    text = first_form.table(rows)
    assert "| recurrent classifier | 2 | 30 | 1 torch packed (0.50) | 2 | 30 | 1.5 torch padded (0.75) |" in text
    assert "For 16 examples, the time by hand is 0.50 of ours (geometric mean, 1 models)." in text
