"""Another thread may write into ids, offsets and lengths while kernels run: what a kernel trusts is a copy.

A spy on kernels spoils the caller's arrays as soon as a check has passed, and sees that no other kernel gets them.
"""

import functools
import inspect
import subprocess
import sys

import numba
import numpy as np
import pytest

import autobatch as ab
from autobatch.core.pytree import leaves
from autobatch.kernels.jit import Kernel
from tests.compiled import interpreted
from tests.inspect import ran_ways
from tests.law import assert_same

N, ROWS, DIM = 1200, 50, 8
CHECKING = {"copy_ids", "first_bad_id", "first_bad_offset", "pool_sum_checked", "run_bounds", "are_valid_bounds"}
CHECKING_SEGMENTS = {
    "segment_count", "sum_scalars", "sum_vectors", "segment_extremum", "first_equal", "segment_prod",
}  # fmt: skip
ANY_KEY = {"find_rows", "assign_partitions", "unique_first_seen"}  # no key is out of bounds

rng = np.random.default_rng(0)
TABLE = rng.standard_normal((ROWS, DIM))
DATA = rng.standard_normal((N, DIM))
WEIGHTS = rng.standard_normal(N)
GIVEN = {
    "ids": rng.integers(0, ROWS, N),
    "small": rng.integers(0, ROWS, 5),
    "pairs": rng.integers(0, ROWS, (N // 2, 2)),
    "ordered": np.sort(rng.integers(0, 40, N)),
    "lengths": np.full(40, N // 40),
    "starts": np.arange(40) * (N // 40),
    "offsets": np.arange(41) * (N // 40),
}


def variable():
    out = ab.EmbeddingVariable(DIM, dtype=np.float64)
    out.insert(np.arange(ROWS), TABLE)
    return out


def updated(g, make):
    weights = ab.EmbeddingTable(TABLE.copy())
    optimizer = make(0.1)
    weights, _ = optimizer.update(weights, ab.SparseRows(g["ids"], DATA, ROWS), optimizer.init(weights))
    return np.asarray(weights)


def written(g, table):
    table.write(g["small"], DATA[:5])
    return table.read(g["ids"])


def by_lock_step(f, g):
    batch = ab.PackedBatch(g["ids"], g["offsets"])
    with ab.options(way="lockstep"):
        return ab.batch(f)(batch, ab.EmbeddingTable(TABLE)).examples()


MODES = ("sum", "mean", "max", "min", "sqrtn")
SEGMENTS = ("sum", "mean", "max", "min", "prod", "count", "logsumexp", "softmax", "std", "cumsum", "argmax", "first")
SPLIT = lambda: ab.SplitTable([TABLE[:30].copy(), TABLE[30:].copy()])

ENTRANCES = {
    "table[ids]": lambda g: ab.EmbeddingTable(TABLE)[g["ids"]],
    "table[few ids]": lambda g: ab.EmbeddingTable(TABLE)[g["small"]],
    "chunks[ids]": lambda g: SPLIT()[g["ids"]],
    "codes[ids]": lambda g: ab.QuantizedTable.from_weights(TABLE)[g["ids"]],
    "lookup": lambda g: ab.lookup(TABLE, g["ids"]),
    "lookup of pairs": lambda g: ab.lookup(TABLE, g["pairs"]),
    "lookup out=": lambda g: ab.lookup(TABLE, g["ids"], np.empty((N, DIM))),
    "lookup of 32 bits": lambda g: ab.lookup(TABLE, g["ids"].view(np.int32)[::2]),
    "maplookup": lambda g: ab.maplookup([TABLE, SPLIT()], [g["ids"], g["pairs"]]),
    "a table's write and read": lambda g: written(g, SPLIT()),
    **{
        f"embedding_bag {mode}": lambda g, mode=mode: ab.embedding_bag(g["ids"], TABLE, g["starts"], mode=mode)
        for mode in MODES
    },
    "embedding_bag of several modes": lambda g: ab.embedding_bag(g["ids"], TABLE, g["starts"], mode=("sum", "max")),
    "embedding_bag of rows": lambda g: ab.embedding_bag(g["pairs"], TABLE, mode="max"),
    "embedding_bag with weights": lambda g: ab.embedding_bag(
        g["ids"], TABLE, g["offsets"], mode="mean", per_sample_weights=WEIGHTS, include_last_offset=True
    ),
    "embedding_bag that skips": lambda g: ab.embedding_bag(g["ids"], TABLE, g["starts"], mode="max", bad_ids="skip"),
    "embedding_bag with padding": lambda g: ab.embedding_bag(g["ids"], TABLE, g["starts"], mode="min", padding_idx=3),
    "embedding_bag of a batch": lambda g: ab.embedding_bag(ab.PackedBatch(g["ids"], g["offsets"]), TABLE, mode="max"),
    "embedding_bag of keys": lambda g: ab.embedding_bag(g["ids"], variable(), g["starts"], mode="max"),
    **{
        f"segment_{mode} {form}": lambda g, mode=mode, named=named, i=i: getattr(ab, f"segment_{mode}")(
            DATA[:, 0].copy() if i % 2 else DATA, **{key: g[name] for key, name in named.items()}
        )
        for mode in SEGMENTS
        for i, (form, named) in enumerate({
            "unsorted": {"segment_ids": "ids"}, "sorted": {"segment_ids": "ordered"},
            "lengths": {"lengths": "lengths"}, "offsets": {"offsets": "offsets"},
        }.items())
    },
    **{
        f"segment_{mode} of rows": lambda g, mode=mode: getattr(ab, f"segment_{mode}")(
            TABLE, g["ordered"], ids=g["ids"]
        )
        for mode in ("sum", "max", "logsumexp")
    },
    "segment_ids_to_lengths": lambda g: ab.segment_ids_to_lengths(g["ids"]),
    "segment_ids_to_offsets": lambda g: ab.segment_ids_to_offsets(g["ordered"]),
    "lengths_to_segment_ids": lambda g: ab.lengths_to_segment_ids(g["lengths"]),
    "offsets_to_segment_ids": lambda g: ab.offsets_to_segment_ids(g["offsets"]),
    "PackedBatch": lambda g: ab.PackedBatch(DATA, g["offsets"]).examples(),
    "PackedBatch.from_lengths": lambda g: ab.PackedBatch.from_lengths(DATA, g["lengths"]).examples(),
    "PackedBatch.from_segment_ids": lambda g: ab.PackedBatch.from_segment_ids(DATA, g["ids"]).examples(),
    "SparseRows.to_dense": lambda g: ab.SparseRows(g["ids"], DATA, ROWS).to_dense(),
    "SparseRows.coalesce": lambda g: ab.SparseRows(g["ids"], DATA, ROWS).coalesce().to_dense(),
    "SGD": lambda g: updated(g, ab.optim.SGD),
    "Adagrad": lambda g: updated(g, ab.optim.Adagrad),
    "gradient of a look-up": lambda g: ab.grad(lambda w: np.sum(w[g["ids"]] * DATA))(TABLE),
    "gradient of a bag": lambda g: ab.grad(
        lambda w: np.sum(ab.embedding_bag(g["ids"], w, g["starts"], mode="max"))
    )(ab.EmbeddingTable(TABLE)).to_dense(),
    "gradient of segments": lambda g: ab.grad(
        lambda w: np.sum(ab.segment_sum(w, g["ordered"], ids=g["ids"], weights=WEIGHTS) ** 2)
    )(ab.EmbeddingTable(TABLE)).to_dense(),
    "lock-step look-up": lambda g: by_lock_step(lambda ids, table: table[ids], g),
    "lock-step sum": lambda g: by_lock_step(lambda ids, table: table[ids].sum(0), g),
    "lock-step bag": lambda g: by_lock_step(lambda ids, t: ab.embedding_bag(ids, t, np.array([0]), mode="max")[0], g),
    "map": lambda g: ab.map(lambda ids, t: t[ids].sum(0), [g["ids"], g["small"]], t=ab.EmbeddingTable(TABLE)),
    "scatter_add": lambda g: ab.scatter_add(TABLE, g["ids"], DATA),
    "gather": lambda g: ab.gather(TABLE, g["ids"]),
    "variable[keys]": lambda g: variable()[g["ids"]],
    "variable.contains": lambda g: variable().contains(g["ids"]),
}  # fmt: skip


@pytest.fixture
def spoiling(monkeypatch):
    """The caller's arrays, which are spoiled once a kernel has checked them; what trusts them is reported."""
    if numba.config.DISABLE_JIT:
        pytest.skip("kernels are plain functions")
    given = {name: x.copy() for name, x in GIVEN.items()}
    trusting, run = set(), Kernel.__call__

    def spied(kernel, *args):
        name, shared = kernel.__name__, []
        for parameter, arg in zip(inspect.signature(kernel.py_func).parameters, args, strict=True):
            arrays = [x for x in leaves(arg) if isinstance(x, np.ndarray)]
            own = [x for x in given.values() if any(np.may_share_memory(x, each) for each in arrays)]
            checked = name in CHECKING | ANY_KEY or (name in CHECKING_SEGMENTS and parameter == "segments")
            trusting.update([] if checked else [name for _ in own])
            shared += own
        out = run(kernel, *args)
        for x in shared:
            x[...] = 1 << 40 if x.size % 2 else -(1 << 40)
        return out

    monkeypatch.setattr(Kernel, "__call__", spied)
    return given, trusting


@pytest.mark.parametrize("name", ENTRANCES)
def test_no_kernel_trusts_the_callers_ids(name, spoiling):
    given, trusting = spoiling
    expected = ENTRANCES[name]({key: x.copy() for key, x in GIVEN.items()})
    try:
        found = ENTRANCES[name](given)
    except (IndexError, ValueError):  # seen after they were spoiled
        found = expected
    assert not trusting
    assert_same(found, expected)


COMPILED = {
    "rows": (lambda ids, x: x[ids].sum(), "ids", ab.EmbeddingTable(TABLE)),
    "items": (lambda ids, x: x[ids].sum(), "ids", TABLE[:, 0].copy()),
    "a mask": (lambda mask, x: x[mask].sum(), "mask", WEIGHTS),
    "places of a mask": (lambda mask, x: np.sum(np.nonzero(mask)[0] * x), "mask", 1.0),
}


class Numpy:
    """NumPy with Numba's `nonzero`, which counts first, of vectors."""

    def __init__(self, spoil):
        self.spoil = spoil

    def __getattr__(self, name):
        return getattr(np, name)

    def nonzero(self, x):
        out = np.empty(x.sum(), np.int64)
        self.spoil()
        out[:] = np.flatnonzero(x)
        return (out,)


@pytest.mark.parametrize("with_gradient", [False, True])
@pytest.mark.parametrize(("f", "name", "shared"), COMPILED.values(), ids=COMPILED)
def test_compiled_code_reads_ids_and_masks_once(f, name, shared, with_gradient, monkeypatch):
    """Its text is run; what it was given is spoiled as soon as it was checked, or counted."""
    given = {"ids": GIVEN["ids"].copy(), "mask": GIVEN["ids"] % 2 == 0}[name]

    def run(ids):
        call = lambda x: ab.sum(ab.batch(f)(ab.PackedBatch(ids, [0, N]), x))
        return ab.value_and_grad(call)(shared) if with_gradient else call(shared)

    expected = (ab.value_and_grad(f, 1) if with_gradient else f)(given.copy(), shared)
    ready = []  # the first run is compared with Python's

    def spoil():
        if ready:
            given[...] = True if name == "mask" else 1 << 40

    def check(checked, *args):
        out = checked(*args)
        if len(args) < 3 or args[2] < N:  # not for a check of the sign alone
            spoil()
        return out

    for module in interpreted.LIBRARY:
        for each in {"all_within", "nonnegative_indices"} & vars(module).keys():
            monkeypatch.setitem(vars(module), each, functools.partial(check, vars(module)[each]))
    make = interpreted.InterpretedKernel.__init__

    def made(self, text):
        make(self, text)
        self._kernel.__globals__["np"] = Numpy(spoil)

    monkeypatch.setattr(interpreted.InterpretedKernel, "__init__", made)
    with interpreted.interpreted(), ab.options(way="compiled"), ran_ways() as ran:
        run(given)
        ready.append(True)
        found = run(given)
    assert [each.way for each in ran] == ["compiled"] * 2
    assert not np.array_equal(given, GIVEN["ids"] if name == "ids" else GIVEN["ids"] % 2 == 0)
    assert_same(found, expected)


SOAK = """
import sys, threading, time
import numpy as np
import autobatch as ab
from tests.tables.test_changing_ids import ENTRANCES, GIVEN

given = {name: x.copy() for name, x in GIVEN.items()}
going = True

def write():
    while going:
        for name, x in given.items():
            place = np.random.randint(x.size)
            x.reshape(-1)[place] = np.random.choice([-1, -(1 << 40), 1 << 50, 57])
            x[...] = GIVEN[name]

thread = threading.Thread(target=write, daemon=True)
thread.start()
for name, enter in ENTRANCES.items():
    end = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < end:
        try:
            enter(given)
        except (IndexError, ValueError, MemoryError):
            pass
going = False
"""


@pytest.mark.slow
def test_ids_that_another_thread_writes_end_no_process():
    subprocess.run([sys.executable, "-X", "faulthandler", "-c", SOAK, "0.3"], check=True)


def test_ids_that_change_between_two_passes_over_them_raise(spoiling):
    with pytest.raises(ab.errors.BadIdError, match="segment id -1099511627776 at position 0 is negative"):
        ab.segment_mean(DATA, spoiling[0]["ids"], num_segments=ROWS)


def test_segment_ids_are_not_copied_for_kernels_that_check_them(monkeypatch):
    seen, run = [], Kernel.__call__
    monkeypatch.setattr(Kernel, "__call__", lambda kernel, *args: seen.append(kernel.__name__) or run(kernel, *args))
    ids, x = GIVEN["ids"], DATA[:, 0].copy()
    for mode in ("sum", "mean", "count", "max", "min", "prod", "std", "softmax"):
        getattr(ab, f"segment_{mode}")(x, ids)
    ab.segment_ids_to_lengths(ids)
    assert numba.config.DISABLE_JIT or "sum_scalars" in seen
    assert "copy_ids" not in seen
