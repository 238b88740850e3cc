"""Choice of optimizer settings: a set for the recipe's optimizer, or values in the system's file."""

from typing import Any

import pytest

from benchmarks.bert.published.hyperparameters import hyperparameter_sets
from podium.config.hyperparameters import describe_hyperparameters
from podium.config.load import load_resolved, load_system, resolve_system, write_resolved
from podium.core.errors import UsageError

OWN = {
    "algorithm": "lamb",
    "learning_rate": 1e-3,
    "beta1": 0.9,
    "beta2": 0.98,
    "epsilon": 1e-6,
    "weight_decay": 0.02,
    "warmup_steps": 3,
    "decay_steps": 900,
}


def refused(system: Any, recipe: str | None = None, *settings: str) -> str:
    with pytest.raises(UsageError) as error:
        load_system(str(system), recipe, list(settings))
    return str(error.value)


@pytest.mark.parametrize(
    ("system", "recipe", "settings", "name"),
    [
        ("laptop", "indexed", [], "tiny_adamw_16"),  # the system overrides the optimizer of its recipe
        ("laptop", "indexed", ["optimizer.algorithm=lamb"], "tiny_lamb_16"),
        ("laptop_2x", "exchanged", [], "tiny_lamb_16"),
        ("laptop", "presorted", [], "tiny_adamw_16"),
        ("laptop", "random", ["optimizer.algorithm=adamw"], "tiny_adamw_16"),
        ("laptop", "indexed", ["global_batch_size=32"], "tiny_adamw_16"),  # the system names it
        ("dgxa100_n128", "presorted", [], "adamw_16384"),
        ("dgxa100_n128", "indexed", [], "lamb_16384"),
        ("dgxa100_n171", "indexed", [], "lamb_16384"),
        ("dgxa100_n171", "indexed", ["optimizer.algorithm=adamw"], "adamw_16384"),
        ("dgxa100_n8", "exchanged", ["hyperparameters=lamb_1536"], "lamb_1536"),
    ],
)
def test_set_is_chosen_for_the_recipes_optimizer(system: str, recipe: str, settings: list[str], name: str) -> None:
    config, known = load_system(system, recipe, settings), hyperparameter_sets()[name]
    assert config.hyperparameters == name
    resolved = config.optimizer.model_dump()
    assert {key: resolved[key] for key in known.optimizer} == known.optimizer


def test_set_is_chosen_by_published_batch_size(write_system: Any, closed_changes: dict[str, Any]) -> None:
    changes = closed_changes | {"bert.optimizer": {}, "bert.hyperparameters": ...}
    assert load_system(str(write_system(changes))).hyperparameters == "lamb_448"
    near = write_system(changes | {"bert.global_batch_size": 450, "description.division": "open"})
    assert load_system(str(near)).hyperparameters == "lamb_448"
    message = refused(write_system(changes | {"bert.global_batch_size": 500, "description.division": "open"}))
    assert "recipe indexed trains size large with lamb, and for global_batch_size 500 no set" in message
    assert "set optimizer.learning_rate, optimizer.beta1" in message
    assert "The nearest is lamb_448: 448 samples a step, learning rate 0.000425, samples to target 2,400,235" in message
    assert "`hyperparameters: lamb_448` under bert:" in message
    given = refused(near, None, "global_batch_size=1200")
    assert given.startswith("--set global_batch_size: recipe indexed") and "nearest is lamb_1536: 1,536" in given


def test_single_values_of_a_set_can_be_overridden(write_system: Any) -> None:
    path = write_system({"bert.optimizer": {"beta2": 0.97}})
    config = load_system(str(path), settings=["optimizer.learning_rate=1e-3"])
    assert (config.optimizer.beta2, config.optimizer.learning_rate) == (0.97, 1e-3)
    assert config.optimizer.decay_steps == hyperparameter_sets()["tiny_lamb_16"].optimizer["decay_steps"]


def test_system_may_set_all_values_without_a_set(write_system: Any) -> None:
    config = load_system(str(write_system({"bert.optimizer": OWN, "bert.hyperparameters": ...})))
    assert config.hyperparameters is None
    assert config.optimizer.model_dump() | OWN == config.optimizer.model_dump()
    assert describe_hyperparameters(config).endswith("from the system file or the command line")
    missing = {key: value for key, value in OWN.items() if key != "decay_steps"}
    message = refused(write_system({"bert.optimizer": missing, "bert.hyperparameters": ...}))
    assert message.endswith("bert.optimizer.decay_steps: is missing; add it (allowed: whole number ≥ 1)")


def test_values_for_one_optimizer_are_refused_with_another(write_system: Any) -> None:
    path = write_system({"bert.optimizer": OWN})
    for recipe, settings in (("presorted", []), (None, ["optimizer.algorithm=adamw"])):
        message = refused(path, recipe, *settings)
        assert f"{path}: bert.optimizer.beta1 is for lamb, but recipe" in message and "trains with adamw" in message
    assert load_system(str(path), "presorted", ["optimizer.algorithm=lamb"]).optimizer.learning_rate == 1e-3
    assert load_system(str(path), "padded").optimizer.learning_rate == 1e-3


def test_system_may_override_the_optimizer_of_its_recipe(write_system: Any) -> None:
    path = write_system({"bert.optimizer": {"algorithm": "adamw"}})
    assert load_system(str(path)).hyperparameters == "tiny_adamw_16"
    assert load_system(str(path), "exchanged").optimizer.algorithm == "lamb"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["hyperparameters=lamb_44"], "--set hyperparameters: there is no set 'lamb_44' (did you mean lamb_448?)"),
        (["hyperparameters=tiny_lamb_16"], "--set hyperparameters: found tiny_lamb_16, which is for lamb and size"),
        (["hyperparameters={a: 1}"], "--set hyperparameters: there is no set"),
        (["size=large"], "recipe indexed trains size large with adamw, and for global_batch_size 16 no set"),
    ],
)
def test_unknown_or_unsuitable_set_is_refused(settings: list[str], message: str) -> None:
    assert message in refused("laptop", None, *settings)


def test_misspelt_set_is_named_with_its_file(write_system: Any) -> None:
    path = write_system({"bert.hyperparameters": ["tiny_lamb_61"]})
    assert refused(path).startswith(
        f"{path}: bert.hyperparameters: there is no set 'tiny_lamb_61' (did you mean tiny_l"
    )


def test_note_names_the_batch_sizes_of_a_set(tmp_path: Any) -> None:
    note = describe_hyperparameters(load_system("laptop", settings=["global_batch_size=32"]))
    assert note == (
        "Optimizer: adamw, learning rate 0.0015, hyperparameters tiny_adamw_16 (used at 16 samples a step, here at 32)"
    )
    changed = load_system("laptop", settings=["optimizer.beta2=0.5", "optimizer.warmup_steps=7"])
    assert "hyperparameters tiny_adamw_16 but for beta2, warmup_steps (" in describe_hyperparameters(changed)
    unnamed = load_system("baidu_a100_n1", settings=["optimizer.decay_from=300", "optimizer.decay_power=2"])
    assert "hyperparameters lamb_448 but for decay_from, decay_power (" in describe_hyperparameters(unnamed)
    config = load_system("dgxa100_n171")
    write_resolved(config, tmp_path / "config.yaml")
    assert "adamw_16384 (used at 16,384 and 16,416 samples a step)" in describe_hyperparameters(
        load_resolved(tmp_path / "config.yaml")
    )


def test_null_on_the_command_line_chooses_the_set_by_batch_size() -> None:
    chosen = resolve_system("dgxh100_n1", None, ["hyperparameters=null", "global_batch_size=1536"])
    assert chosen.config.hyperparameters == "lamb_1536" and not chosen.warnings
    source = chosen.origins.source(("hyperparameters",))
    assert source is not None and source.label == "the set published for this optimizer and batch size"
    message = refused("dgxh100_n1", None, "hyperparameters=null", "global_batch_size=1024")
    assert message.startswith("--set global_batch_size, --set hyperparameters=null: recipe packed trains size large")
    assert "The nearest is lamb_768" in message


@pytest.mark.parametrize(
    ("system", "settings", "warnings"),
    [
        ("dgxh100_n1", [], []),
        ("dgxh100_n1", ["global_batch_size=768"], []),
        ("dgxh100_n1", ["global_batch_size=1536", "hyperparameters=lamb_768"], []),
        (
            "dgxh100_n1",
            ["global_batch_size=1536"],
            [
                "hyperparameters lamb_768 were published for 768 samples a step, and are used at 1,536; --set "
                "hyperparameters=null chooses lamb_1536 for that"
            ],
        ),
        (
            "h200_1x",
            ["description.division=open", "optimizer.algorithm=adamw", "hyperparameters=adamw_16384"],
            [
                "hyperparameters adamw_16384 were published for 16,384 and 16,416 samples a step, and are used at 56; "
                "no set is known for that"
            ],
        ),
        (
            "laptop",
            ["global_batch_size=32"],
            [
                "hyperparameters tiny_adamw_16 are for 16 samples a step, and are used at 32; no set is known for that",
            ],
        ),
    ],
)
def test_warning_of_a_set_at_another_batch_size(system: str, settings: list[str], warnings: list[str]) -> None:
    assert [*resolve_system(system, None, settings).warnings] == warnings
