# Every command sets up what it needs first; `make` alone lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Packages in ~/.local and PYTHONPATH would shadow what the project pins.
export PYTHONNOUSERSITE := 1
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV

# Caches by user, so that `sudo make test` leaves nothing behind that the
# user's own `make test` then fails to write.
CACHE := $(CURDIR)/.cache-$(shell id -u)
export RUFF_CACHE_DIR := $(CACHE)/ruff
export MYPY_CACHE_DIR := $(CACHE)/mypy
export HYPOTHESIS_STORAGE_DIRECTORY := $(CACHE)/hypothesis

PY := .venv/bin/python
AS_ROOT := tools/as-root.sh

# Passed to pytest: make test ARGS="tests/unit -k slices"
ARGS ?=
# Test files that run at a time. With 0 all run in one process, which shows what they print: make test JOBS=0 ARGS=-s
JOBS ?= 2

.PHONY: help setup demo test programs test-cluster record-kube-proxy lint typecheck check check-debian13 bench bench-debian13 format clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## install Debian packages and the virtual environment .venv (only what is missing)
	@tools/setup.sh

demo: setup ## build a small world of network namespaces and balance real connections in it
	@$(AS_ROOT) $(PY) demo/demo.py

test: setup ## run the unit tests and the tests with real packets (ARGS="..." goes to pytest)
	@$(AS_ROOT) $(PY) -m pytest -n $(JOBS) --dist loadfile -o cache_dir="$(CACHE)/pytest" $(ARGS)

programs: setup ## build Kubernetes' API server, controllers, kubectl and kube-proxy, and etcd, once (6 to 13 minutes)
	@PYTHONPATH=operator:tests $(PY) -m cluster.programs

# The programs are built before, by the user: tests may run where there is no network, or with another home folder.
test-cluster: setup ## run the tests on a real control plane, and build it first if need be (ARGS="..." goes to pytest)
	@programs=$$(PYTHONPATH=operator:tests $(PY) -m cluster.programs); \
	$(AS_ROOT) env NODEPROXY_CLUSTER_PROGRAMS="$$programs" $(PY) -m pytest -n $(JOBS) --dist loadfile \
	    -o cache_dir="$(CACHE)/pytest" -o testpaths=tests/cluster $(ARGS)

record-kube-proxy: setup ## record anew what kube-proxy leaves in the kernel, for the tests of taking it over (ARGS="--help")
	@$(AS_ROOT) env PYTHONPATH=operator:tests $(PY) -m cluster.record $(ARGS)

lint: setup ## check style, formatting and the one-way layers
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/lint-imports --no-logo --cache-dir "$(CACHE)/import-linter"

typecheck: setup ## check types (mypy, strict)
	@.venv/bin/mypy

check: lint typecheck test ## lint, typecheck and test; with test-cluster, what CI runs

check-debian13: ## run all checks in a Debian 13 root (Python 3.13, nft 1.1.x; made on the first run)
	@tools/in-debian.sh trixie

# Kubernetes' programs are built first where a topic that was chosen needs them.
bench: setup ## measure loads, changes and memory, beside kube-proxy too, and compare with what is expected (ARGS="--help")
	@programs=$$(PYTHONPATH=operator:tests $(PY) -m bench --programs $(ARGS)); \
	$(AS_ROOT) env PYTHONPATH=operator:tests NODEPROXY_CLUSTER_PROGRAMS="$$programs" $(PY) -m bench \
	    --json-dir "$(CACHE)/bench" $(ARGS)

bench-debian13: setup ## the same in the Debian 13 root, on what is committed
	@status=0; programs=$$(PYTHONPATH=operator:tests $(PY) -m bench --programs $(ARGS)); \
	tools/in-debian.sh $${programs:+--programs "$$programs"} trixie make bench ARGS="$(ARGS)" || status=$$?; \
	made="$${NODEPROXY_DEBIAN_ROOTS:-$${XDG_CACHE_HOME:-$$HOME/.cache}/nodeproxy}/trixie/src/.cache-0/bench"; \
	if [[ -d $$made ]]; then mkdir -p "$(CACHE)/bench"; cp "$$made"/*.json "$(CACHE)/bench/"; echo "Copied to $(CACHE)/bench"; fi; \
	exit "$$status"

format: setup ## rewrite the Python files in the project's format
	@.venv/bin/ruff check --fix .
	@.venv/bin/ruff format .

clean: ## remove the virtual environment, caches and built files
	@rm -rf .venv .cache-* dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name .git -prune -o -type d -name __pycache__ -exec rm -rf {} +
