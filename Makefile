# Everything lands in this checkout: .tools holds uv, .venv holds evener and what it needs.
# `make help` lists the targets. `make demo GPU=1` brings the CUDA libraries as well.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# The first Python that fits; `make PYTHON=/path/to/python setup` names another.
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
	"$$p" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& { echo "$$p"; break; }; done)
# Once CUDA is there, it stays.
GPU ?= $(if $(wildcard .venv/.synced-gpu),1,0)
JOBS ?= 2
# A quarter of the time, a long test waits for processes that it has started.
LONG_JOBS ?= 3
ARGS ?=

# A person's uv settings for other projects must not reach into this checkout.
export UV_PYTHON_DOWNLOADS := never
unexport VIRTUAL_ENV UV_PROJECT_ENVIRONMENT PYTHONPATH PYTHONHOME

UV := .tools/bin/uv
BIN := .venv/bin
REQUIREMENTS := requirements/$(if $(filter 1,$(GPU)),gpu,dev).txt
# One stamp for each set, so that going from one to the other installs again.
STAMP := .venv/.synced-$(if $(filter 1,$(GPU)),gpu,dev)

COMPILE := --quiet --universal --generate-hashes --python-version 3.11 --no-emit-index-url \
	--no-emit-find-links --custom-compile-command "make lock"
GROUPS := --group dev --group demo --extra ray pyproject.toml

.PHONY: help
help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' \
		| while IFS=$$'\t' read -r name what; do printf '  make %-16s %s\n' "$$name" "$$what"; done

.PHONY: setup
setup: $(STAMP)  ## bring uv, evener and all it needs into this checkout (GPU=1: with CUDA)

.tools/.installed: requirements/uv.txt
	@if [ -z "$(PYTHON)" ]; then \
		echo "evener needs Python 3.11, 3.12 or 3.13, and finds none of them." >&2; \
		echo "Install Python 3.11, or name one: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; \
		exit 1; fi
	@if ! "$(PYTHON)" -m pip --version >/dev/null 2>&1; then \
		echo "$(PYTHON) has no pip, which is needed once, to bring uv." >&2; \
		echo "Install pip for it (on Debian: python3-pip), or name another Python by PYTHON=..." >&2; \
		exit 1; fi
	@# --without-pip: Debian's Python makes no virtual environment with pip by itself.
	"$(PYTHON)" -m venv --clear --without-pip .tools
	"$(PYTHON)" -m pip --python .tools/bin/python install --quiet --disable-pip-version-check \
		--require-hashes -r requirements/uv.txt
	@touch $@

$(BIN)/python: | .tools/.installed
	$(UV) venv --quiet --python "$(PYTHON)" .venv

$(STAMP): $(REQUIREMENTS) pyproject.toml .tools/.installed | $(BIN)/python
	@rm -f .venv/.synced-*
	$(UV) pip sync --quiet --python $(BIN)/python --require-hashes $(REQUIREMENTS)
	@# The build backend is among the requirements: nothing is fetched without a hash.
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --offline -e .
	@touch $@

.PHONY: demo
demo: $(STAMP)  ## train on handwritten digits on all devices, checked against one device
	$(BIN)/python examples/digits.py $(ARGS)

.PHONY: demo-uneven
demo-uneven: $(STAMP)  ## plan and train a transformer that the small one of two devices cannot hold
	$(BIN)/python examples/uneven.py $(ARGS)

.PHONY: demo-machines
demo-machines: $(STAMP)  ## train on three workers of unlike devices, of which one is killed
	$(BIN)/python examples/machines/demo.py $(ARGS)

.PHONY: chaos
chaos: $(STAMP)  ## the fault campaign of several workers (ARGS="--faults 200 --seed 1")
	$(BIN)/python tests/workers/campaign.py $(ARGS)

.PHONY: cables
cables: $(STAMP)  ## the fault campaign of machines in network namespaces, as root (ARGS="--faults 60")
	PYTHONPATH=tests $(BIN)/python -m machines.campaign $(ARGS)

.PHONY: simulate
simulate: $(STAMP)  ## whole jobs of workers on a simulated clock (ARGS="--schedules 100000 --jobs 2")
	PYTHONPATH=tests $(BIN)/python -m workers.simulated $(ARGS)

.PHONY: test
test: $(STAMP)  ## the tests that one runs before a commit, in some minutes; one in a few of the long ones
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

.PHONY: test-all
test-all: $(STAMP)  ## the long tests, half of their cases by turns (EVENER_TURNS=1: all), and more draws
	EVENER_HYPOTHESIS_PROFILE=all $(BIN)/python -m pytest -m long -n $(LONG_JOBS) --dist worksteal \
		--timeout 1200 $(ARGS)

.PHONY: fuzz
fuzz: $(STAMP)  ## random programs against one device, for as long as ARGS="--minutes 60" says
	PYTHONPATH=tests $(BIN)/python -m exactness.fuzz $(ARGS)

.PHONY: gpu-check
gpu-check: $(STAMP)  ## the tests for real GPUs (GPU=1 on a machine that has one)
	$(BIN)/python -m pytest -rs tests/gpu $(ARGS)

.PHONY: gpu-bench
gpu-bench: $(STAMP)  ## correctness, speed and profiles on one GPU, in ten minutes (GPU=1)
	$(BIN)/python benchmarks/gpu.py --tests $(ARGS)

.PHONY: bench
bench: $(STAMP)  ## measure side by side with the peers
	$(BIN)/python benchmarks/data_parallel.py $(ARGS)

.PHONY: lint
lint: $(STAMP)  ## style, words, spelling, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/python tools/check_words.py
	$(BIN)/lint-imports

.PHONY: type
type: $(STAMP)  ## type check
	$(BIN)/basedpyright

# The environment is new but for the packages of .venv, which it is lent: see the file.
.PHONY: wheel-check
wheel-check: $(STAMP)  ## build the wheel, install it in an environment of its own, and use it
	$(BIN)/python tools/check_wheel.py

# It looks for Python 3.12 and 3.13 on the PATH, and says which of them it did not find.
.PHONY: matrix
matrix: $(STAMP)  ## a smoke suite with other versions of Python, TensorFlow and Keras: half an hour
	$(BIN)/python tools/version_matrix.py $(ARGS)

# An environment of its own, without TensorFlow: no other target needs it.
.venv-docs/.synced: requirements/docs.txt .tools/.installed
	$(UV) venv --quiet --clear --python "$(PYTHON)" .venv-docs
	$(UV) pip sync --quiet --python .venv-docs/bin/python --require-hashes requirements/docs.txt
	@touch $@

.PHONY: docs
docs: .venv-docs/.synced  ## build the documentation site into site/, with warnings as errors
	@# MkDocs itself is pinned; its advice about other tools is left out.
	PYTHONPATH=src NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --clean $(ARGS)

# It needs Chromium, as `chromium` on the PATH or by CHROMIUM=...
.PHONY: pictures
pictures: $(STAMP)  ## take the pictures of the README and of the start page from a real run
	$(BIN)/python tools/take_pictures.py

# Run after a change of dependencies; takes newer versions only with ARGS=--upgrade.
.PHONY: lock
lock: .tools/.installed  ## compile requirements/*.txt again, with hashes
	$(UV) pip compile $(COMPILE) requirements/uv.in -o requirements/uv.txt $(ARGS)
	$(UV) pip compile $(COMPILE) $(GROUPS) -o requirements/dev.txt $(ARGS)
	$(UV) pip compile $(COMPILE) $(GROUPS) --extra gpu -c requirements/dev.txt \
		-o requirements/gpu.txt $(ARGS)
	$(UV) pip compile $(COMPILE) --group docs -c requirements/dev.txt \
		-o requirements/docs.txt $(ARGS)
	$(UV) pip compile $(COMPILE) --group image pyproject.toml -c requirements/dev.txt \
		-o requirements/image.txt $(ARGS)
	$(UV) pip compile $(COMPILE) --group image --extra gpu pyproject.toml -c requirements/gpu.txt \
		-o requirements/image-gpu.txt $(ARGS)
