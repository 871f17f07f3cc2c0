# Two commands do everything on a fresh machine: `make ablate` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= $(shell getconf _NPROCESSORS_ONLN)
# One thread a process: tests and runs are many small trainings side by side.
export OMP_NUM_THREADS ?= 1

.PHONY: ablate test test-all lint types docs clean

ablate: $(VENV)/.core
	$(BIN)/blocklab ablate --budget quick
	@echo
	@echo "That was the quick look. The standard study searches the rates, trains five seeds and gives verdicts, in up to 20 minutes:"
	@echo "    $(BIN)/blocklab ablate"

test: $(VENV)/.test lint types
	$(BIN)/pytest -q -n $(WORKERS) -m "not slow"

test-all: $(VENV)/.test lint types
	$(BIN)/pytest -q -n $(WORKERS)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy

docs: $(VENV)/.docs
	$(BIN)/zensical build --clean --strict

$(VENV)/.core: pyproject.toml
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'blocklab needs Python 3.11 or newer; make PYTHON=python3.11 …')"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable .
	touch $@

$(VENV)/.test: $(VENV)/.core
	$(BIN)/pip install --quiet --editable ".[test]"
	touch $@

$(VENV)/.docs: $(VENV)/.core
	$(BIN)/pip install --quiet --editable ".[docs]"
	touch $@

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis
