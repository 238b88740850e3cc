#!/usr/bin/env bash
# ./run_tests.sh [options of pytest]: set up what is missing, then check everything that CI checks.
# ./run_tests.sh --gpu [options of pytest]: only the tests that need a GPU, with the machine's Python (PODIUM_PYTHON) and
# what PYTHONPATH adds; nothing is installed and nothing else is checked (docs/performance.md).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

if [ "${1:-}" = --gpu ]; then
    shift
    [[ "$*" == *tests/* ]] || set -- tests/implementations/pytorch/gpu "$@"
    # pytest alone is enough: no plugin that happens to be installed there takes part.
    export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
    python="${PODIUM_PYTHON:-python3}"
    command -v "$python" >/dev/null || { echo "PODIUM_PYTHON: $python is no program; name a Python" >&2; exit 2; }
    needed="torch numba numpy h5py pydantic mlperf_logging pytest hypothesis yaml rich typer safetensors tokenizers"
    "$python" - $needed <<'PYTHON' || exit 2
import sys
from importlib.util import find_spec

missing = [name for name in sys.argv[1:] if find_spec(name) is None]
if missing:
    sys.exit(f"{sys.executable} lacks {', '.join(missing)}; tools/carry.py has what to carry to such a machine, "
             "and PODIUM_PYTHON names another Python")
PYTHON
    exec "$python" -m pytest -p no:cacheprovider -rs -m gpu "$@"
fi

source ./setup.sh test
unset PYTHONDONTWRITEBYTECODE # or each of the hundred processes that the tests start compiles every module again

export OPENBLAS_NUM_THREADS=1 # for two tests at once on two cores; more threads would wait for each other

# Lint and types are checked beside the tests; what they print is shown after them.
mapfile -t checks < <(cut -d ' ' -f 2- tools/checks.txt)
written="$(mktemp -d)" pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; rm -rf "$written"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
for check in "${checks[@]}"; do
    # shellcheck disable=SC2086
    .venv/bin/$check >"$written/$check" 2>&1 &
    pids+=($!)
done

status=0
# Two tests at once, those of a file together: many wait for processes that start. The order is tests/conftest.py's.
.venv/bin/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --basetemp "$written/tests" "$@" || status=$?
for number in "${!checks[@]}"; do
    wait "${pids[$number]}" || { status=1; echo "FAILED: ${checks[$number]}"; }
    cat "$written/${checks[$number]}"
done
if [ "$status" != 0 ]; then
    trap - EXIT
    echo "What the tests have written stays in $written/tests"
fi
exit "$status"
