#!/usr/bin/env bash
# docker/check_image.sh [--engine docker|buildah] [--folder FOLDER]: build the image, and time BERT in it and through it.
#
#   docker/check_image.sh                     # with Docker and a network, on NVIDIA's base or on FROM_IMAGE=NAME@sha256:DIGEST
#   docker/check_image.sh --engine buildah    # without Docker, as root, on a stand-in for NVIDIA's base
#
# All runs are made without a network, by users who are not root: `./run_and_time.sh` as the image's own user; and from
# a copy of the repository `podium doctor` and `podium run` with launch.launcher=docker, as the caller or, for root, as
# user 12345, which no user database lists. The logs are given to MLPerf's checker once more. At the end it prints what was
# built and what was not checked.
#
# Docker's engine has to be on this machine, at the socket that DOCKER_HOST or Docker's context names, and to leave users
# their numbers, as a rootless one does not. As root, the runs' user gets the socket's group.
#
# buildah (with debootstrap, iproute2 and util-linux) builds and runs in tests/docker/docker_by_buildah.py, on Debian
# with its Python and the CPU build of torch that requirements/ names, without apex and DALI, with an entry point and
# pip constraints as NVIDIA's base has. The CPU build is found by pip: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu.
# FOLDER keeps the images, a command bin/docker for them and what was run (default: a new one, removed at the end); the
# base that is in it is used again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
repository="$PWD"

wrong() { echo "check_image.sh: $*" >&2 && exit 2; }
engine=docker folder=""
while [ $# -gt 0 ]; do
    case "$1" in
        --help) sed -n '2,/^set /s/^# \{0,1\}//p' docker/check_image.sh && exit ;;
        --engine | --folder)
            [[ "${2:--}" != -* ]] || wrong "$1 has no value; give it as --engine docker, --engine buildah or --folder FOLDER"
            ;;&
        --engine) engine="$2" && shift 2 ;;
        --folder)
            mkdir -p "$2" || wrong "--folder: $2 cannot be made (see above)"
            folder="$(realpath "$2")" && shift 2
            ;;
        *) wrong "there is no option $1; allowed are --engine, --folder and --help" ;;
    esac
done
case "$engine" in
    docker) needed=(docker) && if [ "$EUID" = 0 ]; then needed+=(setpriv); fi ;;
    buildah) needed=(buildah debootstrap unshare setpriv ip) ;;
    *) wrong "--engine: found $engine; allowed are docker and buildah" ;;
esac
for program in "${needed[@]}"; do
    command -v "$program" >/dev/null || wrong "there is no $program here; install it"
done
if [ "$engine" = docker ]; then
    # For the user who makes the runs too, who has another home folder and so not this user's context of Docker.
    DOCKER_HOST="${DOCKER_HOST:-$(docker context inspect --format '{{.Endpoints.docker.Host}}')}" ||
        wrong "docker context inspect does not show where Docker's engine is (see above); set DOCKER_HOST=unix:///PATH"
    export DOCKER_HOST
    [[ "$DOCKER_HOST" == unix:///* ]] ||
        wrong "Docker's engine is at $DOCKER_HOST; folders of this machine are mounted, so it has to be here: set DOCKER_HOST=unix:///PATH"
    security="$(docker info --format '{{.SecurityOptions}}')" ||
        wrong "Docker's engine does not answer at $DOCKER_HOST (see above); start it, or see whether this user may use it"
    case "$security" in
        *name=rootless* | *name=userns*)
            wrong "the engine at $DOCKER_HOST gives containers other users' numbers ($security), who may not write into" \
                "results/, runs/ and data/; take one that is not rootless and has no userns-remap: set DOCKER_HOST=unix:///PATH"
            ;;
    esac
fi
if [ "$engine" = buildah ] && [ "$EUID" != 0 ]; then
    wrong "--engine buildah makes a Debian and namespaces, for which it has to be root"
fi
if [ -z "$folder" ]; then
    folder="$(mktemp -d "${TMPDIR:-/tmp}/podium-image.XXXXXX")"
    trap '! mountpoint --quiet "$folder/store/overlay" || umount --recursive "$folder/store/overlay"; rm -rf "$folder"' EXIT
fi
chmod 755 "$folder" # for the user who makes the runs

source ./setup.sh ""
python="$repository/.venv/bin/python"
started=$SECONDS
note() { echo "check_image.sh [$((SECONDS - started)) s]: $*" >&2; }

# --- The base, in the place of NVIDIA's -----------------------------------------------------------------------------

stand_in=localhost/podium-stand-in:latest
suite=bookworm version=3.11 # Debian's and its Python's
of_buildah() { buildah --root "$folder/store" --runroot "$folder/run" --storage-driver "$STORAGE_DRIVER" "$@"; }

make_stand_in() {
    local container root torch
    container="$(of_buildah from scratch)"
    root="$(of_buildah mount "$container")"
    note "making the stand-in for NVIDIA's base: Debian $suite"
    debootstrap --variant=minbase --include=ca-certificates,python3 "$suite" "$root" >"$folder/debootstrap.txt" 2>&1 ||
        { tail -n 5 "$folder/debootstrap.txt" >&2 && return 1; }
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
    torch="$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' requirements/torch-cpu.txt)" # never the build for GPUs, of gigabytes
    note "installing $torch into it"
    "$python" -m pip install --quiet --root-user-action ignore --python-version "$version" --only-binary=:all: \
        --target "$root/usr/local/lib/python$version/dist-packages" "$torch"
    # This machine's certificates, for a network behind a proxy with its own.
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
    mkdir -p "$root/etc/pip" "$root/opt/nvidia"
    echo "numpy==1.26.4" >"$root/etc/pip/constraint.txt"
    printf '%s\n' '#!/bin/bash' 'echo "== PyTorch (stand-in) =="' 'exec "${@:-/bin/bash}"' >"$root/opt/nvidia/nvidia_entrypoint.sh"
    chmod +x "$root/opt/nvidia/nvidia_entrypoint.sh"
    of_buildah config --env PIP_CONSTRAINT=/etc/pip/constraint.txt --entrypoint '["/opt/nvidia/nvidia_entrypoint.sh"]' "$container"
    of_buildah commit --quiet --rm "$container" "$stand_in" >/dev/null
}

if [ "$engine" = buildah ]; then
    mkdir -p "$folder/bin" "$folder/overlay"/{lower,upper,work,merged}
    if [ -z "${STORAGE_DRIVER:-}" ]; then
        STORAGE_DRIVER=vfs # which copies every layer
        if (cd "$folder/overlay" && mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work overlay merged) 2>/dev/null; then
            umount "$folder/overlay/merged" && STORAGE_DRIVER=overlay
        fi
    fi
    rm -rf "$folder/overlay"
    printf '#!/bin/sh\nPODIUM_BUILDAH_STORE="%s" STORAGE_DRIVER=%s exec "%s" "%s" "$@"\n' "$folder" "$STORAGE_DRIVER" "$python" \
        "$repository/tests/docker/docker_by_buildah.py" >"$folder/bin/docker"
    chmod +x "$folder/bin/docker"
    export PATH="$folder/bin:$PATH"
    docker images --quiet "$stand_in" >/dev/null 2>&1 || make_stand_in
    FROM_IMAGE="${stand_in%:*}@$(of_buildah inspect --type=image --format '{{.FromImageDigest}}' "$stand_in")"
fi
FROM_IMAGE="$(FROM_IMAGE="${FROM_IMAGE:-}" docker/build.sh --print)"
export FROM_IMAGE

# --- The image -----------------------------------------------------------------------------------------------------

note "building podium:latest on $FROM_IMAGE"
before=$SECONDS
docker/build.sh >"$folder/build.txt" 2>&1 || { tail -n 40 "$folder/build.txt" >&2 && note "the build failed" && exit 1; }
build_seconds=$((SECONDS - before))
size="$(docker images --format '{{.Size}}' podium:latest)"

inside() { docker run --rm --network=none podium:latest "$@"; }

note "inspecting podium:latest, of $size, built in $build_seconds s"
inside bash -c '
set -euo pipefail
[ "$(id -u)" != 0 ] || { echo "the image starts as root" >&2; exit 1; }
[ "$PWD" = /workspace/podium ] || { echo "the image starts in $PWD" >&2; exit 1; }
for folder in results runs data; do touch "$folder/.written" && rm "$folder/.written"; done
written="$(find . -not -path "./.venv/lib/*" -writable -not -type l -not -path ./results -not -path ./runs -not -path ./data)"
[ -z "$written" ] || { echo "its user may write to $written" >&2; exit 1; }
podium --help >/dev/null
cat base.txt' >"$folder/base.txt"
grep -qxF "base: $FROM_IMAGE" "$folder/base.txt" ||
    { echo "check_image.sh: standard output of the image is not its command's alone:" >&2 && cat "$folder/base.txt" >&2 && exit 1; }

note "./run_and_time.sh as the image's user"
inside bash -c '
set -euo pipefail
./run_and_time.sh >&2
echo "user $(id -un) ($(id -u))"
python -m mlperf_logging.compliance_checker --usage training --ruleset 5.0.0 --log_output /tmp/log \
    results/laptop/bert/result_0.txt 2>&1
cat results/laptop/bert/result_0.txt' >"$folder/inside.txt" 2> >(tee "$folder/inside.err" >&2)
grep -q 'SUCCESS$' "$folder/inside.txt" || { note "MLPerf's checker did not accept the log" && cat "$folder/inside.txt" >&2 && exit 1; }

# --- From outside, by `podium run` ---------------------------------------------------------------------------------

home="$folder/repository" user="$(id -u)" as_user=()
rm -rf "$home"
mkdir -p "$home" "$folder/home"
{ git ls-files -z --cached --others --exclude-standard 2>/dev/null || find . -path ./.venv -prune -o -type f -print0; } |
    xargs --null cp --parents --target-directory "$home"
if [ "$user" = 0 ]; then
    user=12345 capabilities=+dac_read_search # to read .venv below root's home
    groups=(--clear-groups)
    if [ "$engine" = buildah ]; then capabilities+=,+setuid,+setgid; else groups=(--groups "$(stat --dereference --format %g "${DOCKER_HOST#unix://}")"); fi
    as_user=(setpriv --reuid "$user" --regid "$user" "${groups[@]}" --inh-caps "$capabilities" --ambient-caps "$capabilities")
    chown -R "$user:$user" "$home" "$folder/home"
fi
framework="PyTorch $(sed -n 's/^torch: \([0-9.]*[0-9]\).*/\1/p' "$folder/base.txt")" # the base's, which `podium doctor` asks for
from_outside() {
    (cd "$home" && HOME="$folder/home" PYTHONPATH="$home" "${as_user[@]}" "$python" -m podium.cli "$@" \
        --set launch.launcher=docker --set 'launch.container={runtime: docker, image: "podium:latest"}' \
        --set "description.framework=$framework")
}

note "podium doctor laptop, by Docker, as user $user"
from_outside doctor laptop --json >"$folder/doctor.json"
note "podium run laptop, by Docker, as user $user"
from_outside run laptop --json >"$folder/run.json"
log="$home/results/laptop/bert/result_0.txt"
"$python" -m mlperf_logging.compliance_checker --usage training --ruleset 5.0.0 --log_output "$folder/checker.txt" "$log" \
    >"$folder/outside.txt" 2>&1 || true
grep -q 'SUCCESS$' "$folder/outside.txt" || { note "MLPerf's checker did not accept $log" && cat "$folder/outside.txt" >&2 && exit 1; }

# --- What was done -------------------------------------------------------------------------------------------------

"$python" - "$folder" "$user" "$FROM_IMAGE" <<'PYTHON'
import json, os, re, sys
from pathlib import Path

folder, user, base = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
home = folder / "repository"
run, doctor = (json.loads((folder / name).read_text()) for name in ("run.json", "doctor.json"))
(run_folder,) = (home / "runs/laptop").glob("*/run_0")
source = json.loads((run_folder / "source.json").read_text())
assert source["base_image"] == base, f"source.json records {source.get('base_image')}"
assert run["reached_target"] and run["compliance"] and all(run["compliance"].values()), run["compliance"]
assert doctor["ready"], [finding for finding in doctor["findings"] if finding["verdict"] == "error"]
foreign = [path for name in ("results", "runs", "data") for path in (home / name).rglob("*") if path.stat().st_uid != user]
assert not foreign, f"not of user {user}: {foreign[:5]}"
text = (folder / "inside.txt").read_text()
at = {key: float(re.search(rf'"time_ms": ([0-9.]+)[^\n]*"key": "{key}"', text)[1]) for key in ("run_start", "run_stop")}
(folder / "seconds.txt").write_text(f"{(at['run_stop'] - at['run_start']) / 1000:.1f} {run['seconds']:.1f} {len(doctor['findings'])}\n")
PYTHON
read -r seconds_inside seconds_outside findings <"$folder/seconds.txt"

cat <<END | tee "$folder/summary.txt"

built      podium:latest, $size, in $build_seconds s, by $engine
on         $FROM_IMAGE
$(sed -n '2,$s/^/           /p' "$folder/base.txt")
run in it  ./run_and_time.sh, $(sed -n 1p "$folder/inside.txt"), no network: $seconds_inside s to the target, checker of 5.0.0: SUCCESS
by it      podium run laptop, launch.launcher=docker, user $user, no network: $seconds_outside s, checker of 5.0.0: SUCCESS
           podium doctor laptop, the same way: ready, $findings checks
END
if [ "$engine" = buildah ]; then
    cat <<END
NOT CHECKED: NVIDIA's base image, its registry, Docker's engine, GPUs. buildah built and ran this on a stand-in for the
base. On a machine with Docker and a network this one command checks the image on NVIDIA's base, and leaves podium:latest:
    docker/check_image.sh
END
else
    echo "NOT CHECKED: GPUs; for a system of these, with the image that is now there: podium doctor SYSTEM"
fi
