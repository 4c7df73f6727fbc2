# `make demo` trains a language model; `make test` runs the tests. Both make the environment in .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# three processes with a thread each, also on two cores, because tests wait for deadlines and for processes of their own;
# files stay together, and who is done first takes from the others
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal
# tests start many processes: what is imported, and every assertion, is compiled once and not in each of them
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help env demo test test-fast test-tasks test-full test-kernels test-package lint format docs site bench bench-foundation clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

env: $(READY)  ## Make the environment in .venv

# torch first and alone, at the pinned version, so that nothing pulls in another build of it
$(READY): pyproject.toml constraints.txt .ci/bubblewrap
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	.ci/bubblewrap $(VENV)
	touch $(READY)

demo: env  ## Train the main job: grpo on compose, about a minute
	$(BIN)/etude train

test: env  ## All tests
	$(PYTEST)

test-fast: env  ## The fast part of the tests
	$(PYTEST) -m 'not slow'

test-tasks: env  ## The sixty tasks of docs/coming-from.md, each in an empty folder
	$(PYTEST) -m '' tests/cli/test_first_day.py

test-full: env  ## Every method of tokens on samplers, in processes and on Ray, and from older rows
	$(PYTEST) -n 1 -m full tests/runs/test_on_processes.py tests/runs/test_on_ray.py tests/runs/test_bound.py

test-kernels: env  ## Populations under several modes of MKL, as other processors compute
	PYTHON=$(BIN)/python .ci/kernels

lint: env  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: env  ## Rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: env  ## Write the generated pages again
	$(BIN)/python docs/make_methods.py
	$(BIN)/python benchmarks/claims_vs_peers.py page
	$(BIN)/python benchmarks/across_sizes.py --page

# needs neither torch nor etude: the reference is read from the source
site:  ## The documentation as a site, in site/
	test -x .venv-site/bin/mkdocs || { $(PYTHON) -m venv .venv-site && .venv-site/bin/python -m pip install --quiet --disable-pip-version-check 'mkdocs>=1.6,<2' 'mkdocs-material>=9.5,<10'; }
	NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs build --quiet
	@echo "Read it with: $(PYTHON) -m http.server --directory site"

test-package: env  ## The wheel and the sdist, installed and used in an environment of their own
	PYTHON=$(PYTHON) .ci/package

bench: env  ## Every speed claim, side by side with its peer
	$(BIN)/python benchmarks/run.py

bench-foundation: env  ## The foundation's speed claims
	$(BIN)/python benchmarks/run.py --foundation

clean:  ## Remove the environments
	rm -rf $(VENV) .venv-*
