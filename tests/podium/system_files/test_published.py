"""System files from published results: hyper-parameters of logs in several forms, and the nearest recipe."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from podium.cli.main import app
from podium.config.schema import RunConfig
from podium.core.errors import UsageError
from podium.run.run_set import RunRequest
from podium.system_files import compose
from podium.system_files.compose import checked, load_draft
from podium.system_files.published import draft_from, find_published
from tests.podium.comparison.conftest import DESCRIPTION, log_text
from tests.podium.conftest import dry_run_lines

LAMB = {
    "opt_base_learning_rate": 4e-4,
    "opt_lamb_epsilon": 1e-6,
    "opt_lamb_beta_1": 0.9,
    "opt_lamb_beta_2": 0.999,
    "opt_lamb_weight_decay_rate": 0.01,
    "opt_learning_rate_training_steps": 7000.0,
    "opt_learning_rate_warmup_steps": 0,
    "start_warmup_step": 0,
    "gradient_accumulation_steps": 1,
}
PUBLISHED_448 = {**LAMB, "opt_base_learning_rate": 4.25e-4, "opt_learning_rate_training_steps": 6700}
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a result of three runs on one node of eight GPUs; return its folder."""

    def write(values: dict[str, Any], batch: int = 448, **description: str) -> Path:
        org = tmp_path / "training_results_v2.1" / "ORG"
        fields = {**DESCRIPTION, "number_of_nodes": "1", "accelerators_per_node": "8", **description}
        (org / "systems").mkdir(parents=True)
        (org / "systems" / "SYS.json").write_text(json.dumps(fields), encoding="utf-8")
        folder = org / "results" / "SYS" / "bert"
        folder.mkdir(parents=True)
        for number in range(3):
            (folder / f"result_{number}.txt").write_text(log_text(1000.0 + number, batch, **values), encoding="utf-8")
        return folder

    return write


def resolve(folder: Path | str) -> tuple[RunConfig, tuple[str, ...]]:
    draft = checked(draft_from(find_published(str(folder)), "repro"), "repro")
    return load_draft(draft, "repro"), draft.notes


def test_logged_values_are_used_and_resolve(write: Write) -> None:
    config, notes = resolve(write(LAMB).parent)
    found = config.optimizer
    assert (found.learning_rate, found.beta2, found.decay_steps) == (4e-4, 0.999, 7000)
    assert (config.division, config.launch.ranks, config.global_batch_size) == ("closed", 8, 448)
    assert config.reproduces is not None
    assert (config.reproduces.round, config.reproduces.submitter) == ("v2.1", "Org Inc.")
    assert config.reproduces.seconds == (1000.0, 1001.0, 1002.0)
    assert config.reproduces.samples == (448 * 4000,) * 3 and config.max_samples > 448 * 4000
    assert any("no log states whether samples were packed" in note for note in notes)
    assert any("paths of the data" in note for note in notes)


def test_a_published_set_is_named_where_the_values_are_equal(write: Write) -> None:
    folder = write(PUBLISHED_448)
    config, _ = resolve(folder)
    assert config.hyperparameters == "lamb_448"
    comment = draft_from(find_published(str(folder)), "repro").comments["hyperparameters"]
    assert "learning_rate 0.000425, beta1 0.9" in comment and "decay_steps 6700" in comment


@pytest.mark.parametrize(
    ("values", "key", "expected"),
    [
        ({"opt_lamb_epsilon": None, "opt_epsilon": 2e-6}, "epsilon", 2e-6),
        ({"opt_learning_rate_warmup_steps": None, "num_warmup_steps": 20.0}, "warmup_steps", 20),
        ({"start_warmup_step": -10.0, "num_warmup_steps": 20}, "start_warmup_step", -10),
        ({"opt_lamb_learning_rate_decay_poly_power": 0.5}, "decay_power", 0.5),
        ({"opt_end_learning_rate": 1e-5}, "end_learning_rate", 1e-5),
    ],
)
def test_keys_of_other_rounds_and_submitters_are_read(write: Write, values: Any, key: str, expected: float) -> None:
    logged = {name: value for name, value in {**LAMB, **values}.items() if value is not None}
    config, _ = resolve(write(logged))
    assert getattr(config.optimizer, key) == expected


def test_without_hyper_parameters_the_nearest_set_stands_for_them(write: Write) -> None:
    config, notes = resolve(write({}, batch=512))
    assert config.hyperparameters == "lamb_576"
    assert any("lamb_576 is used, the set of the nearest batch" in note for note in notes)
    assert any("gradient accumulation: none is assumed" in note for note in notes)


@pytest.mark.parametrize(
    ("values", "submitter", "recipe", "reason"),
    [
        ({"d_batch_size": 28}, "Dell", "packed", "224 rows for 448 samples: 2 sequences are packed into a row"),
        ({"d_batch_size": 56}, "Dell", "indexed", "they are not packed"),
        ({}, "Graphcore", "packed", "arXiv 2107.02027"),
        ({}, "Baidu", "exchanged", "Baidu published it"),
        ({}, "Habana", "indexed", "no log states whether samples were packed or padded"),
    ],
)
def test_the_nearest_recipe_is_named_with_the_reason(
    write: Write, values: dict[str, Any], submitter: str, recipe: str, reason: str
) -> None:
    config, notes = resolve(write({**LAMB, **values}, submitter=submitter))
    assert config.recipe == recipe and notes[0].startswith(f"recipe {recipe}: ") and reason in notes[0]


def test_samsungs_logs_of_lamb_are_of_adamw(write: Write) -> None:
    logged = {
        **LAMB,
        "opt_base_learning_rate": 0.00039299421615882676,
        "opt_lamb_beta_1": 0.8003575444254268,
        "opt_lamb_beta_2": 0.8174653681457493,
    }
    folder = write(logged, 16384, submitter="Samsung", division="open", number_of_nodes="128")
    config, _ = resolve(folder)
    assert (config.recipe, config.hyperparameters, config.optimizer.algorithm) == ("presorted", "adamw_16384", "adamw")


def test_what_cannot_be_divided_is_changed_and_named(write: Write) -> None:
    config, notes = resolve(write({**LAMB, "gradient_accumulation_steps": 3}, 450, accelerators_per_node="16"))
    assert config.launch.processes_per_node == 15 and config.gradient_accumulation_steps == 3
    assert any("450 samples cannot be divided by 16 processes" in note for note in notes)


@pytest.mark.parametrize("name", ["AMD Instinct MI300X", "Google TPU v4", "Habana Gaudi2", "Huawei Ascend 910"])
def test_results_of_unsupported_accelerators_are_refused(write: Write, name: str) -> None:
    with pytest.raises(UsageError, match=f"--from: .*found '{name}', but Podium does not run on AMD GPUs .*compare"):
        resolve(write(LAMB, accelerator_model_name=name))


def test_cpus_get_a_process_for_each_socket(write: Write) -> None:
    none = {"accelerators_per_node": "0", "accelerator_model_name": "N/A", "host_processors_per_node": "2"}
    config, _ = resolve(write(LAMB, **none))
    assert (config.launch.device, config.launch.processes_per_node) == ("cpu", 2)


def test_a_refusal_by_the_closed_division_opens_the_file(write: Write) -> None:
    config, notes = resolve(write({**LAMB, "opt_name": "adamw"}))
    assert config.division == "open" and notes[-1].startswith("division: open, since the closed division refuses it")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "systems/SYS.json is missing"),
        ("{", "systems/SYS.json "),
        ('{"notes": "' + "x" * 2_000_000 + '"}', "systems/SYS.json "),
        ('{"number_of_nodes": "many"}', "systems/SYS.json states no number of nodes or accelerators"),
    ],
)
def test_hardware_that_nothing_states_is_not_guessed(write: Write, content: str | None, reason: str) -> None:
    """One node with one accelerator was assumed, and packing derived from it."""
    folder = write({**PUBLISHED_448, "d_batch_size": 28})
    file = folder.parents[2] / "systems" / "SYS.json"
    if content is None:
        file.unlink()
    else:
        file.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError) as refused:
        find_published(str(folder), nodes=1)
    assert reason in str(refused.value) and "with --nodes and --gpus" in str(refused.value)
    found = find_published(str(folder), nodes=2, gpus=8)
    assert (found.nodes, found.accelerators, found.rows) == (2, 16, 448)
    draft = draft_from(found, "repro")
    assert draft.bert["recipe"] == "indexed" and any(reason in note for note in draft.notes)


def test_text_of_the_description_is_escaped_and_bounded(write: Write) -> None:
    hostile = "x: y\n# no comment\nbert: {size: tiny}\x1b[31m" + "z" * 5000
    folder = write(LAMB, framework=hostile, system_name=hostile, submitter="S\nlaunch: {}" + "y" * 900)
    draft = draft_from(find_published(str(folder)), "repro")
    document = yaml.safe_load(draft.text)
    assert list(document) == ["description", "launch", "bert", "reproduces"]
    assert document["bert"]["size"] == "large" and len(document["description"]["framework"]) == 300
    assert "\x1b" not in draft.text and max(map(len, draft.text.splitlines())) < 400
    assert load_draft(draft, "repro").description.system_name == "repro"


def test_names_of_the_built_in_tables_are_found() -> None:
    for name in ("2.1/NVIDIA/dgxa100_ngc22.09_pytorch", "v2.1 NVIDIA dgxa100_ngc22.09_pytorch"):
        config, notes = resolve(name)
        assert (config.hyperparameters, config.launch.ranks) == ("lamb_448", 8)
        assert config.reproduces is not None and len(config.reproduces.seconds) == 10
        assert any("of the built-in tables only the accelerators are known" in note for note in notes)
    config, notes = resolve("2.0/Samsung/samsung_supercomputer21_dgxa100_n128_pytorch")
    assert (config.recipe, config.launch.launcher, config.launch.nodes) == ("presorted", "slurm", 128)
    assert any("1.1" in note for note in resolve("1.1/NVIDIA/dgxa100_n8_ngc21.09_pytorch")[1])


def test_other_names_and_folders_are_refused(write: Write, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"did you mean 2.1/NVIDIA/dgxa100_ngc22.09_pytorch"):
        find_published("2.1/NVIDA/dgxa100_ngc22.09_pytorch")
    folder = write(LAMB)
    other = folder.parents[1] / "OTHER" / "bert"
    other.mkdir(parents=True)
    (other / "result_0.txt").write_text(log_text(), encoding="utf-8")
    with pytest.raises(UsageError, match="has 2 results of BERT; name one of them"):
        find_published(str(folder.parents[2]))


def test_the_command_writes_a_file_that_a_dry_run_accepts(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compose, "USER_SYSTEMS", tmp_path / "systems")
    found = CliRunner().invoke(
        app, ["systems", "new", "repro", "--from", str(write(LAMB)), "--recipe", "padded", "--json"]
    )
    assert found.exit_code == 0, found.exception
    document = json.loads(found.stdout)
    assert document["notes"][0].startswith("recipe padded: as chosen; nearest is indexed")
    assert document["reproduces"]["system"] == "SYS"
    path = Path(document["file"])
    text = path.read_text(encoding="utf-8")
    assert "Reproduces MLPerf Training v2.1 Org Inc. SYS" in text and "Not in the logs" in text
    assert "recipe padded" in dry_run_lines(RunRequest(str(path)))[0]
