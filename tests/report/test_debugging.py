"""Errors, breakpoints and warnings are at the user's lines, with his names, as if the library were not there."""

import bdb
import io
import linecache
import os
import pdb
import subprocess
import sys
import traceback
import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import FallbackWarning, UnsupportedError
from tests.inspect import forget_warnings
from tests.law import assert_same, batch_of, normal, ragged, vectors

PACKAGE = os.path.dirname(ab.__file__) + os.sep
WAYS = ["loop", "lockstep", "fly", "compiled"]
XS = ragged(3, 1, 4)


def third(x):
    y = x * 2.0
    if len(x) == 1:
        raise KeyError("short", 1) from ValueError("cause")
    return y[2]


def fails(x, w):
    h = x @ w
    return third(h)


def own_frames(error):
    """(function, text of the line) of each frame of a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    assert not any(frame.filename.startswith(PACKAGE) for frame in frames)
    return [(frame.name, frame.line) for frame in frames]


def caught(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def calls(function, xs, **shared):
    return {
        "map": lambda: ab.map(function, xs, **shared),
        "batch": lambda: ab.batch(function)(batch_of(xs), **shared),
        "explain": lambda: ab.explain(function, xs, **shared),
    }


@pytest.mark.chosen
@pytest.mark.parametrize("way", [*WAYS, "auto"])
@pytest.mark.parametrize("kind", ["map", "batch", "explain"])
def test_a_traceback_has_the_users_frames_only(way, kind):
    xs, w = vectors(2, 3), normal(3, 1)
    call = calls(fails, xs, w=w)[kind]
    with ab.options(way=way, warn=False):
        error = caught(call)
    assert own_frames(error)[-2:] == [
        ("fails", "return third(h)"),
        ("third", 'raise KeyError("short", 1) from ValueError("cause")'),
    ]
    assert len(own_frames(error)) <= 4
    expected = caught(lambda: fails(xs[0], w))
    assert (type(error), error.args) == (type(expected), expected.args)
    assert (type(error.__cause__), error.__cause__.args) == (ValueError, ("cause",))
    assert error.__context__ is expected.__context__ is None
    assert error.__suppress_context__ is True
    assert error.__notes__ == ["raised for example 0"]


@pytest.mark.parametrize("way", WAYS)
def test_an_option_shows_all_frames(way):
    errors = []
    for option in ("user", "full"):
        with ab.options(way=way, warn=False, traceback=option):
            errors.append(caught(lambda: ab.map(fails, vectors(2, 3), w=normal(3, 1))))
    shown = traceback.extract_tb(errors[1].__traceback__)
    assert any(frame.filename.startswith(os.path.join(PACKAGE, "api")) for frame in shown)
    assert own_frames(errors[0]) == [(frame.name, frame.line) for frame in shown if frame.filename == __file__]


def test_frames_of_numpy_stay_and_a_context_of_the_users():
    def handles(x):
        try:
            return np.stack([x, x[1:]])
        except ValueError:
            raise RuntimeError("shapes") from None

    def in_numpy(x):
        return np.linalg.solve(np.zeros((2, 2)), x)

    error = caught(lambda: ab.map(handles, vectors(2, 3)))
    assert type(error.__context__) is ValueError
    assert error.__cause__ is None
    assert own_frames(error.__context__)
    error = caught(lambda: ab.batch(in_numpy)(vectors(1, 2)[0]))
    assert any("/numpy/" in frame.filename for frame in traceback.extract_tb(error.__traceback__))


def test_errors_of_the_call_itself_end_at_the_call():
    for call in (
        lambda: ab.map(fails, [1, 2], [3]),
        lambda: ab.grad(lambda w: w * 2.0)(np.ones(3)),
        lambda: ab.batch(fails)(batch_of(XS), batch_of(XS[:2])),
        lambda: ab.explain(fails, 3),
    ):
        frames = own_frames(caught(call))
        assert frames[0][0] == "caught"
        assert len(frames) == 2


TABLE = ab.EmbeddingTable(np.ones((4, 2), np.float32))
TWO, OTHER = batch_of(ragged(2, 3)), batch_of(ragged(2, 4))
OUTSIDE = {
    "bag": lambda: ab.embedding_bag(np.array([9]), TABLE, np.array([0])),
    "segments": lambda: ab.segment_sum(np.ones((2, 2)), [0, -1]),
    "top": lambda: ab.segment_topk(np.ones(4), k=-1, lengths=[4]),
    "look-up": lambda: ab.lookup(TABLE, [7]),
    "look-ups": lambda: ab.maplookup([TABLE], [[9]]),
    "rows": lambda: TABLE[[9]],
    "scatter": lambda: ab.scatter_add(np.ones((4, 2)), [9], np.ones((1, 2))),
    "operator": lambda: TWO + OTHER,
    "reflected": lambda: np.ones(7) @ TWO,
    "item": lambda: TWO[9],
    "ufunc": lambda: np.matmul(TWO, np.ones((9, 9))),
    "collate": lambda: ab.collate([1, "a"]),
    "concat": lambda: ab.concat([TWO, 3]),
    "minibatches": lambda: ab.minibatches(TWO, 0),
    "load": lambda: ab.load("/no/such/file"),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_functions_and_operators_outside_of_calls_hide_them(name):
    assert own_frames(caught(OUTSIDE[name]))[-1] == ("<lambda>", linecache.getline(*_place(OUTSIDE[name])).strip())
    with ab.options(traceback="full"):
        frames = traceback.extract_tb(caught(OUTSIDE[name]).__traceback__)
    assert any(frame.filename.startswith(PACKAGE) for frame in frames)


def _place(function):
    return __file__, function.__code__.co_firstlineno


def test_gradients_hide_them_too():
    error = caught(lambda: ab.value_and_grad(lambda w: fails(np.ones(3), w))(np.ones((3, 1))))
    assert own_frames(error)[-1][0] == "third"


def test_an_interrupt_is_not_touched():
    def stops(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"^$") as stopped:
        ab.map(stops, XS)
    assert any(str(entry.path).startswith(PACKAGE) for entry in stopped.traceback)


# breakpoint()


def pauses(x, w):
    y = x @ w
    unused = y * 2.0  # noqa: F841 - someone looks at it
    breakpoint()
    if y.sum() > 0:
        y = y + 1.0
    return np.tanh(y)


@pytest.fixture
def stops(monkeypatch):
    """(line, local names without ours) of each stop."""
    seen = []

    def hook(*args, **kwargs):
        frame = sys._getframe(1)
        names = {name: value for name, value in frame.f_locals.items() if not name.startswith("_ab_")}
        seen.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, names))

    monkeypatch.setattr(sys, "breakpointhook", hook)
    return seen


W = normal(3, 2)


@pytest.mark.chosen
@pytest.mark.parametrize("way", ["auto", "lockstep", "compiled"])
def test_a_breakpoint_in_lock_step_has_the_users_names(stops, way):
    xs = vectors(4, 3)
    with ab.options(way=way):
        got = ab.batch(pauses)(batch_of(xs), W)
    ((file, line, name, names),) = stops
    assert (file, name) == (__file__, "pauses")
    assert linecache.getline(file, line).strip() == "breakpoint()"
    assert list(names) == ["x", "w", "y", "unused"]
    assert_same(names["x"].examples(), xs)
    assert_same(names["y"].example(2), xs[2] @ W)
    assert_same(names["unused"].example(-1), xs[3] @ W * 2.0)
    assert "examples=" in repr(names["x"])
    assert_same(ab.examples(got), [pauses(x, W) for x in xs])


@pytest.mark.chosen
@pytest.mark.parametrize("way", [*WAYS, "auto"])
def test_a_breakpoint_in_a_map_stops_in_each_example(stops, way):
    xs = vectors(4, 3)
    with warnings.catch_warnings(), ab.options(way=way):
        warnings.simplefilter("error")
        got = ab.map(pauses, xs, w=W)
    assert [name for _, _, name, _ in stops] == ["pauses"] * 4
    for (_, line, _, names), x in zip(stops, xs, strict=True):
        assert line == stops[0][1]
        assert_same([names["x"], names["y"], names["unused"]], [x, x @ W, (x @ W) * 2.0])
        assert type(names["y"]) is np.ndarray
    assert_same(got, [pauses(x, W) for x in xs])


def test_a_breakpoint_in_one_arm_and_in_a_helper(stops):
    def helper(v):
        breakpoint()
        return v * 2.0

    def arms(x):
        if x.sum() > 0:
            z = x + 1.0
            breakpoint()
            return helper(z)
        return x

    xs = [np.ones(2), -np.ones(2), np.full(2, 3.0)]
    with ab.options(strict=True):
        got = ab.batch(arms)(batch_of(xs))
    assert [(name, sorted(names)) for _, _, name, names in stops] == [
        ("arms", ["helper", "x", "z"]), ("helper", ["v"]),
    ]  # fmt: skip
    assert_same(stops[0][3]["z"].examples(), [xs[0] + 1.0, xs[2] + 1.0])
    del stops[:]
    assert_same(ab.examples(got), [arms(x) for x in xs])


def test_a_debugger_steps_through_the_users_lines(monkeypatch):
    """pdb itself: where it stops, a name, a step, and on."""
    out = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO("p x.example(2)\nn\np y.batch_size\nw\nc\n"), stdout=out, nosigint=True)
    monkeypatch.setattr(sys, "breakpointhook", lambda: debugger.set_trace(sys._getframe(1)))
    before = sys.gettrace()
    try:
        got = ab.batch(pauses)(batch_of([np.full(3, float(n)) for n in range(4)]), W)
    finally:
        sys.settrace(before)
    shown = out.getvalue()
    assert "array([2., 2., 2.])" in shown
    assert "\n4\n" in shown.replace("(Pdb) ", "\n")
    assert "-> if y.sum() > 0:" in shown
    assert "pauses()" in shown
    monkeypatch.setattr(sys, "breakpointhook", lambda: None)
    assert_same(ab.examples(got), [pauses(np.full(3, float(n)), W) for n in range(4)])


@pytest.mark.parametrize("batched", [False, True])
def test_to_quit_the_debugger_ends_the_call(monkeypatch, batched):
    times = []

    def quits():
        times.append(1)
        raise bdb.BdbQuit

    monkeypatch.setattr(sys, "breakpointhook", quits)
    with pytest.raises(bdb.BdbQuit, match=r"^\s*(raised for example 0)?$"):
        ab.batch(pauses)(batch_of(vectors(4, 3)), W) if batched else ab.map(pauses, vectors(4, 3), w=W)
    assert times == [1]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["map", "batch"])
def test_post_mortem_is_in_the_users_frame(way, kind):
    with ab.options(way=way, warn=False):
        error = caught(calls(third, XS)[kind])
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    names = trace.tb_frame.f_locals
    assert trace.tb_frame.f_code.co_name == "third"
    assert_same([names["x"], names["y"]], [XS[1], XS[1] * 2.0])
    out = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO("p len(x)\nq\n"), stdout=out, nosigint=True)
    debugger.reset()
    debugger.interaction(None, error.__traceback__)
    assert "-> raise KeyError" in out.getvalue()
    assert "(Pdb) 1" in out.getvalue()


# What is said of a line.


def handles(x):
    y = x + 1.0
    try:
        return y[2]
    except IndexError:
        return y.sum()


def vectorizes(x):
    y = x * 2.0
    return np.vectorize(float)(y).sum()


@pytest.mark.parametrize(
    ("function", "line", "construct", "write"),
    [
        (handles, 2, "an exception that is handled", "Instead: test for it before"),
        (vectorizes, 2, "vectorize", "Instead: write it with NumPy functions on whole arrays"),
    ],
)
def test_a_warning_names_the_line_the_construct_and_what_to_write(function, line, construct, write):
    forget_warnings()
    with pytest.warns(FallbackWarning, match=construct) as said:
        ab.batch(function)(batch_of(XS))
    assert (said[0].filename, said[0].lineno) == (__file__, function.__code__.co_firstlineno + line)
    assert write in str(said[0].message)
    with pytest.raises(ab.errors.UnsupportedError, match=construct) as raised:
        ab.batch(function, strict=True)(batch_of(XS))
    place = f"test_debugging.py:{function.__code__.co_firstlineno + line}: "
    assert str(raised.value).startswith(place)
    assert write in str(raised.value)


class Shortlist:
    def __contains__(self, x):
        return True


def test_a_remedy_is_that_of_the_cause_not_of_a_word_in_it():
    @ab.batch
    def keeps(x, found):
        return x.sum() if x in found else x.max()

    with pytest.warns(FallbackWarning, match="Shortlist") as said:
        keeps(batch_of(XS), Shortlist())
    assert "Instead" not in str(said[0].message)  # least of all to build arrays from a list


def decorator(*_):
    return lambda function: function


@ab.batch
@decorator(
    "of",
    "many lines",
)
def decorated(x):
    y = x * 2.0
    y = y + np.vectorize(float)(y)
    return y.sum()


def test_lines_below_decorators_are_counted_right():
    """The code's first line is that of the first decorator, in every form of it."""
    forget_warnings()
    lines = [line.strip() for line in linecache.getlines(__file__)]
    with pytest.warns(FallbackWarning, match="vectorize") as said:
        decorated(batch_of(XS))
    assert lines[said[0].lineno - 1] == "y = y + np.vectorize(float)(y)"
    for given in (XS, batch_of(XS)):
        for line in ab.explain(decorated, given).lines:
            assert line.text.strip() == lines[line.line - 1]
            assert not line.seconds or line.text.startswith("    ")


def test_source_marks_the_lines_of_the_user():
    def model(x, w):
        h = np.zeros(2)
        for row in x:
            h = np.tanh(row @ w + h)
        if h.sum() > 0:
            h = h * 2.0
        return h

    shown = ab.source(model).splitlines()
    first = model.__code__.co_firstlineno
    assert [int(line[:4]) for line in shown] == list(range(first, first + 7))
    assert [line[6:13].strip() for line in shown] == ["", "", "steps", "block", "parts", "", ""]
    assert shown[3].endswith("            h = np.tanh(row @ w + h)") or shown[3].endswith("h = np.tanh(row @ w + h)")
    assert ab.source(ab.batch(model)) == ab.source(model)
    assert "_ab_if" in ab.source(model, rewritten=True)


def test_source_of_an_object_is_that_of_its_call():
    class Scaled:
        def __call__(self, x):
            return np.tanh(x * 2.0)

    assert ab.source(Scaled()) == ab.source(Scaled.__call__)
    assert "_ab_mul(x, 2.0)" in ab.source(Scaled(), rewritten=True)
    assert "_ab_record" in ab.source(Scaled(), blocks=True)
    assert "y = x @ self.weight" in ab.source(ab.nn.Linear(2, 3))


def test_source_says_what_is_refused_and_what_to_write():
    shown = ab.source(handles).splitlines()
    (at,) = [at for at, line in enumerate(shown) if line[6:13] == "refused"]
    assert shown[at].endswith("try:")
    assert "an exception that is handled" in shown[at + 1]
    assert "→ test for it before" in " ".join(" ".join(shown[at + 1 : at + 3]).split())
    with pytest.raises(UnsupportedError, match="is not a function written in Python"):
        ab.source(np.tanh)
    with pytest.raises(UnsupportedError, match="belongs to a library"):
        ab.source(ab.nn.relu)


PROGRAM = """
import numpy as np, autobatch as ab
def f(x, w):
    h = np.zeros(2)
    for r in x:
        h = np.tanh(r @ w + h)
    return h
xs = [np.ones((n, 2)) for n in (3, 1)]
with ab.options(strict=True, way="lockstep"):
    got = ab.batch(f)(ab.MaskedBatch.from_examples(xs), np.eye(2)).examples()
assert [np.allclose(a, f(x, np.eye(2))) for a, x in zip(got, xs)] == [True, True]
print(ab.source(f))
print(ab.explain(f, xs, w=np.eye(2)).lines[4].how)
"""


def test_a_program_on_the_command_line_has_its_source():
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    assert "block" in run.stdout.splitlines()[3]
    assert "return h" in run.stdout.splitlines()[4]


TYPED = [
    "import numpy as np, autobatch as ab",
    "def helper(r, h):",
    "    return np.tanh(r + h)",
    "",
    "def f(x):",
    "    h = np.zeros(2)",
    "    for r in x:",
    "        h = helper(r, h)",
    "    return h",
    "",
    "b = ab.MaskedBatch.from_examples([np.ones((3, 2)), np.ones((1, 2))])",
    "with ab.options(strict=True, way='lockstep'): print(ab.examples(ab.batch(f)(b))[1])",
    "",
    "print(ab.source(f))",
    "exit()",
]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a terminal")
def test_what_is_typed_at_the_prompt_has_its_source(tmp_path):
    import pty  # noqa: PLC0415 - not on every system

    process, terminal = pty.fork()
    if not process:
        os.environ |= {"TERM": "dumb", "HOME": str(tmp_path), "PYTHONPATH": os.path.dirname(os.path.dirname(PACKAGE))}
        os.execv(sys.executable, [sys.executable, "-i", "-q"])
    shown = b""
    for line in TYPED:
        os.write(terminal, line.encode() + b"\n")
    while True:
        try:
            read = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
        if not read:
            break
        shown += read
    os.waitpid(process, 0)
    text = shown.decode()
    assert "[0.76159416 0.76159416]" in text
    assert "steps        for r in x:" in text
