"""Bad input gets a clear error, and leaves everything usable: after each test the library still works."""

import contextlib
import dataclasses
import gc
import signal
import threading
import weakref

import greenlet
import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import DTypeError, FallbackWarning, ShapeError
from tests.inspect import current_example, current_region

LENGTHS = [3, 1, 0, 4]
EXAMPLES = [np.arange(n, dtype=np.float32) for n in LENGTHS]
ROWS = np.arange(20, dtype=np.float32).reshape(5, 4)


@ab.batch
def total(x, w):
    out = np.float32(0)
    for value in x:
        out = out + value * w
    return out


def forcing(x, w):
    """Needs its value, so that under `ab.map` the example parks."""
    y = (x * w).sum()
    return y + 1 if float(y) > 2 else y


def live_fibers():
    """Fibers have a parent; what has none stands for a thread, of which other tests may have left some."""
    gc.collect()
    current = greenlet.getcurrent()
    found = [x for x in gc.get_objects() if issubclass(type(x), greenlet.greenlet)]  # isinstance would ask dead proxies
    return [x for x in found if x is not current and x.parent is not None and x and not x.dead]


@pytest.fixture(autouse=True)
def still_works():
    yield
    assert current_region() is None
    assert (current_example().index, current_example().calls) == (0, 0)
    w = np.float32(2)
    expected = [total.__wrapped__(x, w) for x in EXAMPLES]
    lockstep = ab.examples(total(ab.MaskedBatch.from_examples(EXAMPLES), w))
    np.testing.assert_array_equal(lockstep, expected)
    np.testing.assert_array_equal(ab.map(forcing, EXAMPLES, w=w), [forcing(x, w) for x in EXAMPLES])


@pytest.fixture(autouse=True, scope="module")
def no_fiber_is_left():
    """Once for all tests of this file; what was there before them is not looked through again."""
    gc.collect()
    gc.freeze()
    yield
    assert live_fibers() == []


def notes(caught):
    return list(getattr(caught.value, "__notes__", ()))


# Ragged examples, and lengths.


def test_examples_of_different_rank():
    with pytest.raises(ValueError, match=r"rank|dimension"):
        ab.MaskedBatch.from_examples([np.ones(2), np.ones((2, 2))])
    with pytest.raises(ValueError, match=r"rank|dimension"):
        ab.PackedBatch.from_examples([np.ones(2), np.ones((2, 2))])


def test_batches_of_different_size():
    @ab.batch
    def add(x, y):
        return x.sum() + y.sum()

    x, y = ab.MaskedBatch.from_examples(EXAMPLES), ab.MaskedBatch.from_examples(EXAMPLES[:2])
    with pytest.raises(ValueError, match=r"4.*2|2.*4"):
        add(x, y)
    with pytest.raises(ValueError, match=r"4.*2|2.*4"):
        x + y


def test_sequences_of_different_length():
    with pytest.raises(ValueError, match=r"\[4, 2\]"):
        ab.map(lambda x, y: x, EXAMPLES, EXAMPLES[:2])


@pytest.mark.parametrize("way", ["lock-step", "map"])
def test_lengths_that_differ_in_one_example(way):
    def add(x, y):
        return x + y

    ys = [np.ones(n, np.float32) for n in (3, 1, 2, 3)]
    with pytest.raises(ValueError, match=r"shapes \(0,\) \(2,\)") as caught:
        run(way, add, EXAMPLES, ys)
    assert notes(caught) == ["raised for example 2"]


def run(way, f, *columns, **shared):
    if way == "map":
        return ab.map(f, *columns, **shared)
    return ab.batch(f)(*(ab.MaskedBatch.from_examples(column) for column in columns), **shared)


# Ids.


@pytest.mark.parametrize("bad", [5, -1, 2**40])
@pytest.mark.parametrize("way", ["lock-step", "map"])
def test_an_id_out_of_range_in_a_model(way, bad):
    def bag(ids, table):
        return table[ids].sum(0)

    ids = [np.array([1, 2]), np.array([], np.int64), np.array([0, 3, bad]), np.array([bad])]
    with pytest.raises(IndexError, match=rf"{bad}") as caught:
        run(way, bag, ids, table=ab.EmbeddingTable(ROWS))
    assert notes(caught) == ["raised for example 2"]
    assert "position 2" in str(caught.value)
    assert "5" in str(caught.value)


@pytest.mark.parametrize("bad", [5, -1])
def test_an_id_out_of_range_in_a_look_up(bad):
    with pytest.raises(IndexError, match=rf"{bad}.*position 1.*5|position 1.*{bad}.*5"):
        ab.lookup(ROWS, np.array([0, bad]))
    with pytest.raises(IndexError, match=rf"{bad}.*position 2"):
        ab.embedding_bag(np.array([0, 1, bad]), ROWS, offsets=np.array([0, 2]))


def test_wrong_offsets():
    with pytest.raises(IndexError, match="offsets"):
        ab.embedding_bag(np.array([0, 1]), ROWS, offsets=np.array([1, 2]))
    with pytest.raises(ValueError, match=r"offsets\[2\] is 1, below offsets\[1\] = 2"):
        ab.PackedBatch(np.ones(3), np.array([0, 2, 1, 3]))


# Dtypes.


def test_ids_that_are_no_integers():
    with pytest.raises(TypeError, match="float64"):
        ab.lookup(ROWS, np.array([0.0, 1.0]))
    with pytest.raises(TypeError, match="float64"):
        ab.embedding_bag(np.array([0.0, 1.0]), ROWS, offsets=np.array([0]))


def test_examples_of_different_dtype():
    with pytest.raises(TypeError, match=r"float32.*int64|int64.*float32"):
        ab.MaskedBatch.from_examples([np.ones(2, np.float32), np.ones(2, np.int64)])


def test_lengths_that_are_no_integers():
    with pytest.raises(TypeError, match="float64"):
        ab.MaskedBatch(np.ones((2, 3)), lengths=[1.0, 2.0])


def test_the_gradient_of_an_integer():
    with pytest.raises(TypeError, match="int64"):
        ab.grad(lambda x: (x * 2).sum())(np.arange(3))


# Empty and unmeasured.


def test_an_empty_sequence_of_examples():
    with pytest.raises(ValueError, match="empty sequence of examples"):
        ab.MaskedBatch.from_examples([])
    with pytest.raises(ValueError, match="no examples"):
        ab.testing.assert_equivalent(total, [], w=1)
    assert ab.map(total, [], w=1) == []


def test_the_length_of_a_batch():
    batch = ab.MaskedBatch.from_examples(EXAMPLES)
    with pytest.raises(TypeError, match="batch_size"):
        len(batch)
    assert batch.batch_size == 4


# Gradients.


def force_array(x):
    convert = np.asarray  # which under its own name hands the gradient on
    return x.sum() * convert(x)[0]


def force_list(x):
    return x.sum() * x.tolist()[0]


@pytest.mark.parametrize("f", [force_array, force_list])
def test_a_value_forced_under_grad(f):
    with pytest.raises(TypeError, match="gradient"):
        ab.grad(f)(np.ones(3))
    with pytest.raises(TypeError, match="gradient"):
        ab.grad(lambda x: sum(ab.map(f, [np.ones(2), np.ones(1)]) + ab.map(f, [x])))(np.ones(3))


def test_the_gradient_of_what_is_no_scalar():
    with pytest.raises(ValueError, match=r"scalar|\(3,\)"):
        ab.grad(lambda x: x * 2)(np.ones(3))


# Functions.


def test_a_function_with_no_source_runs_as_a_loop():
    namespace = {"np": np}
    exec("def f(x):\n    return np.float32(sum(v * 2 for v in x))", namespace)
    with pytest.warns(FallbackWarning, match="source"):
        result = ab.batch(namespace["f"])(ab.MaskedBatch.from_examples(EXAMPLES))
    assert ab.examples(result) == [namespace["f"](x) for x in EXAMPLES]


def test_a_function_with_no_source_is_an_error_where_no_loop_is_allowed():
    namespace = {}
    exec("def f(x):\n    return sum(v * 2 for v in x)", namespace)
    with pytest.raises(TypeError, match="source"):
        ab.batch(namespace["f"], strict=True)(ab.MaskedBatch.from_examples(EXAMPLES))


def test_what_is_no_function():
    with pytest.raises(TypeError, match="int"):
        ab.batch(3)


# Options.


@pytest.mark.parametrize(
    ("name", "bad", "expected"),
    [
        ("blocks", "yes", "True or False"),
        ("strict", 1, "True or False"),
        ("memory_budget", -1, "bytes"),
        ("scheduler", "width", "one of depth, agenda, frontier, auto"),
        ("seed", 0.5, "an integer, a tuple of integers, or None"),
        *[("threads", bad, "a number, or 0 for one per core") for bad in (-1, 1.5, True)],
    ],
)
def test_an_option_of_a_wrong_kind(name, bad, expected):
    with pytest.raises(TypeError, match=rf"^{name}={bad!r}; expected {expected}$"), ab.options(**{name: bad}):
        pass


def test_an_option_that_does_not_exist():
    with pytest.raises(TypeError, match=r"way='on the fly'; expected one of auto, loop, "):
        ab.options(way="on the fly")  # without being entered
    with pytest.raises(TypeError, match=r"unknown option sheduler; the options are blocks, "), ab.options(sheduler="x"):
        pass


def test_a_statement_that_only_makes_options_warns():
    with pytest.warns(UserWarning, match=r"^ab.options\(way='loop'\) has no effect; write `with ab") as found:
        ab.options(way="loop")
    assert [each.filename for each in found] == [__file__]
    decorated = ab.options(way="loop")(lambda: ab.config.way)
    assert [decorated(), decorated()] == ["loop", "loop"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(ab.options(way="loop"))
    del decorated, stack


# Examples that raise.


@pytest.mark.parametrize("way", ["lock-step", "map"])
def test_an_example_that_raises_is_named(way):
    def picky(x):
        if x.sum() > 2:
            raise RuntimeError("too large")
        return x * 2

    with pytest.raises(RuntimeError, match="too large") as caught, ab.options(warn=False):
        run(way, picky, EXAMPLES[::-1])
    assert notes(caught) == ["raised for example 0"]


class Scratch(np.ndarray):
    """An array that can be followed by a weak reference."""


def test_parked_fibers_end_and_nothing_leaks():
    entered, left, followed = [], [], []

    def parks(i, w):
        entered.append(i)
        scratch = np.zeros(10).view(Scratch)
        followed.append(weakref.ref(scratch))
        try:
            value = float((w * i).sum())
            if i == 2:
                raise RuntimeError(f"after {value}")
            return value, float((w + scratch[0]).sum())
        finally:
            left.append(i)

    with pytest.raises(RuntimeError, match="after 4") as caught:
        ab.map(parks, [0, 1, 2, 3], w=np.ones(2))
    assert notes(caught) == ["raised for example 2"]
    assert sorted(entered) == sorted(left)
    assert live_fibers() == []
    del caught
    gc.collect()
    assert [ref() for ref in followed if ref() is not None] == []


@pytest.mark.parametrize("sent", [False, True], ids=["raised", "signal"])
def test_keyboard_interrupt_in_the_middle_of_a_map(sent):
    entered, left = [], []

    def interrupted(i, w):
        entered.append(i)
        try:
            value = float((w * i).sum())
            if i == 2:
                if sent:
                    signal.raise_signal(signal.SIGINT)
                else:
                    raise KeyboardInterrupt
            return value + float((w * value).sum())
        finally:
            left.append(i)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored by what runs behind
    try:
        with pytest.raises(KeyboardInterrupt, match=r"^$"):
            ab.map(interrupted, range(5), w=np.ones(2))
    finally:
        signal.signal(signal.SIGINT, handler)
    assert sorted(entered) == sorted(left)
    assert (2 in left) is not sent  # of what is interrupted from outside nothing stays
    assert live_fibers() == []


def test_keyboard_interrupt_in_lock_step():
    @ab.batch
    def interrupted(x):
        for value in x:
            if value.ndim == 0:
                raise KeyboardInterrupt
        return x

    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        interrupted(ab.MaskedBatch.from_examples(EXAMPLES))


# Threads.


def test_two_threads_at_once():
    failures = []
    start = threading.Barrier(4)

    def work(seed):
        try:
            rng = np.random.default_rng(seed)
            start.wait(timeout=240)
            for _ in range(10):
                xs = [rng.random(n, np.float32) for n in rng.integers(0, 6, 8)]
                w = np.float32(rng.random())
                expected = [total.__wrapped__(x, w) for x in xs]
                np.testing.assert_allclose(ab.map(forcing, xs, w=w), [forcing(x, w) for x in xs], rtol=1e-5)
                batch = ab.MaskedBatch.from_examples(xs)
                np.testing.assert_allclose(ab.examples(total(batch, w)), expected, rtol=1e-5)
                gradient = ab.grad(lambda w, b=batch: ab.sum(total(b, w)))(w)
                np.testing.assert_allclose(gradient, sum(x.sum() for x in xs), rtol=1e-4)
                table = ab.EmbeddingTable(ROWS)
                ids = [rng.integers(0, 5, n) for n in rng.integers(0, 6, 8)]
                bags = ab.map(lambda ids, table: table[ids].sum(0), ids, table=table)
                np.testing.assert_allclose(bags, [ROWS[i].sum(0) for i in ids], rtol=1e-5)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=240)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []


@pytest.mark.parametrize(
    "call",
    [
        lambda huge: ab.scatter_weighted_sum(np.ones(2), huge, [1], [1.0], 1.0),
        lambda huge: ab.scatter_weighted_sum(np.ones(2), 1.0, [1], [1.0], huge),
        lambda huge: ab.scatter_weighted_sum(np.ones(2), 1.0, [1], [huge], 1.0),
        lambda huge: ab.scatter_add(np.ones(2), [1], [huge]),
    ],
)
def test_a_number_that_no_float_holds(call):
    with pytest.raises(DTypeError, match=r"10{20,60}; expected an? (number|array of numbers)"):
        call(10**400)


@pytest.mark.parametrize(
    "name", ["sigmoid", "relu", "gelu", "dropout", "softmax", "logsumexp", "layer_norm", "causal_mask"]
)
def test_what_are_no_numbers(name):
    with pytest.raises(DTypeError, match="dtype object; expected numbers"):
        getattr(ab.nn, name)([[10**400]])


def test_a_look_up_into_a_masked_array():
    out = np.ma.masked_all((2, 3))
    with pytest.raises(ShapeError, match=r"out is a MaskedArray; expected float64"):
        ab.lookup(np.ones((4, 3)), [0, 2], out=out)
    with pytest.raises(ShapeError, match=r"out\[0\] is a MaskedArray"):
        ab.maplookup([np.ones((4, 3))], [[0, 2]], out=[out])
    assert out.mask.all()


class Named(np.ndarray):
    """A class of someone's."""


def test_a_look_up_into_an_array_of_a_class_of_its_own():
    out = np.zeros((2, 3)).view(Named)
    assert ab.lookup(np.arange(12.0).reshape(4, 3), [0, 2], out=out) is out
    assert out.tolist() == [[0, 1, 2], [6, 7, 8]]


@dataclasses.dataclass
class Record:
    x: float


@pytest.mark.parametrize(
    ("examples", "instead"),
    [
        (
            [np.ones(2), np.ones(3)],
            "for a batch of 2 write f(ab.collate(arrays)), or ab.map(f, arrays)",
        ),
        ([{"x": 1.0}, {"x": 2.0}], "a batch of 2 write f(ab.collate(dicts)), or ab.map(f, dicts)"),
        ([Record(1.0), Record(2.0)], "a batch of 2 write f(ab.collate(records)), or ab.map(f, records)"),
    ],
)
def test_a_list_of_examples_in_place_of_a_batch(examples, instead):
    @ab.batch
    def f(example):
        return example["x"] * 2.0 if isinstance(example, dict) or isinstance(example[0], dict) else example + 1.0

    with pytest.raises((TypeError, ValueError), match=r".") as caught:
        f(examples)
    assert any(instead in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: ab.batch("fly"), r"got str: write @ab.batch\(way='fly'\)"),
        (lambda: ab.value_and_grad(np.float32(3)), "ab.grad takes a function; got float32"),
        (lambda: ab.nn.cross_entropy(1, np.ones(3)), r"logits of shape \(\); .*write cross_entropy\(logits, label\)"),
        (lambda: ab.source(ab.collate([np.ones(3)])), "MaskedBatch given, which is not a function written in Python"),
        (lambda: ab.load("none.safetensors"), "none.safetensors does not exist"),
        (lambda: updated({"w": np.ones(3)}, (1.0, {})), "grads is a tuple of 2; .*value, grads = ab.value_and_grad"),
        (lambda: updated({"w": np.ones(3)}, None), "grads is None; expected .* a dict with"),
        (lambda: ab.testing.assert_equivalent(3.0, [np.ones(3)]), "takes a function and its examples; got float first"),
    ],
)
def test_a_typical_mistake_is_told_what_to_write(call, says):
    with pytest.raises((ValueError, TypeError, OSError, RuntimeError), match=says):
        call()


def updated(params, grads):
    optimizer = ab.optim.SGD(lr=0.1)
    return optimizer.update(params, grads, optimizer.init(params))


@pytest.mark.parametrize("batch", [ab.collate([1.0, 2.0]), ab.collate([np.ones(2), np.ones(3)])])
def test_an_index_of_a_batch_is_of_each_example(batch):
    with pytest.raises(IndexError, match=r"too many indices|out of bounds") as raised:
        batch[7]
    (note,) = raised.value.__notes__
    assert note.endswith("x.example(i) is one")
