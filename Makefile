# `make demo` shows what hetsim does. `make check` runs what is fast, `make test` what every change must pass, and `make long` looks
# for what the others may have missed. Each sets up .venv first if it is missing.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := hetsim tests benchmarks studies
# Processes that tests start would otherwise compile the package again, each of them.
export PYTHONDONTWRITEBYTECODE :=
PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder --numprocesses

.PHONY: demo check test long lint trips docs bench studies-quick clean

demo: .venv/installed
	@rm -rf runs/demo
	@echo "DBS-SGD on four workers of speeds 1:1:2:4, simulated:"
	@$(BIN)/hetsim backend=sim hydra.run.dir=runs/demo/simulated
	@echo "The same policy objects and the same config, in five real processes:"
	@$(BIN)/hetsim backend=dist hydra.run.dir=runs/demo/measured
	@echo
	@$(BIN)/hetsim-compare runs/demo/simulated runs/demo/measured --pictures runs/demo

# ruff and mypy run beside the tests. The fast tests compute; many others wait for processes that they start.
define beside_lint
	@$(MAKE) --no-print-directory lint & linted=$$!; $(1); tested=$$?; wait $$linted && exit $$tested
endef

check: .venv/installed
	$(call beside_lint,$(PYTEST) 2 -m "not slow and not long")

test: .venv/installed
	$(call beside_lint,$(PYTEST) 3 -m "not long" --durations 20)

long: .venv/installed
	$(PYTEST) 3 -m "long or hypothesis" --hypothesis-profile long --durations 20
	$(BIN)/python tests/mutations.py

lint: .venv/installed
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy

trips: .venv/installed
	@$(BIN)/python tests/trips.py

docs: .venv/installed
	$(BIN)/sphinx-build -q -W --keep-going -c docs . build/docs
	@echo "build/docs/index.html"

bench: .venv/installed
	$(BIN)/python benchmarks/agreement.py

studies-quick: .venv/installed
	@for study in studies/[0-9]*; do PYTHON="$(CURDIR)/$(BIN)/python" $$study/run.sh --quick || exit; done

clean:
	rm -rf .venv build dist runs/demo runs/studies .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find $(SOURCES) -name __pycache__ -prune -exec rm -rf {} +

.venv/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("hetsim needs Python 3.11 or newer, not " + sys.version.split()[0] + ": set PYTHON=python3.12, say") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
