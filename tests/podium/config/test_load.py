"""Loading of a configuration from a system, a recipe and settings; messages for invalid ones."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from podium.config.load import SYSTEMS, load_resolved, load_system, system_names, write_resolved
from podium.config.schema import RunConfig
from podium.core.errors import Interrupted, UsageError
from podium.core.paths import CODE_FOLDER

TEXT = (SYSTEMS / "laptop.yaml").read_text(encoding="utf-8")
RECIPES = CODE_FOLDER / "implementations" / "pytorch" / "recipes"
TWO_PHASES = "[{max_sequence_length: 128, samples: 64}, {max_sequence_length: 512}]"
ALL_RECIPES = "academic, exchanged, indexed, packed, padded, presorted, random"


def refused(path: Path | str, recipe: str | None = None, settings: list[str] | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        load_system(str(path), recipe, settings or [])
    return str(caught.value)


def refused_text(tmp_path: Path, text: str | bytes) -> str:
    path = tmp_path / "mine.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    message = refused(path)
    assert str(path) in message
    return message.replace(str(path), "FILE")


# Valid configurations


@pytest.mark.parametrize("system", system_names())
def test_every_system_can_be_loaded(system: str) -> None:
    assert load_system(system).system == system


@pytest.mark.parametrize("recipe", sorted(path.stem for path in RECIPES.glob("*.yaml")))
def test_every_recipe_loads_on_the_laptop(recipe: str) -> None:
    assert load_system("laptop", recipe).recipe == recipe


def test_a_system_may_be_a_path(write_system: Any) -> None:
    assert load_system(str(write_system({}, name="other"))).system == "other"


def test_the_system_overrides_the_recipe_and_settings_override_both(write_system: Any) -> None:
    system = write_system({"bert.optimizer.beta2": 0.97, "bert.dropout": 0.2, "bert.clipping": {"max_norm": 2.0}})
    config = load_system(str(system), settings=["bert.dropout=0.3", "optimizer.beta1=8e-1"])
    assert config.balancing == "indexed"  # the recipe's
    assert (config.optimizer.beta2, config.clipping and config.clipping.max_norm) == (0.97, 2.0)  # the system's
    assert (config.dropout, config.optimizer.beta1) == (0.3, 0.8)  # settings
    assert config.optimizer.epsilon == 1e-6  # a section is merged key by key


def test_recipe_can_be_overridden(write_system: Any) -> None:
    system = str(write_system({"bert.recipe": "random"}))
    assert load_system(system).balancing == "random"
    assert load_system(system, settings=["recipe=padded"]).balancing == "padded"
    assert load_system(system, "indexed").balancing == "indexed"


def test_settings_are_read_as_yaml() -> None:
    config = load_system(
        "laptop", settings=["clipping=null", "seed=12", "precision=fp32", "launch.threads_per_process=3"]
    )
    assert (config.clipping, config.seed, config.precision, config.launch.threads) == (None, 12, "fp32", 3)


@pytest.mark.parametrize("given", ["[fd00::1]:29500", '"[fd00::1]:29500"'])
def test_a_rendezvous_may_be_an_ipv6_address(given: str) -> None:
    config = load_system("laptop", settings=["launch.nodes=2", f"launch.rendezvous={given}"])
    assert config.launch.rendezvous == "[fd00::1]:29500"


def test_paths_are_relative_to_the_current_folder_or_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_system: Any
) -> None:
    (tmp_path / "text").touch()
    monkeypatch.chdir(tmp_path)
    data = {"text": "text", "evaluation_text": "systems/laptop.yaml", "vocabulary": str(tmp_path / "v")}
    path = write_system({"bert.data": data, "bert.initial_checkpoint": "text"})
    config = load_system(str(path))
    assert config.initial_checkpoint == tmp_path / "text"
    in_repository = load_system(str(path), settings=["initial_checkpoint=data/large.safetensors"])
    assert in_repository.initial_checkpoint == CODE_FOLDER / "data" / "large.safetensors"
    assert load_system(str(path), settings=["initial_checkpoint="]).initial_checkpoint is None
    assert config.data.text == (tmp_path / "text",)
    assert config.data.evaluation_text == CODE_FOLDER / "systems" / "laptop.yaml"
    assert config.data.vocabulary == tmp_path / "v"
    assert config.data.kind == "text"


@pytest.mark.parametrize("closed", [False, True])
def test_written_configuration_is_read_back(
    tmp_path: Path, closed: bool, open_config: RunConfig, closed_config: RunConfig
) -> None:
    config = closed_config if closed else open_config
    write_resolved(config, tmp_path / "config.yaml")
    assert load_resolved(tmp_path / "config.yaml") == config
    config = load_system("laptop", settings=["data={text: [/ä, /b], evaluation_text: /c, vocabulary: /d}", "clipping="])
    write_resolved(config, tmp_path / "config.yaml")
    assert load_resolved(tmp_path / "config.yaml") == config


def test_invalid_resolved_configuration_is_refused(tmp_path: Path, open_config: RunConfig) -> None:
    path = tmp_path / "config.yaml"
    write_resolved(open_config, path)
    path.write_text(path.read_text(encoding="utf-8").replace("dropout: 0.1", "dropout: 1.5"), encoding="utf-8")
    with pytest.raises(UsageError, match=r"config\.yaml: .*dropout: found 1\.5; allowed: less than or equal to 0\.9$"):
        load_resolved(path)
    with pytest.raises(UsageError, match=r"none\.yaml: cannot be read \(No such file or directory\)"):
        load_resolved(tmp_path / "none.yaml")


def test_a_configuration_is_frozen(open_config: RunConfig) -> None:
    for section, key in (
        (open_config, "seed"),
        (open_config.launch, "nodes"),
        (open_config.optimizer, "beta1"),
        (open_config.description, "cooling"),
    ):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(section, key, 1)


def test_unset_evaluation_keys_have_the_benchmarks_values(closed_config: RunConfig) -> None:
    laptop = load_system("laptop")
    assert (laptop.evaluation_samples, laptop.evaluation_interval) == (1_000, 2_048)
    assert (closed_config.evaluation_samples, closed_config.evaluation_interval) == (10_000, 150_000)
    assert load_system("laptop", settings=["evaluation.interval_samples=64"]).evaluation_interval == 64
    assert load_system("laptop", settings=["launch.processes_per_node=4"]).local_batch_size == 4


# Invalid files


def test_an_unknown_section_is_named(tmp_path: Path) -> None:
    message = refused_text(tmp_path, TEXT + "\nbret: {}\n")
    assert message == "FILE: there is no section 'bret'; allowed are description, launch, bert, reproduces"


@pytest.mark.parametrize("section", ["launch", "bert"])
@pytest.mark.parametrize("value", [..., None, 3, []])
def test_missing_section_is_named(write_system: Any, section: str, value: Any) -> None:
    path = write_system({section: value})
    assert refused(path) == f"{path}: section '{section}' is missing or has no keys; add it"


@pytest.mark.parametrize("value", [..., None, {}])
def test_a_description_is_not_needed_for_a_run(write_system: Any, tmp_path: Path, value: Any) -> None:
    changes = {"description": value, "launch.processes_per_node": 4, "launch.nodes": 2}
    config = load_system(str(write_system(changes)))
    described = config.description
    assert (described.system_name, described.number_of_nodes, described.accelerators_per_node) == ("mine", "2", "0")
    assert (config.division, described.submission_status) == ("open", "research")
    assert described.logged_submitter == "not stated"
    on_gpus = load_system("laptop_2x", settings=["launch.device=cuda", "launch.binding=none"])
    assert on_gpus.description.accelerators_per_node == "2"
    write_resolved(config, tmp_path / "config.yaml")
    assert load_resolved(tmp_path / "config.yaml") == config


def test_a_description_may_have_a_part_of_the_fields(write_system: Any) -> None:
    path = write_system({"description": {"number_of_nodes": 3, "cooling": "", "operating_system": "Linux"}})
    described = load_system(str(path)).description
    assert described.number_of_nodes == "3"  # as stated
    missing = described.missing_fields()
    assert {"submitter", "cooling", "accelerator_on-chip_memories"} < {*missing}
    assert not {"operating_system", "number_of_nodes", "system_name", "hw_notes"} & {*missing}
    assert load_system("laptop").description.missing_fields() == []


@pytest.mark.parametrize("value", [3, []])
def test_a_description_without_keys_is_refused(write_system: Any, value: Any) -> None:
    path = write_system({"description": value})
    assert refused(path) == f"{path}: section 'description' has no keys; add some, or leave it out"


def test_unknown_key_comes_first_with_a_suggestion(write_system: Any) -> None:
    path = write_system({"bert.global_batch_size": ..., "bert.globl_batch_size": 16})
    first, second = refused(path).splitlines()
    assert first.startswith(
        f"{path}: bert.globl_batch_size: there is no such key (did you mean global_batch_size?); allowed are "
    )
    assert "max_samples" in first
    assert "allowed are system" not in first
    assert "global_batch_size: is missing; add it" in second


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("bert.optimizer.weight_decy", "weight_decay"),
        ("bert.data.vocabuary", "vocabulary"),
        ("bert.evaluation.interval", "interval_samples"),
        ("launch.process_per_node", "processes_per_node"),
        ("description.accelerator_onchip_memories", "accelerator_on-chip_memories"),
    ],
)
def test_an_unknown_key_in_a_section_is_named(write_system: Any, key: str, meant: str) -> None:
    path = write_system({key: 1})
    assert refused(path).startswith(f"{path}: {key}: there is no such key (did you mean {meant}?); allowed are ")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("bert.max_samples", "many", "found 'many'; allowed: a whole number"),
        ("bert.max_samples", None, "found null; allowed: a whole number"),
        ("bert.max_samples", 1.5, "found 1.5; allowed: a whole number"),
        ("bert.max_samples", [1], "found [1]; allowed: a whole number"),
        ("bert.max_samples", 0, "found 0; allowed: greater than or equal to 1"),
        ("bert.dropout", 0.91, "found 0.91; allowed: less than or equal to 0.9"),
        ("bert.dropout", -0.1, "found -0.1; allowed: greater than or equal to 0"),
        ("bert.optimizer.start_warmup_step", 1, "found 1; allowed: less than or equal to 0"),
        ("bert.target_accuracy", "high", "found 'high'; allowed: a number"),
        ("bert.optimizer.learning_rate", 0, "found 0; allowed: greater than 0"),
        ("bert.clipping", 3, "found 3; allowed is a mapping with the keys max_norm, when or null"),
        ("bert.clipping.max_norm", "x", "found 'x'; allowed: a number"),
        ("bert.seed", 2**31, "found 2147483648; allowed: less than or equal to 2147483647"),
        ("bert.size", "huge", "found 'huge'; allowed are 'large', 'tiny'"),
        ("bert.precision", 16, "found 16; allowed are 'auto', 'fp32', 'bf16'"),
        ("launch.device", "tpu", "found 'tpu'; allowed are 'cpu', 'cuda'"),
        ("launch.nodes", 0, "found 0; allowed: greater than or equal to 1"),
        ("description.status", "here", "found 'here'; allowed are 'Available on-premise', "),
        ("description.cooling", [1], "found ['1']; allowed: text"),
    ],
)
def test_invalid_value_is_named_with_allowed_values(write_system: Any, key: str, value: Any, message: str) -> None:
    path = write_system({key: value})
    assert refused(path).startswith(f"{path}: {key}: {message}")


@pytest.mark.parametrize(
    "key", ["bert.max_samples", "launch.processes_per_node", "launch.device", "bert.global_batch_size"]
)
def test_a_missing_key_is_named(write_system: Any, key: str) -> None:
    path = write_system({key: ...})
    message = refused(path)
    assert message.startswith(f"{path}: {key}: is missing; add it (allowed: ")


def test_key_that_is_not_text_is_refused(tmp_path: Path) -> None:
    assert "bert.1: found 1 as a key; allowed: keys that are text" in refused_text(tmp_path, TEXT + "  1: foo\n")
    assert refused_text(tmp_path, TEXT + "1: foo\n").startswith("FILE: contains no keys")


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "words\n"])
def test_a_file_without_keys_is_refused(tmp_path: Path, text: str) -> None:
    assert refused_text(tmp_path, text) == "FILE: contains no keys; a mapping of keys to values is expected"


def test_duplicate_key_is_refused(tmp_path: Path) -> None:
    message = refused_text(tmp_path, TEXT.replace("  size: tiny\n", "  size: tiny\n  size: large\n"))
    assert "the key 'size' is given twice" in message
    assert "line 51, column 3" in message
    assert "\n" not in message


def test_invalid_yaml_is_named_with_its_line(tmp_path: Path) -> None:
    message = refused_text(tmp_path, TEXT + "  : [\n")
    assert message.startswith("FILE: is not valid YAML (")
    assert message.endswith("); fix it")
    assert f"line {TEXT.count(chr(10)) + 1}" in message
    assert "\n" not in message


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.system [ls]", "!!python/name:os.system", "!mine 3"])
def test_yaml_tags_are_refused(tmp_path: Path, tag: str) -> None:
    message = refused_text(tmp_path, TEXT.replace("size: tiny", f"size: {tag}"))
    assert "could not determine a constructor for the tag" in message


def test_text_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    text = TEXT.encode().replace(b"cooling: air", b"cooling: \xff")
    assert refused_text(tmp_path, text) == "FILE: is not UTF-8 text; save it as UTF-8"


def test_missing_system_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    assert refused(path) == f"{path}: there is no such system file; the systems are {', '.join(system_names())}"


def test_system_file_that_is_no_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    for name, kind in (("folder", "a folder"), ("pipe", "not a regular file")):
        path = tmp_path / f"{name}.yaml"
        assert refused(path) == f"{path}: is {kind}; give the path of a system's YAML file"


BAD_SCALARS = ["2026-99-99", "!!int x", "!!float x", "!!bool x", "!!timestamp x", "9" * 5000]


@pytest.mark.parametrize("scalar", BAD_SCALARS, ids=lambda scalar: scalar[:12])
def test_scalar_that_yaml_cannot_convert_is_refused(tmp_path: Path, scalar: str) -> None:
    assert "FILE: is not valid YAML (" in refused_text(tmp_path, TEXT.replace("size: tiny", f"size: {scalar}"))
    assert "--set seed: is not valid YAML (" in refused("laptop", settings=[f"seed={scalar}"])


def test_recursive_mapping_is_refused(tmp_path: Path) -> None:
    refused_text(tmp_path, TEXT + "  data: &a {text: *a}\n")


def bomb(kind: str) -> str:
    """2 KB of YAML aliases that expand to 10^12 values."""
    text = "  data:\n    text: &a0 [x]\n"
    for level in range(1, 13):
        again = [f"*a{level - 1}"] * 10
        pairs = (f"k{number}: {alias}" for number, alias in enumerate(again))
        value = f"[{', '.join(again)}]" if kind == "list" else f"{{{', '.join(pairs)}}}"
        text += f"    k{level}: &a{level} {value}\n"
    return text


@pytest.mark.parametrize("kind", ["list", "mapping"])
def test_a_yaml_bomb_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    """In a separate process with limits on memory and CPU time."""
    path = tmp_path / "bomb.yaml"
    path.write_text(TEXT + bomb(kind), encoding="utf-8")
    code = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31)); resource.setrlimit(resource.RLIMIT_CPU, (2, 2))\n"
        "from podium.config.load import load_system\nfrom podium.core.errors import UsageError\n"
        "try: load_system(sys.argv[1])\nexcept UsageError: sys.exit(7)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=CODE_FOLDER, capture_output=True, check=False)
    assert done.returncode == 7, done.stderr.decode()[-500:]


# Invalid settings


def test_unknown_system_is_refused_with_a_suggestion() -> None:
    message = refused("lptop")
    assert message.startswith(f"there is no system 'lptop' in {SYSTEMS} (did you mean laptop?); the systems are ")
    assert message.endswith("or give the path of a YAML file")
    assert "there is no system '../systems/laptop'" in refused("../systems/laptop")
    assert "there is no system ''" in refused("")


def test_unknown_recipe_is_refused_with_a_suggestion(write_system: Any) -> None:
    message = f"there is no recipe 'indxed' (did you mean indexed?); the recipes are {ALL_RECIPES}"
    assert refused("laptop", "indxed") == f"--recipe: {message}"
    assert refused("laptop", settings=["recipe=indxed"]) == f"--set recipe: {message}"
    path = write_system({"bert.recipe": "indxed"})
    assert refused(path) == f"{path}: bert.recipe: {message}"
    assert "there is no recipe '../recipes/indexed'" in refused("laptop", "../recipes/indexed")
    path = write_system({"bert.recipe": ...})
    assert refused(path) == f"{path}: bert.recipe is missing; name one of {ALL_RECIPES}"


def test_an_unknown_implementation_is_named(write_system: Any) -> None:
    path = write_system({"bert.implementation": "jax"})
    assert refused(path) == f"{path}: bert.implementation is 'jax'; allowed is pytorch"
    assert refused("laptop", settings=["implementation=jax"]).startswith(
        "--set implementation: found 'jax'; allowed is"
    )


@pytest.mark.parametrize("setting", ["seed", "=3", "", ".=3", "optimizer.=3", ".seed=3", "bert.=3"])
def test_setting_without_key_and_value_is_refused(setting: str) -> None:
    assert refused("laptop", settings=[setting]) == (
        f"--set {setting}: give it as key=value, such as --set global_batch_size=32"
    )


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("global_batch_sizes=3", "--set global_batch_sizes: there is no such key (did you mean global_batch_size?)"),
        ("bert.seeed=3", "--set seeed: there is no such key (did you mean seed?)"),
        ("optimizer.lr=3", "--set optimizer.lr: there is no such key; allowed are algorithm, learning_rate"),
        ("launch.gpus=3", "--set launch.gpus: there is no such key; allowed are launcher, nodes"),
        ("seed.first=3", "--set seed: found {'first': 3}; allowed: a whole number"),
        ("launch=3", "--set launch: found 3; allowed is a mapping with the keys launcher, nodes, "),
        ("dropout=0.1x", "--set dropout: found '0.1x'; allowed: a number"),
        ("seed=[", "--set seed: is not valid YAML ("),
        ("seed={a: 1, a: 2}", "--set seed: is not valid YAML (the key 'a' is given twice"),
        (
            "seed=!!python/name:os.system ",
            "--set seed: is not valid YAML (could not determine a constructor for the tag",
        ),
    ],
)
def test_invalid_setting_is_named_with_its_option(setting: str, message: str) -> None:
    assert refused("laptop", settings=[setting]).startswith(message)


def test_setting_below_a_scalar_setting_is_refused() -> None:
    assert refused("laptop", settings=["seed=1", "seed.first=3"]) == (
        "--set seed.first=3: seed was set to a value before and cannot hold keys"
    )


def test_batch_size_not_divisible_by_ranks_is_refused() -> None:
    message = refused(
        "laptop", settings=["global_batch_size=18", "launch.processes_per_node=2", "gradient_accumulation_steps=2"]
    )
    assert message.endswith(
        "global_batch_size is 18, which is not divisible by 2 ranks × 2 accumulation steps; allowed are multiples of 4"
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"text": "/a"}, "evaluation_text is missing: with text, evaluation_text and vocabulary must be named too"),
        ({"text": "/a", "evaluation_text": "/b"}, "vocabulary is missing"),
        ({"store": "/a", "vocabulary": "/b"}, "evaluation_store is missing"),
        ({"text": "/a", "store": "/b"}, "name either text or store, not both"),
        (
            {"text": "/a", "evaluation_text": "/b", "vocabulary": "/c", "evaluation_store": "/d"},
            "evaluation_store has no effect",
        ),
        ({"vocabulary": "/c"}, "vocabulary has no effect without text"),
    ],
)
def test_incomplete_data_section_is_refused(write_system: Any, data: dict[str, str], message: str) -> None:
    path = write_system({"bert.data": data})
    assert refused(path).startswith(f"{path}: bert.data: {message}")


# The closed division


@pytest.mark.parametrize(
    ("change", "rule", "key"),
    [
        ({"bert.size": "tiny", "bert.evaluation": {"samples": 10_000, "interval_samples": 150_000}}, "Model", "size"),
        ({"bert.optimizer.algorithm": "adamw"}, "Optimizer", "optimizer.algorithm"),
        ({"bert.dropout": 0.0}, "Hyper-parameters", "dropout"),
        ({"bert.target_accuracy": 0.7}, "Quality target", "target_accuracy"),
        ({"bert.target_accuracy": None}, "Quality target", "target_accuracy"),
        ({"bert.evaluation": {"samples": 1000}}, "Evaluation", "evaluation.samples"),
        ({"bert.evaluation": {"interval_samples": 25_000}}, "Evaluation frequency", "evaluation.interval_samples"),
        ({"bert.initial_checkpoint": None}, "Initial checkpoint", "initial_checkpoint"),
    ],
)
def test_breach_of_a_closed_rule_is_refused_with_the_rules_name(
    write_system: Any, closed_changes: dict[str, Any], change: dict[str, Any], rule: str, key: str
) -> None:
    path = write_system({**closed_changes, **change})
    message = refused(path)
    assert str(path) in message
    assert message.count("closed division") == 1
    assert f"closed division, {rule}: {key} is " in message
    assert load_system(str(write_system({**closed_changes, **change, "description.division": "open"})))


def test_setting_that_breaks_a_closed_rule_is_refused(write_system: Any, closed_changes: dict[str, Any]) -> None:
    assert "closed division, Hyper-parameters: dropout is 0.2" in refused(
        write_system(closed_changes), settings=["dropout=0.2"]
    )


# Values that YAML or Python would accept


@pytest.mark.parametrize("old_and_new", [("dropout: 0.1", "dropout: 1.5"), ("dropout: 0.1\n", "")])
def test_errors_in_a_resolved_configuration_name_its_keys(
    tmp_path: Path, open_config: RunConfig, old_and_new: tuple[str, str]
) -> None:
    path = tmp_path / "config.yaml"
    write_resolved(open_config, path)
    path.write_text(path.read_text(encoding="utf-8").replace(*old_and_new), encoding="utf-8")
    with pytest.raises(UsageError, match=r"config\.yaml: dropout: "):
        load_resolved(path)


def test_merge_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("<<: {description: {cooling: air}}\nlaunch: {}\nbert: {}\n", encoding="utf-8")
    refused(path)


@pytest.mark.parametrize("setting", ["a.b.c.d.e=1", "bert.optimizer.beta1.x.y.z=1"])
def test_setting_with_too_many_key_levels_is_refused(setting: str) -> None:
    assert refused("laptop", settings=[setting]).startswith(f"--set {setting}: give it as key=value, such as ")


@pytest.mark.parametrize("value", ["&a {text: *a}", "*a"])
def test_an_alias_is_refused(tmp_path: Path, value: str) -> None:
    assert "aliases (*name) are not supported, write the value out" in refused_text(
        tmp_path, TEXT + f"  data: {value}\n"
    )
    assert "aliases (*name) are not supported" in refused("laptop", settings=[f"data={value}"])


def test_system_key_cannot_be_set(write_system: Any) -> None:
    """`system` is set from the file's name; the schema would accept it under `bert:` or on the command line."""
    path = write_system({"bert.system": "foo"})
    assert refused(path).startswith(f"{path}: bert.system: there is no such key; ")
    for setting in ("system=foo", "bert.system=foo", "system.name=foo"):
        assert refused("laptop", settings=[setting]).startswith("--set system: there is no such key; ")


def test_other_sections_inside_bert_are_refused(write_system: Any) -> None:
    for section in ("launch", "description"):
        path = write_system({f"bert.{section}": {"threads_per_process": 3}})
        assert refused(path).startswith(f"{path}: bert.{section}: there is no such key; ")


@pytest.mark.parametrize("setting", ["max_samples=true", "dropout=off", "seed=no", "optimizer.learning_rate=on"])
def test_truth_values_are_not_numbers(setting: str) -> None:
    key, _, value = setting.partition("=")
    found = "true" if value in ("true", "on") else "false"
    assert refused("laptop", settings=[setting]).startswith(
        f"--set {key}: found {found}; a truth value is not allowed here; allowed is "
    )


@pytest.mark.parametrize("key", ["optimizer.learning_rate", "clipping.max_norm", "optimizer.epsilon"])
def test_infinity_and_nan_are_refused(key: str) -> None:
    for value in ("inf", "nan"):
        assert refused("laptop", settings=[f"{key}=.{value}"]) == (
            f"--set {key}: found {value}; allowed: a finite number"
        )


def test_implementation_that_is_not_text_is_refused(write_system: Any) -> None:
    refused(write_system({"bert.implementation": 5, "bert.recipe": ...}))


def test_key_of_thousands_of_parts_is_refused() -> None:
    refused("laptop", settings=["a." * 3000 + "b=1"])


def test_a_fixed_seed_is_refused_in_the_closed_division(write_system: Any, closed_changes: dict[str, Any]) -> None:
    path = write_system(closed_changes)
    assert load_system(str(path)).seed is None
    with pytest.raises(UsageError, match="--set seed: closed division, Random seeds: found 3, allowed is none"):
        load_system(str(path), settings=["seed=3"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["balancing=random", "balancing_counts=free"], "balancing_counts is free, but balancing is random"),
        (
            ["balancing_counts=free", "loss=per_rank"],
            "loss is per_rank, which requires equal numbers of samples on all ranks",
        ),
        (
            ["balancing=packed", "loss=per_rank"],
            "loss is per_rank, which requires equal numbers of samples on all ranks",
        ),
        (
            ["capacity_overflow=0.01", "attention=nested"],
            "attention is nested; allowed with it is auto or cudnn or flash",
        ),
        (["capacity_overflow=0.01", "loss=per_rank"], "capacity_overflow is set, but loss is per_rank"),
        (["capacity_overflow=0.01", "balancing=padded", "attention=grouped"], "all batches have the same shape"),
        (["capacity_overflow=0"], "capacity_overflow: found 0"),
        (["capacity_overflow=0.3"], "capacity_overflow: found 0.3"),
        (["pair_cost=-1"], "pair_cost: found -1"),
        (["capacity_overflow=0.01", "loader=exchange"], "capacity_overflow is set, but loader is exchange; they"),
        (["capacity_overflow=0.01", f"phases={TWO_PHASES}"], "capacity_overflow is set, but phases is set; they"),
        (
            ["strata_counts=[4, 4, 4, 4]"],
            "--set strata_counts: has no effect with balancing indexed, which draws no",
        ),
        (
            ["balancing=presorted", "strata_counts=[4, 4, 4, 5]"],
            "strata_counts is [4, 4, 4, 5], which are 17 samples; allowed are 16 in all",
        ),
        (["balancing=presorted", "strata_counts=[4, 4, 8]"], "strata_counts: found [4, 4, 8]; allowed:"),
        (["balancing=stratified", "shards=per_rank"], "shards is per_rank, but balancing is stratified, which draws"),
        (["balancing=presorted", f"phases={TWO_PHASES}"], "phases is set, but balancing is presorted, which draws"),
        (["phases=[{max_sequence_length: 128}, {}]"], "phases.0 has neither samples nor share; allowed is one of"),
        (["phases=[{max_sequence_length: 128, samples: 9}]"], "phases.0 has samples 9; allowed is one of samples and"),
        (["phases=[{samples: 9, share: 0.5}, {}]"], "phases.0 has samples 9 and share 0.5; allowed is one of samples"),
        (["phases=[{samples: 9}, {share: 0.5}]"], "phases.1 has share 0.5; allowed is one of samples and share in"),
        (["phases=[{share: 0.5}, {share: 0.5}, {}]"], "shares [0.5, 0.5], which leave nothing for the last one;"),
        (["phases=[{share: 1.0}, {}]"], "phases.0.share: found 1.0; allowed: less than 1"),
        (["phases=[{max_sequence_length: 4, samples: 9}, {}]"], "phases.0.max_sequence_length: found 4; allowed:"),
        (["phases=[{max_sequence_length: 513, samples: 9}, {}]"], "phases.0.max_sequence_length: found 513; allowed"),
        (
            ["phases=[{max_sequence_length: 8, max_predictions: 6, samples: 9}, {}]"],
            "max_predictions is 6; allowed is 1 to 5, the tokens of a sample of 8 without [CLS] and the two [SEP]",
        ),
        (
            ["phases=[{gradient_accumulation_steps: 3, samples: 9}, {}]"],
            "which is not divisible by 1 ranks × 3 accumulation steps; allowed are multiples of 3",
        ),
        (
            [*(f"data.{key}=x" for key in ("store", "evaluation_store", "vocabulary")), f"phases={TWO_PHASES}"],
            "phases.0.store is missing: with data.store a phase of 128 tokens needs prepared shards of that length;",
        ),
        (["phases=[{samples: 0}, {}]"], "phases.0.samples: found 0; allowed: greater than or equal to 1"),
        (
            ["phases=[{sample: 5}, {}]"],
            "there is no such key (did you mean samples?); allowed are max_sequence_length,",
        ),
        (["exchange_steps=0"], "exchange_steps: found 0"),
        (["evaluation.overlap=steps"], "evaluation.overlap: found 'steps'; allowed are 'none', 'training'"),
        (["balancing=best"], "balancing: found 'best'; allowed are 'padded', 'random', 'exchanged'"),
    ],
)
def test_incompatible_balancing_options_are_refused(settings: list[str], message: str) -> None:
    assert message in refused("laptop", settings=settings)


@pytest.mark.parametrize(
    "settings",
    [
        ["balancing_counts=free", "capacity_overflow=0.01"],
        ["balancing=presorted", "loss=per_rank"],
        ["balancing=exchanged", "capacity_overflow=0.25", "attention=flash"],
        ["balancing=packed", "pair_cost=0", "sequence_cost=3.5"],
        ["balancing=presorted", "strata_counts=[4, 4, 4, 4]", "loader=exchange"],
        ["balancing=presorted", "strata_counts=[2, 2, 2, 2]", "gradient_accumulation_steps=2"],
        ["shards=per_rank", f"phases={TWO_PHASES}", "loader=exchange", "exchange_steps=7"],
    ],
)
def test_compatible_balancing_options_are_accepted(settings: list[str]) -> None:
    load_system("laptop", settings=settings)


def test_checkpoints_with_overlapped_evaluation_are_refused() -> None:
    message = refused("laptop", settings=["checkpoint.every_samples=100", "evaluation.overlap=training"])
    assert "checkpoint is set, and evaluation.overlap is training" in message


def test_interruption_is_not_reported_as_a_file_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise Interrupted("interrupted")

    path = tmp_path / "config.yaml"
    path.write_text("a: 1\n", encoding="utf-8")
    monkeypatch.setattr("yaml.load", interrupt)
    with pytest.raises(Interrupted):
        load_resolved(path)


@pytest.mark.parametrize(
    "name", ["...yaml", "..yaml", "-x.yaml", "a b.yaml", "a%j.yaml", "a\x1b[2J.yml", f"{'a' * 101}.yaml"]
)
def test_invalid_system_name_is_refused(tmp_path: Path, name: str) -> None:
    """`...yaml` would be the system `..`, with runs and results outside of their folders."""
    path = tmp_path / name
    path.write_text(TEXT, encoding="utf-8")
    with pytest.raises(UsageError, match=r"the file's name is the system's name, and .* cannot name folders and jobs"):
        load_system(str(path))
