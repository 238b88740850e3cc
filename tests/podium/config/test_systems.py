"""The shipped systems: every one loads, is described completely, and matches published descriptions and logs."""

import json
import subprocess
import tarfile
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import yaml

from benchmarks.bert.published.hyperparameters import hyperparameter_sets
from benchmarks.bert.sizes import SIZES
from podium.comparison.load import RunCache, load_results
from podium.config.load import load_resolved, load_system, system_names, write_resolved
from podium.config.schema import OptimizerSettings
from podium.core.errors import UsageError
from podium.core.paths import CODE_FOLDER
from podium.planning.accelerators import find_accelerator
from podium.run.run_set import RunRequest
from podium.system_files.published import from_result
from tests.podium.conftest import dry_run_lines

RECIPES_FOLDER = CODE_FOLDER / "implementations" / "pytorch" / "recipes"
RECIPES = sorted(path.stem for path in RECIPES_FOLDER.glob("*.yaml"))
PUBLISHED = Path(__file__).resolve().parents[4] / "shared" / "data"
MIRROR = Path(__file__).resolve().parents[4] / ".mirror"
OWN_RECIPES = {
    "academic_t4": "academic",
    "academic_t4_10g": "academic",
    "baidu_a100_n1": "exchanged",
    "baidu_a100_n8": "exchanged",
    "dgxa100_n1": "indexed",
    "dgxa100_n128": "presorted",
    "dgxa100_n171": "presorted",
    "dgxa100_n64": "indexed",
    "dgxa100_n8": "indexed",
    "dgxb200_n1": "packed",
    "dgxh100_n1": "packed",
    "dgxh200_n1": "packed",
    "h200_1x": "indexed",
    "laptop": "indexed",
    "laptop_2x": "indexed",
}
CLOSED = {"baidu_a100_n1", "baidu_a100_n8", "dgxa100_n1", "dgxa100_n8", "dgxa100_n64"}
CLOSED |= {"dgxb200_n1", "dgxh100_n1", "dgxh200_n1"}

# Explained in hyperparameters.yaml: a default was logged, and a rate that is constant before the logged steps end.
NOT_AS_LOGGED = {
    "lamb_4096": {"wd"},
    "lamb_16384": {"wd"},
    "adamw_16384": {"decay_steps"},
}

HARDWARE = {
    "baidu_a100_n1": "v2.0/Baidu/systems/XMan4.0_1_node_8_A100_PaddlePaddle.json",
    "baidu_a100_n8": "v2.1/Baidu/systems/8_node_64_A100_PaddlePaddle.json",
    "dgxh100_n1": "v2.1/NVIDIA/systems/dgxh100_preview.json",
    "dgxa100_n1": "v2.1/NVIDIA/systems/dgxa100_ngc22.09_pytorch.json",
    "dgxa100_n8": "v2.1/NVIDIA/systems/dgxa100_n8_ngc22.09_pytorch.json",
    "dgxa100_n64": "v2.0/NVIDIA/systems/dgxa100_n128_ngc22.04_pytorch.json",
    "dgxa100_n128": "v2.0/Samsung/systems/samsung_supercomputer21_dgxa100_n128_pytorch.json",
    "dgxa100_n171": "v2.0/Samsung/systems/samsung_supercomputer21_dgxa100_n171_pytorch.json",
}


def test_shipped_systems_recipes_and_divisions() -> None:
    assert {name: load_system(name).recipe for name in system_names() if name in OWN_RECIPES} == OWN_RECIPES
    assert {name for name in OWN_RECIPES if load_system(name).division == "closed"} == CLOSED


@pytest.mark.parametrize("name", system_names())
def test_description_of_every_system_matches_its_launch_section(name: str, tmp_path: Path) -> None:
    config = load_system(name)
    write_resolved(config, tmp_path / "config.yaml")
    assert load_resolved(tmp_path / "config.yaml") == config
    assert config.model_size is SIZES[config.size]
    described, launched = config.description, config.launch
    assert described.system_name == name
    assert described.number_of_nodes == str(launched.nodes)
    assert described.accelerators_per_node == str(launched.processes_per_node if launched.device == "cuda" else 0)
    assert config.local_batch_size * launched.ranks == config.global_batch_size
    assert config.evaluation_interval <= config.max_samples
    if launched.container:
        inside = {mount.split(":")[1] for mount in launched.container.mounts}
        needed = [*config.stores, config.data.evaluation_store, config.data.vocabulary]
        needed += [] if name.startswith("academic") else [config.initial_checkpoint]  # pre-trained from random weights
        assert all(path and str(path.parents[-2]) in inside for path in needed)


NO_ADAMW = "recipe presorted trains size large with adamw, and for global_batch_size"


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", sorted(OWN_RECIPES))
def test_every_recipe_starts_on_every_system_or_is_refused_with_the_reason(
    name: str, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of a recipe do not depend on the system."""
    monkeypatch.chdir(Path(__file__).resolve().parents[3])
    try:
        config = load_system(name, recipe)
        note, *_, command = dry_run_lines(RunRequest(name, recipe=recipe))
    except UsageError as error:
        if recipe == "presorted":
            assert NO_ADAMW in str(error), error
            assert "optimizer.learning_rate" in str(error) and "adamw_16384" in str(error)
            assert name not in ("dgxa100_n128", "dgxa100_n171", "laptop", "laptop_2x")
        else:
            reason = "closed division, Data set: phases is 2" if name in CLOSED else "phases.0.store is missing"
            assert recipe == "academic" and reason in str(error), error
            assert name not in ("academic_t4", "academic_t4_10g", "laptop", "laptop_2x", "h200_1x")
        return
    assert "implementations.pytorch.train" in command or f" {name} --recipe {recipe}" in command
    assert f"recipe {recipe}" in note and f"hyperparameters {config.hyperparameters} (" in note
    published = yaml.safe_load((RECIPES_FOLDER / f"{recipe}.yaml").read_text(encoding="utf-8"))
    resolved = config.model_dump(mode="json")
    known = hyperparameter_sets()[config.hyperparameters or ""]
    keys = ["balancing", "attention", "gradient_wire", "loss", "clipping", "optimizer"]
    if name.startswith("laptop") and recipe == "indexed":
        keys.remove("optimizer")  # set in these systems' files
        assert config.optimizer.algorithm == "adamw" and "Optimizer: adamw" in note
    for key in keys:
        given, found = published.get(key), resolved[key]
        assert given is None or found == given or given.items() <= found.items()
    assert (known.algorithm, known.size) == (config.optimizer.algorithm, config.size)
    assert any(abs(config.global_batch_size / batch - 1) < 0.01 for batch in known.used_at)
    assert known.samples is None or known.samples < config.max_samples  # else the run ends before its target


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_loads_on_a_cpu_system(recipe: str) -> None:
    own = "adamw" if recipe in ("presorted", "indexed") else "lamb"  # these systems override the optimizer of indexed
    assert load_system("laptop_2x", recipe).optimizer.algorithm == own


@cache
def published_sets() -> dict[str, dict[str, Any]]:
    path = PUBLISHED / "published_bert_hyperparameters_to_v2.1.json"
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    rows = json.loads(path.read_text(encoding="utf-8"))
    return {f"{row['round']} {row['submitter']} {row['system']}": row for row in rows}


PUBLISHED_SETS = [name for name, one in hyperparameter_sets().items() if one.source[0].isdigit()]


@pytest.mark.parametrize("name", [name for name in PUBLISHED_SETS if hyperparameter_sets()[name].source < "3"])
def test_hyper_parameters_match_the_published_logs(name: str) -> None:
    known = hyperparameter_sets()[name]
    row, values = published_sets()[known.source], known.optimizer
    pairs = {
        "global_batch_size": known.used_at[0],
        "samples_to_converge_mean": known.samples,
        "lr": values["learning_rate"],
        "betas": [values["beta1"], values["beta2"]],
        "eps": values["epsilon"],
        "wd": values["weight_decay"],
        "warmup_steps": values["warmup_steps"],
        "start_warmup_step": values.get("start_warmup_step", 0),
        "decay_steps": values["decay_steps"],
    }
    assert {key for key, value in pairs.items() if value != row[key]} == NOT_AS_LOGGED.get(name, set())
    assert all(
        load_system(system).max_samples > row["samples_to_converge_max"]
        for system in OWN_RECIPES
        if load_system(system).hyperparameters == name
    )


@pytest.mark.parametrize("name", [name for name in PUBLISHED_SETS if hyperparameter_sets()[name].source >= "3"])
def test_hyper_parameters_of_later_rounds_match_the_published_logs(name: str, tmp_path: Path) -> None:
    known = hyperparameter_sets()[name]
    version, submitter, system = known.source.split(" ", 2)
    repository = MIRROR / f"mlcommons+training_results_v{version}" / "repo"
    if not repository.exists():
        pytest.skip(f"{repository} is not here")
    folder = tmp_path / f"training_results_v{version}" / submitter / "results" / system / "bert"
    folder.mkdir(parents=True)
    for number in range(10):
        path = f"{submitter}/results/{system}/bert/result_{number}.txt"
        git = ["git", "-C", str(repository), "show", f"HEAD:{path}"]
        (folder / f"result_{number}.txt").write_bytes(subprocess.run(git, check=True, capture_output=True).stdout)
    found = from_result(load_results([folder], RunCache(None)).results[0])
    assert (found.global_batch_size, round(mean(found.samples))) == (known.used_at[0], known.samples)
    logged = {key: value for key, value in found.optimizer.items() if key != "decay_power"}
    assert logged.pop("start_warmup_step") == known.optimizer.get("start_warmup_step", 0)
    assert {"algorithm": "lamb", **logged} == {k: v for k, v in known.optimizer.items() if k != "start_warmup_step"}


def test_published_sets_name_the_gpus_of_their_results() -> None:
    for name in PUBLISHED_SETS:
        for one in hyperparameter_sets()[name].published_on:
            number, _, model = one.partition(" ")
            assert int(number) > 0 and find_accelerator(model), one
        assert hyperparameter_sets()[name].published_on, name


def test_every_hyperparameter_set_is_valid() -> None:
    for known in hyperparameter_sets().values():
        settings = OptimizerSettings.model_validate(known.optimizer)
        assert settings.algorithm == known.algorithm
        assert known.size in SIZES and all(batch > 0 for batch in known.used_at)


@pytest.mark.parametrize("name", HARDWARE)
def test_hardware_matches_the_published_description(name: str) -> None:
    version, _, _ = HARDWARE[name].partition("/")
    archive = PUBLISHED / f"published-bert-{version}.tar.xz"
    if not archive.is_file():
        pytest.skip(f"{archive} is not here")
    with tarfile.open(archive) as files:
        member = files.extractfile(HARDWARE[name])
        assert member is not None
        published = json.load(member)
    described = load_system(name).description.model_dump(by_alias=True)
    keys = [
        key for key in described if key.startswith(("host_", "accelerator")) or key in ("operating_system", "cooling")
    ]
    assert len(keys) > 20
    assert {key: described[key] for key in keys} == {key: published[key] or "not stated" for key in keys}


def test_samsungs_runs_end_at_the_end_of_their_decay() -> None:
    """179 steps are the samples of the published runs; the last step has the end rate."""
    for name in ("dgxa100_n128", "dgxa100_n171"):
        config = load_system(name)
        assert (config.optimizer.algorithm, config.optimizer.end_learning_rate) == ("adamw", 4.94549100544884e-5)
        assert -(-2_932_736 // config.global_batch_size) == config.optimizer.decay_steps + 1 == 179
    assert load_system("dgxa100_n171").strata_counts == (4, 2, 2, 4)


@pytest.mark.parametrize(
    ("system", "settings", "samples"),
    [
        ("academic_t4", [], 230_400_000),
        ("laptop_2x", ["max_samples=20480"], 18_432),
        ("laptop_2x", [], 36_000),  # of 60,000 samples, 40,000 before the rate reaches 0
        ("laptop_2x", ["optimizer.end_learning_rate=1.0e-5"], 54_000),
    ],
)
def test_phase_one_of_academic_has_90_percent_of_training_steps(system: str, settings: list[str], samples: int) -> None:
    config = load_system(system, "academic", settings)
    assert [config.phase_samples(phase) for phase in config.phases] == [samples, None]
