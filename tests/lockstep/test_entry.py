"""What goes into a run and comes out: padding of any value, tables, nested calls, threads, objects."""

import dataclasses
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import autobatch as ab
from autobatch import MaskedBatch, batch, examples
from autobatch.core.memory import keep_freed_memory
from tests.law import assert_same, batch_of, equals_loop, ragged

XS = ragged(3, 1, 0, 4)


def test_padding_of_any_value_neither_warns_nor_raises():
    data = np.full((3, 4), 1e300)
    data[0, :3], data[1, :1] = 1.0, 2.0
    xs = MaskedBatch(data, lengths=[3, 1, 0])

    def f(x):
        return x.astype(np.float32) * 2, np.exp(x), x.astype(np.int32) + 1, 1 / x

    got = examples(batch(f, strict=True)(xs))
    assert_same(got, [f(np.ones(3)), f(np.full(1, 2.0)), f(np.zeros(0))])


def test_padded_ids_are_never_looked_up():
    def f(ids, table):
        total = np.zeros(2)
        for row in table[ids]:
            total = total + row
        return total, table[ids].sum(0)

    ids = [np.array([1, 2, 1]), np.array([4]), np.zeros(0, int)]
    equals_loop(f, ids, table=np.arange(10.0).reshape(5, 2))
    equals_loop(f, ids, table=ab.EmbeddingTable(np.arange(10.0).reshape(5, 2)))


def test_a_batch_function_inside_another():
    @batch
    def inner(x):
        total = np.float64(0)
        for v in x:
            total = total + v
        return total

    equals_loop(lambda x: inner(x) * 2, XS)
    equals_loop(lambda rows: [inner(row) for row in rows], ragged(3, 1, 0, 4, width=2))


def test_a_run_inside_a_loop_over_examples():
    @batch
    def doubled(x):
        return x * 2

    def f(x):
        if x.sum() > 0 and eval("True"):
            return examples(doubled(MaskedBatch.from_examples([x, x + 1])))[1]
        return x

    equals_loop(f, XS, falls_back=True)


def test_two_threads_at_once():
    @batch
    def f(xs):
        h = np.zeros(2)
        for x in xs:
            h = np.tanh(h + x)
        return h

    columns = [ragged(3, 1, 0, 4, width=2, seed=seed) for seed in range(8)]
    results = [None] * len(columns)

    def work(i):
        for _ in range(5):
            results[i] = examples(f(batch_of(columns[i])))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(columns))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for column, got in zip(columns, results, strict=True):
        assert_same(got, [f(x) for x in column])


def test_one_example_and_scalars():
    equals_loop(lambda x, k: (x * k, k + 1, -k), XS[:1], [3])
    equals_loop(lambda x, flag, name: (x, not flag, name), XS, [True] * 4, ["a", "b", "c", "d"])


def test_containers_with_batches_keep_their_form():
    def f(pair):
        a, b = pair["ab"]
        return {"sum": a + b, "rest": pair["name"]}

    got = batch(f)({"ab": (batch_of(XS), 1.0), "name": "n"})
    assert_same(examples(got), [f({"ab": (x, 1.0), "name": "n"}) for x in XS])


def test_a_call_has_the_memory_of_its_buffers_kept():
    keep_freed_memory.cache_clear()
    batch(lambda x: x + 1, strict=True)(batch_of(XS))
    assert keep_freed_memory.cache_info().currsize == 1


_FAULTS = """
import resource
import numpy as np
from autobatch.core.memory import keep_freed_memory

def call():
    held = [np.ones(1 << 18) for _ in range(60)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

keep_freed_memory()
call()
before = call()
print(call() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries are left as they are")
def test_many_buffers_of_a_call_are_not_asked_of_the_system_again():
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run([sys.executable, "-c", _FAULTS], capture_output=True, text=True, check=True, env=environment)
    assert int(done.stdout) < 1000  # of 30,720 pages


COUNTS = [3, 1, 0, 4]


@dataclasses.dataclass
class Noted:
    x: object
    k: int = 0


def test_what_was_set_on_an_object_beside_its_fields_comes_out_with_it():
    def f(xs, n):
        note = Noted(xs.sum(), n)
        note.all = xs
        if n > 2:
            note.all = xs * 2
        return note

    equals_loop(f, XS, COUNTS, falls_back=True)
    for got, want in zip(ab.map(f, XS, COUNTS), map(f, XS, COUNTS), strict=True):
        assert_same(got, want)


def test_what_was_set_on_some_objects_only():
    def f(xs, n):
        note = Noted(xs.sum(), n)
        if n > 2:
            note.all = xs
        return note

    equals_loop(f, XS, COUNTS, falls_back=True)


def test_an_argument_brings_what_was_set_on_it():
    def f(xs, note):
        return xs * note.factor + note.x, note

    note = Noted(batch_of([1.0, 2.0, 3.0, 4.0]), 2)
    note.factor = 5
    for i, (values, same) in enumerate(ab.examples(ab.batch(f, strict=True)(batch_of(XS), note))):
        assert_same(values, XS[i] * 5 + i + 1)
        assert vars(same) == {"x": i + 1.0, "k": 2, "factor": 5}
