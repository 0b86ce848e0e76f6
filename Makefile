# `make run` and `make test` do all the set-up; `make help` lists the rest.

VENV := .venv
BIN := $(VENV)/bin
SCENARIO := scenarios/chat.yaml
EXAMPLE := docs/assistant.yaml
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help run test lint prove bench report paper clean

help: ## list these targets
	@sed -n 's/^\([a-z]*\):.*## /make \1	/p' Makefile

run: $(VENV)/.run ## simulate SCENARIO (scenarios/chat.yaml): a verdict and a report
	$(BIN)/kvsim run $(SCENARIO)

test: $(VENV)/.test ## run the tests
	$(PYTEST) -m "not prove"

lint: $(VENV)/.lint ## check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

prove: $(VENV)/.test ## run the long proofs
	$(PYTEST) -m prove

bench: $(VENV)/.bench ## measure speed, beside the recorded figures; benchmarks/bench.py --huge adds a fleet
	$(BIN)/python benchmarks/traces.py 1000000
	$(BIN)/python benchmarks/bench.py

report: $(VENV)/.run ## rebuild the committed example under reports/example
	$(BIN)/kvsim run $(EXAMPLE) --out reports/example

paper: $(VENV)/.run ## simulate the PagedAttention paper: reports/paper.html
	$(BIN)/kvsim paper

clean: ## remove the virtual environment, build products and caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp for each set of extras: nothing is installed again until one of these files changes.
$(VENV)/.run: EXTRA :=
$(VENV)/.bench: EXTRA := [fast]
$(VENV)/.test: EXTRA := [test]
$(VENV)/.lint: EXTRA := [lint]
$(VENV)/.run $(VENV)/.bench $(VENV)/.test $(VENV)/.lint: pyproject.toml requirements.lock $(BIN)/python
	@echo "Installing kvsim$(EXTRA) in $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint requirements.lock --editable '.$(EXTRA)'
	@$(BIN)/python -m compileall -q kvsim  # else whoever keeps no bytecode compiles at each start
	@touch $@

$(BIN)/python:
	@sh tools/venv.sh $(VENV)
