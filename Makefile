# Manifold's verbs. `make help` explains them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
export PATH := $(CURDIR)/.venv/bin:$(PATH):/usr/sbin
READY := .tools/ready
STORES := .tools/stores.ready
# Tests that need at most a Redis and a plain broker: together they take less than a minute.
FAST := $(addprefix tests/,benchmarks docs manifold/contracts manifold/messaging manifold/queues manifold/runtime manifold/settings) \
  $(wildcard tests/dispatcher/test_step_*.py tests/manifold/campaigns/test_*.py) \
  $(addprefix tests/,expectations/test_suites.py faults/test_checker.py manifold/signals/test_checks.py) \
  $(patsubst %,tests/infra/test_%.py,compose dockerfile health_check)
# the tests of a module stay together, and begin in the order of the tree; a third process uses what two cores have left while others wait
SHARED := --numprocesses $(or $(WORKERS),3) --dist loadscope --no-loadscope-reorder
# What failed beside others is run once more, alone, and named; what fails again fails the whole (docs/decisions/0021-once-more.md).
AGAIN = [ $$? -eq 1 ] && echo "failed beside other tests, and once more alone:" && .venv/bin/pytest -v --last-failed --last-failed-no-failures none;

.PHONY: help setup stores demo up down status test faults check cluster image compose fix docs bench lock clean

help: ## print this list
	@awk -F':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## install everything that the other verbs need; they call it themselves

$(READY): requirements.lock pyproject.toml infra/setup.sh
	@PYTHON="$(PYTHON)"; [ -n "$$PYTHON" ] || unset PYTHON; infra/setup.sh

stores: $(STORES) ## install servers for tests of object storage, REST catalog and PostgreSQL

$(STORES): $(READY) infra/stores/setup.sh infra/stores/pom.xml
	@infra/stores/setup.sh

demo: $(READY) ## run the main job on a fresh platform with a fleet; ends by itself
	@.venv/bin/manifold demo

up: $(READY) ## start the whole embedded platform in the background
	@.venv/bin/manifold up

down: ## stop the platform
	@[ ! -x .venv/bin/manifold ] || .venv/bin/manifold down

status: $(READY) ## show how the platform is
	@.venv/bin/manifold status

test: $(READY) $(STORES) ## run all tests against real servers on loopback, WORKERS=3 at a time
	@.venv/bin/pytest $(SHARED) || { $(AGAIN) }

faults: $(READY) ## harm a platform for MINUTES=10, for each of SEEDS=1,2; prove that nothing is lost
	@.venv/bin/python -m tests.faults --minutes $(or $(MINUTES),10) --seeds $(or $(SEEDS),1)

cluster: $(READY) ## test the environments on Kubernetes' own servers (see infra/cluster/README.md)
	@infra/cluster/setup.sh
	@CLUSTER=1 .venv/bin/pytest -q tests/infra/test_cluster.py tests/infra/test_nodes.py tests/infra/test_rollouts.py

image: $(READY) ## build and test the container image, without a registry (see infra/image/README.md)
	@infra/image/build.sh
	@IMAGE=1 .venv/bin/pytest -q tests/infra/test_image.py tests/infra/test_composed.py

compose: ## run all of Manifold in containers on this machine (see infra/compose/README.md)
	@cd infra/compose && { [ -e .env ] || cp .env.example .env; } && ./secrets.sh && docker compose up --detach --wait

check: $(READY) ## check format, lint, import rules and types, and run the fast tests; edits nothing
	@infra/check.sh $(FAST)

fix: $(READY) ## format, and repair what lint can repair
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

docs: $(READY) ## generate the reference, build the site in build/site, check its links
	@.venv/bin/python -m infra.docs.reference
	@.venv/bin/mkdocs build --strict

bench: $(READY) ## run every benchmark at full size; writes docs/benchmarks.md
	@.venv/bin/python -m benchmarks
	@.venv/bin/python -m benchmarks.page

lock: $(READY) ## resolve pyproject.toml into requirements.lock again
	.venv/bin/uv pip compile -q pyproject.toml --group dev --universal --generate-hashes --no-emit-index-url -o requirements.lock

clean: down ## remove everything that was made here: state, environment, tools
	rm -rf .manifold .venv .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist *.egg-info
