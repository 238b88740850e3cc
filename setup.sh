# Sourced by run_and_time.sh, run_tests.sh and docker/Dockerfile: install this project into .venv, once.
# `source setup.sh EXTRA [TORCH]`: EXTRA is one of pyproject.toml's optional dependencies or empty, and comes besides
# `train`; TORCH is "ours" (the default) or "installed", which takes the torch, apex and DALI that the machine's Python
# has, as in NVIDIA's container. tools/install.py installs the versions of requirements/.
# PODIUM_PYTHON names the Python that .venv is made with, such as python3.13 (default: the oldest from 3.11 on).
# Nothing is done when the environment was made from the same pyproject.toml, setup.py and requirements/ in the same
# folder before. Records of other versions (.venv/podium*.installed) are removed before anything is installed.

podium_extra="$1"
podium_torch="${2:-ours}"
podium_stamp=".venv/podium${podium_extra:+-$podium_extra}.installed"

podium_find_python() {
    local candidate needed=ensurepip
    [ "$podium_torch" = ours ] || needed="ensurepip, torch"
    for candidate in ${PODIUM_PYTHON:-python3.11 python3.12 python3.13 python3.14 python3}; do
        if "$candidate" -c "import $needed, sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "podium: Python 3.11 or newer with venv and pip${needed#ensurepip} was not found${PODIUM_PYTHON:+ at PODIUM_PYTHON=$PODIUM_PYTHON}; install it" >&2
    return 2
}

podium_wanted() { # what an installation of $1 was made from
    echo "$PWD"
    cat pyproject.toml setup.py requirements/torch-*.txt "requirements/$1.txt"
}

podium_remove_stale() {
    local stamp extra
    for stamp in .venv/podium*.installed; do
        extra="${stamp#.venv/podium}" && extra="${extra%.installed}" && extra="${extra#-}"
        podium_wanted "${extra:-run}" 2>/dev/null | cmp -s - "$stamp" || rm -f "$stamp"
    done
}

if [ -e .venv/podium.installing ] || ! .venv/bin/python -c '' 2>/dev/null ||
    ! podium_wanted "${podium_extra:-run}" | cmp -s - "$podium_stamp"; then
    podium_python="$(podium_find_python)"
    podium_remove_stale
    podium_record="$(podium_wanted "${podium_extra:-run}")" # before, since files may change while it installs
    "$podium_python" tools/install.py "${podium_extra:-run}" "$podium_torch"
    printf '%s\n' "$podium_record" >"$podium_stamp"
fi
