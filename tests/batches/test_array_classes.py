"""Arrays of a class of their own (masked, matrices, users'): kept as the loop keeps them, or refused, never read past.

A mask is no part of the memory that kernels read, so wherever examples become one array, and at every function of
tables, segments and optimisers, such an array is an error; where the user's own code computes with one, it is the loop.
"""

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import UnsupportedError

pytestmark = [
    pytest.mark.filterwarnings("ignore::PendingDeprecationWarning"),  # of np.matrix
    pytest.mark.filterwarnings("ignore::autobatch.errors.FallbackWarning"),
]
TABLE = np.arange(12.0).reshape(4, 3)
PLAIN = [np.array([1.0, 2.0, 9.0]), np.array([4.0, 5.0])]
IDS = [np.array([0, 1]), np.array([2])]


class Own(np.ndarray):
    pass


def masked(x):
    return np.ma.masked_array(x, mask=np.arange(x.size).reshape(x.shape) % 3 == 2)


KINDS = {"masked": masked, "matrix": np.matrix, "own": lambda x: x.view(Own)}

ids = np.array([0, 1, 1])
DOORS = {
    "MaskedBatch.from_examples": lambda of: ab.MaskedBatch.from_examples([of(x) for x in PLAIN]),
    "the second example": lambda of: ab.MaskedBatch.from_examples([TABLE, of(TABLE)]),
    "MaskedBatch": lambda of: ab.MaskedBatch(of(TABLE)),
    "MaskedBatch of a list": lambda of: ab.MaskedBatch([of(TABLE), of(TABLE)]),
    "lengths": lambda of: ab.MaskedBatch(TABLE, lengths=of(np.ones(4, int))),
    "mask": lambda of: ab.MaskedBatch(TABLE, mask=of(np.ones((4, 3), bool))),
    "PackedBatch.from_examples": lambda of: ab.PackedBatch.from_examples([of(x) for x in PLAIN]),
    "deep": lambda of: ab.PackedBatch.from_examples([[of(x) for x in PLAIN]], depth=2),
    "PackedBatch": lambda of: ab.PackedBatch(of(TABLE), [0, 2, 4]),
    "offsets": lambda of: ab.PackedBatch(TABLE, of(np.array([0, 2, 4]))),
    "from_lengths": lambda of: ab.PackedBatch.from_lengths(TABLE, of(np.array([1, 3]))),
    "from_segment_ids": lambda of: ab.PackedBatch.from_segment_ids(TABLE[:3], of(ids)),
    "from_padded": lambda of: ab.PackedBatch.from_padded(of(TABLE), lengths=[1, 1, 2, 2]),
    "an operand": lambda of: ab.MaskedBatch.from_examples(PLAIN) * of(TABLE[0, :1]),
    "a reflected operand": lambda of: np.add(of(TABLE[0, :1]), ab.MaskedBatch.from_examples(PLAIN)),
    "lookup of": lambda of: ab.lookup(of(TABLE), ids),
    "lookup": lambda of: ab.lookup(TABLE, of(ids)),
    "maplookup of": lambda of: ab.maplookup([of(TABLE)], [ids]),
    "maplookup": lambda of: ab.maplookup([TABLE], [of(ids)]),
    "EmbeddingTable": lambda of: ab.EmbeddingTable(of(TABLE)),
    "a table's rows": lambda of: ab.EmbeddingTable(TABLE)[of(ids)],
    "bag of": lambda of: ab.embedding_bag(ids, of(TABLE), [0]),
    "bag": lambda of: ab.embedding_bag(of(ids), TABLE, [0]),
    "bag offsets": lambda of: ab.embedding_bag(ids, TABLE, of(np.array([0]))),
    "bag weights": lambda of: ab.embedding_bag(ids, TABLE, [0], per_sample_weights=of(TABLE[0]), mode="sum"),
    "segments of": lambda of: ab.segment_sum(of(TABLE[:3]), ids),
    "segment ids": lambda of: ab.segment_sum(TABLE[:3], of(ids)),
    "segment lengths": lambda of: ab.segment_mean(TABLE[:3], lengths=of(np.array([1, 2]))),
    "ids of segments": lambda of: ab.segment_max(TABLE, ids, ids=of(ids)),
    "segment weights": lambda of: ab.segment_sum(TABLE[:3], ids, weights=of(TABLE[0])),
    "lengths_to_offsets": lambda of: ab.lengths_to_offsets(of(ids)),
    "SparseRows": lambda of: ab.SparseRows(of(ids), TABLE[:3], 4),
    "sparse rows": lambda of: ab.SparseRows(ids, of(TABLE[:3]), 4),
    "init": lambda of: ab.optim.Adam(0.1).init({"w": of(TABLE)}),
    "parameters": lambda of: ab.optim.SGD(0.1).update({"w": of(TABLE.copy())}, {"w": TABLE}, {"step": 0}),
    "gradients": lambda of: ab.optim.SGD(0.1).update({"w": TABLE.copy()}, {"w": of(TABLE)}, {"step": 0}),
    "grad": lambda of: ab.grad(lambda w: np.sum(w * w))(of(TABLE)),
    "grad beside": lambda of: ab.grad(lambda w: np.sum(w * of(TABLE)))(TABLE),
    "softmax": lambda of: ab.nn.softmax(of(TABLE)),
    "sigmoid": lambda of: ab.nn.sigmoid(of(TABLE)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("door", DOORS)
def test_refused_where_one_array_is_made(door, kind):
    with pytest.raises(UnsupportedError, match=r"expected a plain array: write (x\.filled\(value\)|np\.asarray\(x\))"):
        DOORS[door](KINDS[kind])


def same(found, want):
    assert type(found) is type(want)
    assert found.dtype == want.dtype
    np.testing.assert_array_equal(np.ma.getmaskarray(found), np.ma.getmaskarray(want))
    np.testing.assert_allclose(np.ma.filled(found, 0), np.ma.filled(want, 0), rtol=1e-12)


PROGRAMS = {
    "made": lambda x, ids, w, of: of(x * 2),
    "made and summed": lambda x, ids, w, of: (of(x) + 1).sum(),
    "shared": lambda x, ids, w, of: (np.tanh(x).sum() * w).sum(0),
    "shared first": lambda x, ids, w, of: w * np.tanh(x).sum(),
    "looked up": lambda x, ids, w, of: w[ids].sum(0),
    "by a ufunc": lambda x, ids, w, of: np.add(w, np.exp(x[:1])),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_kept_where_the_code_computes_with_it(program, kind):
    f, of = PROGRAMS[program], KINDS[kind]
    w = of(TABLE)
    wants = [f(x, i, w, of) for x, i in zip(PLAIN, IDS, strict=True)]
    ways = [
        ab.map(f, PLAIN, IDS, w=w, of=of),
        ab.examples(ab.batch(f)(ab.MaskedBatch.from_examples(PLAIN), ab.MaskedBatch.from_examples(IDS), w, of)),
        ab.examples(ab.batch(f)(ab.PackedBatch.from_examples(PLAIN), ab.PackedBatch.from_examples(IDS), w, of)),
    ]
    for results in ways:
        for found, want in zip(results, wants, strict=True):
            same(found, want)


@pytest.mark.parametrize("kind", KINDS)
def test_examples_of_a_map_keep_their_class(kind):
    of = KINDS[kind]
    examples = [of(TABLE[:2]), of(TABLE[1:])]
    f = lambda x, y: np.tanh(y).sum() * x[:1] + x
    results = ab.map(f, examples, PLAIN)
    for found, x, y in zip(results, examples, PLAIN, strict=True):
        same(found, f(x, y))


def test_a_memory_map_is_a_plain_array(tmp_path):
    on_disk = np.memmap(tmp_path / "table", np.float64, "w+", shape=TABLE.shape)
    on_disk[:] = TABLE
    np.testing.assert_array_equal(ab.embedding_bag(ids, on_disk, [0], mode="sum"), [TABLE[ids].sum(0)])
    np.testing.assert_array_equal(ab.MaskedBatch.from_examples([on_disk, on_disk]).examples()[1], TABLE)
