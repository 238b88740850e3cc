"""What a run that is gone on with may not have changed, and what it may."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.errors import UsageError, WorkError
from podium.config import Checkpoint, Checkpointing, RunConfig, load_resolved, newest_checkpoint, write_resolved
from podium.config.checkpoints import FACTS, checkpoint_path, facts_of, rank_file
from podium.config.kept import digest_of, kept, require_kept

FILE = Path("/runs/config.yaml")


@pytest.fixture
def checkpoint(tmp_path: Path, open_config: RunConfig) -> Checkpoint:
    path = checkpoint_path(tmp_path, 3)
    path.mkdir()
    rank_file(path, 0).touch()
    facts = facts_of(3, 48, 1, 7, "a log\n", kept(open_config), {"totals": {"steps": 3, "flops": 0.1 + 0.2}})
    (path / FACTS).write_text(facts, encoding="utf-8")
    found = newest_checkpoint(tmp_path)
    assert found
    return found


def changed(config: RunConfig, key: str, value: Any) -> RunConfig:
    first, _, rest = key.partition(".")
    if rest:
        value = getattr(config, first).model_copy(update={rest: value})
    return config.model_copy(update={first: value})


def test_the_same_configuration_is_taken_as_it_is_read_back(
    checkpoint: Checkpoint, open_config: RunConfig, tmp_path: Path
) -> None:
    write_resolved(open_config, tmp_path / "config.yaml")
    again = load_resolved(tmp_path / "config.yaml")
    require_kept(checkpoint, again, FILE)
    assert digest_of(kept(again)) == digest_of(checkpoint.facts["configuration"])


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
    ],
)
def test_how_it_is_launched_may_be_another(
    checkpoint: Checkpoint, open_config: RunConfig, key: str, value: Any
) -> None:
    assert changed(open_config, key, value) != open_config
    require_kept(checkpoint, changed(open_config, key, value), FILE)


@pytest.mark.parametrize(
    ("key", "value", "words"),
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
def test_all_that_changes_numbers_or_the_log_is_named(
    checkpoint: Checkpoint, open_config: RunConfig, key: str, value: Any, words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        require_kept(checkpoint, changed(open_config, key, value), FILE)
    assert str(caught.value).startswith(f"{FILE}: {words}")
    assert f", as {checkpoint.path} was made; a run goes on as it was configured: put that back" in str(caught.value)


def test_no_more_than_three_keys_are_named(checkpoint: Checkpoint, open_config: RunConfig) -> None:
    updates = {"seed": 1, "dropout": 0.5, "max_samples": 3, "global_batch_size": 1, "target_accuracy": None}
    with pytest.raises(UsageError, match=r"is .* and was .*, .* and was .*, .* and was [^,]*, and 2 more, as "):
        require_kept(checkpoint, open_config.model_copy(update=updates), FILE)


def test_threads_do_not_matter_beside_a_gpu(open_config: RunConfig) -> None:
    config = changed(open_config, "launch.device", "cuda")
    assert kept(config) == kept(changed(config, "launch.threads_per_process", 7)) != kept(open_config)


@pytest.mark.parametrize("how", ["changed", "left out", "added", "nested"])
def test_facts_that_were_changed_are_refused(checkpoint: Checkpoint, open_config: RunConfig, how: str) -> None:
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
        WorkError, match=rf"^{path}: is not as it was written; remove the folder {path.parent}, and the"
    ):
        require_kept(found, open_config, FILE)
