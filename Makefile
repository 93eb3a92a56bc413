# The chores. Each target sets up what it needs on a machine that has only Python >= 3.11, make and a package index.
SHELL := /bin/bash
PYTHON ?= python3
UV := .tools/bin/uv
export UV_PYTHON_DOWNLOADS := never
export UV_PYTHON ?= $(PYTHON)

.PHONY: setup demo test check fix clean

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "makeway needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv .tools
	@.tools/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.8,<1'

# Everything: to run, to test, to check.
setup: .venv/.dev-ready

.venv/.dev-ready: $(UV) pyproject.toml uv.lock
	@$(UV) sync --quiet --frozen
	@touch $@ .venv/.run-ready

# Only what running needs.
.venv/.run-ready: $(UV) pyproject.toml uv.lock
	@$(UV) sync --quiet --frozen --no-dev --inexact
	@touch $@

demo: .venv/.run-ready
	@.venv/bin/makeway demo

test: setup
	@.venv/bin/python -m pytest

check: setup
	.venv/bin/ruff format --check src tests bench
	.venv/bin/ruff check src tests bench
	.venv/bin/mypy
	.venv/bin/lint-imports
	.venv/bin/codespell src tests docs README.md changelog.d

fix: setup
	.venv/bin/ruff check --fix src tests bench
	.venv/bin/ruff format src tests bench

clean:
	rm -rf .venv .tools build .pytest_cache .mypy_cache .ruff_cache
