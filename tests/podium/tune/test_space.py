"""Search spaces: the shipped ones, their values, and the messages for invalid ones."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from benchmarks.bert.published.hyperparameters import hyperparameter_sets
from podium.config.load import load_system
from podium.config.schema import RunConfig
from podium.core.errors import UsageError
from podium.tune.space import SEARCHES, load_space, searches_of, value_of, with_values


@pytest.fixture
def laptop() -> RunConfig:
    return load_system("laptop")


def test_shipped_searches_have_one_budget_and_fit_their_system(laptop: RunConfig) -> None:
    assert searches_of(laptop) == ["laptop_adamw", "laptop_lamb"]
    adamw, lamb = (load_space(name) for name in searches_of(laptop))
    assert (adamw.trials, adamw.seed) == (lamb.trials, lamb.seed)
    assert set(adamw.space) == set(lamb.space)
    for space, algorithm in ((adamw, "adamw"), (lamb, "lamb")):
        assert space.base(laptop).optimizer.algorithm == algorithm
        for key in space.space:
            if key != "optimizer.learning_rate":
                assert space.space[key] == lamb.space[key]
    rates = [space.space["optimizer.learning_rate"] for space in (adamw, lamb)]
    assert rates[0].high / rates[0].low == pytest.approx(rates[1].high / rates[1].low)  # type: ignore[union-attr]
    assert adamw.base(laptop) == laptop
    values = adamw.values_of(laptop)
    assert values is not None
    assert values["optimizer.learning_rate"] == laptop.optimizer.learning_rate


@pytest.mark.parametrize("name", [path.stem for path in sorted(SEARCHES.glob("*.yaml"))])
def test_every_shipped_file_is_a_valid_search(name: str) -> None:
    space = load_space(name)
    batches = [[f"global_batch_size={size}"] for size in space.global_batch_size] or [[]]
    for size in batches:
        base = space.base(load_system(space.system, settings=["description.division=open", *size]))
        assert name in searches_of(base)
        assert base.optimizer.algorithm == name.split("_")[2 if name.startswith("dgx") else 1]


def test_published_settings_are_in_the_spaces_of_cluster_searches() -> None:
    """Those of systems that are searched: lamb_8192 of GB200 starts its warm-up 200,000 steps before the run."""
    known = [one for one in hyperparameter_sets().values() if one.size == "large" and one.samples is not None]
    known = [one for one in known if one.name != "lamb_8192"]
    inside = []
    for path in sorted(SEARCHES.glob("dgx*.yaml")):
        space = load_space(path.stem)
        algorithm, (batch,) = space.settings["optimizer.algorithm"], space.global_batch_size
        for one in known:
            if (one.algorithm, batch in one.used_at) == (algorithm, True):
                config = load_system(space.system, settings=[f"optimizer.algorithm={algorithm}"])
                optimizer = config.optimizer.model_copy(update=dict(one.optimizer))
                assert space.values_of(config.model_copy(update={"optimizer": optimizer})) is not None, path.stem
                inside.append((algorithm, batch))
    lamb = [("lamb", batch) for batch in (448, 1536, 3072, 4096, 16384)]
    assert sorted(inside) == [("adamw", 16384), *lamb]


def test_adamw_and_lamb_searches_differ_only_in_the_learning_rate() -> None:
    found = {}
    for system, batch in (
        ("dgxa100_n1", 448),
        ("dgxa100_n8", 1536),
        ("dgxa100_n8", 3072),
        ("dgxa100_n64", 4096),
        ("dgxa100_n64", 8192),
        ("dgxa100_n128", 16384),
    ):
        config = load_system(system, settings=["description.division=open", f"global_batch_size={batch}"])
        adamw, lamb = (load_space(name) for name in searches_of(config))
        for space in (adamw, lamb):
            assert space.base(config).local_batch_size * config.launch.ranks == batch
        rest = [
            {key: one for key, one in space.space.items() if key != "optimizer.learning_rate"}
            for space in (adamw, lamb)
        ]
        assert rest[0] == rest[1]
        assert (adamw.trials, adamw.seed, adamw.repeats_per_trial) == (lamb.trials, lamb.seed, lamb.repeats_per_trial)
        found[system, batch] = (adamw.name, lamb.name)
    assert found["dgxa100_n8", 1536] == ("dgxa100_n8_adamw_1536", "dgxa100_n8_lamb_1536")
    assert found["dgxa100_n8", 3072] == ("dgxa100_n8_adamw", "dgxa100_n8_lamb")
    assert found["dgxa100_n64", 8192] == ("dgxa100_n64_adamw_8192", "dgxa100_n64_lamb_8192")


def test_search_for_another_batch_size_is_an_error(laptop: RunConfig) -> None:
    space = load_space("laptop_lamb_large")
    with pytest.raises(UsageError, match=r"is for .* 32, 64, 128, 256, found 16; use --set global_batch_size=32"):
        space.base(laptop)


LOG = {"kind": "log", "low": 1e-4, "high": 1e-2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"space": {}}, "at least 1 item"),
        ({"spaces": {}}, "there is no such key (did you mean space?)"),
        ({"trials": 0}, "found 0"),
        ({"space": {"optimizer.beta1": {"kind": "log", "low": 0, "high": 1}}}, "numbers above 0"),
        ({"space": {"optimizer.beta1": {"kind": "uniform", "low": 0.9, "high": 0.9}}}, "low below high"),
        ({"space": {"optimizer.warmup_steps": {"kind": "int", "low": 0.5, "high": 9}}}, "whole numbers"),
        ({"space": {"optimizer.beta1": {"kind": "categorical", "choices": [0.9]}}}, "at least 2 items"),
        ({"space": {"optimizer.beta1": {"kind": "gauss", "low": 0, "high": 1}}}, "gauss"),
        ({"space": {"seed": {"kind": "int", "low": 1, "high": 9}}}, "found seed, which changes the objective"),
        ({"space": {"evaluation.samples": {"kind": "int", "low": 1, "high": 9}}}, "found evaluation.samples"),
        ({"settings": {"max_samples": 7}}, "found max_samples"),
        ({"settings": {"optimizer.learning_rate": 1.0}}, "is both fixed in settings and searched over"),
        ([1], "contains no keys"),
    ],
)
def test_invalid_search_file_is_an_error(write_space: Any, changes: Any, message: str) -> None:
    path = write_space(**changes) if isinstance(changes, dict) else write_space()
    if not isinstance(changes, dict):
        Path(path).write_text(yaml.safe_dump(changes), encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        load_space(path)
    assert message in str(caught.value)
    assert path in str(caught.value)


def test_missing_or_malformed_search_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("a: [", encoding="utf-8")
    with pytest.raises(UsageError, match="not valid YAML"):
        load_space(str(tmp_path / "x.yaml"))
    with pytest.raises(UsageError, match=r"there are dgxa100_n128_adamw, .*laptop_lamb, laptop_lamb_large, or give"):
        load_space("laptop_sgd")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"space": {"optimizer.rate": LOG}}, "optimizer.rate: there is no such key"),
        ({"space": {"optimiser.learning_rate": LOG}}, "no such key as optimiser.learning_rate"),
        ({"space": {"recipe.x": LOG}}, "no such key as recipe.x"),
        ({"space": {"optimizer.beta2": {"kind": "uniform", "low": 0.5, "high": 1.0}}}, "optimizer.beta2: found 1.0"),
        ({"space": {"global_batch_size": {"kind": "categorical", "choices": [16, 0]}}}, "global_batch_size: found 0"),
        ({"settings": {"optimizer.algorithm": "sgd"}}, "optimizer.algorithm: found 'sgd'"),
    ],
)
def test_values_not_allowed_by_the_configuration_are_an_error(
    write_space: Any, laptop: RunConfig, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        load_space(write_space(**changes)).base(laptop)
    assert message in str(caught.value)


def test_with_values_replaces_dotted_keys(laptop: RunConfig) -> None:
    config = with_values(laptop, {"optimizer.beta1": 0.5, "global_batch_size": 32}, "x")
    assert (config.optimizer.beta1, config.global_batch_size) == (0.5, 32)
    assert config.optimizer.beta2 == laptop.optimizer.beta2
    without = with_values(laptop, {"clipping": None}, "x")
    assert value_of(without, "clipping.max_norm") is None
    assert with_values(without, {"clipping.max_norm": 2.0}, "x").clipping is not None
    assert with_values(laptop, {}, "x") == laptop


@pytest.mark.parametrize(
    ("space", "inside"),
    [
        ({"optimizer.learning_rate": LOG}, True),
        ({"optimizer.learning_rate": {"kind": "log", "low": 6e-3, "high": 1e-2}}, False),
        ({"optimizer.beta2": {"kind": "categorical", "choices": [0.98, 0.9]}}, True),
        ({"optimizer.beta2": {"kind": "categorical", "choices": [0.99, 0.9]}}, False),
        ({"optimizer.warmup_steps": {"kind": "int", "low": 0, "high": 150}}, True),
        ({"clipping.max_norm": {"kind": "uniform", "low": 0.1, "high": 5}}, True),
        ({"attention_widths": {"kind": "categorical", "choices": ["a", None]}}, True),
        ({"pair_cost": {"kind": "uniform", "low": 0.0, "high": 1.0}}, False),
    ],
)
def test_values_of_the_shipped_settings_in_a_space(
    write_space: Any, laptop: RunConfig, space: dict[str, Any], inside: bool
) -> None:
    values = load_space(write_space(space=space)).values_of(laptop)
    assert (values is not None) is inside


def test_searches_are_found_by_system_and_batch_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_space: Any, laptop: RunConfig
) -> None:
    folder = tmp_path / "search"
    folder.mkdir()
    shutil.move(write_space(name="mine", system="another"), folder / "mine.yaml")
    shutil.move(write_space(name="large", system="another", global_batch_size=[32, 64]), folder / "large.yaml")
    monkeypatch.setattr("podium.tune.space.SEARCHES", folder)
    another = laptop.model_copy(update={"system": "another"})
    assert searches_of(another) == ["mine"]
    assert searches_of(another.model_copy(update={"global_batch_size": 64})) == ["large"]
    assert searches_of(laptop) == []


def test_ranges_become_optuna_distributions(write_space: Any) -> None:
    space = load_space(
        write_space(
            space={
                "optimizer.learning_rate": LOG,
                "optimizer.beta1": {"kind": "uniform", "low": 0.5, "high": 0.9},
                "optimizer.warmup_steps": {"kind": "int", "low": 0, "high": 9},
                "kernels": {"kind": "categorical", "choices": ["eager", "auto"]},
            }
        )
    )
    assert space.distributions() == {
        "optimizer.learning_rate": FloatDistribution(1e-4, 1e-2, log=True),
        "optimizer.beta1": FloatDistribution(0.5, 0.9),
        "optimizer.warmup_steps": IntDistribution(0, 9),
        "kernels": CategoricalDistribution(("eager", "auto")),
    }
