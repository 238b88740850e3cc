#!/usr/bin/env bash
# docker/build.sh [--print] [options of docker build]: build podium:latest on a base image that is pinned by its digest.
#
# A tag such as 26.06-py3 can be moved to another image; a digest cannot. FROM_IMAGE names the base (default: the one of
# docker/Dockerfile). Where it has no digest, the registry is asked for that of its tag, which needs a network; --print
# only prints the pinned name. The image, and every run in it (source.json), records the name.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() { echo "docker/build.sh: $1" >&2 && exit "${2:-1}"; }
if [ "${1:-}" = --help ]; then sed -n '2,/^set /s/^# \{0,1\}//p' docker/build.sh && exit; fi

base="${FROM_IMAGE:-$(sed -n 's/^ARG FROM_IMAGE=//p' docker/Dockerfile)}"
digest_of='^sha256:[0-9a-f]{64}$'
pin="give FROM_IMAGE=NAME@sha256:DIGEST"
[[ "$base" =~ ^[[:alnum:]][^@[:space:]]*(@.*)?$ ]] || fail "FROM_IMAGE: found '$base', which is no image's name; $pin" 2
if [[ "$base" != *@* ]]; then
    docker buildx version >/dev/null 2>&1 ||
        fail "the digest of $base is asked for by 'docker buildx', which is not here; install Docker and its plugin buildx, or $pin"
    digest="$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$base")" ||
        fail "the registry did not give the digest of $base (see above); $pin"
    [[ "$digest" =~ $digest_of ]] || fail "found '$digest' for $base, which is no digest; $pin"
    base="$base@$digest"
elif ! [[ "${base#*@}" =~ $digest_of ]]; then
    fail "FROM_IMAGE: found '$base', whose digest is not sha256: and 64 hexadecimal digits (0-9, a-f); $pin" 2
fi
if [ "${1:-}" = --print ]; then
    echo "$base"
    exit
fi
command -v docker >/dev/null || fail "there is no docker here; install it" 2
# Without BuildKit docker/Dockerfile.dockerignore is not read, and data/ and runs/ would be sent to the engine.
export DOCKER_BUILDKIT=1
exec docker build --file docker/Dockerfile --build-arg "FROM_IMAGE=$base" --tag podium:latest "$@" .
