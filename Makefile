# The two commands of the README are `make demo` and `make test`; each does all of its own set-up.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
# The demonstration has a small environment of its own, unless everything is there already.
DEMO   := $(if $(wildcard $(STAMP)),$(VENV),.venv-demo)

PROJECTS := $(wildcard packages/*/pyproject.toml)
# What is resolved: the client and the gateway. Neither is taken from an index.
LOCKED := packages/ostiary/pyproject.toml packages/ostiary-gateway/pyproject.toml
LOCKED += --no-emit-package ostiary --no-emit-package ostiary-gateway

# What a gateway can be configured with, all of it: a configuration that works elsewhere works in the image.
IMAGE_EXTRAS := oidc saml kerberos htpasswd ldap cedar postgresql redis otel grpc
# And where its keys can be kept, which are extras of the client.
IMAGE_EXTRAS += pkcs11 aws-kms

# The tests start hundreds of processes. Without bytecode files each would compile every module that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup components test test-all test-rest lint types pytest interop pythons demo demo-replicas bench house mutants reference image sdk lock clean

help:  ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 14

setup: $(STAMP)  ## prepare .venv with the locked dependencies

$(STAMP): requirements.lock pyproject.toml $(PROJECTS) scripts/venv
	@scripts/venv $(PYTHON) $(VENV)
	@touch $@

.venv-demo/.ready: requirements-demo.lock pyproject.toml $(PROJECTS) scripts/venv
	@scripts/venv $(PYTHON) .venv-demo requirements-demo.lock
	@touch $@

components: $(STAMP)  ## install the programs that tests use (kubectl, nginx, PostgreSQL, ...): Debian 12, as root
	@scripts/components

test: $(STAMP)  ## linters, types and every test that needs only Python (no root); other tests where their programs are present
	$(MAKE) lint
	$(MAKE) -j2 types pytest

test-all: components  ## linters, types and every test except interop; installs the components first
	$(MAKE) lint
	$(MAKE) -j2 types pytest ARGS=--all

test-rest: components  ## what `make test-all` runs and the last `make test` did not
	$(MAKE) pytest ARGS=--rest

lint: $(STAMP)  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## mypy --strict
	$(BIN)/mypy

# One worker has all tests of a file, so that they share its servers; tests/support/tiers.py puts expensive files first.
pytest: $(STAMP)  ## the tests alone (ARGS="tests/unit -x")
	$(BIN)/pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder -q $(ARGS)

demo: $(DEMO)/.ready  ## watch a program stay signed in, and a gateway at work
	@$(DEMO)/bin/python -m examples.stay_signed_in && $(DEMO)/bin/python -m examples.gateway

demo-replicas: $(DEMO)/.ready  ## watch three replicas on PostgreSQL: one is lost, access is withdrawn everywhere
	@scripts/components demo-replicas
	@$(DEMO)/bin/python -m examples.replicas

pythons: $(STAMP)  ## unit tests on the other Python versions of this machine
	@scripts/pythons

interop: $(STAMP)  ## against the real Kubernetes, which is built first (KUBERNETES=all: three versions)
	@scripts/interop-build
	$(BIN)/pytest -n 2 --dist loadfile -q --all --timeout=300 tests/interop

house: $(STAMP)  ## print figures about the source: sizes, imports, parameters, untyped code (not goals)
	@$(BIN)/python scripts/house

mutants: $(STAMP)  ## break the code on purpose: do the nearest tests notice? (ARGS="ostiary_gateway/login ostiary/cli --sample 50 --goal 85")
	@nice $(BIN)/python scripts/mutants $(ARGS)

reference: $(STAMP)  ## write what is made from declarations: the tables of settings, copies of alert rules and dashboard
	@$(BIN)/python scripts/reference
	@$(BIN)/python scripts/monitoring

bench: components  ## the figures, as ratios in one run, and their plots (ARGS="heads --quick")
	@scripts/components bench
	$(BIN)/python -m bench $(ARGS)

sdk: $(STAMP)  ## build the wheel of ostiary-provider-sdk: dist/
	cd packages/ostiary-provider-sdk && ../../$(BIN)/python -m hatchling build -t wheel -d ../../dist

image:  ## build the container image with buildah: deploy/image
	deploy/image/build

lock: $(STAMP)  ## resolve the lock files again; UPGRADE=--upgrade takes newer versions
	$(BIN)/uv pip compile $(LOCKED) --all-extras --group dev --generate-hashes --python-version 3.11 --universal \
	  --no-emit-package python-ldap --no-emit-package gssapi --no-header --no-annotate $(UPGRADE) -q -o requirements.lock
	$(BIN)/uv pip compile $(LOCKED) --extra httpx --extra htpasswd --extra postgresql --group demo --generate-hashes \
	  --python-version 3.11 --constraints requirements.lock --no-header --no-annotate -q -o requirements-demo.lock
	printf '%s\n' python-ldap gssapi | $(BIN)/uv pip compile - --generate-hashes --no-deps --no-header --no-annotate -q \
	  -o requirements-built.lock
	$(BIN)/uv pip compile $(LOCKED) $(addprefix --extra ,$(IMAGE_EXTRAS)) --no-emit-package python-ldap --no-emit-package gssapi \
	  --generate-hashes --python-version 3.11 --constraints requirements.lock --no-header --no-annotate -q \
	  -o deploy/image/requirements.lock
	printf '%s\n' hatchling setuptools pip cython | $(BIN)/uv pip compile - --generate-hashes --python-version 3.11 \
	  --constraints requirements.lock --no-header --no-annotate -q -o deploy/image/requirements-build.lock

clean:  ## remove what the commands above made
	rm -rf $(VENV) .venv-demo .mypy_cache .ruff_cache .pytest_cache .hypothesis bench/results dist
