# Needs git, make and Python >= 3.11; everything else goes into .venv, which each target makes for itself.
# Another interpreter: make test PYTHON=python3.12 (after `make clean`, if .venv exists already).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# setuptools warns about every editable installation; that is nothing for a user of `make demo`.
PIP := PYTHONWARNINGS=ignore $(BIN)/python -m pip --disable-pip-version-check
# The versions that the tests use, on every machine; `make lock` renews them. The demo takes what a user gets.
LOCKED := --constraint constraints.txt
# The tests start hundreds of interpreters: compiled modules are kept, whatever the machine's default is.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python $(if $(COVERAGE),-m coverage run) -m pytest
# A module's tests, which may share a broker, run in one process, in the order that tests/conftest.py makes. Two cores are
# busy with six processes of tests, as more than half of their time they wait.
PARALLEL := --no-loadscope-reorder --dist loadfile --numprocesses

# What make bench measures: the rows of the page, in half an hour, or all with FULL=yes. The page keeps what is not
# measured again. With PEERS it is not written: its rows have all brokers.
BENCH = $(if $(PEERS),,--out docs/benchmarks.md --samples docs/benchmarks/samples.json) \
  $(if $(FULL),--full) $(if $(ONLY),--only $(ONLY)) $(if $(PEERS),--peers $(PEERS)) $(if $(ROUNDS),--rounds $(ROUNDS))

.DEFAULT_GOAL := help
.PHONY: help demo test test-long test-downstream test-pythons coverage faults simulation fuzz soak mutants mutation lint format types bench pictures docs build sbom lock clean

help: ## show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/.demo ## thousands of tasks, the broker killed with -9 half way, each task counted
	@$(BIN)/python examples/demo $(ARGS)

test: $(VENV)/.test ## unit, property, integration, acceptance and fault tests (under 10 minutes)
	$(PYTEST) -m "not slow and not downstream" $(PARALLEL) 4 $(ARGS)

test-long: $(VENV)/.test ## the tests that take longest (pools, repeated kills), and all that need Spark: they share one session
	$(PYTEST) -m "slow and not downstream" --no-loadscope-reorder --dist loadgroup --numprocesses 2 $(ARGS)

test-downstream: $(VENV)/.downstream ## other people's packages on this broker, each of one version; some of it: ARGS=tests/downstream/test_sentry.py
	$(PYTEST) -m downstream $(PARALLEL) 3 $(or $(ARGS),tests/downstream)

# Most workers, kills (as in test_long.py), random steps and other packages take long and measure few further lines. All
# processes write their data into one folder, those of other users, too. Failed tests do not prevent the report.
MEASURED := tests/unit tests/golden tests/vendor tests/web tests/spark tests/integration tests/acceptance/test_task_outcomes.py
MEASURED_LONG := tests/web tests/spark --ignore tests/spark/test_long.py
coverage: export COVERAGE_FILE := $(CURDIR)/.coverage.d/data
coverage: $(VENV)/.test ## the fast tests and some long ones, measured with the processes that they start; fails below the floors
	rm -rf .coverage.d && mkdir -m 1777 .coverage.d
	failed=0; $(MAKE) test COVERAGE=yes ARGS="$(MEASURED)" || failed=$$?; \
	  $(MAKE) test-long COVERAGE=yes ARGS="$(MEASURED_LONG)" || failed=$$?; \
	  $(BIN)/coverage combine --quiet && $(BIN)/coverage json --quiet -o coverage.json && \
	  $(BIN)/python tools/coverage_floor.py coverage.json && exit $$failed

faults: $(VENV)/.test ## brokers and clients under kill -9 and other faults, checked against docs/contract.md: SECONDS=600 SEED=1 RUNS=1 JOBS=2
	$(BIN)/python -m tests.histories $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) \
	  $(if $(RUNS),--runs $(RUNS)) $(if $(JOBS),--jobs $(JOBS)) $(ARGS)

simulation: $(VENV)/.test ## brokers, clients, disk, network and clock in one process under one seed; a seed repeats exactly: STEPS=1000000 SEED=1
	$(BIN)/python -m tests.simulation $(if $(STEPS),--steps $(STEPS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

mutants: $(VENV)/.test ## plant the bugs of tests/mutants one at a time, and see which test finds them; some of them: ARGS=name
	$(BIN)/python -m tests.mutants $(ARGS)

mutation: $(VENV)/.mutation ## let mutmut change the twelve hardest modules; one of them: MODULE=web/user_clients.py; a fifth: ARGS="--numbers 37"
	$(BIN)/python -m tests.mutants.automatic $(MODULE) $(ARGS)

# RECORD=yes adds a run to docs/reliability.md.
fuzz: $(VENV)/.fuzz ## mutate what strangers may send, guided by coverage; some of it: TARGET=wire SECONDS=60
	$(BIN)/python -m tests.fuzzing $(TARGET) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(RECORD),--record) $(ARGS)

soak: $(VENV)/.test ## virtual days of a mixed load: memory, descriptors, files and disk must stay flat; DAYS=21 takes some minutes
	$(BIN)/python -m tests.soak $(if $(DAYS),--days $(DAYS)) $(if $(RECORD),--record) $(ARGS)

test-pythons: $(VENV)/.dev ## the clients and a worker with each Python of 3.12 and 3.13 that is installed, also by pyenv
	@path="$$(ls -d $${PYENV_ROOT:-$$HOME/.pyenv}/versions/3.1[23].*/bin 2>/dev/null | paste -sd: -):$$PATH"; \
	envs=$$(for v in 12 13; do PATH="$$path" python3.$$v -c "" 2>/dev/null && echo py3$$v-smoke; done | paste -sd, -); \
	if [ -n "$$envs" ]; then PATH="$$path" $(BIN)/tox run -e "$$envs"; \
	else echo "neither Python 3.12 nor 3.13 is installed"; [ -z "$$CI" ]; fi

lint: $(VENV)/.dev ## ruff, the import contracts of pyproject.toml, the workflows
	$(BIN)/ruff check $(ARGS) .
	$(BIN)/lint-imports --no-logo
	$(BIN)/zizmor --offline --quiet .github
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

format: $(VENV)/.dev ## let ruff mend and lay out what it can
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

types: $(VENV)/.dev ## mypy, strict
	$(BIN)/mypy $(ARGS)

bench: $(VENV)/.test ## measure against RabbitMQ and Redis, write docs/benchmarks.md and capacity.md; twenty rows in half an hour; all: FULL=yes; some: ONLY=latency,cpu PEERS=ours,rabbitmq ROUNDS=3
	$(BIN)/python -m tests.benchmarks $(BENCH) $(ARGS); status=$$?; \
	  $(BIN)/python -m tests.benchmarks.capacity --out docs/capacity.md && exit $$status

pictures: $(VENV)/.test ## make the pictures of docs/web.md anew, with a browser, workers and a beat
	$(BIN)/python -m tests.web.pictures

docs: $(VENV)/.docs ## the site of the documentation in site/, refused if a link or a page's place is missing
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

build: $(VENV)/.dev ## wheel and source distribution in dist/, checked as a package index does
	rm -rf build dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

sbom: $(VENV)/.dev ## what a user installs with all extras but Spark, as CycloneDX in build/sbom.json
	rm -rf build/sbom && $(PYTHON) -m venv build/sbom
	build/sbom/bin/python -m pip install --quiet $(LOCKED) '.[objectstore,otel,web]'
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-file build/sbom.json \
	  build/sbom/bin/python

lock: $(VENV)/.dev ## the newest versions that pyproject.toml allows, into constraints.txt
	$(BIN)/uv pip compile --quiet --universal --upgrade --no-annotate --no-header --python-version 3.11 \
	  --extra dev --extra downstream --extra fuzz --extra mutation --output-file constraints.txt pyproject.toml

clean: ## remove what the targets made
	rm -rf $(VENV) .venv-downstream build dist site .coverage* coverage.json *.egg-info .tox .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis
	find kombu_opendata tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("kombu-opendata needs Python 3.11 or \
	newer; $(PYTHON) is %d.%d. Name another one: make PYTHON=python3.12 …" % v[:2])'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "Could not make $(VENV). On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(PIP) install --quiet --upgrade pip

# The order-only interpreter keeps its own time stamp out of it: only a changed pyproject.toml installs again.
# What a target installs has all that the ones above it need, whose stamps it sets, too.
$(VENV)/.demo: pyproject.toml | $(BIN)/python
	@echo "installing into $(VENV) …"
	@$(PIP) install --quiet --editable .
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV), with what the tests need: 1.6 GB, most of it Spark …"
	@$(PIP) install --quiet $(LOCKED) --editable '.[test]'
	@touch $@ $(VENV)/.demo

$(VENV)/.downstream: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing other people's packages into $(VENV) …"
	@$(PIP) install --quiet $(LOCKED) --editable '.[test,downstream]'
	@touch $@ $(VENV)/.test $(VENV)/.demo

$(VENV)/.mutation: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing mutmut into $(VENV) …"
	@$(PIP) install --quiet $(LOCKED) --editable '.[mutation]'
	@touch $@ $(VENV)/.test $(VENV)/.demo

$(VENV)/.fuzz: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing what fuzzes into $(VENV) …"
	@$(PIP) install --quiet $(LOCKED) --editable '.[test,fuzz]'
	@touch $@ $(VENV)/.test $(VENV)/.demo

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV), with what makes the site …"
	@$(PIP) install --quiet $(LOCKED) --editable '.[docs]'
	@touch $@ $(VENV)/.demo

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing the development tools into $(VENV) …"
	@$(PIP) install --quiet $(LOCKED) --editable '.[dev]'
	@touch $@ $(VENV)/.docs $(VENV)/.test $(VENV)/.demo
