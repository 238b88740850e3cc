#!/usr/bin/env bash
# The image's entry point: that of NVIDIA's base where there is one, whose banner goes to standard error here, since
# `podium run --json` has nothing but its JSON object on standard output.
nvidia=/opt/nvidia/nvidia_entrypoint.sh
[ -x "$nvidia" ] || exec "$@"
exec "$nvidia" bash -c 'exec "$@" >&3 3>&-' podium "$@" 3>&1 >&2
