# Sourced by run_and_time.sh and run_tests.sh: install this project into .venv, once. `source setup.sh [EXTRA]`.
# Nothing is done when the environment was already made from the same pyproject.toml, Python and folder.

podium_extra="${1:-}"
podium_stamp=".venv/podium-installed${podium_extra:+-$podium_extra}"

podium_python() {
    local candidate
    for candidate in "${PODIUM_PYTHON:-}" python3.13 python3.12 python3.11 python3; do
        if [ -n "$candidate" ] && "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "podium: Python 3.11 or newer with venv is needed and was not found; install it, or name it in PODIUM_PYTHON" >&2
    return 2
}
