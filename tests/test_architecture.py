"""The architecture, as a test: layers import one way, a file is a concept, and what is public is documented."""

import ast
import collections
import doctest
import functools
import inspect
import itertools
import json
import pathlib
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from typing import NamedTuple

import pytest

import autobatch

ROOT = pathlib.Path(autobatch.__file__).resolve().parent.parent
PACKAGE = ROOT / "autobatch"
MODULES = sorted(PACKAGE.rglob("*.py"))
SOURCES = [
    path for folder in ("autobatch", "tests", "examples", "benchmarks") for path in (ROOT / folder).rglob("*.py")
]
SOURCES = sorted([*SOURCES, ROOT / "_autobatch_pytest.py"])

# Imports go from right to left only; layers in one tuple are peers, and do not import each other.
LAYERS = [
    ("errors",),
    ("core",),
    ("facts",),
    ("program",),
    ("kernels",),
    ("ops",),
    ("tables", "batches", "autodiff"),
    ("blocks",),
    ("lockstep", "lazy", "compiled"),
    ("optim",),
    ("checkpoint",),
    ("api",),
    ("nn", "segments"),
    ("bridges",),
    ("testing", "report"),
    ("serving", "ray"),
    ("cli",),
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

# Layers that are one module, not a folder.
MODULES_OF_THEIR_OWN = {"errors"}

# Folders whose __init__ is a public namespace, not only a docstring.
NAMESPACES = {"testing", "optim", "nn", "ray", "segments", "tables", "batches"}  # of batches, one makes another

# Imports inside functions: each delays an optional or heavy dependency.
LATE_IMPORTS = {
    ("_autobatch_pytest", "autobatch"): "pytest loads the plugin in every project, which must not import NumPy",
    ("autobatch.api.transforms", "autobatch"): "recording by hand is half of the import; the first call brings it",
    ("autobatch.checkpoint.tensor_files", "ml_dtypes"): "only files of bfloat16 need it",
    ("autobatch.report.report", "networkx"): "only for what a person looks at",
    ("autobatch.lazy.manual_recorder", "networkx"): "only for what a person looks at",
    **{
        ("autobatch.batches.exports", name): "an optional extra, for who asks for its form"
        for name in ("pyarrow", "awkward", "polars", "pandas", "torch")
    },
    **{
        (f"autobatch.ray.{module}", "ray"): "an optional extra, which takes a second to import"
        for module in ("ray_session", "hosts")
    },
    **{
        (f"autobatch.ray.{module}", name): "an optional extra, for who gives its form"
        for module, name in [
            ("table_mapper", "pyarrow"),
            ("table_mapper", "pandas"),
            ("table_mapper", "polars"),
            ("file_map", "pyarrow"),
            ("row_groups", "pyarrow"),
            ("file_map", "tqdm"),
        ]
    },
    ("autobatch.batches.data.arrow", "pyarrow"): "an optional extra, for who gives data of Arrow's",
    ("autobatch.tables.keyed.variable", "pyarrow"): "only where a table goes to Arrow",
    ("autobatch.testing.ragged_examples", "hypothesis"): "only tests have it",
    ("autobatch.testing.own_batch_proof", "hypothesis"): "only where a difference was found",
}

# Sizes. Lines by folder ("": the package's own modules) only fall: what is new in one makes room in it.
MOST_LINES_A_FILE = 800
MOST_FILES_A_FOLDER = 16
MOST_FILES = 318
MOST_LINES = {
    "": 406,
    "api": 2_323,
    "autodiff": 1_110,
    "batches": 4_996,
    "blocks": 3_875,
    "bridges": 990,
    "checkpoint": 2_646,
    "cli": 840,
    "compiled": 11_691,
    "core": 3_910,
    "facts": 1_100,
    "kernels": 4_928,
    "lazy": 11_585,
    "lockstep": 6_187,
    "nn": 518,
    "ops": 9_450,
    "optim": 1_126,
    "program": 3_879,
    "ray": 2_601,
    "report": 1_771,
    "segments": 18,
    "serving": 1_668,
    "tables": 6_628,
    "testing": 2_814,
}

# Functions of NumPy, of each of which at most so many files say what it means: its op's, and its effects or its kernel.
MOST_FILES_OF_A_FUNCTION = 2
# fmt: off
FUNCTIONS = [
    "tanh", "hypot", "logaddexp", "cbrt", "expm1", "arctan2", "sinc", "clip", "sin", "cos", "sinh", "arcsinh",
    "deg2rad", "float_power", "fmod", "heaviside", "ldexp", "log1p", "logaddexp2", "nextafter", "prod", "amax",
    "amin", "ptp", "nanmax", "nansum", "nanmean", "nanvar", "nanstd", "median", "percentile", "quantile",
    "count_nonzero", "bincount", "cumprod", "diff", "ediff1d", "interp", "isclose", "allclose", "array_equal", "isin",
    "setdiff1d", "argwhere", "take_along_axis", "putmask", "sliding_window_view", "roll", "tile", "flip", "flipud",
    "array_split", "meshgrid", "broadcast_arrays", "permute_dims", "moveaxis", "triu", "tril", "tri", "tril_indices",
    "vander", "diagflat", "einsum", "tensordot", "kron", "convolve", "correlate", "cross", "det", "slogdet",
    "cholesky", "qr", "svd", "eigh", "pinv", "lstsq", "polyfit", "rfft",
]
# fmt: on
# Files that name something else so.
ANOTHER_MEANING = {
    ("tanh", "facts/other_libraries.py"): "torch's",
    ("clip", "ops/numpy/selecting.py"): "a mode of np.take",
    ("clip", "tables/row_access.py"): "a mode of np.take",
    ("clip", "tables/table.py"): "a mode of np.take",
    ("prod", "compiled/functions/python_sources.py"): "math.prod",
    ("prod", "tables/reduction_modes.py"): "a mode of segments",
    ("prod", "tables/segments.py"): "a mode of segments",
}

# What a reader has to know of the package, over all of it; each only falls, too.
MOST_ANY = 0.2  # of the annotated parameters, the share that is `Any`, which says nothing
MOST_LONG_FUNCTIONS = 2  # of over LONG lines, their docstrings aside
LONG = 60
MOST_NUMBERS = 133  # constants of modules that are numbers
MOST_NUMBERS_WITHOUT_A_REASON = 0  # of them, those without a comment or docstring beside them
MOST_ERRORS_OF_THEIR_OWN = 4  # classes that no `except` for a builtin error catches, beside the signals
MOST_CLASSES_OF_A_WORD = 3  # such as "form", which says little
MOST_READERS_OF_SYNTAX = 3  # files outside of `program` that import `ast`
MOST_FILES_WITH_A_KIND = 58  # in which a variable, a parameter or a field is called `kind`, whatever that means there

# Modules of the package that tests of another folder import, beside what is public and `core`, which all stand on.
MOST_MODULES_SEEN_FROM_ELSEWHERE = 26
TESTED_IN = {
    "autodiff": "tables",
    "batches": "data",
    "ops": "numpy_functions",
    "optim": "tables",
    "program": "lockstep",
    "cli": "testing",
}  # and in the folder of tests of its own name

FORBIDDEN = re.compile(
    r"\b(TODO|FIXME|XXX|HACK|NotImplementedError|this issue|later issue|CONTRACT|DESIGN)\b"
    r"|(?<!\w)/(?:home|root|work|Users)/"  # a folder of some machine
)


def parse(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def module_name(path: pathlib.Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imports(node: ast.AST) -> list[tuple[int, str]]:
    """The line of an import statement, and what it imports, in full; nothing of another node."""
    if isinstance(node, ast.Import):
        return [(node.lineno, alias.name) for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = "." * node.level + (node.module or "")
    return [(node.lineno, f"{base}.{alias.name}" if base == "autobatch" else base) for alias in node.names]


def words(node: ast.AST) -> list[str]:
    """What a node names itself."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.FunctionDef(name=name) | ast.alias(name=name):
            return [name]
        case ast.Constant(value=str(text)):
            return re.findall(r"\w+", text)
    return []


class Read(NamedTuple):
    """What the tests ask of a file: the tree itself would fill the memory that other tests look at."""

    docstring: str
    imports: list[tuple[int, str]]
    late_imports: set[tuple[int, str]]  # inside of functions
    taken: list[tuple[str, str]]  # modules, and the names that are imported from them
    classes: list[str]
    undocumented: list[tuple[int, str]]  # functions and classes of the module itself
    stated: set[str]  # names and words of strings, but of what is only called, and of docstrings


@functools.cache
def read(path: pathlib.Path) -> Read:
    tree = parse(path)
    found = Read(ast.get_docstring(tree) or "", [], set(), [], [], [], set())
    quiet = {id(getattr(node, "func", getattr(node, "value", None))) for node in ast.walk(tree)
             if isinstance(node, ast.Call | ast.Expr)}  # fmt: skip
    late = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, inside = waiting.pop()
        found.imports.extend(imports(node))
        found.stated.update([] if id(node) in quiet else words(node))
        if inside:
            found.late_imports.update(imports(node))
        if isinstance(node, ast.ImportFrom):
            found.taken.extend((node.module or "", alias.name) for alias in node.names)
        if isinstance(node, ast.ClassDef):
            found.classes.append(node.name)
        waiting += [(child, inside or isinstance(node, late)) for child in ast.iter_child_nodes(node)]
    named = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    found.undocumented.extend((node.lineno, node.name) for node in named if not says_what_it_is(node))
    return found


class Measured(NamedTuple):
    """How much there is in a file for a reader to know."""

    parameters: list[bool]  # of each annotated one, whether that is `Any`
    long: list[str]  # functions
    numbers: list[bool]  # of each constant of the module that is one or several, whether it says why
    has_kind: bool  # something of its own is called `kind`; a dtype's, or an op's, is an attribute of another


def is_number(node: ast.expr | None) -> bool:
    """True for an expression of numbers only: 1 << 16, (0.5, 2), -1."""
    inner = [] if node is None else list(ast.walk(node))
    computed = ast.BinOp | ast.UnaryOp | ast.Tuple | ast.operator | ast.unaryop | ast.expr_context
    parts = [each for each in inner if not isinstance(each, computed)]
    return bool(parts) and all(isinstance(each, ast.Constant) and type(each.value) in (int, float) for each in parts)


@functools.cache
def measured(path: pathlib.Path) -> Measured:
    tree, lines = parse(path), path.read_text(encoding="utf-8").splitlines()
    found, names = Measured([], [], [], False), set()
    for node, after in itertools.zip_longest(tree.body, tree.body[1:]):
        if isinstance(node, ast.Assign | ast.AnnAssign) and is_number(node.value):
            told = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            beside = (lines[node.end_lineno - 1], lines[node.lineno - 2])
            found.numbers.append(told or "#" in beside[0] or beside[1].startswith("#"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        if isinstance(node, ast.arg):
            names.add(node.arg)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            said = [ast.unparse(each.annotation) for each in given if each.annotation is not None]
            found.parameters.extend(each == "Any" for each in said)
            first = node.body[bool(ast.get_docstring(node)) and len(node.body) > 1]
            if node.end_lineno - first.lineno >= LONG:
                found.long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    return found._replace(has_kind="kind" in names)


def test_every_folder_has_a_layer():
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert folders == set(LEVEL) - MODULES_OF_THEIR_OWN, "a folder without a layer, or a layer without a folder"


def test_the_page_about_the_code_is_true():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    shown = re.search(r"^```\n(errors .*?)```", page, re.MULTILINE | re.DOTALL)
    assert shown, "the page shows the order of the layers"
    assert [tuple(layers.strip().split(", ")) for layers in shown[1].split("→")] == LAYERS
    named = re.findall(r"`((?:\w+/)+[\w*]+\.py)`", page)
    assert len(named) > 40
    assert [path for path in named if not list(PACKAGE.glob(path)) and not (ROOT / path).exists()] == []


def test_layers_import_one_way():
    wrong = []
    for path in MODULES:
        name = module_name(path)
        own = layer(name)
        if own not in LEVEL:  # autobatch itself and autobatch.__main__ stand above all layers
            continue
        for line, imported in read(path).imports:
            other = layer(imported)
            if not imported.startswith("autobatch") or other == own:
                continue
            if LEVEL.get(other, len(LAYERS)) >= LEVEL[own]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {imported}")
    assert not wrong, "\n".join(wrong)


def folder_of(module: str) -> str:
    """The folder of a module, or of a name in one, below the package; "" for the package's own modules."""
    parts = module.split(".")[1:]
    while parts and not (PACKAGE / "/".join(parts)).with_suffix(".py").exists():
        if (PACKAGE / "/".join(parts)).is_dir():
            return "/".join(parts)
        parts.pop()
    return "/".join(parts[:-1])


def test_folders_import_one_way():
    """Within a layer, too: of two folders at most one imports the other. A folder's `__init__` may name its own."""
    found = collections.defaultdict(set)
    for path in MODULES:
        own = path.parent.relative_to(PACKAGE).as_posix()
        for base, name in read(path).taken:
            other = folder_of(f"{base}.{name}")
            if base.startswith("autobatch.") and other != own and path.name != "__init__.py" and "" not in (own, other):
                found[own, other].add(path.name)
    wrong = {pair: names for pair, names in found.items() if pair[::-1] in found and "." not in pair}
    assert wrong == {}


def test_modules_that_are_named_by_a_string_are_below():
    """`import_module("autobatch.x")` is an import, too."""
    wrong = []
    for path in MODULES:
        own = layer(module_name(path))
        for named in re.findall(r"""(?:import_module|import_whole)\(["'](autobatch\.[\w.]+)["']""", path.read_text()):
            if own in LEVEL and LEVEL.get(layer(named), len(LAYERS)) > LEVEL[own]:
                wrong.append(f"{path.relative_to(ROOT)}: {named}")
    assert wrong == []


def test_signals_are_few():
    """An exception that is named for no error steers a run: one for what has no form, and three of other kinds."""
    classes = [node for path in MODULES for node in ast.walk(parse(path)) if isinstance(node, ast.ClassDef)]
    named = {node.name: {ast.unparse(base).split(".")[-1] for base in node.bases} for node in classes}
    raised = {"BaseException", "Exception", "TypeError", "ValueError", "RuntimeError"}
    while more := {name for name, bases in named.items() if bases & raised} - raised:
        raised |= more
    signals = {name for name in raised & named.keys() if not name.endswith(("Error", "Warning"))}
    assert signals == {"Unsupported", "NeedsLoop", "OverTime", "Unreachable"}
    bare = {name for name, bases in named.items() if "Exception" in bases} - signals
    assert len(bare) <= MOST_ERRORS_OF_THEIR_OWN, bare


def test_no_pattern_searches_the_librarys_own_words():
    """A signal carries its line and its remedy; a text that is searched for them cannot be reworded."""
    wrong = []
    for path in MODULES:
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                searches = node.func.attr in ("search", "match", "fullmatch", "findall", "finditer", "sub")
                parts = [part for arg in node.args for part in ast.walk(arg)] if searches else []
                names = {getattr(part, "id", getattr(part, "attr", "")) for part in parts}
                if names & {"error", "reason", "refused", "why", "cause"}:
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert wrong == []


def test_syntax_is_read_in_one_place():
    """The user's code is read by `program`; lock-step writes syntax, and reports find their lines in it."""
    readers = [path for path in MODULES if "ast" in {name for _, name in read(path).imports}]
    others = [str(path.relative_to(PACKAGE)) for path in readers if layer(module_name(path)) != "program"]
    assert len(others) <= MOST_READERS_OF_SYNTAX, others


def test_imports_are_absolute():
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in SOURCES
        for line, imported in read(path).imports
        if imported.startswith(".")
    ]
    assert not wrong, "\n".join(wrong)


def test_tests_see_the_package_from_outside():
    """What a test of another folder needs is public, in `tests.law` or in `tests.inspect`."""
    public = {"autobatch", "autobatch.errors", "autobatch.api.extend"}
    seen = collections.defaultdict(set)
    for path in (ROOT / "tests").glob("*/**/*.py"):
        folder = path.relative_to(ROOT / "tests").parts[0]
        for base, name in read(path).taken:
            inner = (ROOT / base.replace(".", "/") / f"{name}.py").exists()
            module = f"{base}.{name}" if inner else base
            own = layer(module)
            internal = module.startswith("autobatch.") and module not in public
            if internal and folder not in (own, TESTED_IN.get(own)) and own not in ("core", "testing"):
                seen[module].add(path.name)
    assert len(seen) <= MOST_MODULES_SEEN_FROM_ELSEWHERE, dict(seen)


def test_imports_inside_functions_have_a_reason():
    wrong = []
    used = set()
    for path in [*MODULES, ROOT / "_autobatch_pytest.py"]:
        for line, imported in read(path).late_imports:
            key = (module_name(path), imported.split(".")[0])
            used.add(key)
            if key not in LATE_IMPORTS:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {imported} inside a function")
    assert not wrong, "\n".join(sorted(set(wrong)))
    assert set(LATE_IMPORTS) == used, "a reason that nothing needs"


def test_files_are_of_a_size_to_read():
    long = [
        f"{path.relative_to(ROOT)}: {lines}"
        for path in SOURCES
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MOST_LINES_A_FILE
    ]
    assert not long, "\n".join(long)


def test_folders_are_of_a_size_to_read():
    sizes = collections.Counter(path.parent.relative_to(ROOT) for path in MODULES)
    assert [f"{folder}: {size} files" for folder, size in sizes.items() if size > MOST_FILES_A_FOLDER] == []


def test_the_package_is_of_a_size_to_know():
    assert len(MODULES) <= MOST_FILES
    lines: collections.Counter[str] = collections.Counter()
    for path in MODULES:
        lines[layer(module_name(path)) if path.parent != PACKAGE else ""] += len(path.read_text("utf-8").splitlines())
    assert {folder: n for folder, n in lines.items() if n > MOST_LINES.get(folder, 0)} == {}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_a_function_means_stands_in_one_place(function):
    """A call of it is a use. Tables of names, keys, functions and kernels of its name say what it does."""
    found = {path.relative_to(PACKAGE).as_posix() for path in MODULES if function in read(path).stated}
    others = {path for name, path in ANOTHER_MEANING if name == function}
    assert others <= found, "a reason that nothing needs"
    assert len(found - others) <= MOST_FILES_OF_A_FUNCTION, sorted(found - others)


def test_parameters_have_types():
    said = [each for path in MODULES for each in measured(path).parameters]
    assert sum(said) <= MOST_ANY * len(said), f"{sum(said)} of {len(said)}"


def test_functions_are_of_a_length_to_read():
    found = [each for path in MODULES for each in measured(path).long]
    assert len(found) <= MOST_LONG_FUNCTIONS, "\n".join(found)


def test_numbers_are_few_and_say_why():
    found = {str(path.relative_to(ROOT)): measured(path).numbers for path in MODULES if measured(path).numbers}
    assert sum(map(len, found.values())) <= MOST_NUMBERS
    silent = {name: told.count(False) for name, told in found.items() if False in told}
    assert sum(silent.values()) <= MOST_NUMBERS_WITHOUT_A_REASON, silent


def test_kind_is_a_word_of_few_files():
    found = [str(path.relative_to(ROOT)) for path in MODULES if measured(path).has_kind]
    assert len(found) <= MOST_FILES_WITH_A_KIND, "\n".join(found)


def test_the_first_line_of_a_module_says_its_concept():
    """A sentence that is whole on its line, not a title that only repeats the file's name."""
    wrong = []
    for path in MODULES:
        first = read(path).docstring.partition("\n")[0]
        if not re.search(r"[.:?](\s|$)", first) or len(first.split()) < 3:
            wrong.append(f"{path.relative_to(ROOT)}: {first!r}")
    assert not wrong, "\n".join(wrong)


def test_what_the_code_says_of_its_own_modules_is_true():
    """`layer.module.name` and `layer/module.py` in docstrings and comments."""
    wrong = []
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        for named in re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", text):
            if not (PACKAGE / named).exists() and not (ROOT / named).exists():
                wrong.append(f"{path.relative_to(ROOT)}: {named}")
        for named in re.findall(r"`((?:[a-z_]+\.)+\w+)`", text):
            folder, *parts = named.split(".")
            if folder not in LEVEL or folder == "ray":  # which is the library of that name nearly everywhere
                continue
            place = PACKAGE / folder
            while parts and (place / parts[0]).is_dir():
                place /= parts.pop(0)
            if parts:
                module = place / f"{parts.pop(0)}.py"
                if not module.exists() or not all(re.search(rf"\b{part}\b", module.read_text()) for part in parts):
                    wrong.append(f"{path.relative_to(ROOT)}: {named}")
    assert not wrong, "\n".join(wrong)


def test_a_name_of_a_file_has_one_meaning():
    found = collections.defaultdict(list)
    for path in MODULES:
        found[path.stem].append(str(path.relative_to(PACKAGE)))
    assert not [paths for name, paths in found.items() if len(paths) > 1 and not name.startswith("__")]


TWO_MEANINGS = {"Value"}  # in `program` and in compiled code, whose values become the program's


@pytest.mark.parametrize("word", ["Form", "Site"])
def test_words_for_many_things_name_few_classes(word):
    found = [name for path in MODULES for name in read(path).classes if name.endswith(word)]
    assert len(found) <= MOST_CLASSES_OF_A_WORD, found


def test_a_name_of_a_class_has_one_meaning():
    found = collections.defaultdict(list)
    for path in MODULES:
        for name in read(path).classes:
            found[name].append(str(path.relative_to(PACKAGE)))
    assert {name for name, paths in found.items() if len(paths) > 1} == TWO_MEANINGS


def test_inits_are_docstrings():
    for path in PACKAGE.glob("*/__init__.py"):
        tree = parse(path)
        assert ast.get_docstring(tree), f"{path.relative_to(ROOT)} has no docstring"
        if path.parent.name not in NAMESPACES:
            assert len(tree.body) == 1, f"{path.relative_to(ROOT)} holds more than a docstring"


def says_what_it_is(node: ast.FunctionDef | ast.ClassDef) -> bool:
    """A frontend of a NumPy function means what NumPy's means; a kernel what its module says of all its kernels."""
    decorators = {ast.unparse(decorator).split("(")[0] for decorator in node.decorator_list}
    return bool(ast.get_docstring(node) or decorators & {"implements", "jit", "overload"})


def test_every_module_and_each_name_for_others_has_a_docstring():
    taken = {pair for path in MODULES for pair in read(path).taken}
    wrong = [f"{path.relative_to(ROOT)}: module" for path in MODULES if not read(path).docstring]
    wrong += [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in MODULES
        for line, name in read(path).undocumented
        if (module_name(path), name) in taken
    ]
    assert not wrong, "\n".join(wrong)


def test_no_forbidden_words():
    own = pathlib.Path(__file__).resolve()
    wrong = [
        f"{path.relative_to(ROOT)}:{number} {line.strip()[:80]}"
        for path in SOURCES
        if path.resolve() != own
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if FORBIDDEN.search(line)
    ]
    assert not wrong, "\n".join(wrong)


def _public_names() -> Iterator[tuple[str, object]]:
    """What `autobatch.__all__` names, and what the `__all__` of a public module does."""
    for name in autobatch.__all__:
        value = getattr(autobatch, name)
        yield name, value
        if isinstance(value, types.ModuleType):
            yield from ((f"{name}.{inner}", getattr(value, inner)) for inner in value.__all__)


PUBLIC = [pytest.param(name, value, id=name) for name, value in _public_names()]


@pytest.mark.parametrize(("name", "value"), PUBLIC)
def test_public_name_is_documented_with_an_example(name, value):
    assert inspect.getdoc(value), f"autobatch.{name} has no docstring"
    if not isinstance(value, types.ModuleType):
        kind = value if callable(value) else type(value)
        found = doctest.DocTestFinder(recurse=inspect.isclass(kind)).find(kind, name, globs={})
        assert any(each.examples for each in found), f"autobatch.{name} has no example in its docstring"


@pytest.mark.parametrize(("name", "value"), PUBLIC)
def test_public_member_is_documented(name, value):
    members = vars(value).items() if inspect.isclass(value) else ()
    bare = [
        member
        for member, how in members
        if not member.startswith("_")
        and (callable(how) or isinstance(how, property | classmethod | staticmethod))
        and not inspect.getdoc(getattr(value, member))
    ]
    assert not bare, f"autobatch.{name} has members without a docstring: {', '.join(bare)}"


def test_all_is_the_public_namespace():
    assert sorted(autobatch.__all__) == sorted(set(autobatch.__all__))
    assert all(hasattr(autobatch, name) for name in autobatch.__all__)


def _in_subprocess(code: str) -> str:
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_import_costs_nothing_until_a_name_is_asked_for():
    code = """
import sys
before = set(sys.modules)
import autobatch
print(autobatch.__version__, *sorted(name for name in set(sys.modules) - before if name.split(".")[0] in
    ("autobatch", "numpy", "numba")))
"""
    assert _in_subprocess(code).split() == [autobatch.__version__, "autobatch"]


@pytest.mark.parametrize(
    "code",
    [
        "import autobatch as ab; ab.batch",
        "from autobatch import *; batch",
        "from autobatch import errors, nn, batch",
        "import autobatch.errors; import autobatch.nn; autobatch.batch",
        "import autobatch; assert 'batch' in dir(autobatch) and not hasattr(autobatch, 'nothing')",
        "from autobatch.batches.packed_batch import PackedBatch; PackedBatch.from_examples(iter([[1], [2, 3]]))",
    ],
)
def test_names_are_there_however_they_are_asked_for(code):
    _in_subprocess(code)


def test_all_names_cost_little_more_than_numpy_and_numba():
    """In Python calls, of which a machine makes equally many however busy it is."""
    code = """
import sys
calls = 0
def count(frame, event, argument):
    global calls
    calls += event == "call"
sys.setprofile(count)
import numpy, numba
theirs = calls
from autobatch import batch, map
sys.setprofile(None)
print((calls - theirs) / theirs)
"""
    assert 0 < float(_in_subprocess(code)) < 0.2


def test_what_runs_batches_comes_with_the_first_call():
    code = """
import sys
from autobatch import batch, map
def engines():
    return [name for name in ("api.call_ways", "lockstep.lockstep_call", "lazy.fibers", "compiled.compiled_map")
        if f"autobatch.{name}" in sys.modules]
before = engines()
assert batch(abs)(-1) == 1
assert engines() == before
map(abs, [-1])
print(before, len(engines()))
"""
    assert _in_subprocess(code).split() == ["[]", "4"]


def test_import_compiles_nothing():
    code = """
import json
import numba
from numba.core import event

class Heard(event.Listener):
    def __init__(self):
        self.count = 0
    def on_start(self, event):
        self.count += 1
    def on_end(self, event):
        pass

heard = Heard()
event.register("numba:compile", heard)
import autobatch.public
after_import = heard.count
numba.njit(lambda x: x + 1)(1)
print(json.dumps([after_import, heard.count]))
"""
    after_import, after_a_compilation = json.loads(_in_subprocess(code))
    assert after_import == 0
    assert after_a_compilation > 0, "the listener hears nothing, so the test would prove nothing"


def test_import_loads_no_optional_or_drawing_packages():
    code = "import sys, autobatch.public; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = set(_in_subprocess(code).split())
    assert not loaded & {"hypothesis", "pytest", "tqdm", "networkx", "matplotlib", "torch", "jax", "pyarrow", "pandas"}
