"""Whether step costs that were measured are those of a configuration."""

from collections.abc import Mapping
from typing import Any

from podium.config.model import RunConfig

BESIDE = ("recipe", "attention", "kernels", "global_batch_size")


def differing(config: RunConfig, measured: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """In what a costs file's `measured` differs from a configuration, as "KEY HAS, not WANTED".

    First what makes them another model's or another device's, then what makes them doubtful. What the file does not
    tell does not differ.
    """
    size, device = config.model_size, config.launch.device
    on = {"device": "cpu" if measured.get("device") == "cpu" else "cuda"} if "device" in measured else {}
    others = _differing({**measured, **on}, {"layers": size.layers, "hidden": size.hidden, "device": device})
    wanted = {key: getattr(config, key) for key in BESIDE} | {"ranks": config.launch.ranks}
    if config.precision != "auto":
        wanted["precision"] = config.precision
    return others, _differing(measured, wanted)


def _differing(measured: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    return [f"{key} {measured[key]}, not {want}" for key, want in wanted.items() if measured.get(key, want) != want]
