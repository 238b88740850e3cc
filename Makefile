# What contributors run; CONTRIBUTING.md. `lint` and `types` are the checks of tools/checks.txt, which run_tests.sh runs.

.PHONY: help all lint types unit lock
.DEFAULT_GOAL := help

installed := .venv/podium-test.installed

help: ## list the targets
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

all: ## everything that CI checks: ./run_tests.sh
	./run_tests.sh

lint: $(installed) ## style and format
types: $(installed) ## types
lint types:
	@sed -n 's/^$@ //p' tools/checks.txt | while read -r check; do echo "$$check" && .venv/bin/$$check || exit 1; done

unit: $(installed) ## tests that take less than ten seconds each
	OPENBLAS_NUM_THREADS=1 .venv/bin/pytest --numprocesses 2 --dist loadfile -m 'not slow and not exhaustive'

lock: $(installed) ## write requirements/ anew for what pyproject.toml needs
	.venv/bin/python tools/lock.py

$(installed): pyproject.toml setup.py requirements/test.txt requirements/torch-cpu.txt requirements/torch-cuda.txt
	bash -c 'set -euo pipefail && source ./setup.sh test'
	@touch $@
