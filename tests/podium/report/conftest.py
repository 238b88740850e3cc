"""Folders of runs as an implementation writes them, with optional changes."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

SETTINGS: dict[str, Any] = {
    "system": "mine",
    "description": {"division": "open"},
    "launch": {"nodes": 1, "processes_per_node": 2, "device": "cpu"},
    "recipe": "indexed",
    "size": "tiny",
    "precision": "auto",
    "phases": [],
    "global_batch_size": 16,
    "optimizer": {"algorithm": "adamw", "learning_rate": 0.0015, "warmup_steps": 50},
    "clipping": {"max_norm": 1.0, "when": "after"},
    "target_accuracy": 0.72,
    "seed": 7,
}
PHASES = {
    "data_wait": 1.0,
    "forward": 20.0,
    "backward": 30.0,
    "synchronisation": 4.0,
    "optimizer": 5.0,
    "evaluation": 20.0,
}
SET = "2026-11-21_10-00-00_000001"


def step(number: int, **changes: Any) -> dict[str, Any]:
    """The line of a step of 16 samples."""
    line = {
        "event": "step",
        "step": number,
        "samples": 16 * number,
        "tokens": 3900,
        "slots": 4000,
        "max_over_mean_tokens": 1.0 + 0.1 * (number % 2),
        "learning_rate": 0.001,
        "masked_lm_loss": 6.0 - number / 100,
        "next_sentence_loss": 0.7,
        "loss": 6.7 - number / 100,
        "gradient_norm": 2.0,
    }
    return line | changes


def evaluation(samples: int, accuracy: float, **changes: Any) -> dict[str, Any]:
    line = {"event": "evaluation", "samples": samples, "accuracy": accuracy, "next_sentence_accuracy": 0.6}
    return line | {"masked_lm_loss": 2.0} | changes


def lines(found: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(line) + "\n" for line in found)


def summary(**changes: Any) -> dict[str, Any]:
    content = {
        "reached_target": True,
        "seconds": 40.0,
        "samples": 640,
        "steps": 40,
        "accuracy": 0.73,
        "next_sentence_accuracy": 0.6,
        "sequences_per_second": 16.0,
        "useful_tflops": 0.2,
        "share_of_peak": 0.2,
        "precision": "bf16",
        "padding_share": 0.025,
        "max_over_mean_tokens": 1.05,
        "phases_ms": PHASES,
        "evaluation": {"evaluations": 2, "share_of_run": 0.25},
    }
    return content | changes


MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Write runs/mine/SET/run_N; a file given as None is omitted, and one given as text is written literally."""

    def make(
        number: int = 0,
        metrics: str | Iterable[Mapping[str, Any]] | None = (),
        settings: Mapping[str, Any] | str | None = SETTINGS,
        totals: Mapping[str, Any] | str | None = None,
        set_name: str = SET,
        **files: str,
    ) -> Path:
        folder = tmp_path / "runs" / "mine" / set_name / f"run_{number}"
        folder.mkdir(parents=True)
        if metrics == ():
            metrics = [*(step(one) for one in range(1, 41)), evaluation(320, 0.4), evaluation(640, 0.73)]
        contents = {
            "metrics.jsonl": metrics if isinstance(metrics, str) or metrics is None else lines(metrics),
            "config.yaml": settings if isinstance(settings, str) or settings is None else yaml.safe_dump(settings),
            "summary.json": totals if isinstance(totals, str) or totals is None else json.dumps(totals),
            **{name.replace("__", "."): content for name, content in files.items()},
        }
        for name, content in contents.items():
            if content is not None:
                (folder / name).write_text(content, encoding="utf-8")
        return folder

    return make
