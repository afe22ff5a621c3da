# `make help` lists the targets. Needed: make and a Python >= 3.11.
#
#   make quickstart PYTHON=/opt/python3.12/bin/python3    # choose the Python yourself

VENV := .venv
PY := $(VENV)/bin/python
# -qq: pip prints errors only.
PIP := $(PY) -m pip install -qq --disable-pip-version-check
PINS := requirements-pinned.txt
PYTEST_ARGS ?=
# Two workers, a file in one of them, in the order of tests/conftest.py; PYTEST_ARGS="-n 0" runs all
# in one process, for a debugger.
PYTEST := $(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# Pythons to try in this order for the environment, unless PYTHON is given.
ifeq ($(strip $(PYTHON)),)
CANDIDATES := python3.11 python3.12 python3.13 python3
else
CANDIDATES := $(PYTHON)
endif

# Files that say "this is installed". Each is older than what it depends on exactly when
# something has to be installed again.
MADE := $(VENV)/.made
BASE := $(VENV)/.base
TEST := $(VENV)/.test

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install quickstart test test-all test-fast lint format clean

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' Makefile

install: $(BASE)  ## install her_jax into .venv

quickstart: $(BASE)  ## run the whole chain on a tiny model; results in out/quickstart
	$(PY) -m her_jax.main --config=configs/quickstart.py --workdir=out/quickstart

test: $(TEST)  ## run the tests (PYTEST_ARGS="-k name" to choose)
	$(PYTEST) -m "not exhaustive" $(PYTEST_ARGS)

test-all: $(TEST)  ## run all tests, also what takes an hour
	$(PYTEST) $(PYTEST_ARGS)

test-fast: $(TEST)  ## run the tests that are not marked slow
	$(PYTEST) -m "not slow and not exhaustive" $(PYTEST_ARGS)

lint: $(TEST)  ## check style, format and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: $(TEST)  ## mend what `make lint` says about style and format
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

clean:  ## remove .venv, builds and caches; results in out/ stay
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './out/*' -prune -exec rm -rf {} +

# ensurepip is probed too: Debian ships it in a package of its own, and without it an
# environment comes out without pip.
$(MADE):
	@found=; old=; \
	for python in $(CANDIDATES); do \
	  command -v "$$python" >/dev/null 2>&1 || continue; \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    if "$$python" -c 'import ensurepip, venv' 2>/dev/null; then found=$$python; break; fi; \
	    old="$$old $$python(no venv module: install python3-venv)"; \
	  else \
	    old="$$old $$python(does not start, or is older than 3.11)"; \
	  fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "make: no usable Python >= 3.11. Tried: $(CANDIDATES). Refused:$${old:- none found}." >&2; \
	  echo "make: install one, or name it: make PYTHON=/path/to/python3.11 ..." >&2; \
	  exit 1; \
	fi; \
	echo "Making $(VENV) with $$found ($$("$$found" --version))"; \
	"$$found" -m venv --clear $(VENV)
	@touch $@

$(BASE): $(MADE) setup.py $(PINS)
	@echo "Installing her_jax (a few minutes the first time)"
	@$(PIP) -c $(PINS) -e .
	@touch $@

# torch alone and first, by its exact version: a wheel that is already there, or one from an
# index for CPUs that you have configured, satisfies `.[test]` afterwards.
$(TEST): $(BASE)
	@echo "Installing the test tools"
	@$(PIP) "$$(grep -E '^torch==' $(PINS))"
	@$(PIP) -c $(PINS) -e '.[test]'
	@touch $@
