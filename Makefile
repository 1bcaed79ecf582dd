# Every target sets itself up: it needs Python 3.11 or newer and make, nothing else.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

JOBS ?= 2
PYTEST := $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal

.PHONY: test test-all test-slow test-kernels lint demo bench docs clean
.DELETE_ON_ERROR:

test: $(VENV)/.test
	$(MAKE) --no-print-directory --jobs=2 lint test-all

test-all: $(VENV)/.test test-kernels
	$(PYTEST)

# kernels as plain Python: what the compiler would hide, such as a read out of bounds, is an error there
test-kernels: $(VENV)/.test
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -q tests/kernels

# what `make test` leaves out: exhaustive repetitions, and more of each fuzzer
test-slow: $(VENV)/.test
	$(PYTEST) -m slow
	$(BIN)/python -m tests.fuzz --seed 10000 --count 300

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --strict --follow-imports=silent examples  # as a user would: the package's own files are the line above's

demo: $(VENV)/.demo
	$(BIN)/python -m examples.demo

# make bench ARGS="lstm --size small": some workloads, small cases; ARGS=--help says what else there is
bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks $(ARGS)

# the site, into build/site; fails where a page, a link or a public name is missing
docs: $(VENV)/.docs
	$(BIN)/mkdocs build --quiet

clean:
	rm -rf $(VENV)

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer was not found; name one with make PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# A stamp per extra: installed once, and again when pyproject.toml changes.
$(VENV)/.%: pyproject.toml | $(BIN)/python
	$(PIP) install --editable '.[$*]'
	@touch $@
