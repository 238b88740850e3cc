"""`podium rehearse`: its data, what is refused, and what a user sees."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.bert.lengths import wikipedia_histogram
from benchmarks.bert.rehearsal_store import rehearsal_store, rehearsal_vocabulary
from benchmarks.bert.store import SampleStore
from podium.cli.main import app
from podium.config.load import load_resolved, load_system
from podium.run import rehearsal
from podium.run.rehearsal import memory_of, with_synthetic_data

PART = {"seconds": 4.0, "cpu_seconds": 2.0, "own_bytes": 200_000_000}
FOUND: dict[str, Any] = {
    "rank": 5,
    "ranks": 1024,
    "steps": 3,
    "start": {
        "parts": {"interpreter and imports": PART, "model": PART},
        "not_the_systems": ["model"],
        "seconds": 4.0,
        "cpu_seconds": 2.0,
    },
    "host": {
        "parts": {"global batch": {"median": 1.25, "least": 1.0, "greatest": 3.0, "calls": 3}},
        "milliseconds": 1.25,
    },
    "memory": {
        "own_bytes": 250_000_000,
        "file_bytes": 5 * 10**8,
        "index_bytes": 313_000_000,
        "model_bytes": 7,
        "node_bytes": 2_500_000_000,
    },
    "read": {"disk_bytes": 3 * 10**8, "requested_bytes": 1000, "index_bytes": 5, "sample_bytes_a_step": 10_700.0},
    "shapes": 2,
    "evaluation": {"samples": 9, "batches": 1, "ranks_without": 0},
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What the implementation was asked, by its configuration and its options."""
    calls: list[Any] = []

    def ask(implementation: str, entry: str, options: list[str]) -> dict[str, Any]:
        calls.append((f"{implementation}.{entry}", load_resolved(Path(options[0])), options[1:]))
        return FOUND

    monkeypatch.setattr(rehearsal, "ask", ask)
    monkeypatch.setattr(rehearsal, "FOLDER", tmp_path / "rehearsal")
    return calls


def test_a_system_is_rehearsed_at_its_own_number_of_ranks(asked: list[Any]) -> None:
    found = CliRunner().invoke(app, ["rehearse", "dgxa100_n128", "--rank", "5", "--steps", "3", "--samples", "2000"])
    assert found.exit_code == 0, found.output
    for text in ("recipe presorted: rank 5 of 1,024, rehearsed", "1.25 ms", "313 MB", "10.7 kB a step", "2.5 GB"):
        assert text in found.stdout
    ((entry, config, options),) = asked
    assert entry == "pytorch.rehearse"
    assert options == ["--rank", "5", "--steps", "3"]
    assert len(SampleStore(config.data.store)) == 2000
    assert len(SampleStore(config.data.evaluation_store)) == config.evaluation_samples == 10_000
    assert config.seed is not None


def test_json_has_all_of_it(asked: list[Any]) -> None:
    found = CliRunner().invoke(app, ["rehearse", "laptop", "--samples", "2000", "--json"])
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    assert document == FOUND | {"system": "laptop", "recipe": "indexed", "global_batch_size": 16, "samples": 2000}


def test_a_rank_that_is_not_there_is_wrong_use(asked: list[Any]) -> None:
    from podium.core.errors import UsageError

    with pytest.raises(UsageError, match="--rank: found 2, allowed is 0 to 1, the ranks of laptop_2x"):
        CliRunner().invoke(app, ["rehearse", "laptop_2x", "--rank", "2"], catch_exceptions=False)
    assert not asked


def test_a_node_with_too_little_memory_is_told(asked: list[Any]) -> None:
    system = ["rehearse", "dgxa100_n128", "--samples", "2000", "--set"]
    found = CliRunner().invoke(app, [*system, "description.host_memory_capacity=2 GB"])
    assert found.exit_code == 1
    assert "8 processes take 2.5 GB" in found.output
    assert CliRunner().invoke(app, [*system, "description.host_memory_capacity=3 GB"]).exit_code == 0


def test_ranks_without_evaluation_samples_are_named(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FOUND, "evaluation", {"samples": 0, "batches": 0, "ranks_without": 6384})
    found = CliRunner().invoke(app, ["rehearse", "laptop", "--samples", "2000"])
    assert "6,384 ranks have none" in found.stdout


@pytest.mark.parametrize(("text", "expected"), [("1 TB", 1e12), ("192 GB", 192e9), ("1.5 TiB", 1.5e12), ("none", None)])
def test_capacities(text: str, expected: float | None) -> None:
    assert memory_of(text) == expected


def test_every_length_of_a_phase_has_a_store_of_its_own(tmp_path: Path) -> None:
    config = with_synthetic_data(load_system("academic_t4"), tmp_path, 3000, lambda _: None)
    longest = [SampleStore(folder).max_sequence_length for folder in config.stores]
    assert longest == [512, 128]
    assert [config.phases[0].store, config.phases[1].store] == [config.stores[1], None]
    short = SampleStore(config.stores[1])
    assert int(np.asarray(short.lengths).max()) == 128
    assert short.max_predictions == 20 >= int(np.asarray(short.masked_counts).max())


def test_a_store_is_written_once_and_the_same_everywhere(tmp_path: Path) -> None:
    written: list[str] = []
    stores = []
    for folder in ("one", "one", "two"):
        words = rehearsal_vocabulary(tmp_path / folder, 512)
        stores.append(rehearsal_store(tmp_path / folder, 40_000, words, on_write=lambda: written.append("")))
    assert len(written) == 2
    one, _, two = (SampleStore(store) for store in stores)
    assert one.manifest == two.manifest
    assert one.index.sha256 == two.index.sha256
    lengths, histogram = np.asarray(one.lengths), wikipedia_histogram()
    mean = np.arange(513) @ histogram / histogram.sum()
    assert lengths.mean() == pytest.approx(mean, rel=0.01)
    assert np.bincount(lengths, minlength=513)[512] / 40_000 == pytest.approx(
        histogram[512] / histogram.sum(), rel=0.05
    )


def test_many_samples_are_drawn_as_few_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a table of all published samples instead of a search."""
    words = rehearsal_vocabulary(tmp_path, 512)
    few = rehearsal_store(tmp_path / "few", 5000, words)
    monkeypatch.setattr("benchmarks.bert.rehearsal_store.DRAWN_TOGETHER", 5000 - 1)
    many = rehearsal_store(tmp_path / "many", 5000, words)
    assert SampleStore(few).index.sha256 != ""
    same = np.asarray(SampleStore(few).lengths)[:4999] == np.asarray(SampleStore(many).lengths)[:4999]
    assert same.all()
