# Commands for a checkout. CI calls the same targets.
#   make run                        the next simulated nightly run of search_ranking, including the services
#   make run PIPELINE=flight_delay  the same for another pipeline; NIGHT=YYYY-MM-DD selects the date, FORCE=1 repeats finished work,
#                                   CONF='{"train": {"epochs": 5}}' overrides keys of the YAML for this run
PIPELINE ?= search_ranking
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do $$p -c 'import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && { echo $$p; break; }; done)
# Additional package index for torch: builds without CUDA save gigabytes on a laptop.
TORCH_INDEX ?=

# Tests mostly wait for the services that they start: two concurrent files fit two cores.
TEST_WORKERS ?= 2
PYTEST = $(BIN)/python -m pytest -m "not long" --numprocesses $(TEST_WORKERS) --dist loadfile

# For `make mutants`: number of mutants to run, sampled with a fixed seed.
MUTANTS ?= 400

# For images: their tag (the product's version), their base (any Debian bookworm), and the build command.
VERSION ?= $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' pyproject.toml)
BASE ?=
BUILD ?= docker build

VENV := .venv
BIN := $(VENV)/bin
HASH := $(shell cat requirements.txt constraints.txt | sha256sum | cut -c1-16)
DEV_HASH := $(shell cat requirements.txt requirements-dev.txt constraints.txt | sha256sum | cut -c1-16)
INSTALLED := $(VENV)/.installed-$(HASH)
DEV_INSTALLED := $(VENV)/.installed-dev-$(DEV_HASH)
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-input --constraint constraints.txt
SERVICES := $(BIN)/python -m devstack
# pip prints nothing for minutes. Not on the standard output, which `eval "$(make env)"` takes as commands. The loop ends with the shell of its recipe, after Ctrl-C in its next iteration; sleep keeps no pipe of ours open.
TICK_SECONDS ?= 30
TICK := ( while sleep $(TICK_SECONDS) >/dev/null 2>&1 && kill -0 $$$$ 2>/dev/null; do echo "  still installing" >&2; done ) & trap "kill $$! 2>/dev/null" EXIT;

# A user's value reaches the program as one argument: quoted for the shell, on one line, and without expansion of `$` by make.
define newline


endef
quoted = '$(subst $(newline), ,$(subst ','\'',$(value $(1))))'
unexport PIPELINE NIGHT FROM TO CONF

export PYTHONPATH := $(CURDIR):$(CURDIR)/plugins$(if $(PYTHONPATH),:$(PYTHONPATH))

.PHONY: help run backfill start stop status shell env install install-dev test test-rest test-all quick chaos mutants test-cluster images image-stage image-stage-cuda image-mlflow image-airflow image-worker wheel lint format schema reference site bench gpu-wheels clean
.SILENT:
.DEFAULT_GOAL := help

help:  ## list the targets
	awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile

run: $(INSTALLED)  ## run the next simulated night of PIPELINE (default search_ranking), including installation and services
	$(SERVICES) run $(call quoted,PIPELINE) $(if $(value NIGHT),--night=$(call quoted,NIGHT)) $(if $(FORCE),--force) $(if $(value CONF),--conf $(call quoted,CONF))

backfill: $(INSTALLED)  ## run PIPELINE for the dates FROM=YYYY-MM-DD to TO=YYYY-MM-DD in sequence; KEEP_GOING=1 continues after a failure
	$(SERVICES) backfill $(call quoted,PIPELINE) $(if $(value FROM),--from=$(call quoted,FROM)) $(if $(value TO),--to=$(call quoted,TO)) $(if $(FORCE),--force) $(if $(KEEP_GOING),--keep-going)

start: $(INSTALLED)  ## start Airflow and MLflow, and wait until they are ready
	$(SERVICES) start

stop:  ## stop every process that this checkout started, and no other
	if [ -x $(BIN)/python ] && $(BIN)/python -c 'import psutil' 2>/dev/null; then $(SERVICES) stop; else echo "nothing is installed, so nothing runs"; fi

status: $(INSTALLED)  ## list the running processes
	$(SERVICES) status || true

shell: $(INSTALLED)  ## open a shell in which airflow and python use this installation
	eval "$$($(SERVICES) env)" && exec $${SHELL:-/bin/sh}

env: $(INSTALLED)  ## print the same settings for your own shell: eval "$(make env)"
	$(SERVICES) env

test: $(DEV_INSTALLED)  ## run the tests for every change, with TEST_WORKERS processes in parallel: a quarter of an hour
	$(PYTEST)

test-rest: $(DEV_INSTALLED)  ## run the other tests, tests/rest: stories on real services, browser, PostgreSQL, processes: half an hour
	$(PYTEST) tests/rest

test-all: test test-rest  ## run both

quick: $(DEV_INSTALLED)  ## run fast unit tests that need no service: a few minutes
	$(BIN)/python -m pytest tests/unit -m "not slow and not long" -k "not postgresql" --numprocesses $(TEST_WORKERS) --dist loadfile

chaos: $(DEV_INSTALLED)  ## run fault-injection tests: kills and pauses of a real installation, and DISTURBED_NIGHTS=30 complete runs (docs/guarantees.md): hours
	$(BIN)/python -m pytest tests/chaos tests/rest/chaos
	$(BIN)/python -m pytest -m long tests/unit tests/golden tests/rest --ignore tests/rest/chaos

mutants: $(DEV_INSTALLED)  ## run the mutation test: a sample of MUTANTS=400 changes to the code, each of which a unit test must detect; continues after Ctrl-C
	nice -n 19 $(BIN)/python -m tools.mutants --sample $(MUTANTS)

test-cluster: $(DEV_INSTALLED)  ## run the tests on the cluster of KUBECONFIG (docs/kubernetes.md)
	$(BIN)/python -m pytest tests/kubernetes

IMAGE_ARGS = $(if $(BASE),--build-arg BASE=$(BASE)) $(if $(TORCH_INDEX),--build-arg TORCH_INDEX=$(TORCH_INDEX)) --build-arg GIT_COMMIT=$$(git rev-parse HEAD)

images: image-stage image-mlflow image-airflow image-worker  ## build the four images; BUILD="buildah bud" without docker, BASE=… for another base image

# The GPU image of placement.yaml: torch of pip's default index, which has CUDA. TORCH_INDEX is the index of builds for CPUs.
image-stage-cuda: override TORCH_INDEX :=
image-stage-cuda:  ## build the stages' image for GPUs: nightshift-stage:VERSION-cuda
	$(BUILD) $(IMAGE_ARGS) -f docker/stage.Dockerfile -t nightshift-stage:$(VERSION)-cuda .

image-stage image-mlflow:
	$(BUILD) $(IMAGE_ARGS) -f docker/$(@:image-%=%).Dockerfile -t nightshift-$(@:image-%=%):$(VERSION) .

image-airflow image-worker:
	$(BUILD) $(IMAGE_ARGS) -f docker/airflow.Dockerfile --target $(@:image-%=%) -t nightshift-$(@:image-%=%):$(VERSION) .

# Built from a copy of the sources: otherwise setuptools leaves build/ and .egg-info beside them, and adds files deleted since to the next wheel.
WHEEL_SOURCES := .local/wheel
DIST ?= dist
wheel: $(DEV_INSTALLED)  ## build one wheel in DIST=dist: training, nightshift, the plugin's module and the command nightshift
	rm -rf $(WHEEL_SOURCES) && mkdir -p $(WHEEL_SOURCES)
	git ls-files -z --cached --others --exclude-standard training plugins pyproject.toml requirements.txt README.md LICENSE | xargs -0 cp --parents --target-directory $(WHEEL_SOURCES)
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir $(DIST) ./$(WHEEL_SOURCES)
	rm -rf $(WHEEL_SOURCES)

lint: $(DEV_INSTALLED)  ## check the code: ruff, mypy --strict, import rules, JSON Schema and docs/reference up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m training.spec.schema --check
	$(BIN)/python -m tools.reference --check

format: $(DEV_INSTALLED)  ## format the code with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

schema: $(INSTALLED)  ## generate the JSON Schema of the pipelines' YAML, for editors
	$(BIN)/python -m training.spec.schema

reference: $(DEV_INSTALLED)  ## generate docs/reference/: keys of the YAML, environment variables, error codes, commands
	$(BIN)/python -m tools.reference

site: $(DEV_INSTALLED)  ## build the documentation as a static site in site/; fails on a dead link
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

GPU_PYTHON ?= 3.12
gpu-wheels: $(DEV_INSTALLED)  ## download into .local/gpu-wheels what `python -m benchmarks.gpu` needs beside torch, for GPU_PYTHON=3.12 (docs/gpu.md)
	$(BIN)/python -m benchmarks.gpu.wheels .local/gpu-wheels --python $(GPU_PYTHON)

bench: $(DEV_INSTALLED)  ## run all measurements of docs/figures.md, those for a cluster where KUBECONFIG names one; lists what failed
	failed=; for file in benchmarks/[a-z]*.py; do echo "== $$file"; $(BIN)/python $$file || failed="$$failed $$file"; done; \
	[ -z "$$failed" ] || { echo "failed or missed a goal:$$failed"; exit 1; }

clean: stop  ## stop all processes and delete .local/; the virtual environment stays
	rm -rf .local

install: $(INSTALLED)  ## create the virtual environment with the pinned requirements

install-dev: $(DEV_INSTALLED)

$(BIN)/python:
	[ -n "$(PYTHON)" ] || { echo "error: Python 3.11, 3.12 or 3.13 with venv is needed; name it with PYTHON=..." >&2; exit 1; }
	echo "creating $(VENV) with $$($(PYTHON) --version)" >&2
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): | $(BIN)/python
	echo "installing torch (once)" >&2
	$(TICK) $(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) "$$(grep '^torch==' requirements.txt)"
	echo "installing the other requirements (once)" >&2
	$(TICK) $(PIP) --requirement requirements.txt
	rm -f $(VENV)/.installed-[0-9a-f]*
	touch $@

$(DEV_INSTALLED): $(INSTALLED)
	echo "installing the requirements of tests and checks (once)" >&2
	$(TICK) $(PIP) --requirement requirements-dev.txt
	rm -f $(VENV)/.installed-dev-*
	touch $@
