"""The models: each batched way equals the loop, and training learns."""

import numpy as np
import pytest

import autobatch as ab
from examples.demo import main
from examples.task import Node, load
from examples.train import MODELS, batched_step, check_equal, labels_of, loop_step, predict, scaled, thinned

NAMES = [model.name for model in MODELS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Sixteen files whose functions have bodies of many lengths; the verb decides the last statement."""
    root = tmp_path_factory.mktemp("sources")
    ends = {"get": "return self.a", "set": "self.b = x", "check": "raise Wrong(x)"}
    for i in range(16):
        text = ""
        for j, (verb, end) in enumerate(ends.items()):
            steps = "".join(f"    y{k} = x.part{i}{j}(w{i})\n" for k in range(1 + (i + j) % 3))
            text += f"def {verb}_{i}(self, x):\n{steps}    {end}\n"
        (root / f"f{i}.py").write_text(text)
    return root


@pytest.fixture(scope="module")
def task(folder):
    return load(folder)


def start(model, task):
    return model.init(np.random.default_rng(0), len(task.symbols), len(task.labels), size=8)


@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_batched_equals_the_loop(model, task):
    few = task.train[:3]
    xs, labels = [model.inputs(example) for example in few], [example.label for example in few]
    report = ab.testing.assert_equivalent(model.loss, *zip(*xs, strict=True), labels, params=start(model, task))
    assert not report.fallbacks


@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_batched_and_loop_steps_agree(model, task):
    xs, labels = [model.inputs(example) for example in task.train[:6]], labels_of(task.train[:6])
    params = start(model, task)
    batched, loop = batched_step(model, xs, labels, params), loop_step(model, xs, labels, params)
    check_equal(batched, loop)
    with pytest.raises(AssertionError, match="gradient of params"):
        check_equal(batched, (loop[0], scaled(loop[1], 2.0)))


@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_steps_reduce_the_loss(model, task):
    xs, labels = [model.inputs(example) for example in task.train[:12]], labels_of(task.train[:12])
    params, optimizer = start(model, task), ab.optim.Adam(lr=1e-2)
    state, losses = optimizer.init(params), []
    for _ in range(5):
        loss, grads = batched_step(model, xs, labels, params)
        params, state = optimizer.update(params, grads, state)
        losses.append(float(loss))
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_predictions_are_those_of_one_example_at_a_time(model, task):
    params = start(model, task)
    expected = [np.argmax(model.logits(*model.inputs(example), params)) for example in task.train]
    assert predict(model, task.train, params).tolist() == expected


def test_a_thinned_input_keeps_its_shape_and_one_row():
    rng = np.random.default_rng(0)
    assert thinned(np.arange(400), 0.5, rng).size == pytest.approx(200, abs=50)
    assert thinned(np.array([[7, 8]]), 0.999, rng).tolist() == [[7, 8]]
    tree = thinned(Node(np.arange(400), [Node(np.array([5]), []), Node(np.array([6]), [])]), 0.5, rng)
    assert tree.ids.size == pytest.approx(200, abs=50)
    assert [child.ids.tolist() for child in tree.children] == [[5], [6]]


def test_the_demo_runs_on_another_folder(folder, capsys):
    assert main([str(folder), "--quick"]) == 0
    out, err = capsys.readouterr()
    assert "training :" not in err  # the bar is for terminals; a log has the time that each model took
    assert all(f"{name[0].upper()}{name[1:]}\n" in out for name in NAMES)
    assert "a held-out function" in out
    assert max(map(len, out.splitlines())) <= 80


def test_the_demo_says_what_is_wrong_with_a_folder(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "usable functions" in capsys.readouterr().err
