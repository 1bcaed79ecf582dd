"""Public constructors and methods that are given a wrong type say what was given and what to write instead."""

import re

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import ShapeError, StructureError, UnsupportedError
from tests.law import assert_same


def shown(value):
    """A name for a value, the same in each process."""
    return "object()" if type(value) is object else repr(value)


WRONG = [None, "x", 3, object(), [None], ["a"], {}, b"x", 1.5, int, ()]
BATCHES = [kind.from_examples([np.ones(1), np.ones(2)]) for kind in (ab.MaskedBatch, ab.PackedBatch)]


def variable():
    return ab.EmbeddingVariable(2)


def rows():
    return ab.SparseRows([0], [[1.0]], 3)


MASKED, NO_BATCHED = ab.MaskedBatch, "a MaskedBatch of .*expected a Batched: see from_examples"
TAKES_ONE = {
    "of": (lambda x: MASKED.of(x), UnsupportedError, NO_BATCHED),
    "in_region": (lambda x: MASKED.in_region(x, None), UnsupportedError, NO_BATCHED),
    "stacked": (lambda x: MASKED.stacked(x), (TypeError, ValueError), "example|ab.collate"),
    "extend.fill": (lambda x: ab.extend.fill(x, 0), UnsupportedError, "fill of .*; expected a Batched"),
    "extend.reduction": (
        lambda x: ab.extend.reduction(x, name="r"),
        UnsupportedError,
        "reduction of .*expected a ufunc",
    ),
    "extend.elementwise": (
        lambda x: ab.extend.elementwise(x, each=lambda ct, out, x: ct, name="e"),
        UnsupportedError,
        "expected a ufunc",
    ),
    "from_masked": (lambda x: ab.PackedBatch.from_masked(x), UnsupportedError, "from_masked got .*a MaskedBatch"),
    "from_arrow": (lambda x: variable().from_arrow(x), UnsupportedError, "from_arrow of a .*expected a pyarrow.Table"),
    "indexer": (lambda x: rows().coalesce(x or 1), UnsupportedError, "indexer=.*expected an Indexer"),
    "where": (lambda x: rows().where(x), ShapeError, "expected a bool for each of 1 ids"),
    "arrays=": (lambda x: variable().restore_block(arrays=x or 1), UnsupportedError, "arrays=.*expected a dict"),
    "from_arrays": (lambda x: ab.Vocabulary.from_arrays(x), StructureError, "from_arrays got .*expected the result of"),
    "restore_block": (
        lambda x: variable().restore_block(x or 1),
        UnsupportedError,
        "restore_block got .*a StoredBlock",
    ),
}


@pytest.mark.parametrize("name", TAKES_ONE)
@pytest.mark.parametrize("wrong", WRONG, ids=shown)
def test_one_of_a_wrong_type_is_named(name, wrong):
    call, error, message = TAKES_ONE[name]
    with pytest.raises(error, match=message):
        call(wrong)


X, TABLE = np.ones((4, 2)), ab.EmbeddingTable(np.ones((4, 2)))
NO_CLASS = [wrong for wrong in WRONG if wrong is not int]  # with a function, no note says what was given: it may fail
SLOTS = ab.optim.Adam(0.1)
# What raises an error of Python's or NumPy's: it, or its note, says what was given to which function.
GIVEN = {
    "Batched": (
        lambda x: ab.extend.Batched(X, x),
        [None, 3, object(), 1.5, int],
        r"sizes=.*expected an int or Lengths",
    ),
    "Lengths": (ab.extend.Lengths, [None, "x", object(), [None], ["a"], {}, 1j, 10**30], "Lengths got values"),
    "combine": (ab.extend.SparseCotangent.combine, NO_CLASS, "SparseCotangent.combine got parts"),
    "Scatter": (ab.extend.Scatter.combine, NO_CLASS, r"(Scatter|Sparse).*\.combine got parts"),
    "SparseRows": (ab.SparseRows.combine, WRONG, "combine got "),
    "name=": (
        lambda x: ab.extend.elementwise(np.add, name=x),
        [X, 3, object(), b"x"],
        r"elementwise.name=. of .*a str",
    ),
    "padding_mask": (lambda x: ab.extend.padding_mask(x, (3,)), [None, 3, object(), 1.5], "padding_mask got sizes"),
    "unbroadcast": (lambda x: ab.extend.unbroadcast(x, X), ["x", [], X[0, :1], None], "unbroadcast got ct"),
    "join_dims": (lambda x: ab.nn.join_dims(X, x, 1), [None, "x", object(), 1.5, X], "dimension .* of an array of 2"),
    "split_dim": (lambda x: ab.nn.split_dim(X, x, 1), [None, "x", object(), 1.5, X], "dimension .* of an array of 2"),
    "causal_mask": (lambda x: ab.nn.causal_mask(X, fill=x), [None, "x", X, [1]], "causal_mask got scores.*fill"),
    "init": (ab.nn.init.from_settings, [*WRONG, {"kind": 3}], "initializer settings .*; expected a kind among"),
    "variable": (ab.EmbeddingVariable.from_settings, WRONG, "settings without .*expected the .settings of a variable"),
    "state_dtype": (
        lambda x: ab.optim.SGD(0.1, state_dtype=x),
        [{"a": 1}, "x", 3, X],
        "state_dtype=.*expected a float",
    ),
    "threads": (lambda x: SLOTS.scratch(TABLE, threads=x), ["x", 1.5, object(), -1], "threads=.*expected"),
    "mode": (lambda x: ab.embedding_bag([0, 1], TABLE, [0], mode=x), [TABLE], "embedding_bag got .*mode of EmbeddingT"),
    "max": (ab.max, [np.array(["a"]), []], "max got x"),
    "concat": (ab.concat, [3, 1.5, object(), np.float32(2)], "concat got batches"),
    "maplookup": (lambda x: ab.tables.maplookup(x, 4), [3, object(), 1.5], "maplookup got tables"),
    "read": (TABLE.read, [None, "x", object(), 1.5, [None], ["a"]], "ids have dtype .*expected integers"),
    "write": (lambda x: TABLE.write(x, X), [None, "x", object(), 1.5], "ids have dtype .*expected integers"),
    "shrink": (lambda x: ab.EmbeddingVariable(2).shrink(step=x), ["x", 1.5, object(), []], "step=.*expected a whole"),
}


@pytest.mark.parametrize("name", GIVEN)
def test_what_was_given_is_named(name):
    call, every, message = GIVEN[name]
    for wrong in every:
        with pytest.raises(Exception, match=f"(?s){message}"):
            call(wrong)


def test_an_error_of_the_users_function_gets_no_note_of_what_the_library_was_given():
    for call in (lambda: ab.map(lambda x: x + None, [X]), lambda: ab.grad(lambda x: x[None, "a"])(X)):
        with pytest.raises((TypeError, IndexError)) as caught:
            call()
        assert not [note for note in getattr(caught.value, "__notes__", ()) if " got " in note]


@pytest.mark.parametrize("wrong", [w for w in WRONG if w not in ((), {})], ids=shown)
def test_a_list_with_a_wrong_type_is_named(wrong):
    with pytest.raises(UnsupportedError, match=r"combine got .*expected a list of SparseRows"):
        ab.SparseRows.combine([wrong])


@pytest.mark.parametrize("batch", BATCHES, ids=["masked", "packed"])
@pytest.mark.parametrize("order", ["x", 3, object(), b"x", 1.5, int, [], {}], ids=shown)
def test_what_is_no_memory_order_raises_as_in_numpy(batch, order):
    for call in (lambda x: x.copy(order=order), lambda x: x.astype(np.float32, order=order)):
        with pytest.raises((ValueError, TypeError)) as expected:
            call(batch.examples()[0])
        with pytest.raises(type(expected.value), match=r"order|Order"):
            call(batch)


def test_orders_in_small_letters_are_numpys():
    for given in ("f", b"a"):
        assert_same(BATCHES[0].copy(order=given).examples(), [x.copy(order=given) for x in BATCHES[0].examples()])


def test_other_wrong_arguments_are_named():
    with pytest.raises(ShapeError, match="combine got no SparseRows"):
        ab.SparseRows.combine([])
    with pytest.raises(StructureError, match=r"settings without \['admission', 'dim'"):
        ab.EmbeddingVariable.from_settings({})
    with pytest.raises(ShapeError, match=r"a table of shape \(\); expected"):
        ab.multi_hash(3, 3, np.ones((2, 2)), 3)
    with pytest.raises(ShapeError, match=r"ids of shape \(\); expected"):
        ab.EmbeddingTable(np.ones((2, 2))).destination(3)
    with pytest.raises(ShapeError, match="segment_ids have shape"):
        ab.segment_ids_to_offsets(3)
    made = np.frompyfunc(lambda a, b: a, 2, 1)
    for ufunc, identity in [(made, None), (np.sin, None), (np.divmod, None), (np.add, 0), (np.matmul, lambda dtype: 0)]:
        message = rf"reduction of {re.escape(ufunc.__name__)} with identity=.*expected a ufunc of two numbers"
        with pytest.raises(UnsupportedError, match=message):
            ab.extend.reduction(ufunc, identity, name="r")


@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.int8, np.bool_])
@pytest.mark.parametrize("value", [2.5, np.float64(2.5), np.array([[2.5], [1.5]]), 1j, 300, True, -1, np.int64(7)])
def test_copyto_casts_what_numpy_casts(value, dtype):
    """NumPy truncates a float that is written to an item of an integer array, and refuses it here."""

    def f(x, value, only):
        y = np.stack([x, x])
        np.copyto(y, value, where=x > 0 if only else True)
        return y

    def outcome(call):
        try:
            return [(each.dtype, each.tolist()) for each in call()]
        except (TypeError, OverflowError) as error:
            return type(error), str(error)

    xs = [np.array([0, 1], dtype), np.array([1, 0, 1], dtype)]
    for only in (False, True):
        expected = outcome(lambda only=only: [f(x, value, only) for x in xs])
        for given in (value, ab.collate([value] * len(xs))):
            with ab.options(way="lockstep", warn=False):
                found = outcome(lambda given=given, only=only: ab.examples(ab.batch(f)(ab.collate(xs), given, only)))
            assert found == expected
