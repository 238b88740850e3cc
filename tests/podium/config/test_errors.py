"""Messages for invalid settings: place, what was found and what is allowed, for all of pydantic's kinds of errors."""

from typing import Any, get_args

import pytest

from podium.config.json_schema import allowed_values
from podium.config.load import load_system, resolve_system
from podium.config.schema import RunConfig, Status
from podium.core.errors import UsageError


def refused(system: Any, *settings: str, recipe: str | None = None) -> str:
    with pytest.raises(UsageError) as error:
        load_system(str(system), recipe, list(settings))
    return str(error.value)


BAD_STATUS = "Research, Development,, Internal (RDI)"
ALLOWED_SEED = "whole number ≥ 0, ≤ 2,147,483,647 or null"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (f"description.status={BAD_STATUS}", f"found '{BAD_STATUS}'; allowed are 'Available on-premise', 'Available c"),
        ("cuda_graph=true", "found true; a truth value is not allowed here; allowed are 'auto', 'step', 'none'"),
        ("dropout=true", "found true; a truth value is not allowed here; allowed is number ≥ 0, ≤ 0.9"),
        ("seed=false", f"found false; a truth value is not allowed here; allowed is {ALLOWED_SEED}"),
        ("phases=3", "found 3; allowed: a list of mappings"),
        ("launch.slurm_options=3", "found 3; allowed: list: text"),
        ("launch.slurm_options={a: 1}", "found {'a': 1}; allowed: list: text"),
        ("attention_widths=wide", "found 'wide'; allowed: list: whole number ≥ 1"),
        ("attention_widths=[]", "found []; allowed: at least 1 item (list: whole number ≥ 1"),
        ("attention_widths=[a]", "found 'a'; allowed: a whole number"),
        ("strata_counts=[1, 2, 3, 4, 5]", "found [1, 2, 3, 4, 5]; allowed: at most 4 items (list of 4: whole number"),
        ("pair_cost=dear", "found 'dear'; allowed: a number"),
        ("pair_cost=.nan", "found nan; allowed: a finite number"),
        ("max_samples=1.5", "found 1.5; allowed: a whole number"),
        ("max_samples=1e3", "found '1e3'; allowed: a whole number ≥ 1; write 1000"),
        ("max_samples=4.6e6", "found '4.6e6'; allowed: a whole number ≥ 1; write 4600000"),
        ("max_samples='4,600,000'", "found '4,600,000'; allowed: a whole number ≥ 1; write 4600000"),
        ("max_samples=two", "found 'two'; allowed: a whole number ≥ 1"),
        ("nodes=4", "there is no such key (did you mean launch.nodes?); allowed are description, launch"),
        ("recipe=[packed, indexed]", "found a list; one name is allowed, of academic, "),
        ("data.store=3", "found 3; allowed: path or null"),
        ("data.text=3", "found 3; allowed: list: path"),
        ("recipe_=3", "there is no such key (did you mean recipe?); allowed are"),
        ("launch.rendezvous=here", "found 'here'; allowed: HOST:PORT, such as node1:29500"),
        (
            "launch.container={runtime: docker, image: a, mounts: [a]}",
            "found 'a'; allowed: HOST:CONTAINER or HOST:CONT",
        ),
        ("launch.container={runtime: docker}", "is missing; add it (allowed: text)"),
        ("launch.container={runtime: docker, image: ''}", "found ''; allowed: text that is not empty"),
        ("description.cooling=[1]", "found ['1']; allowed: text"),
        ("clipping=3", "found 3; allowed is a mapping with the keys max_norm, when or null"),
        ("optimizer.beta1=1", "found 1; allowed: less than 1"),
    ],
)
def test_a_value_is_refused_with_what_is_allowed(setting: str, message: str) -> None:
    lines = refused("laptop", setting).splitlines()
    assert any(message in line for line in lines), lines
    assert all(line.startswith("--set ") or ": is missing" in line for line in lines)
    assert not any(text in line for line in lines for text in ("valid", "unable to parse"))


def test_values_are_listed_as_they_are_written() -> None:
    """One of the statuses has the word `or`, which is not a separator."""
    message = refused("laptop", "description.status=none")
    assert message == (
        "--set description.status: found 'none'; allowed are " + ", ".join(repr(one) for one in get_args(Status))
    )


def test_a_section_set_to_null_is_named_as_written_with_its_keys() -> None:
    assert refused("laptop", "data=null") == (
        "--set data: found null; allowed is a mapping with the keys text, evaluation_text, store, evaluation_store, "
        "vocabulary"
    )


def test_the_whole_key_that_was_given_is_named(write_system: Any) -> None:
    begin = "--set optimzer.learning_rate, --set optimzer.beta1: there is no key optimzer (did you mean optimizer?); "
    assert refused("laptop", "optimzer.learning_rate=1", "optimzer.beta1=0").startswith(begin)
    assert refused("laptop", "optimzer=1").startswith("--set optimzer: there is no such key (did you mean optimizer?)")
    path = write_system({"bert.optimzer": {"beta1": 0}})
    assert refused(path).startswith(f"{path}: bert.optimzer: there is no such key (did you mean optimizer?)")


def test_every_key_has_a_text_of_its_allowed_values() -> None:
    for name, field in RunConfig.model_fields.items():
        assert allowed_values((field.alias or name,), RunConfig), name
    assert allowed_values(("launch", "container", "mounts", "0"), RunConfig) == "text"
    assert allowed_values(("no_such_key",), RunConfig) is None


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        (
            ["global_batch_size=18", "launch.processes_per_node=4"],
            "--set global_batch_size, --set launch.processes_per",
        ),
        (["global_batch_size=18", "launch.processes_per_node=4", "dropout=0.2"], "--set global_batch_size, --set laun"),
        (["launch.binding=node", "seed=3"], "--set launch.binding: binding is node, but device is cpu"),
        (["optimizer.decay_from=9000"], "--set optimizer.decay_from: decay_from is 9000"),
        (["balancing_counts=free", "balancing=random"], "--set balancing: balancing_counts is free"),
        (["attention_widths=[64]"], "--set attention_widths: attention_widths has no effect"),
        (["data.text=/a"], "--set data.text: evaluation_text is missing"),
        (["data.store=/a", "seed=3", "data.evaluation_store=/a"], "--set data.evaluation_store: vocabulary is missing"),
    ],
)
def test_a_fault_of_several_keys_names_the_options_that_cause_it(settings: list[str], place: str) -> None:
    assert refused("laptop", *settings).replace("--set balancing_counts, ", "").startswith(place)


def test_a_fault_in_the_file_is_not_that_of_an_option(write_system: Any) -> None:
    path = write_system({"bert.balancing_counts": "free", "bert.balancing": "random"})
    assert refused(path, "dropout=0.2").startswith(f"{path}: balancing_counts is free")


def test_a_closed_rule_names_the_option_that_breaks_it(write_system: Any, closed_changes: dict[str, Any]) -> None:
    path = write_system(closed_changes)
    assert refused(path, "dropout=0.2", "prefetch_batches=2").startswith("--set dropout: closed division, Hyper-param")
    assert refused(path, recipe="academic").startswith("--recipe academic: closed division, Data set")


def test_a_fault_of_a_recipes_value_names_the_users_file(write_system: Any) -> None:
    """Users do not change the recipes."""
    path = write_system({"bert.recipe": "exchanged", "bert.attention": "cudnn"})
    message = refused(path)
    assert message.startswith(f"{path}: attention_widths has no effect with attention cudnn")
    private = write_system({"bert.optimizer": {"decay_steps": 0}, "bert.size": "huge"}, name="private")
    refusal = refused(private)
    assert all(line.startswith(f"{private}: bert.") for line in refusal.splitlines())
    assert "recipes/" not in refusal + message


# Another launcher


def test_another_launcher_leaves_out_what_it_has_no_use_for() -> None:
    loaded = resolve_system("academic_t4", settings=["launch.launcher=torchrun", "launch.nodes=1"])
    launch = loaded.config.launch
    assert (launch.launcher, launch.container, launch.slurm_options, launch.requeue) == ("torchrun", None, (), None)
    assert loaded.warnings[0] == (
        "--set launch.launcher=torchrun has no use for launch.slurm_options, launch.requeue, launch.container of "
        "systems/academic_t4.yaml, left out for this run"
    )
    launch = load_system("dgxa100_n1", settings=["launch.launcher=slurm"]).launch
    assert (launch.launcher, launch.container) == ("slurm", None)
    settings = ["launch.launcher=slurm", "launch.container={runtime: pyxis, image: podium.sqsh}"]
    container = load_system("dgxa100_n1", settings=settings).launch.container
    assert container and (container.runtime, container.mounts) == ("pyxis", ("data:/data:ro",))
    assert resolve_system("dgxa100_n1", settings=["launch.launcher=docker"]).warnings == ()


def test_one_message_has_all_settings_that_another_launcher_needs() -> None:
    message = refused("dgxa100_n8", "launch.launcher=docker")
    assert message.startswith("--set launch.launcher: found docker, for which systems/dgxa100_n8.yaml lacks settings; ")
    needed = ["launch.launcher=docker", "launch.container.image=podium:latest", "launch.rendezvous=node0:29500"]
    assert all(f"--set {setting.partition('=')[0]}=" in message for setting in needed[1:])
    container = load_system("dgxa100_n8", settings=needed).launch.container
    assert container and (container.runtime, container.image) == ("docker", "podium:latest")
    assert container.mounts == ("data:/data:ro",)
    on_laptop = load_system("laptop", settings=needed[:2]).launch.container
    assert on_laptop and on_laptop.runtime == "docker"


def test_an_unknown_key_of_the_file_is_not_offered_the_sections_beside_bert(write_system: Any) -> None:
    message = refused(write_system({"bert.nodes": 4}))
    assert (
        "bert.nodes: there is no such key (did you mean launch.nodes?); allowed are implementation, recipe" in message
    )


def test_a_section_under_bert_belongs_at_the_top_level(write_system: Any) -> None:
    message = refused(write_system({"bert.description": {"submitter": "us"}}))
    assert message.endswith("bert.description: there is no such key; description belongs at the top level, beside bert")


def test_note_on_another_launcher_names_the_container_that_is_used() -> None:
    settings = ["launch.launcher=docker", "launch.container.image=mine", "launch.rendezvous=a:1"]
    (note,) = [one for one in resolve_system("dgxa100_n8", None, settings).warnings if "has no use for" in one]
    assert "launch.container" in note and note.endswith("left out for this run; the container is that of --set")
