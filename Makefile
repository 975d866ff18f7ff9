# `make demo` and `make test` each make .venv, install and run. Both are safe to repeat and quick when nothing changed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
DEMO   := ductwork-demo
# two at a time, on any machine: many tests start processes of their own
PARALLEL := -n 2 --dist worksteal

.PHONY: demo test check fast lint clean help

help:
	@echo "make demo    compare fine-tuning, SimpleCIL and DUCT on embedded data (2-3 minutes after installation)"
	@echo "make test    lint, types and the whole test suite"
	@echo "make fast    the tests without the slow ones"
	@echo "make clean   remove the environment and what the demo wrote"

demo: $(VENV)/.installed
	$(BIN)/ductwork demo --out $(DEMO)

test: check
	$(BIN)/python -m pytest $(PARALLEL)

fast: $(VENV)/.installed-dev
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow"

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,pretrained]"
	@touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) $(DEMO)
