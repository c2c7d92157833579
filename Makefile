# Each target makes the virtual environment it needs; Python >= 3.11 and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt
TEST_ARGUMENTS ?=

# For `make reproduce`: the studies, those of the tables first; the directory of their stores; how many runs are done at the
# same time; and further options of `python -m reproduction compare`, such as --replace.
TABLE_STUDIES := fashion-mnist mnist solvers-fashion-mnist solvers-mnist cifar10-jpeg tiny-imagenet32
STUDIES ?= $(TABLE_STUDIES) $(filter-out $(TABLE_STUDIES),$(sort $(basename $(notdir $(wildcard reproduction/studies/*.toml)))))
STORES ?= runs
JOBS ?= 2
COMPARE_ARGUMENTS ?=
# If this is not empty, `make reproduce` skips the runs that reproduction/ already has.
ONLY_MISSING ?=
# Where `make theory` writes, and further options of `make bench`.
THEORY ?= fedkin-theory
BENCH_ARGUMENTS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test slow flower check docs browser release bench convergence theory reproduce compare leaderboard clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: fedkin needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3.11 ..."; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[cluster,dev,flower,privacy,torch]'
	@touch $@ $(VENV)/.base

$(VENV)/.bench: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[bench]'
	@touch $@ $(VENV)/.base

$(VENV)/.release: $(VENV)/.dev
	$(INSTALL) --editable '.[release]'
	@touch $@

demo: $(VENV)/.base  ## the main job on embedded data, in under a minute
	$(BIN)/fedkin demo

check: $(VENV)/.dev  ## lint, types, direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

# A file's tests share what they have compiled and started, so each file is one worker's. In pytest's order: xdist
# would begin with the files that have the most tests, and those with the fewest are among the longest. Most of the
# time is compilation, and code for a handful of points need not be fast: `XLA_FLAGS= make test` tests optimized code,
# as `make slow`, `make flower` and a plain pytest do.
QUICK_TO_COMPILE := --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false
test: check  ## all checks and all tests
	XLA_FLAGS="$${XLA_FLAGS-$(QUICK_TO_COMPILE)}" $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(TEST_ARGUMENTS)

slow: $(VENV)/.dev  ## the tests that compute for long
	$(BIN)/python -m pytest -n 2 -m slow $(TEST_ARGUMENTS)

flower: $(VENV)/.dev  ## the long tests of a real federation, half an hour or more
	$(BIN)/python -m pytest -m flower $(TEST_ARGUMENTS)

# The gallery is made again when the library has changed: half a minute.
GALLERY := site-gallery
$(GALLERY)/.made: scripts/site/gallery.py docs/tutorial-tables.md $(shell find src/fedkin -name '*.py') | $(VENV)/.dev
	$(BIN)/python scripts/site/gallery.py --out $(GALLERY)
	@touch $@

docs: $(VENV)/.dev $(GALLERY)/.made  ## the documentation site, in site/, with a gallery of reports
	NO_MKDOCS_2_WARNING=1 $(BIN)/python scripts/site/build.py --out site --gallery $(GALLERY)

# Each half begins with a look at the tree, since tests and docs must not change it.
release: $(VENV)/.release  ## wheel and sdist in dist/, with everything checked; uploads nothing
	$(BIN)/python scripts/release.py check
	$(MAKE) test docs
	$(BIN)/python scripts/release.py build

browser:  ## Chromium for the tests of report.html, where apt-get can install it
	scripts/install-browser.sh

bench: $(VENV)/.bench  ## the engine against a plain PyTorch loop
	$(BIN)/python -m benchmarks $(BENCH_ARGUMENTS)

convergence: $(VENV)/.dev  ## whether "converged" is true, on 64 random federations against SciPy, in five minutes
	$(BIN)/python -m reproduction.convergence

theory: $(VENV)/.base  ## what the paper's theory claims, measured: figures and tables in fedkin-theory/, in three minutes
	for study in rates regimes cap examples; do $(BIN)/python -m reproduction.theory $$study --out $(THEORY) || exit; done

# The stores to collect are known only after the studies have run, so the shell looks for them, not make.
COLLECT = set --; for study in $(STUDIES); do \
	  if ls $(STORES)/$$study/runs/*/finished.json >/dev/null 2>&1; then set -- "$$@" --add $(STORES)/$$study; fi; \
	done; \
	[ $$\# -gt 0 ] || echo "no finished runs of these studies in $(STORES): only what reproduction/ has is compared" >&2; \
	$(BIN)/python -m reproduction compare reproduction "$$@" $${1:+$(if $(ONLY_MISSING),--keep) $(COMPARE_ARGUMENTS)}

# $(MAKE) must not appear in this recipe: make would then carry it out under --dry-run too.
# A study that fails in part, or whose data are missing, does not stop the others.
reproduce: $(VENV)/.base  ## the paper's table: run all studies, resume where they stopped, make reproduction/
	@failed=; compared=; for study in $(STUDIES); do \
	  echo "== $$study"; \
	  $(BIN)/python -m reproduction run reproduction/studies/$$study.toml --out $(STORES)/$$study --jobs $(JOBS) --resume \
	    $(if $(ONLY_MISSING),--collected reproduction) \
	    || { [ $$? -eq 130 ] && exit 130; failed="$$failed $$study"; }; \
	done; \
	{ $(COLLECT); } || compared=no; \
	if [ -n "$$failed" ]; then echo "error: unfinished runs in:$$failed; run it again"; fi; \
	[ -z "$$failed$$compared" ] || exit 2

compare: $(VENV)/.base  ## make reproduction/ again from the stores that are there, and from what was collected before
	@$(COLLECT)

leaderboard: $(VENV)/.base  ## all methods on all kinds of federations: the runs that are missing, and the page
	@$(BIN)/python -m reproduction.leaderboard run --stores $(STORES)/leaderboard --jobs $(JOBS); status=$$?; \
	$(BIN)/python -m reproduction.leaderboard page && exit $$status

clean:  ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache
