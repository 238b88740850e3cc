# Sourced by run_and_time.sh, run_tests.sh and docker/Dockerfile: install this project into .venv, once.
# `source setup.sh EXTRA [TORCH]`: EXTRA is one of pyproject.toml's optional dependencies or empty, and comes besides
# `train`; TORCH is "ours" (the default) or "installed", which takes the torch, apex and DALI that the machine's Python
# has, as in NVIDIA's container.
# Nothing is done when the environment was made from the same pyproject.toml and setup.py in the same folder before.

podium_extra="$1"
podium_torch="${2:-ours}"
podium_stamp=".venv/podium${podium_extra:+-$podium_extra}.installed"

podium_find_python() {
    local candidate needed=ensurepip
    [ "$podium_torch" = ours ] || needed="ensurepip, torch"
    for candidate in python3.11 python3.12 python3.13 python3.14 python3; do
        if "$candidate" -c "import $needed, sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "podium: Python 3.11 or newer with venv and pip${needed#ensurepip} was not found; install it" >&2
    return 2
}

podium_wanted() {
    echo "$PWD"
    cat pyproject.toml setup.py
}

# torch as pyproject.toml names it, or (others) all that the project and the extra need but torch; one a line.
podium_needs() {
    .venv/bin/python - "$1" $podium_extra <<'PYTHON'
import sys, tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
extras = ["train", *sys.argv[2:]]
needs = project["dependencies"] + [need for extra in extras for need in project["optional-dependencies"][extra]]
print(*(need for need in needs if need.startswith("torch==") == (sys.argv[1] == "torch")), sep="\n")
PYTHON
}

podium_pip_install() {
    .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@"
}

podium_make_venv() {
    [ -x .venv/bin/python ] && .venv/bin/python -m pip --version >/dev/null 2>&1 || "$podium_python" -m venv --clear "$@" .venv
}

if ! podium_wanted | cmp -s - "$podium_stamp"; then
    podium_python="$(podium_find_python)"
    echo "podium: installing into .venv (once)" >&2
    if [ "$podium_torch" = ours ]; then
        podium_make_venv
        # torch by itself and first, so that no other package's looser wish for torch decides which build is taken.
        podium_pip_install "$(podium_needs torch)"
        podium_pip_install --editable ".[train${podium_extra:+,$podium_extra}]"
    else
        podium_make_venv --system-site-packages
        # The container's own constraints would forbid our versions of other packages; the one that stays is its torch.
        .venv/bin/python -c 'import importlib.metadata as m; print("torch==" + m.version("torch"))' >.venv/torch.txt
        podium_needs others >.venv/needs.txt
        PIP_CONSTRAINT=.venv/torch.txt podium_pip_install --requirement .venv/needs.txt
        PIP_CONSTRAINT='' podium_pip_install --no-deps --editable .
    fi
    podium_wanted >"$podium_stamp"
fi
