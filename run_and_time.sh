#!/usr/bin/env bash
# ./run_and_time.sh [SYSTEM] [options of podium run]: set up what is missing, then time BERT on the system (default: laptop).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source ./setup.sh ""
case "${1:-}" in "" | -*) set -- laptop "$@" ;; esac
exec .venv/bin/podium run "$@"
