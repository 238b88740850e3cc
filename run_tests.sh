#!/usr/bin/env bash
# ./run_tests.sh [options of pytest]: set up what is missing, then check everything that CI checks.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source ./setup.sh test
.venv/bin/ruff check
.venv/bin/ruff format --check
.venv/bin/mypy
# Two tests at once, those of a file together: most of them wait for processes that start.
exec .venv/bin/pytest --numprocesses 2 --dist loadfile "$@"
