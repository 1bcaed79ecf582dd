"""Every Python with the lowest and the newest dependencies: an environment each, and tests in it.

    python -m tests.installs                                        each Python from 3.11 on that is found
    python -m tests.installs --python /opt/py/bin/python3.14 --versions lowest tests/kernels tests/ops

The environments are made by uv (`pip install uv`), which finds Pythons and, of each dependency that `pyproject.toml`
declares, the lowest version that has a wheel for this Python. The exit status is the number of environments in which a
test failed, or which could not be made.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence

__all__ = ["main"]

ROOT = pathlib.Path(__file__).parents[1]
RESOLUTIONS = {"lowest": "lowest-direct", "newest": "highest"}
TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "safetensors", "ml_dtypes", "tqdm", "rich", "httpx")
TESTS = (
    "tests/test_installs.py",
    "tests/test_programs.py",
    "tests/kernels",
    "tests/optim",
    "tests/lockstep/test_rewrite.py",
)


def uv(*arguments: str) -> str:
    """What uv prints."""
    done = subprocess.run(["uv", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(done.stderr[-1000:])
    return done.stdout


def pythons() -> list[str]:
    """One interpreter of each minor version that the package takes, the newest first."""
    found: dict[str, str] = {}
    for line in uv("python", "list", "--only-installed").splitlines():
        name, path, *_ = line.split()
        version = re.match(r"cpython-(3\.(\d+))\.\d+-", name)
        if version and int(version[2]) >= 11:
            found.setdefault(version[1], path)
    return list(found.values())


def environment(python: str, versions: str, folder: pathlib.Path) -> pathlib.Path:
    """An environment with these versions of what the package needs; the interpreter in it."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    uv("venv", "--python", python, str(folder))
    own = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    install = ("pip", "install", "--python", str(own), "--only-binary", ":all:")
    uv(*install, "--resolution", RESOLUTIONS[versions], *declared)
    uv(*install, *TOOLS)
    return own


def told(own: pathlib.Path) -> str:
    """The versions in an environment."""
    code = "import sys, numpy, numba, networkx, greenlet as g; v = '.'.join(map(str, sys.version_info[:3])); "
    code += "print('Python', v, *(f'{m.__name__} {m.__version__}' for m in (numpy, numba, networkx, g)))"
    return subprocess.run([str(own), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what a command line asks for. Returns how many environments failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", default=TESTS, help="what to run there")
    parser.add_argument("--python", action="append", help="an interpreter; all that uv finds without it")
    parser.add_argument("--versions", choices=RESOLUTIONS, action="append", help="of the dependencies; both without it")
    asked = parser.parse_args(arguments)
    failed = 0
    for python in asked.python or pythons():
        for versions in asked.versions or RESOLUTIONS:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    own = environment(python, versions, pathlib.Path(folder, "env"))
                    print(f"{versions}: {told(own)}", flush=True)
                except OSError as error:
                    print(f"{versions} for {python} cannot be had: {error}", flush=True)
                    failed += 1
                    continue
                command = [str(own), "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", *asked.tests]
                done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
                failed += bool(done.returncode)
    return failed


if __name__ == "__main__":
    sys.exit(main())
