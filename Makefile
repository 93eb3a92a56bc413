# The chores. Each target sets up what it needs on a machine that has only Python >= 3.11, make and a package index.
SHELL := /bin/bash
PYTHON ?= python3
UV := .tools/bin/uv
export UV_PYTHON_DOWNLOADS := never
export UV_PYTHON ?= $(PYTHON)
# Compiled ahead: `makeway up` is ready a second sooner, also where Python is told not to write bytecode.
export UV_COMPILE_BYTECODE := 1

.PHONY: setup demo test check fix bench optimum properties pythons long kubectl cluster test-cluster clean

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "makeway needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv .tools
	@.tools/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.8,<1'

# Everything: to run, to test, to check.
setup: .venv/.dev-ready

.venv/.dev-ready: $(UV) pyproject.toml uv.lock
	@$(UV) sync --quiet --frozen
	@.venv/bin/python -m compileall -q src
	@touch $@ .venv/.run-ready

# Only what running needs.
.venv/.run-ready: $(UV) pyproject.toml uv.lock
	@$(UV) sync --quiet --frozen --no-dev --inexact
	@.venv/bin/python -m compileall -q src
	@touch $@

demo: .venv/.run-ready
	@.venv/bin/makeway demo

# The real kubectl, built once into the cache. Without a network the tests that need it are skipped and say so.
kubectl: setup
	@.venv/bin/python tools/kubectl.py > /dev/null || { [ "$$CI" != true ] && echo "kubectl cannot be had here; the tests that need it are skipped."; }

test: kubectl
	@.venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow"

# A real control plane (etcd, kube-apiserver, kube-controller-manager), built once into the cache and started on loopback.
cluster: kubectl
	@.venv/bin/python -m tools.kube_binaries
	@.venv/bin/python -m tools.control_plane

# On a real API server: the walkthroughs, the install, the takeover and faults; what kube-scheduler would have done; a third of the recordings.
CLUSTER_TESTS := tests/e2e/test_failover.py tests/differential tests/e2e/test_faults_on_cluster.py tests/e2e/test_cluster.py \
  tests/e2e/test_living_with_others.py tests/e2e/test_seeds.py tests/e2e/test_walkthroughs.py tests/kubectl/test_transcripts.py::test_the_recording_is_what_a_real_server_says
test-cluster: kubectl
	@.venv/bin/python -m tools.kube_binaries
	@audit=$$(mktemp -d) && trap 'rm -rf "$$audit"' EXIT && export MAKEWAY_AUDIT=$$audit && \
	  .venv/bin/python -m pytest --backend kube -n 2 --dist worksteal -m "not slow" $(CLUSTER_TESTS) && \
	  .venv/bin/python -m pytest --backend kube -n 0 tests/e2e/test_zz_rights.py
	@.venv/bin/python -m pytest --backend kube -n 0 -m "not slow" tests/golden/test_on_cluster.py

check: setup
	.venv/bin/ruff format --check src tests bench tools
	.venv/bin/ruff check src tests bench tools
	.venv/bin/mypy
	.venv/bin/lint-imports
	.venv/bin/codespell src tests docs README.md changelog.d

fix: setup
	.venv/bin/ruff check --fix src tests bench tools
	.venv/bin/ruff format src tests bench tools

# All benchmarks, or one: make bench B=engine
bench: setup
	@.venv/bin/python -m bench $(B)

# Victim sets against an exact solver: make optimum N=5000
optimum: setup
	@.venv/bin/python -m tests.optimum --count $(or $(N),2000)

# The promises on many generated clusters: make properties N=100000
properties: setup
	@N=$(or $(N),100000) .venv/bin/python -m pytest -n 2 tests/properties

# The unit tests on each Python that is supported and found: make pythons
pythons: setup
	@.venv/bin/python -m tools.pythons

# Everything that takes longer than a test run should.
long: kubectl pythons
	@.venv/bin/python -m pytest -n 2 --dist loadfile -m slow
	@.venv/bin/python -m tools.kube_binaries
	@.venv/bin/python -m pytest --backend kube -m slow tests/differential tests/golden/test_on_cluster.py
	@$(MAKE) optimum properties bench

clean:
	rm -rf .venv .tools build .pytest_cache .mypy_cache .ruff_cache
