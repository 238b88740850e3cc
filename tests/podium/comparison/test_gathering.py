"""From trees to results."""

import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.errors import UsageError, WorkError
from podium.comparison.cache import RunCache
from podium.comparison.gathering import Comparison, gather
from podium.config import load_system
from podium.config.loading import write_resolved
from tests.podium.comparison.conftest import DESCRIPTION, log_text, write_system


def gathered(*paths: Path) -> Comparison:
    return gather(paths, RunCache(None))


def test_two_rounds(rounds: Path) -> None:
    found = gathered(rounds)
    assert [one.name for one in found.results] == ["v2.0 Org Inc. SYS", "v2.1 Org Inc. FAST", "v2.1 Org Inc. SYS"]
    one = found.results[0]
    assert (one.division, one.nodes, one.accelerators, one.family) == ("closed", 2, 8, "NVIDIA A100 SXM")
    assert one.score_minutes == pytest.approx(1004.5 / 60) and one.global_batch_size == 448
    assert one.evaluation_share == pytest.approx(0.4 / 1004.5) and one.oddities == ()
    assert [one.repeats for one in found.results] == [None, None, "v2.0 Org Inc. SYS"]
    assert found.notes == ()


def test_the_same_folder_twice_is_there_once(rounds: Path) -> None:
    assert gathered(rounds, rounds / "training_results_v2.0", rounds) == gathered(rounds)


def test_logs_of_one_folder_are_one_result(rounds: Path) -> None:
    folder = rounds / "training_results_v2.0" / "ORG" / "results" / "SYS" / "bert"
    (folder / "scaling.json").write_text('{"scaling_factor": 1.5}', encoding="utf-8")
    whole = gathered(rounds / "training_results_v2.0").results
    logs = sorted(folder.glob("result_*.txt"), reverse=True)
    assert [run.seconds for run in gathered(*logs).results[0].runs] == [run.seconds for run in whole[0].runs]
    for paths in ((logs[3], folder.parents[2]), (folder, logs[3]), (rounds / "training_results_v2.0", logs[0])):
        assert gathered(*paths).results == whole
    assert [len(one.runs) for one in gathered(*logs[:2]).results] == [2]


def test_an_archive_is_as_good_as_its_tree(rounds: Path, tmp_path: Path) -> None:
    name = "training_results_v2.0"
    subprocess.run(["tar", "-C", rounds, "-cJf", tmp_path / f"{name}.tar.xz", name], check=True)
    shutil.make_archive(str(tmp_path / name), "zip", rounds / name)
    plain = gathered(rounds / name).results
    for archive, inside in ((f"{name}.tar.xz", f"{name}/ORG"), (f"{name}.zip", "ORG")):
        found = gathered(tmp_path / archive).results
        assert [(one.name, one.runs) for one in found] == [(one.name, one.runs) for one in plain]
        assert [one.source for one in found] == [f"{tmp_path / archive}/{inside}/results/SYS/bert"]
    (tmp_path / "broken.tar.xz").write_bytes(b"no archive")
    with pytest.raises(WorkError, match=r"broken\.tar\.xz"):
        gathered(tmp_path / "broken.tar.xz")


def test_a_round_by_its_dates_is_told(tmp_path: Path) -> None:
    write_system(tmp_path / "some" / "ORG")
    found = gathered(tmp_path / "some")
    assert found.results[0].round == "v2.0" and "no folder names the round" in found.notes[0]


def test_other_benchmarks_are_told(rounds: Path) -> None:
    write_system(rounds / "training_results_v2.0" / "ORG", "PICTURES", benchmark="resnet")
    folder = write_system(rounds / "training_results_v2.0" / "ORG", "MISLABELLED")
    for log in folder.iterdir():
        log.write_text(log_text(submission_benchmark="resnet"), encoding="utf-8")
    found = gathered(rounds)
    assert len(found.results) == 3
    assert "1 result(s) of other benchmarks are left out" in found.notes[0]
    assert "MISLABELLED" in found.notes[1] and "its logs are of resnet" in found.notes[1]


def test_own_results(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "laptop" / "bert"
    folder.mkdir(parents=True)
    late = log_text().replace('"time_ms": 16', '"time_ms": 18')
    (folder / "result_0.txt").write_text(late, encoding="utf-8")
    (one,) = gathered(tmp_path / "results").results
    assert (one.own, one.submitter, one.system, one.accelerators) == (True, "Podium", "laptop", 0)
    assert not one.full_size, "the laptop's file says that its BERT is tiny"
    assert one.minutes == pytest.approx(1000 / 60) and one.score_minutes is None


def test_own_results_of_a_system_that_is_not_known(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "nowhere" / "bert"
    folder.mkdir(parents=True)
    (folder / "result_0.txt").write_text(log_text().replace('"time_ms": 16', '"time_ms": 18'), encoding="utf-8")
    (one,) = gathered(tmp_path / "results").results
    assert one.accelerators is None and "how it was configured is not known" in one.oddities[0]


def test_own_results_were_made_as_their_runs_were_configured(tmp_path: Path) -> None:
    """Not as the system's file says now."""
    kept = tmp_path / "runs" / "laptop" / "2026-01-01" / "run_0" / "config.yaml"
    kept.parent.mkdir(parents=True)
    write_resolved(load_system("laptop", settings=["size=large", "seed=1000000"]), kept)
    folder = tmp_path / "results" / "laptop" / "bert"
    folder.mkdir(parents=True)
    (folder / "result_0.txt").write_text(log_text().replace('"time_ms": 16', '"time_ms": 18'), encoding="utf-8")
    (one,) = gathered(tmp_path / "results").results
    assert one.full_size


def test_a_missing_description_and_one_in_other_letters(tmp_path: Path) -> None:
    org = tmp_path / "v2.0" / "ORG"
    write_system(org, "Lost")
    write_system(org, "Cased")
    (org / "systems" / "Lost.json").unlink()
    (org / "systems" / "Cased.json").rename(org / "systems" / "cased.json")
    lost, cased = gathered(org).results
    assert cased.accelerators == 8 and "differ in case" in cased.oddities[0]
    assert (lost.accelerators, lost.submitter, lost.division) == (None, "ORG", "closed")
    assert "Lost.json is missing" in lost.oddities[0]


def test_a_description_that_is_no_json(tmp_path: Path) -> None:
    org = tmp_path / "v2.0" / "ORG"
    write_system(org)
    (org / "systems" / "SYS.json").write_text('{"a": 1,}', encoding="utf-8")
    (one,) = gathered(org).results
    assert one.accelerators is None and "SYS.json is no JSON" in one.oddities[0]


@pytest.mark.parametrize(
    ("fields", "accelerators"),
    [
        ({"number_of_nodes": 2, "accelerators_per_node": 4.0}, 8),
        ({"number_of_nodes": "1.0", "accelerators_per_node": "0", "accelerator_model_name": "N/A"}, 0),
        ({"number_of_nodes": "16", "accelerators_per_node": "N/A", "accelerator_model_name": "-"}, 0),
        ({"number_of_nodes": "two"}, None),
        ({"number_of_nodes": None}, None),
    ],
)
def test_sizes(tmp_path: Path, fields: dict[str, object], accelerators: int | None) -> None:
    write_system(tmp_path / "v2.0" / "ORG", description={**DESCRIPTION, **fields})
    (one,) = gathered(tmp_path / "v2.0").results
    assert one.accelerators == accelerators
    assert any("do not tell how many" in odd for odd in one.oddities) == (accelerators is None)


def test_progress(rounds: Path) -> None:
    starting: list[int] = []
    told: list[int] = []
    gather([rounds], RunCache(None), starting.append, told.append)
    assert starting == [30] and sum(told) == 30


def test_names_from_strangers_are_made_readable(tmp_path: Path) -> None:
    name = "a\x1b[31m\u202eb"
    write_system(tmp_path / "v2.0" / "ORG", name, description={**DESCRIPTION, "submitter": "<b>\n\x07x"})
    (one,) = gathered(tmp_path / "v2.0").results
    assert (one.system, one.submitter) == ("a [31m b", "<b> x")
    assert one.source.endswith(r"results/a\x1b[31m\u202eb/bert")
    assert one.description["submitter"] == "<b> x"


def test_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no results"):
        gathered(tmp_path)
