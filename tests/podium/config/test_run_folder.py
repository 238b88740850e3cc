"""Checkpoints in a run's folder, records that processes share there, and checks when a run is resumed."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bert.manifest import Manifest, ShardEntry
from podium.config.load import load_resolved, write_resolved
from podium.config.run_data import RunData, read_run_data, write_run_data
from podium.config.run_folder import (
    FACTS,
    UNFINISHED_MARKER,
    Checkpoint,
    RunFolder,
    begin_checkpoint,
    checkpoint_path,
    complete_checkpoints,
    finish_checkpoint,
    fixed_configuration,
    format_facts,
    newest_checkpoint,
    rank_file,
    remove_old_checkpoints,
    remove_unfinished_checkpoints,
    require_same_configuration,
    require_same_data,
)
from podium.config.schema import Checkpointing, RunConfig
from podium.core.errors import PodiumError, UsageError, WorkError
from podium.core.json_files import json_digest


def write(folder: Path, batches: int, ranks: int = 2) -> Path:
    path = checkpoint_path(folder, batches)
    path.mkdir(parents=True)
    for rank in range(ranks):
        rank_file(path, rank).touch()
    facts = format_facts(batches, 10 * batches, ranks, 7, "a log\n", {"seed": 5}, {"own": [1]})
    (path / FACTS).write_text(facts, encoding="utf-8")
    return path


def batches(folder: Path) -> list[int]:
    return [checkpoint.batches for checkpoint in complete_checkpoints(folder)]


def test_facts_are_read_back(tmp_path: Path) -> None:
    path = write(tmp_path, 12)
    (found,) = complete_checkpoints(tmp_path)
    assert (found.path, found.batches, found.samples, found.metrics_bytes) == (path, 12, 120, 7)
    assert (found.log, found.facts["own"], found.facts["ranks"]) == ("a log\n", [1], 2)


def test_newest_checkpoint_has_most_batches(tmp_path: Path) -> None:
    for number in (100_000_001, 9, 10):
        write(tmp_path, number)
    assert batches(tmp_path) == [9, 10, 100_000_001]
    newest = newest_checkpoint(tmp_path)
    assert newest and newest.batches == 100_000_001
    assert newest_checkpoint(tmp_path / "nothing") is None


def change(key: str, value: Any) -> Any:
    def damage(path: Path) -> None:
        facts = json.loads((path / FACTS).read_text(encoding="utf-8"))
        (path / FACTS).write_text(json.dumps(facts | {key: value}), encoding="utf-8")

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: rank_file(path, 0).unlink(),
        lambda path: rank_file(path, 1).unlink(),
        lambda path: (path / FACTS).unlink(),
        lambda path: (path / FACTS).write_text("{"),
        lambda path: (path / FACTS).write_text("[]"),
        change("version", 1),
        change("format", "other"),
        change("ranks", 3),
        change("ranks", None),
        change("batches", "2"),
        change("samples", None),
        change("digest", None),
        change("configuration", None),
    ],
)
def test_incomplete_or_invalid_checkpoint_is_ignored(tmp_path: Path, damage: Any) -> None:
    write(tmp_path, 1)
    damage(write(tmp_path, 2))
    assert batches(tmp_path) == [1]
    remove_unfinished_checkpoints(tmp_path)  # it was complete before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["batch_00000001", "batch_00000002"]


def test_a_checkpoint_is_unfinished_until_the_last_rank_has_written(tmp_path: Path) -> None:
    write(tmp_path, 1)
    path = begin_checkpoint(tmp_path, 2)
    assert begin_checkpoint(tmp_path, 2) == path == checkpoint_path(tmp_path, 2)
    (path / FACTS).write_text(format_facts(2, 20, 2, 7, "", {}, {}), encoding="utf-8")
    rank_file(path, 0).touch()
    finish_checkpoint(path)
    assert (path / UNFINISHED_MARKER).exists()
    rank_file(path, 1).touch()
    finish_checkpoint(path)
    assert not (path / UNFINISHED_MARKER).exists()
    rank_file(path, 1).unlink()
    for path in (begin_checkpoint(tmp_path, 3), checkpoint_path(tmp_path, 4)):
        path.mkdir(exist_ok=True)  # their ranks died at once
    whole = begin_checkpoint(tmp_path, 5)  # its rank died before it removed the marker
    (whole / FACTS).write_text(format_facts(5, 50, 0, 7, "", {}, {}), encoding="utf-8")
    remove_unfinished_checkpoints(tmp_path)
    assert sorted(path.name[-1] for path in tmp_path.iterdir()) == ["1", "2", "5"]
    assert not (whole / UNFINISHED_MARKER).exists()


def test_only_complete_checkpoints_count_when_old_ones_are_removed(tmp_path: Path) -> None:
    for number in range(1, 6):
        write(tmp_path, number)
    for number in (4, 5):
        rank_file(checkpoint_path(tmp_path, number), 1).unlink()
    remove_old_checkpoints(tmp_path, keep=2)
    assert batches(tmp_path) == [2, 3]
    assert len(list(tmp_path.iterdir())) == 4  # unfinished ones may still be being written


@pytest.mark.parametrize("error", [WorkError("rank 3 has no memory left"), UsageError("zwölf")])
def test_failure_is_read_back_with_its_message(run_folder: RunFolder, error: PodiumError) -> None:
    assert run_folder.read_failure() is None
    run_folder.write_failure(error)
    failure = run_folder.read_failure()
    assert (type(failure), str(failure)) == (type(error), str(error))


@pytest.mark.parametrize("text", ["", '{"exit_code": 1, "mess', "\0"])
def test_truncated_failure_file_is_ignored(run_folder: RunFolder, text: str) -> None:
    run_folder.write_failure(WorkError("x"))
    (path,) = run_folder.path.iterdir()
    path.write_text(text, encoding="utf-8")
    assert run_folder.read_failure() is None


@pytest.mark.parametrize("text", ["{}", "[]", "3", '{"exit_code": 1}'])
def test_failure_file_with_missing_keys_is_ignored(run_folder: RunFolder, text: str) -> None:
    run_folder.write_failure(WorkError("x"))
    (path,) = run_folder.path.iterdir()
    path.write_text(text, encoding="utf-8")
    assert run_folder.read_failure() is None


def test_summary_is_none_until_the_run_has_ended(run_folder: RunFolder) -> None:
    assert run_folder.read_summary() is None
    run_folder.summary.write_text(json.dumps({"seconds": 1.5}), encoding="utf-8")
    assert run_folder.read_summary() == {"seconds": 1.5}


def test_files_of_a_run_have_distinct_names(run_folder: RunFolder) -> None:
    paths = [run_folder.config, run_folder.log, run_folder.metrics, run_folder.summary, run_folder.output]
    assert len(set(paths)) == 5
    assert all(path.parent == run_folder.path for path in paths)
    assert not run_folder.log.match("result_*.txt")


FILE = Path("/runs/config.yaml")


@pytest.fixture
def checkpoint(tmp_path: Path, open_config: RunConfig) -> Checkpoint:
    path = checkpoint_path(tmp_path, 3)
    path.mkdir()
    rank_file(path, 0).touch()
    facts = format_facts(
        3, 48, 1, 7, "a log\n", fixed_configuration(open_config), {"totals": {"steps": 3, "flops": 0.1 + 0.2}}
    )
    (path / FACTS).write_text(facts, encoding="utf-8")
    found = newest_checkpoint(tmp_path)
    assert found
    return found


def changed(config: RunConfig, key: str, value: Any) -> RunConfig:
    first, _, rest = key.partition(".")
    if rest:
        value = getattr(config, first).model_copy(update={rest: value})
    return config.model_copy(update={first: value})


def test_configuration_read_back_is_accepted(checkpoint: Checkpoint, open_config: RunConfig, tmp_path: Path) -> None:
    write_resolved(open_config, tmp_path / "config.yaml")
    again = load_resolved(tmp_path / "config.yaml")
    require_same_configuration(checkpoint, again, FILE)
    assert json_digest(fixed_configuration(again)) == json_digest(checkpoint.facts["configuration"])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("checkpoint", Checkpointing(every_samples=5)),
        ("launch.rendezvous", "a:1"),
        ("launch.binding", "cores"),
        ("launch.caches", "all"),
        ("launch.timeout_seconds", 3.0),
        ("launch.max_restarts", 3),
        ("launch.launcher", "slurm"),
        ("launch.requeue", {"time_limit": 60}),
    ],
)
def test_launch_overrides_are_accepted_on_resume(
    checkpoint: Checkpoint, open_config: RunConfig, key: str, value: Any
) -> None:
    assert changed(open_config, key, value) != open_config
    require_same_configuration(checkpoint, changed(open_config, key, value), FILE)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("global_batch_size", 32, "global_batch_size is 32 and was 16"),
        ("optimizer.learning_rate", 1.0, "optimizer.learning_rate is 1.0 and was 0."),
        ("seed", 8, "seed is 8 and was 7"),
        ("clipping", None, 'clipping is null and was {"max_norm"'),
        ("launch.nodes", 2, "launch.nodes is 2 and was 1"),
        ("launch.processes_per_node", 4, "launch.processes_per_node is 4 and was 1"),
        ("launch.threads_per_process", 7, "launch.threads_per_process is 7 and was null"),
        ("description.submitter", "zwölf", 'description.submitter is "zwölf" and was '),
    ],
)
def test_changed_keys_that_affect_results_are_named(
    checkpoint: Checkpoint, open_config: RunConfig, key: str, value: Any, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        require_same_configuration(checkpoint, changed(open_config, key, value), FILE)
    assert str(caught.value).startswith(f"{FILE}: {message}")
    assert f", when {checkpoint.path} was written; a resumed run keeps its configuration: restore it" in str(
        caught.value
    )


def test_no_more_than_three_keys_are_named(checkpoint: Checkpoint, open_config: RunConfig) -> None:
    updates = {"seed": 1, "dropout": 0.5, "max_samples": 3, "global_batch_size": 1, "target_accuracy": None}
    with pytest.raises(UsageError, match=r"is .* and was .*, .* and was .*, .* and was [^,]*, and 2 more, when "):
        require_same_configuration(checkpoint, open_config.model_copy(update=updates), FILE)


def test_thread_count_may_change_on_a_gpu(open_config: RunConfig) -> None:
    config = changed(open_config, "launch.device", "cuda")
    assert (
        fixed_configuration(config)
        == fixed_configuration(changed(config, "launch.threads_per_process", 7))
        != fixed_configuration(open_config)
    )


@pytest.mark.parametrize("how", ["changed", "left out", "added", "nested"])
def test_changed_facts_are_refused(checkpoint: Checkpoint, open_config: RunConfig, how: str) -> None:
    path = checkpoint.path / FACTS
    facts = json.loads(path.read_text(encoding="utf-8"))
    change = {
        "changed": lambda: facts.update(samples=49),
        "left out": lambda: facts.pop("totals"),
        "added": lambda: facts.update(more=1),
        "nested": lambda: facts["totals"].update(flops=0.3),
    }
    change[how]()
    path.write_text(json.dumps(facts), encoding="utf-8")
    found = newest_checkpoint(path.parents[1])
    assert found
    with pytest.raises(
        WorkError, match=rf"^{path}: was changed after it was written; remove the folder {path.parent} to"
    ):
        require_same_configuration(found, open_config, FILE)


MANIFEST = Manifest("ab" * 32, 512, (ShardEntry("a.h5", 3, 9, 3, "cd" * 32),))


@pytest.mark.parametrize(
    ("listed", "made_on", "differing"),
    [
        (MANIFEST, MANIFEST.digest, None),
        (None, None, None),  # of an older version
        (MANIFEST, "ef" * 32, "data.store"),
        (MANIFEST, None, "data.store"),
        (None, MANIFEST.digest, "data.store"),
    ],
)
def test_checkpoint_on_other_data_is_refused(
    tmp_path: Path, listed: Manifest | None, made_on: str | None, differing: str | None
) -> None:
    run, path = RunFolder(tmp_path), checkpoint_path(tmp_path / "checkpoints", 3)
    path.mkdir(parents=True)
    if listed:
        write_run_data(run.data, RunData({"data.store": listed}))
        assert read_run_data(run.data) == RunData({"data.store": listed})
    digests = {"data.store": made_on} if made_on else None
    (path / FACTS).write_text(format_facts(3, 30, 0, 7, "a log\n", {}, {}, digests), encoding="utf-8")
    checkpoint = newest_checkpoint(run.checkpoints)
    assert checkpoint
    if differing is None:
        require_same_data(checkpoint, run)
        return
    with pytest.raises(WorkError, match=rf"facts\.json: was made on other samples .*data\.json lists \({differing}\)"):
        require_same_data(checkpoint, run)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"format": "podium-data", "version": 1, "stores": {"data.store": 1}}']
)
def test_unreadable_data_record_is_an_error(tmp_path: Path, content: str) -> None:
    path = RunFolder(tmp_path).data
    assert read_run_data(path) is None
    path.write_text(content, encoding="utf-8")
    with pytest.raises(
        WorkError, match=r"data\.json: cannot be used \(it.*\); restore the file that `podium run` wrote"
    ):
        read_run_data(path)


DEEP = '{"a":' * 100_000


@pytest.mark.parametrize("text", [DEEP, "[1]", "9" * 5000, "{"])
def test_damaged_summary_is_an_error(run_folder: RunFolder, text: str) -> None:
    run_folder.summary.write_text(text, encoding="utf-8")
    with pytest.raises(WorkError, match=r"summary\.json: is not a run summary"):
        run_folder.read_summary()


def test_deeply_nested_files_are_treated_as_invalid(run_folder: RunFolder) -> None:
    checkpoint = write(run_folder.checkpoints, 1)
    (checkpoint / FACTS).write_text(DEEP, encoding="utf-8")
    run_folder.metrics.write_text(f'{DEEP}\n{{"samples": 1e999}}\n{{"samples": 7}}\n', encoding="utf-8")
    (run_folder.path / "failure.json").write_text(DEEP, encoding="utf-8")
    assert newest_checkpoint(run_folder.checkpoints) is None
    assert run_folder.samples_trained() == 7
    assert run_folder.read_failure() is None
