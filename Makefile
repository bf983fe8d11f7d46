# Everything runs in .venv. A stamp keyed on pyproject.toml says what is installed there, so a second call costs nothing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.installed-base
DEV := $(VENV)/.installed-dev
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# An editable install is not compiled, and sandboxes see it read-only: without this each would compile it again.
COMPILE := $(BIN)/python -m compileall -q src/agentenv
# Installed before anything that depends on torch, so that pip does not choose another build for us.
TORCH ?= torch==2.13.0
BENCH_ENVS ?= 1,10,50
# Tests that run at once; those that measure the machine run alone all the same.
WORKERS ?= 2
# Extra arguments for pytest, as in: make test PYTEST_ARGS="-k gridworld"
PYTEST_ARGS ?=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo demo-chaos image test check format bench docs clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

demo: $(BASE) ## Install, then run ten isolated GridWorlds
	@$(BIN)/agentenv run examples/gridworld.toml

demo-chaos: $(BASE) ## Kill environments of a run every second; what they play stays the same
	@$(BIN)/python tools/demo_chaos.py

image: $(BASE) ## Make the virtual machines' root file system that examples and tests use
	@$(BIN)/agentenv image build gymnasium --from debian:bookworm --pip gymnasium numpy

test: $(DEV) ## Run every test this machine can run
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile -m "not lab" $(PYTEST_ARGS)

test-firecracker: $(DEV) ## Try all of Firecracker in an emulated machine with KVM (an hour or two)
	$(BIN)/python -m pytest -m lab tests/conformance/test_firecracker.py

check: $(DEV) ## Lint, format, types and layers
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports

format: $(DEV) ## Rewrite the code in the house format
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

bench: $(DEV) ## Measure against gymnasium's AsyncVectorEnv
	$(BIN)/agentenv bench examples/gridworld.toml --envs $(BENCH_ENVS) --compare gymnasium

docs: $(DEV) ## Generate docs/config.md from the schema
	$(BIN)/python tools/config_docs.py

clean: ## Remove .venv, caches and builds; runs/ stays
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests tools examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(BASE): pyproject.toml | $(BIN)/python
	@echo "Installing agentenv into $(VENV) ..."
	@$(PIP) --editable .
	@$(COMPILE)
	@touch $@

$(DEV): pyproject.toml | $(BIN)/python
	@echo "Installing agentenv and its development tools into $(VENV) (several hundred MB the first time) ..."
	@$(PIP) "$(TORCH)"
	@$(PIP) --editable ".[dev]"
	@$(COMPILE)
	@touch $(BASE) $@

$(BIN)/python:
	@command -v "$(PYTHON)" >/dev/null || { \
	  echo "error: no '$(PYTHON)' on PATH; expected Python 3.11 or newer. Name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: expected Python 3.11 or newer, '$(PYTHON)' is $$("$(PYTHON)" -V 2>&1). Name another: make PYTHON=python3.11" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "error: '$(PYTHON)' cannot make a virtual environment: its venv module is missing." >&2; \
	  echo "  On Debian and Ubuntu: sudo apt install python3-venv" >&2; exit 1; }
	@"$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
