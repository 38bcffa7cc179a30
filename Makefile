# Every command a contributor or CI needs; CI runs the same ones (.ci/run).
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

BIN := .venv/bin
STAMP := .venv/.stamp
PROTOS = $(wildcard proto/lr_wire/v1/*.proto)
# Two workers, each with its own brokers (about 360 MB per broker).
WORKERS ?= 2
UV ?= uv
# No host name may end in the requirements: the index is the user's own choice.
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header

.PHONY: help setup jars demo test unit chaos bench lint format proto requirements clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make the virtual environment in .venv from pinned, hashed requirements

$(STAMP): pyproject.toml requirements/build.txt requirements/dev.txt scripts/setup.sh
	@PYTHON='$(PYTHON)' scripts/setup.sh
	@touch $@

jars: setup ## fetch the Kafka jars of the embedded broker into the user's cache folder
	@$(BIN)/python -m lr_kafka.jars

demo: setup jars ## three sites, a reader that is killed, two listeners and an audit (ARGS="--keep" leaves it running)
	@$(BIN)/lr demo $(ARGS)

test: setup jars ## the whole suite, real brokers included (ARGS="-k name" for pytest options)
	@$(BIN)/pytest -n $(WORKERS) --dist worksteal $(ARGS)

unit: setup ## the tests that need no broker
	@$(BIN)/pytest -n $(WORKERS) tests/unit $(ARGS)

chaos: setup jars ## the tests that kill, freeze and cut
	@$(BIN)/pytest -m chaos $(ARGS)

bench: setup jars ## entries/s and MB/s of forwarding, against a bare copy loop
	@$(BIN)/python -m tests.bench.forwarding $(ARGS)

lint: setup ## check style, types, imports and generated code; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; \
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out="$$fresh" --pyi_out="$$fresh" $(PROTOS); \
	diff -r -x __init__.py -x __pycache__ "$$fresh/lr_wire/v1" lr_wire/v1 || \
	{ echo "make lint: the generated code is not that of proto/: run 'make proto'." >&2; exit 1; }

format: setup ## format the code and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proto: setup ## generate lr_wire/v1 from proto/
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=. --pyi_out=. $(PROTOS)

requirements: ## compile requirements/*.txt again (needs uv; ARGS="--upgrade" for newer versions)
	$(COMPILE) --group build --output-file requirements/build.txt $(ARGS)
	$(COMPILE) --group dev --extra ops --extra embedded --output-file requirements/dev.txt $(ARGS) pyproject.toml

clean: ## remove the virtual environment and tool caches (the jars stay in the user's cache folder)
	rm -rf .venv .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
