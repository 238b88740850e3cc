#!/usr/bin/env bash
# docker/build.sh [--print] [options of docker build]: build podium:latest on a base image that is pinned by its digest.
#
# A tag such as 26.06-py3 can be moved to another image; a digest cannot. FROM_IMAGE names the base (default: the one of
# docker/Dockerfile). Where it has no digest, the registry is asked for that of its tag, which needs a network; --print
# only prints the pinned name. The image, and every run in it (source.json), records the name.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

base="${FROM_IMAGE:-$(sed -n 's/^ARG FROM_IMAGE=//p' docker/Dockerfile)}"
if [[ "$base" != *@sha256:* ]]; then
    if ! digest="$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$base")"; then
        echo "docker/build.sh: the registry did not give the digest of $base (see above); give FROM_IMAGE=NAME@sha256:DIGEST" >&2
        exit 1
    fi
    if ! [[ "$digest" =~ ^sha256:[0-9a-f]{64}$ ]]; then
        echo "docker/build.sh: found '$digest' for $base, which is no digest; give FROM_IMAGE=NAME@sha256:DIGEST" >&2
        exit 1
    fi
    base="$base@$digest"
fi
if [ "${1:-}" = --print ]; then
    echo "$base"
    exit
fi
exec docker build --file docker/Dockerfile --build-arg "FROM_IMAGE=$base" --tag podium:latest "$@" .
