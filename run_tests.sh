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
    if ! command -v "$python" >/dev/null; then
        echo "./run_tests.sh: PODIUM_PYTHON: there is no program '$python'; name a Python with PyTorch, or unset it" >&2
        exit 2
    fi
    # What the tests import; what else they may use, such as cudnn, is skipped with the reason.
    packages="h5py hypothesis llvmlite mlperf_logging numba numpy pydantic pytest rich safetensors torch triton yaml"
    # shellcheck disable=SC2086
    "$python" - $packages <<'CHECK' || exit 2
import importlib.util
import sys

missing = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]
if missing:
    print(f"./run_tests.sh: {sys.executable} lacks {', '.join(missing)}; install them, or add a folder with them to "
          "PYTHONPATH (tools/carry.py downloads what a machine with PyTorch lacks), or name another Python in "
          "PODIUM_PYTHON", file=sys.stderr)
    sys.exit(2)
CHECK
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
