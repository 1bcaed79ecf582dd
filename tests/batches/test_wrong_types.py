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
