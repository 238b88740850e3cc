"""How one's own runs were configured: what no log says, the model's size above all."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.errors import Interrupted, PodiumError
from podium.comparison import stated
from podium.config import RunConfig, load_system
from podium.reading.run_log import Run
from podium.records import newest_by_seed, runs_of_system


def configured(system: str, runs: Sequence[Run], kept: Path, odd: list[str]) -> RunConfig | None:
    """The configuration that the first of the runs was made with, which its folder under `kept`, runs/, holds.

    Where no folder has its seed, or another version of Podium made it, what systems/SYSTEM.yaml says now. None, and a
    word in `odd`, where there is no such file.
    """
    by_seed = newest_by_seed(runs_of_system(kept / system))
    seeds = [seed for run in runs for seed in run.seeds if seed in by_seed]
    if seeds:
        try:
            return by_seed[seeds[0]].config
        except Interrupted:
            raise
        except PodiumError:
            pass
    try:
        return load_system(system)
    except Interrupted:
        raise
    except PodiumError as error:
        odd.append(f"how it was configured is not known, and so not its size: {error}")
        return None


def description(config: RunConfig) -> dict[str, str]:
    """MLPerf's fields; what it was launched on where its size is left out."""
    fields = stated.texts(config.description.model_dump(by_alias=True))
    if not fields["number_of_nodes"]:
        fields["number_of_nodes"] = str(config.launch.nodes)
    if not fields["accelerators_per_node"]:
        on_cpu = config.launch.device == "cpu"
        fields["accelerators_per_node"] = "0" if on_cpu else str(config.launch.processes_per_node)
    return fields
