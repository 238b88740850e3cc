"""A factory of local runs under runs/, with their logs where Podium writes them."""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from podium.comparison.ab.operands import OutputFolders
from podium.mllog.read import read_log
from podium.mllog.run import Run
from podium.run.set_record import SetRecord, write_set
from podium.run.source import Source, write_source
from tests.podium.comparison.conftest import log_text

CONFIG = {
    "system": "mine",
    "description": {"number_of_nodes": "1", "framework": "PyTorch", "system_name": "mine"},
    "launch": {"launcher": "torchrun", "nodes": 1, "rendezvous": None},
    "size": "large",
    "recipe": "indexed",
    "global_batch_size": 448,
    "optimizer": {"algorithm": "lamb", "learning_rate": 4e-4},
}


def read(logs: Sequence[Path]) -> Mapping[Path, Run | str]:
    return {log: read_log(log).run(hashlib.sha256(log.read_bytes()).hexdigest()) for log in logs}


@dataclass
class RunFactory:
    """Writes sets of runs as `podium run` does: a set has its logs and its record, results/ has copies of the last set.

    With `previous_layout` as earlier versions did: a new set moves the results of the set before into its own folder.
    """

    top: Path
    previous_layout: bool = True
    sets: list[Path] = field(default_factory=list)

    @property
    def folders(self) -> OutputFolders:
        return OutputFolders(self.top / "runs", self.top / "results")

    def make(
        self,
        seconds: Sequence[float],
        source: Source | None = None,
        system: str = "mine",
        seed: int | None = None,
        **config: Any,
    ) -> Path:
        """Write a set of runs with these times and return its folder. Each run has another seed unless one is given."""
        folder = self.folders.runs / system / f"2026-11-21_10-00-00_{len(self.sets):06d}"
        results = self.folders.results / system / "bert"
        folder.mkdir(parents=True)
        if results.exists() and not self.previous_layout:
            shutil.rmtree(results)
        elif results.exists():
            shutil.move(results, folder / "replaced_results")
        results.mkdir(parents=True)
        for number, time in enumerate(seconds):
            run = folder / f"run_{number}"
            run.mkdir()
            run_seed = int(time * 1000) if seed is None else seed
            document = {**CONFIG, "system": system, **config, "seed": run_seed}
            (run / "config.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
            totals = {"seconds": time + 0.02, "samples": 448 * 4000}
            (run / "summary.json").write_text(json.dumps(totals), encoding="utf-8")
            if source is not None:
                write_source(run / "source.json", source)
            text = log_text(time).replace(f'"value": {int(time * 1000)},', f'"value": {run_seed},')
            (results / f"result_{number}.txt").write_text(text, encoding="utf-8")
            if not self.previous_layout:
                shutil.copy(results / f"result_{number}.txt", folder)
        if not self.previous_layout:
            write_set(folder, SetRecord(system, len(seconds)))
        self.sets.append(folder)
        return folder
