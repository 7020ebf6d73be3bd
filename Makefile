# `make help` lists the targets. Everything lives in .venv; nothing else on the machine is changed.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := common server client workbench research tests docs
# Of the three distributions: what a site installs, what a consortium does, and the studies.
PROJECTS := ./client . ./research
RUN_STAMP := .venv/.run-stamp
DEV_STAMP := .venv/.dev-stamp
DOCS_STAMP := .venv/.docs-stamp
.DEFAULT_GOAL := help
# Where it is set, every process compiles all sources again: minutes over the tests, which start many.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "  make %-14s %s\n", $$1, $$2}'

.venv/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "fedbnsl needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv .venv

$(RUN_STAMP): .venv/pyvenv.cfg requirements/all.txt $(PROJECTS:%=%/pyproject.toml)
	$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements/all.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation $(PROJECTS:%=--editable %)
	@touch $@

$(DEV_STAMP): $(RUN_STAMP) requirements/dev.txt
	$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements/dev.txt
	@touch $@

$(DOCS_STAMP): $(RUN_STAMP) requirements/docs.txt
	$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements/docs.txt
	@touch $@

.PHONY: setup
setup: $(RUN_STAMP) ## Virtual environment in .venv with the locked dependencies

.PHONY: demo
demo: setup ## The main job: a coordinator and three participants over loopback, on generated data
	$(BIN)/fedbnsl demo

.PHONY: images
images: setup ## Container images of the coordinator and of a site (BASE_IMAGE: another Python than the public one)
	tests/compose/make-images

.PHONY: bundle
bundle: setup ## What a site and a consortium install on machines without a network, in build/bundle
	rm -rf build/bundle
	deploy/make-bundle site build/bundle/site
	deploy/make-bundle consortium build/bundle/consortium

.PHONY: compose-demo
compose-demo: setup ## Two private runs of four containers over TLS, from key to result (needs Docker and Compose)
	PYTHONPATH=tests $(BIN)/python -m compose.demo

# Many tests wait for processes: a worker more than there are cores. The tests of a file stay together.
CORES := $(shell $(PYTHON) -c 'import os; print(len(os.sched_getaffinity(0)))')
WORKERS ?= $(shell expr $(CORES) + 1)
IN_PARALLEL = $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder --numprocesses

# Before tests run side by side: each of their processes would compile the same kernels.
.PHONY: kernels
kernels: $(RUN_STAMP)
	$(BIN)/python -c "from fedbnsl_client.solvers.local_solver import warm_up; warm_up()"
	$(BIN)/python -c "from fedbnsl.plan.plan import Plan; from fedbnsl_server.run.coordinator import warm_up; warm_up(Plan.load('private'))"

.PHONY: test
test: $(DEV_STAMP) kernels ## All tests (set FEDBNSL_DATA to a folder with sachs/ to include the real data)
# Container images are made meanwhile, as far as that is possible here: the tests that need them come late, call for
# them again, and say what is missing.
	@mkdir -p build
	@{ tests/compose/make-images && tests/deploy/make-machine; } >build/images.log 2>&1 & \
	$(IN_PARALLEL) $(WORKERS) $(PYTEST_ARGS)

.PHONY: test-fast
test-fast: $(DEV_STAMP) kernels ## The tests that start no containers and no federations of processes, and simulate no whole runs
	$(IN_PARALLEL) $(CORES) -m "not audit and not long" $(PYTEST_ARGS)

.PHONY: docs
docs: $(DOCS_STAMP) ## The documentation as a site, in build/docs; a warning or a broken link fails
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --nitpicky --quiet docs build/docs
	@echo "docs: build/docs/index.html"

.PHONY: audit
audit: $(DEV_STAMP) ## The thorough privacy audit: many runs of the private code, judged by what they send (several minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/audit -m "audit or not audit" --verbose --log-cli-level=INFO --durations=10 $(PYTEST_ARGS)

.PHONY: faults
faults: $(DEV_STAMP) ## Kill, cut, fill and garble real processes at every step of the protocol (about 3 minutes; a part of make test)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/faults --durations=15 $(PYTEST_ARGS)

.PHONY: format
format: $(DEV_STAMP) ## Rewrite the sources in the project's format
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

.PHONY: check
check: $(DEV_STAMP) ## Format, lint and types, without changing anything
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/basedpyright --warnings

PROTOC = $(BIN)/python -m grpc_tools.protoc --proto_path=proto --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy \
	--plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc --python_out=$(1) --mypy_out=$(1) \
	--grpc_python_out=$(1) --mypy_grpc_out=$(1) proto/fedbnsl/wire/values.proto proto/fedbnsl/wire/federation.proto

.PHONY: proto
proto: $(DEV_STAMP) ## Generate common/fedbnsl/wire from proto/
	$(call PROTOC,common)

.PHONY: proto-check
proto-check: $(DEV_STAMP) ## Fail if common/fedbnsl/wire is not what proto/ generates
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && $(call PROTOC,"$$fresh") && \
	diff -ru --exclude=__pycache__ --exclude=__init__.py "$$fresh/fedbnsl/wire" common/fedbnsl/wire && echo "proto-check: generated code is current"

.PHONY: ci
ci: $(DEV_STAMP) $(DOCS_STAMP) ## What continuous integration runs
	$(MAKE) --jobs 2 --output-sync check proto-check docs kernels
	$(MAKE) test

.PHONY: bench
bench: setup ## Accuracy, bytes and speed figures (about an hour; set FEDBNSL_DATA to include Sachs)
	OMP_NUM_THREADS=1 $(BIN)/fedbnsl bench

COMPILE = $(BIN)/uv pip compile --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --quiet
ALL := client/pyproject.toml pyproject.toml --group pyproject.toml:build --no-emit-package fedbnsl-site

.PHONY: lock
lock: $(DEV_STAMP) ## Renew the locked dependencies in requirements/
	$(COMPILE) client/pyproject.toml --group pyproject.toml:build --output-file requirements/site.txt
	$(COMPILE) --group pyproject.toml:coordinator --constraint requirements/site.txt --output-file requirements/coordinator.txt
	$(COMPILE) $(ALL) --constraint requirements/site.txt --output-file requirements/all.txt
	$(COMPILE) $(ALL) --extra dev --constraint requirements/all.txt --output-file requirements/dev.txt
	$(COMPILE) $(ALL) --extra docs --constraint requirements/dev.txt --output-file requirements/docs.txt

.PHONY: clean
clean: ## Remove .venv and caches (never runs/)
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache dist build
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
