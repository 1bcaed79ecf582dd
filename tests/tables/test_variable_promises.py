"""What the embedding variable promises, and the test of each; with the tests that are no other file's."""

import pathlib
import re

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import ShapeError

TESTS = pathlib.Path(__file__).parent.parent

# Of "Embedding Variable in TensorFlow" (RFC, 2019), in its order.
PROMISES = {
    "memory for the keys that are there, no holes": (
        "examples/test_drifting.py",
        "test_memory_and_checkpoints_are_of_those_who_are_there",
    ),
    "no two keys share a row": ("examples/test_drifting.py", "test_strangers_who_share_a_bucket_are_told_apart"),
    "no shape to be known before the data": (
        "tables/test_variable_operations.py",
        "test_columns_are_trained_and_grow_with_what_they_see",
    ),
    "saving costs what changed": ("checkpoint/test_variables.py", "test_increments_have_what_changed_and_nothing_more"),
    "used wherever a table is": ("tables/test_variable.py", "test_a_batch_of_look_ups_by_keys_is_the_loop"),
    "gathered from, stepped, saved and sent": (
        "tables/test_variable_operations.py",
        "test_it_is_gathered_from_stepped_saved_and_sent",
    ),
    "grows and shrinks within bounds": (
        "tables/test_variable_promises.py",
        "test_it_grows_with_its_keys_and_shrinks_within_its_bounds",
    ),
    "rows are sent without a copy": ("tables/test_variable_operations.py", "test_rows_are_sent_from_where_they_lie"),
    "incremental checkpoints": ("checkpoint/test_variables.py", "test_random_lives_of_keys"),
    "each setting of get_embedding_variable": (
        "tables/test_variable_promises.py",
        "test_each_setting_of_get_embedding_variable_has_its_place",
    ),
    "columns of features": (
        "tables/test_variable_operations.py",
        "test_a_column_of_strings_is_embedded_by_its_own_table",
    ),
    "its whole life": (
        "tables/test_variable_operations.py",
        "test_it_is_made_asked_for_its_shape_filled_gathered_from_and_let_go",
    ),
    "sparse steps of Adagrad, Adam and FTRL": (
        "tables/test_variable_operations.py",
        "test_a_sparse_step_is_its_formula_on_the_rows_that_are_named",
    ),
    "a gradient through gathering": (
        "tables/test_variable.py",
        "test_training_is_that_of_a_dense_table_of_all_keys_to_the_bit",
    ),
    "memory is taken when keys come": ("tables/test_variable_storage.py", "test_memory_is_taken_when_keys_come"),
    "a row has the step of its last update": (
        "tables/test_variable_life.py",
        "test_versions_are_the_steps_of_the_last_update_and_counts_their_number",
    ),
    "a look-up inserts where it is told to": ("tables/test_variable.py", "test_look_up_inserts_where_it_is_told_to"),
    "an update changes the rows of its keys": (
        "tables/test_variable_promises.py",
        "test_an_update_changes_the_rows_of_its_keys_and_no_others",
    ),
    "old keys are shrunk away": (
        "tables/test_variable_life.py",
        "test_a_key_of_n_steps_ago_lives_and_an_older_one_is_shrunk_away",
    ),
    "and with each checkpoint": ("checkpoint/test_variables.py", "test_keys_that_lived_too_long_go_with_a_checkpoint"),
    "saved as a stream": (
        "checkpoint/test_bounded_memory.py",
        "test_a_table_of_keys_is_saved_and_put_together_in_blocks",
    ),
    "in partitions": ("tables/test_variable_life.py", "test_results_do_not_depend_on_the_number_of_partitions"),
}


@pytest.mark.parametrize("promise", PROMISES)
def test_each_promise_has_its_test(promise):
    file, name = PROMISES[promise]
    assert re.search(rf"^def {name}\(", (TESTS / file).read_text(), re.MULTILINE)


def gradient(keys, value=1.0):
    return ab.SparseRows(np.asarray(keys), np.full((len(keys), 2), value, np.float32), None)


def test_it_grows_with_its_keys_and_shrinks_within_its_bounds():
    """Its first dimension is how many keys there are: as many as come, never more than its capacity."""
    users, opt = ab.EmbeddingVariable(2, capacity=50, steps_to_live=3), ab.optim.SGD(1.0)
    state, sizes = opt.init(users), []
    for step in range(40):
        opt.update(users, gradient(np.arange(step * step, step * step + step)), state)
        sizes.append(users.shape[0])
        assert np.asarray(users).shape == users.shape == (len(users.keys()), 2)
    assert sizes[:6] == [0, 1, 3, 6, 10, 15]
    assert max(sizes) == 50
    assert users.shrink() == 50 - users.shape[0]
    before = users.shape[0]
    users.remove(users.keys()[:7])
    assert users.shape[0] == before - 7


def test_an_update_changes_the_rows_of_its_keys_and_no_others():
    users, opt = ab.EmbeddingVariable(2), ab.optim.SGD(0.5)
    users.insert([1, 2, 3, -4])
    before = users[[1, 2, 3, -4, 9]]
    opt.update(users, gradient([3, -4, 3]), opt.init(users))
    np.testing.assert_array_equal(users[[1, 2, 9]], before[[0, 1, 4]])
    np.testing.assert_array_equal(users[[3, -4]], before[[2, 3]] - np.float32([[1.0], [0.5]]))


def test_each_setting_of_get_embedding_variable_has_its_place(tmp_path):
    """`regularizer` and `constraint` are the optimiser's and the bag's; a collection is where it stands in the tree of
    parameters; `custom_getter` is any function of one's own, since a variable is an object like others."""
    users = ab.EmbeddingVariable(
        2,  # embedding_dim
        name="users",
        key_dtype=np.uint64,
        dtype=np.float64,  # value_dtype
        initializer=ab.nn.init.constant(0.5),
        steps_to_live=5,
        storage=tmp_path / "rows",  # caching_device
    )
    assert "users" in repr(users)
    assert users[2**64 - 1].tolist() == [0.5, 0.5]
    assert users[np.array([1], np.uint64)].dtype == np.float64
    with pytest.raises(ShapeError, match="expected"):  # validate_shape
        users.assign([1], np.ones((1, 3)))
    assert len(users.partition(3).parts) == 3  # partitioner
    frozen = ab.EmbeddingVariable(2, trainable=False)
    assert ab.grad(lambda p: p["w"] * p["frozen"][3].sum())({"w": 2.0, "frozen": frozen})["frozen"] is None
    decayed, opt = ab.EmbeddingVariable(2, initializer=ab.nn.init.constant(4.0)), ab.optim.SGD(0.5, weight_decay=0.5)
    opt.update(decayed, gradient([7], 0.0), opt.init(decayed))  # regularizer
    assert decayed[7].tolist() == [3.0, 3.0]
    ab.embedding_bag([7], decayed, [0], mode="sum", max_norm=1.0)  # constraint
    np.testing.assert_allclose(np.linalg.norm(decayed[7]), 1.0, rtol=1e-6)
