# make run    a first look: set up .venv, run examples/first-run.sh
# make test   everything a change must pass
# make help   the rest

SHELL   := /bin/bash
PYTHON  ?= python3
VENV    ?= .venv
# On two cores: the tests of processes mostly wait for each other.
WORKERS ?= 3
BIN     := $(VENV)/bin
PIP     := PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore $(BIN)/python -m pip

# The stamps carry a checksum of what was installed, so touching or checking out a file installs nothing again.
SUM     := $(shell cat requirements.lock requirements-dev.lock requirements-build.lock pyproject.toml | cksum | tr ' ' '-')
RUN     := $(VENV)/.installed-run-$(SUM)
DEV     := $(VENV)/.installed-dev-$(SUM)

.DEFAULT_GOAL := help
.PHONY: help run dev test lint pytest quick live soak format bench bench-peers bench-guard docs lock apt clean cluster-packages cloud cloud-packages streamflow

help:
	@sed -n 's/^## //p' Makefile

## make run      set up .venv and run the first example
run: $(RUN)
	PATH="$(abspath $(BIN)):$$PATH" bash examples/first-run.sh

## make dev      set up .venv with everything that tests and checks need
dev: $(DEV)

## make test     all checks (beside the tests) and all tests; goes on after a failure, and fails at the end
test: $(DEV)
	@status=0; log=$$(mktemp); \
	$(MAKE) --no-print-directory --keep-going lint >$$log 2>&1 & lint=$$!; \
	$(MAKE) --no-print-directory pytest || status=1; \
	wait $$lint || status=1; cat $$log; rm -f $$log; \
	if [ $$status -ne 0 ]; then echo "make test: something failed, see above" >&2; fi; \
	exit $$status

## make lint     ruff, mypy, import-linter
lint: lint-ruff lint-mypy lint-imports

.PHONY: lint-ruff lint-mypy lint-imports
lint-ruff: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
lint-mypy: $(DEV)
	$(BIN)/mypy --strict src
lint-imports: $(DEV)
	$(BIN)/lint-imports

## make pytest   all tests, and beside them those on real clusters, which mostly wait, in two halves (5: there are none)
pytest: $(DEV) cluster-packages streamflow
	@status=0; logs=$$(mktemp -d); set -x; \
	$(BIN)/pytest tests/cluster --ignore-glob='*/test_rota_*' >$$logs/systems 2>&1 & systems=$$!; \
	$(BIN)/pytest tests/cluster/test_rota_*.py >$$logs/rota 2>&1 & rota=$$!; \
	trap "kill $$systems $$rota; rm -rf $$logs; exit 130" INT TERM; \
	$(BIN)/pytest -m "not cluster and not cloud" -n $(WORKERS) --dist worksteal --durations=25 || status=1; \
	for half in $$systems $$rota; do wait $$half || [ $$? -eq 5 ] || status=1; done; \
	cat $$logs/systems $$logs/rota; rm -rf $$logs; \
	exit $$status

# The real batch systems of tests/cluster: installed where that is possible; their tests say if they are missing.
cluster-packages:
	@[ "$$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null || tools/apt-packages tests/cluster/packages.txt

## make cloud    the tests on a real OpenStack, two of which are started for them (CLOUD="-k deploy -n 0": some of them, on one)
cloud: $(DEV) cloud-packages
	$(BIN)/pytest -m cloud tests/cloud -n 2 --dist worksteal --durations=10 $(CLOUD)

cloud-packages:
	@[ "$$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null || tools/apt-packages tests/cloud/packages.txt

## make streamflow   an environment with StreamFlow beside .venv, for the tests of its plugin (its dependencies are not ours)
ENGINE := $(VENV)-streamflow
ENGINE_DONE := $(ENGINE)/.installed-$(shell cat requirements-streamflow.lock pyproject.toml | cksum | tr ' ' '-')
streamflow: $(ENGINE_DONE)
$(ENGINE_DONE):
	$(PYTHON) -m venv $(ENGINE)
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(ENGINE)/bin/python -m pip install --quiet --require-hashes -r requirements-streamflow.lock
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(ENGINE)/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@rm -f $(ENGINE)/.installed-*; touch $@

## make quick    a look within three minutes: units, properties, the seeds that once failed, `rota run`
quick: $(DEV)
	$(BIN)/pytest tests/unit tests/property tests/sim/test_corpus.py tests/process/test_cli_run.py -m "not slow" -n $(WORKERS) --dist worksteal

## make live     scenarios on the live batch systems that are here (LIVE="openlava --only deleted"): live.jsonl and a table
live: $(DEV)
	PYTHONPATH=tests $(BIN)/python -m live $(LIVE)

## make soak     many more hostile bytes than make test has (FUZZ=200: times as many), then coverage-guided ones (SOAK_S=600)
FUZZ ?= 50
SOAK_S ?= 600
soak: $(DEV)
	ROTA_FUZZ=$(FUZZ) $(BIN)/pytest tests/property/test_hostile_bytes.py -n $(WORKERS) -o timeout=0
	$(PIP) install --quiet --require-hashes -r requirements-soak.lock
	PYTHONPATH=tests $(BIN)/python tests/soak.py $(SOAK_S)

## make format   let ruff repair and lay out what it can
format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

## make bench    measure the budgets (bench/)
bench: $(DEV)
	$(BIN)/python -m bench

## make bench-peers   the same work by rota and its peers, side by side (PEERS="--only A --peers make --append"; hours without)
bench-peers: $(DEV)
	@[ "$$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null || tools/apt-packages bench/peers/packages.txt || true
	$(BIN)/python -m bench.peers --install
	$(BIN)/python -m bench.peers $(PEERS)
	$(BIN)/python -m bench.peers.report

## make bench-guard   a quick look whether something became slow, in ratios (a minute)
bench-guard: $(DEV)
	$(BIN)/python -m bench.guard

## make docs     write the generated parts of the documents anew
docs: $(DEV)
	$(BIN)/python tools/make_docs.py

## make lock     write the lock files after a change of pyproject.toml (needs uv; LOCKFLAGS=--upgrade for newer versions)
COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
           --custom-compile-command "make lock" $(LOCKFLAGS)
lock:
	$(COMPILE) pyproject.toml -o requirements.lock >/dev/null
	$(COMPILE) --group build -o requirements-build.lock >/dev/null
	$(COMPILE) pyproject.toml --extra qcg --extra s3 --extra openstack --group dev -c requirements.lock -o requirements-dev.lock >/dev/null
	$(COMPILE) pyproject.toml --extra streamflow --group build -o requirements-streamflow.lock >/dev/null
	echo atheris | $(COMPILE) - -o requirements-soak.lock >/dev/null
	while IFS=: read -r name wanted; do \
	    printf '%s\n' $$wanted | $(COMPILE) - -o bench/peers/locks/$$name.lock >/dev/null || exit 1; \
	done <bench/peers/peers.txt

## make apt      as root on Debian or Ubuntu: install the system packages that are missing
apt:
	tools/apt-packages
	tools/apt-packages tests/cluster/packages.txt
	tools/apt-packages tests/cloud/packages.txt

## make clean    remove .venv and everything generated
clean:
	rm -rf $(VENV) $(VENV)-peers $(ENGINE) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "rota needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "no venv module? try: make apt" >&2; exit 1; }

# The package is built without isolation, by the hatchling of the lock: nothing is installed that has no hash.
$(RUN): | $(BIN)/pip
	$(PIP) install --quiet --require-hashes -r requirements.lock -r requirements-build.lock
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@rm -f $(VENV)/.installed-*; touch $@

$(DEV): | $(BIN)/pip
	$(PIP) install --quiet --require-hashes -r requirements-dev.lock
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@rm -f $(VENV)/.installed-*; touch $@ $(RUN)
