"""In a notebook: functions follow their files, cells have their source, and what is shown shows examples."""

import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import autobatch as ab
from tests.report.test_pictures import Reader

ROOT = pathlib.Path(ab.__file__).resolve().parent.parent
MODULE = """
import numpy as np
import autobatch as ab
from tests.report.test_pictures import Reader

def helper(x):
    return x * 2.0

@ab.batch
def decorated(x):
    return np.tanh(helper(x)) + 1.0

def plain(x):
    return helper(x) + 1.0

class Model:
    def __call__(self, x):
        return helper(x) + 1.0
"""

SESSION = """
import json, os, sys, warnings
from IPython.core.interactiveshell import InteractiveShell

warnings.simplefilter("error")
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "autoreload")
shell.run_line_magic("autoreload", "2")

def run(cell):
    result = shell.run_cell(cell)
    result.raise_error()
    return result.result

edits = json.loads(sys.argv[1])
run("import numpy as np, autobatch as ab")
for at, text in enumerate(edits):
    with open("a_module.py", "w") as file:
        file.write(text)
    os.utime("a_module.py", (10**9 + at, 10**9 + at))
    if not at:
        run("from a_module import decorated, plain, Model\\nmodel = Model()")
        run("xs = [np.zeros(2)] * 3; batch = ab.MaskedBatch.from_examples(xs)")
        run("alone = lambda r: float(np.asarray(r)[0])")
    for way in ("lockstep", "fly", "auto"):
        run(f"options = dict(way={way!r}, strict={way == 'lockstep'})")
        print(json.dumps(run(
            "with ab.options(**options): out = [alone(r) for r in (ab.examples(decorated(batch))[1],"
            " ab.map(decorated, xs)[1], ab.map(plain, xs)[1], ab.examples(ab.batch(plain)(batch))[1],"
            " ab.map(model, xs)[1], decorated(np.zeros(1)))]\\nout"
        )))
"""


def test_functions_imported_by_name_follow_their_file(tmp_path):
    """Each edit is seen in every way, and lock-step still has the source of what was reloaded."""
    pytest.importorskip("IPython")
    edits = [
        MODULE,
        MODULE.replace("+ 1.0", "+ 5.0"),
        MODULE.replace("+ 1.0", "+ 5.0").replace("x * 2.0", "x * 2.0 + 100.0"),
        MODULE.replace("+ 1.0", "+ 7.0").replace("helper(x)", "helper(x, k=0.0)").replace("x * 2.0", "x + k"),
        "\n\n" + MODULE.replace("+ 1.0", "+ 9.0"),
    ]
    edits[3] = edits[3].replace("def helper(x, k=0.0)", "def helper(x, k)")
    command = [sys.executable, "-c", SESSION, json.dumps(edits)]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(tmp_path), "IPYTHONDIR": str(tmp_path)}
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, env=environment)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    shown = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("[")]
    rows = [[1.0] * 6, [5.0] * 6, [6.0, 6.0, 105.0, 105.0, 105.0, 6.0], [7.0] * 6, [9.0] * 6]
    assert len(shown) == 3 * len(rows)
    for at, row in enumerate(rows):
        for way in range(3):
            assert shown[3 * at + way] == row, (at, way)


@pytest.mark.slow
def test_a_function_of_a_cell_has_its_source(tmp_path):
    pytest.importorskip("IPython")
    program = """
    from IPython.core.interactiveshell import InteractiveShell
    shell = InteractiveShell.instance()
    run = lambda cell: shell.run_cell(cell).raise_error()
    run("import numpy as np, autobatch as ab")
    run("def helper(r, h):\\n    return np.tanh(r + h)")
    run("def f(x):\\n    h = np.zeros(2)\\n    for r in x:\\n        h = helper(r, h)\\n    return h")
    run("b = ab.MaskedBatch.from_examples([np.ones((3, 2)), np.ones((1, 2))])")
    run("with ab.options(strict=True): first = ab.batch(f)(b).example(1)")
    run("def helper(r, h):\\n    return r - h")
    run("with ab.options(strict=True): second = ab.batch(f)(b).example(1)")
    run("print(np.allclose(first, np.tanh(1)), second); print(ab.explain(f, b).lines[3].text)")
    """
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(tmp_path), "IPYTHONDIR": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=200, env=environment
    )
    assert run.stdout.splitlines()[-2:] == ["True [1. 1.]", "        h = helper(r, h)"], run.stdout + run.stderr


def test_a_helper_whose_code_is_replaced_is_seen():
    """As a reload does it: in every way, at once."""

    def helper(x):
        return x * 2.0

    def other(x):
        return x + 10.0

    def f(x):
        return helper(x) + 1.0

    xs = [np.ones(2), np.ones(3)]
    batch = ab.MaskedBatch.from_examples(xs)
    for way in ("loop", "fly", "lockstep"):
        with ab.options(way=way):
            for _ in range(3):
                before = ab.map(f, xs)[0][0], ab.examples(ab.batch(f)(batch))[0][0]
            code = helper.__code__
            helper.__code__ = other.__code__
            after = ab.map(f, xs)[0][0], ab.examples(ab.batch(f)(batch))[0][0]
            helper.__code__ = code
        assert (before, after) == ((3.0, 3.0), (12.0, 12.0)), way


@pytest.mark.parametrize(
    ("batch", "shown"),
    [
        (ab.MaskedBatch(np.full((2, 4), 777.0), lengths=[3, 1]), ["[777. 777. 777.]", "[777.]", "(3,) float64"]),
        (ab.MaskedBatch.from_examples([1, 2, 3]), ["3 examples", "2"]),
        (ab.PackedBatch(np.arange(4), [0, 3, 3, 4]), ["[0 1 2]", "[]", "[3]", "(0,) int64"]),
        (ab.MaskedBatch(np.zeros((0, 3))), ["0 examples"]),
        (ab.MaskedBatch.from_examples([np.ones(2)] * 30), ["30 examples", "and 22 more"]),
        (ab.batch(lambda x: "<b>")(ab.MaskedBatch.from_examples([1.0, 2.0])), ["&lt;b&gt;", "str"]),
        (ab.EmbeddingTable(np.full((9, 2), 0.5)), ["9 rows of 2, float64", "[0.5 0.5]", "and 1 more"]),
        (ab.SparseRows([3, 1, 3], np.ones((3, 2)), 4), ["3 rows (2 different) of a table of 4", "[1. 1.]"]),
    ],
)
def test_what_a_notebook_shows(batch, shown):
    text = batch._repr_html_()
    page = Reader(text)
    assert page.loads == []
    for each in shown:
        assert each in text or each in page.texts, text
    if isinstance(batch, ab.MaskedBatch) and batch.is_ragged:
        assert text.count("777") == 4  # and no padding


def test_a_table_of_keys_and_a_gradient_in_a_notebook():
    users = ab.EmbeddingVariable(3, seed=1)
    assert "0 rows of 3" in users._repr_html_()
    users.insert([70, -5])
    text = users._repr_html_()
    assert text.index("-5") < text.index("70")
    assert "key" in text
    grad = ab.grad(lambda table: table[np.array([70, 70])].sum())(users)
    assert "2 rows (1 different) of a table of keys" in grad._repr_html_()

    def loss(table):
        assert "SparseRows" not in ab.MaskedBatch.from_examples([table[np.array([0])]])._repr_html_()
        return table[np.array([0])].sum()

    ab.grad(loss)(ab.EmbeddingTable(np.ones((2, 2))))


def executed(notebook, folder):
    """Run by a real kernel, from top to bottom; the outputs are in its cells."""
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    client = nbclient.NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(folder)}})
    client.execute(env={**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(folder)})


@pytest.mark.parametrize("above", ["", "%%time\n", "%%time\n\n# a comment\n"], ids=["plain", "timed", "timed below"])
def test_the_readme_pasted_into_one_cell_is_batched(tmp_path, above):
    """A kernel compiles each statement by itself, without the imports above it; under %%time no name tells the cell."""
    nbformat = pytest.importorskip("nbformat")
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    assert block.startswith("import numpy as np\nimport autobatch as ab\n\n@ab.batch\ndef sentiment(")
    block += "with ab.options(strict=True):\n    scores = sentiment(batch, params)\nscores.batch_size"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(above + block)])
    executed(notebook, tmp_path)
    assert "4" in [each.get("data", {}).get("text/plain") for each in notebook.cells[0].outputs]


def test_the_tutorial_runs(tmp_path):
    """As a reader runs it: in a kernel, from top to bottom, and each result is there."""
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(ROOT / "docs" / "tutorial.ipynb", as_version=4)
    nbformat.validate(notebook)
    executed(notebook, tmp_path)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) >= 10
    errors = [out for cell in code for out in cell.outputs if out.output_type == "error"]
    assert [out.ename for out in errors] == ["IndexError"]  # the one that it shows
    assert any("text/html" in out.get("data", {}) for cell in code for out in cell.outputs)
    stored = nbformat.read(ROOT / "docs" / "tutorial.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in stored.cells)


CELLS = '''
import sys, warnings
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
def run(cell):
    result = shell.run_cell(cell, store_history=True)
    result.raise_error()
    return result.result

run("import numpy as np, autobatch as ab")
run("@ab.batch\\ndef f(x):\\n    return np.median(np.sort(x, kind=object()))")
run("@ab.batch\\ndef g(x):\\n    return {float(x[0]): 1.0}[1.0]")
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    run("with ab.options(way='lockstep'): y = g(ab.collate([np.ones(1), np.ones(2)]))")
print([(each.filename, each.lineno) for each in found])
run("""
try:
    with ab.options(strict=True): g(ab.collate([np.ones(1), np.ones(2)]))
except Exception as error:
    message = str(error)
""")
print(shell.user_ns["message"])
run("with ab.options(way='fly'): report = ab.explain(lambda x: x * 2.0 + 1.0, [np.ones(3), np.ones(2)])")
print(shell.user_ns["report"])
'''


def test_cells_are_named_as_ipython_names_them():
    pytest.importorskip("IPython")
    command = [sys.executable, "-c", CELLS]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=100)
    assert "[('Cell In[3]', 3)]" in run.stdout, run.stdout + run.stderr
    assert "\nCell In[3]:3: " in run.stdout
    assert "\nblock Cell In[6]:1 " in run.stdout
