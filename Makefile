# `make demo` shows what hetsim does, `make test` that it does it right; both set up .venv first if it is missing.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := hetsim tests benchmarks

.PHONY: demo test lint bench clean

demo: .venv/installed
	@echo "DBS-SGD on four workers of speeds 1:1:2:4, simulated:"
	@$(BIN)/hetsim backend=sim hydra.run.dir=runs/demo/simulated
	@echo "The same policy objects and the same config, in five real processes:"
	@$(BIN)/hetsim backend=dist hydra.run.dir=runs/demo/measured
	@echo
	@$(BIN)/hetsim-compare runs/demo/simulated runs/demo/measured --pictures runs/demo

test: lint
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

lint: .venv/installed
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy

bench: .venv/installed
	$(BIN)/python benchmarks/agreement.py

clean:
	rm -rf .venv build dist runs/demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find hetsim tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

.venv/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("hetsim needs Python 3.11 or newer, not " + sys.version.split()[0] + ": set PYTHON=python3.12, say") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
