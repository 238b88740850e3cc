# Sourced by run_and_time.sh and run_tests.sh: install this project into .venv, once. `source setup.sh EXTRA`, where EXTRA
# is one of pyproject.toml's optional dependencies or empty.
# Nothing is done when the environment was made from the same pyproject.toml in the same folder before.

podium_extra="$1"
podium_stamp=".venv/podium${podium_extra:+-$podium_extra}.installed"

podium_find_python() {
    local candidate
    for candidate in python3.11 python3.12 python3.13 python3.14 python3; do
        if "$candidate" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "podium: Python 3.11 or newer with venv and pip was not found; install it" >&2
    return 2
}

podium_wanted() {
    echo "$PWD"
    cat pyproject.toml
}

if ! podium_wanted | cmp -s - "$podium_stamp"; then
    podium_python="$(podium_find_python)"
    echo "podium: installing into .venv (once)" >&2
    [ -x .venv/bin/python ] && .venv/bin/python -m pip --version >/dev/null 2>&1 || "$podium_python" -m venv --clear .venv
    # torch by itself and first, so that no other package's looser wish for torch decides which build is taken.
    .venv/bin/python -m pip install --quiet --disable-pip-version-check "$(.venv/bin/python -c '
import tomllib
with open("pyproject.toml", "rb") as file:
    print(next(need for need in tomllib.load(file)["project"]["dependencies"] if need.startswith("torch==")))
')"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".${podium_extra:+[$podium_extra]}"
    podium_wanted >"$podium_stamp"
fi
