# Each target makes the virtual environment it needs; Python >= 3.11 and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt
TEST_ARGUMENTS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test flower check browser bench clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: fedkin needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3.11 ..."; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[dev,flower]'
	@touch $@ $(VENV)/.base

$(VENV)/.bench: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[bench]'
	@touch $@ $(VENV)/.base

demo: $(VENV)/.base  ## the main job on embedded data, in under a minute
	$(BIN)/fedkin demo

check: $(VENV)/.dev  ## lint, types, direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

test: check  ## all checks and all tests
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(TEST_ARGUMENTS)

flower: $(VENV)/.dev  ## the long tests of a real federation, about twenty minutes
	$(BIN)/python -m pytest -m flower $(TEST_ARGUMENTS)

browser:  ## Chromium for the tests of report.html, where apt-get can install it
	scripts/install-browser.sh

bench: $(VENV)/.bench  ## the engine against a plain PyTorch loop
	$(BIN)/fedkin bench

clean:  ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache
