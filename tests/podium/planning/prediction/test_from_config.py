"""Conversion of a configured system to a plan: values, warnings and errors."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.bert.published.reading import read_tiny_samples
from benchmarks.bert.store import SampleStore, update_manifest
from podium.config.load import load_system, system_names
from podium.config.schema import Launch, RunConfig
from podium.core.errors import UsageError
from podium.core.machine import this_machine
from podium.planning import costs
from podium.planning.costs import StepCosts, save_costs
from podium.planning.prediction.constants import load_constants
from podium.planning.prediction.from_config import OTHER_MACHINE_ERROR, UNFITTED_ERROR, plan_from_config
from podium.planning.prediction.plan import Plan, counted_costs, optimizer_seconds, published_costs
from podium.planning.prediction.predict import predict
from podium.planning.prediction.published import wikipedia_lengths
from tests.benchmarks.bert.test_store import make_samples, write

CONSTANTS = load_constants()
COSTS = StepCosts(0.006, 4e-6, 6e-9, 4e-6, 1e-6, median_relative_error=0.05)
MEASURED: dict[str, object] = {
    "recipe": "indexed",
    "attention": "grouped",
    "kernels": "auto",
    "global_batch_size": 16,
    "ranks": 1,
    "device": "cpu",
    "machine": this_machine().as_json(),
}


@pytest.fixture
def costs_file(tmp_path: Path) -> Path:
    save_costs(COSTS, tmp_path / "laptop.json", MEASURED)
    return tmp_path / "laptop.json"


def gpu(*settings: str, **description: str) -> RunConfig:
    config = load_system("h200_1x", settings=settings)
    return config.model_copy(update={"description": config.description.model_copy(update=description)})


def nodes(config: RunConfig, nodes: int, per_node: int) -> RunConfig:
    launch = Launch.model_construct(**{**config.launch.model_dump(), "nodes": nodes, "processes_per_node": per_node})
    batch = 56 * nodes * per_node
    return config.model_copy(update={"launch": launch, "global_batch_size": batch})


def warnings_with(plan: Plan, expected: str) -> list[str]:
    return [sentence for sentence in plan.unsure if expected in sentence]


def test_laptop_plan_uses_its_costs_file(costs_file: Path) -> None:
    plan = plan_from_config(load_system("laptop"), costs_file, CONSTANTS)
    factor = CONSTANTS.cpu_run_over_bench
    assert plan.costs.token == pytest.approx(factor * 4e-6)
    assert plan.costs.pair == pytest.approx(factor * 6e-9)
    assert plan.costs.step == pytest.approx(factor * 0.006 - optimizer_seconds(plan, CONSTANTS))
    assert plan.costs.median_relative_error == 0.05
    assert plan.samples.mean == read_tiny_samples()[0].mean
    assert (plan.machine.processor, plan.machine.ranks, plan.optimizer) == ("cpu", 1, "adamw")
    assert (plan.evaluation_samples, plan.evaluation_interval, plan.start_seconds) == (1000, 2048, 0.0)
    assert warnings_with(plan, "Podium's runs on a laptop")
    assert warnings_with(plan, f"{factor:g} times as long")
    assert warnings_with(plan, "Wikipedia's lengths are assumed")
    assert not warnings_with(plan, "was measured with")


def test_laptop_prediction_matches_ten_measured_runs() -> None:
    costs = Path(__file__).resolve().parents[4] / "systems" / "costs" / "laptop.json"
    plan = plan_from_config(load_system("laptop"), costs, CONSTANTS)
    prediction = predict(plan, CONSTANTS)
    assert prediction.low < 30.9 < prediction.high
    assert prediction.seconds == pytest.approx(30.9, abs=2.7)


def test_differences_from_the_measured_settings_are_reported(costs_file: Path) -> None:
    config = load_system("laptop", "padded", ["global_batch_size=32"])
    (sentence,) = warnings_with(plan_from_config(config, costs_file, CONSTANTS), "was measured with")
    assert "recipe indexed, not padded" in sentence
    assert "global_batch_size 16, not 32" in sentence
    assert "kernels" not in sentence


@pytest.mark.parametrize("name", [name for name in system_names() if name.startswith("dgxa100")])
def test_system_without_local_data_is_predicted(name: str) -> None:
    """Their stores are in a container's /data; a prediction does not need them."""
    plan = plan_from_config(load_system(name), None, CONSTANTS)
    assert plan.lengths is wikipedia_lengths()
    assert warnings_with(plan, "/data/wikipedia is not on this machine")
    assert predict(plan, CONSTANTS).seconds > 0


def test_gradient_bytes_follow_the_configured_wire() -> None:
    found = [plan_from_config(gpu(f"gradient_wire={wire}"), None, CONSTANTS) for wire in ("fp32", "bf16")]
    assert [plan.gradient_bytes for plan in found] == [4, 2]


def test_optimizer_is_sharded_from_the_configured_number_of_ranks() -> None:
    config = gpu("optimizer.algorithm=lamb", "optimizer.sharded_from=16")
    found = [plan_from_config(nodes(config, count, 8), None, CONSTANTS) for count in (1, 2)]
    assert [plan.sharding for plan in found] == ["none", "whole_tensors"]
    assert plan_from_config(nodes(gpu("optimizer.algorithm=lamb"), 64, 8), None, CONSTANTS).sharding == "none"


def test_strata_are_drawn_by_the_configured_counts() -> None:
    """171 DGX A100 draw 4, 2, 2 and 4 of 12 samples from the strata; in proportion to the data it is 5, 2, 1 and 4."""
    configured, proportional = (
        predict(plan_from_config(load_system("dgxa100_n171", None, settings), None, CONSTANTS), CONSTANTS)
        for settings in ([], ["strata_counts=null"])
    )
    assert configured.split.compute > 1.05 * proportional.split.compute
    config = load_system("dgxa100_n128", None, ["strata_counts=[16, 0, 0, 0]"])
    with pytest.raises(UsageError, match=r"strata_counts: found \[16, 0, 0, 0\], but the .* do not match"):
        predict(plan_from_config(config, None, CONSTANTS), CONSTANTS)


def test_lengths_come_from_a_prepared_store(tiny_store: tuple[SampleStore, Path], costs_file: Path) -> None:
    config, (store, _) = load_system("laptop"), tiny_store
    data = config.data.model_copy(update={"store": store.paths[0].parent})
    plan = plan_from_config(config.model_copy(update={"data": data}), costs_file, CONSTANTS)
    assert plan.lengths.tokens.tolist() == np.asarray(store.lengths).tolist()
    assert plan.lengths.masked.tolist() == np.asarray(store.masked_counts).tolist()
    assert plan.lengths.tokens.dtype == np.int64
    assert not warnings_with(plan, "Wikipedia")


@pytest.mark.parametrize("missing_shard", ["a.h5", "b.h5"])
def test_lengths_cover_all_samples_if_only_one_nodes_shards_are_present(
    tmp_path: Path, costs_file: Path, missing_shard: str
) -> None:
    for name in "ab":
        write(tmp_path / f"{name}.h5", make_samples([9, 20], seed=ord(name)))
    update_manifest(tmp_path)
    (tmp_path / missing_shard).unlink()
    settings = ["shards=per_rank", "balancing=random", "launch.nodes=2", "launch.rendezvous=a:29500"]
    config = load_system("laptop", None, [*settings, "global_batch_size=64"])
    data = config.data.model_copy(update={"store": tmp_path})
    plan = plan_from_config(config.model_copy(update={"data": data}), costs_file, CONSTANTS)
    assert plan.lengths.tokens.tolist() == [9, 20, 9, 20]


def test_large_stores_are_represented_by_quantiles(
    tmp_path: Path, costs_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podium.planning.prediction.from_config.POOL_SAMPLES", 4)
    write(tmp_path / "a.h5", make_samples([9, 100, 8, 20, 21, 50, 7, 99]))
    update_manifest(tmp_path)
    config = load_system("laptop")
    data = config.data.model_copy(update={"store": tmp_path})
    plan = plan_from_config(config.model_copy(update={"data": data}), costs_file, CONSTANTS)
    assert plan.lengths.tokens.tolist() == [8, 20, 50, 100]


def test_cpu_without_costs_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"laptop.*`podium bench laptop`"):
        plan_from_config(load_system("laptop"), None, CONSTANTS)


@pytest.mark.parametrize("name", ["Habana Gaudi2", "NVIDIA H20", "NVIDIA H2000", "NVIDIA A1000", "NVIDIA B2000"])
def test_unpublished_accelerator_without_costs_is_an_error(name: str) -> None:
    expected = rf"^h200_1x: description\.accelerator_model_name: found '{name}', .*podium bench"
    with pytest.raises(UsageError, match=expected):
        plan_from_config(gpu(accelerator_model_name=name), None, CONSTANTS)


def test_a_variant_that_is_predicted_as_another_is_named() -> None:
    plan = plan_from_config(gpu(accelerator_model_name="NVIDIA H100 PCIe"), None, CONSTANTS)
    assert warnings_with(plan, "NVIDIA H100 PCIe is predicted as NVIDIA H100 SXM, whose bf16 peak is 989 TFLOP/s")
    assert not warnings_with(plan_from_config(gpu(), None, CONSTANTS), "is predicted as")


def test_tiny_bert_with_an_unknown_optimizer_is_an_error(costs_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_system("laptop", settings=["optimizer.algorithm=lamb"])
    monkeypatch.setattr("podium.planning.prediction.from_config.read_tiny_samples", lambda: read_tiny_samples()[:1])
    with pytest.raises(UsageError, match=r"found lamb.*size tiny.*target_accuracy=null --set max_samples=N"):
        plan_from_config(config, costs_file, CONSTANTS)


def test_run_without_a_target_trains_max_samples(costs_file: Path) -> None:
    settings = ["optimizer.algorithm=lamb", "target_accuracy=null", "max_samples=1000"]
    plan = plan_from_config(load_system("laptop", settings=settings), costs_file, CONSTANTS)
    assert (plan.samples.mean, plan.samples.least, plan.samples.greatest) == (1008, 1008, 1008)
    assert predict(plan, CONSTANTS).samples_to_target == 1008
    assert not warnings_with(plan, "Podium's runs on a laptop")


def test_h200_costs_are_scaled_from_the_a100() -> None:
    plan = plan_from_config(gpu(), None, CONSTANTS)
    expected = published_costs("h200", CONSTANTS, last_layer="needed")
    assert plan.costs == replace(expected, median_relative_error=UNFITTED_ERROR)
    assert plan.code == "other"
    assert plan.counted == counted_costs("h200", CONSTANTS, wikipedia_lengths(), last_layer="needed")
    assert plan.memory_bytes == 141e9
    assert plan.lengths is wikipedia_lengths()
    assert plan.start_seconds is None
    assert warnings_with(plan, "no published run of NVIDIA H200")
    assert warnings_with(plan, "initial_checkpoint is not set")
    assert "56 is extrapolated" in predict(plan, CONSTANTS).unsure[-1]


def test_a100_costs_come_from_published_runs() -> None:
    plan = plan_from_config(gpu(accelerator_model_name="NVIDIA A100-PCIe-80GB"), None, CONSTANTS)
    assert plan.machine.processor == "a100_pcie"
    assert warnings_with(plan, "fitted on published NVIDIA A100 PCIe runs")
    assert not warnings_with(plan, "no published run")


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("precision=fp8", "the effect of fp8"),
        ("precision=fp32", "the same share of its peak of 67 TFLOP/s"),
        ("optimizer.learning_rate=100", "optimizer.learning_rate 100 is far from the rates published with lamb"),
        ("global_batch_size=616", "GB by an estimate, more than the 141 GB of NVIDIA H200"),
        ("target_accuracy=0.7", "not for target_accuracy 0.7"),
        ("max_samples=1000000", "max_samples 1,000,000 would end the run"),
        ("size=tiny", "the speed of size tiny"),
    ],
)
def test_settings_without_published_runs_are_reported_as_unsure(setting: str, expected: str) -> None:
    settings = [setting, "hyperparameters=tiny_lamb_16"] if "tiny" in setting else [setting]
    assert warnings_with(plan_from_config(gpu(*settings), None, CONSTANTS), expected)
    assert not warnings_with(plan_from_config(gpu(), None, CONSTANTS), expected)


def test_network_is_described_or_reported_as_assumed() -> None:
    a100 = "NVIDIA A100-SXM4-80GB"
    assumed = plan_from_config(nodes(gpu(accelerator_model_name=a100), 8, 8), None, CONSTANTS)
    assert assumed.machine.adapters == (8, 200.0)
    assert warnings_with(assumed, "8 adapters of 200 Gb/s per node are assumed")
    described = gpu(accelerator_model_name=a100, host_networking="4x ConnectX-6 IB HDR 200Gb/Sec")
    plan = plan_from_config(nodes(described, 8, 8), None, CONSTANTS)
    assert plan.machine.adapters == (4, 200.0)
    assert not warnings_with(plan, "per node are assumed")
    assert not warnings_with(plan, "fitted on A100 systems only")
    assert warnings_with(plan_from_config(nodes(gpu(), 8, 8), None, CONSTANTS), "fitted on A100 systems only")


def test_costs_of_a_gpu_belong_to_the_described_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "gpu_models", lambda: ["NVIDIA A100-SXM4-40GB"])
    for device, relation, error in (
        ("NVIDIA H200", "described", 0.05),
        ("NVIDIA H100 80GB HBM3", "another machine", OTHER_MACHINE_ERROR),
        ("NVIDIA A100-SXM4-40GB", "this machine", 0.05),
    ):
        save_costs(COSTS, tmp_path / "h200_1x.json", MEASURED | {"device": device, "global_batch_size": 56})
        plan = plan_from_config(gpu(), tmp_path / "h200_1x.json", CONSTANTS)
        assert plan.costs_origin is not None
        assert (plan.costs_origin.relation, plan.costs.median_relative_error) == (relation, error)
        assert f"measured on {device}" in plan.costs_origin.statement


def test_step_costs_scale_with_threads_per_process(tmp_path: Path) -> None:
    """A process with one thread is predicted to take four times as long as the measured one with four threads."""
    save_costs(COSTS, tmp_path / "laptop.json", MEASURED | {"threads": 4})
    config = load_system("laptop", settings=["launch.processes_per_node=2", "launch.threads_per_process=1"])
    plan = plan_from_config(config, tmp_path / "laptop.json", CONSTANTS)
    assert plan.costs.token == pytest.approx(4 * CONSTANTS.cpu_run_over_bench * 4e-6)
    assert warnings_with(plan, "4 threads, not 1")


def test_costs_of_another_model_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "laptop.json"
    save_costs(COSTS, path, MEASURED | {"layers": 2, "hidden": 128, "device": "cpu"})
    plan_from_config(load_system("laptop"), path, CONSTANTS)
    with pytest.raises(
        UsageError, match=r"laptop.json: was measured with layers 2, not 24; hidden 128, not 1024; write"
    ):
        plan_from_config(
            load_system("laptop", settings=["size=large", "optimizer.algorithm=lamb", "hyperparameters=lamb_448"]),
            path,
            CONSTANTS,
        )


def test_several_cpu_processes_are_reported_as_unsure(costs_file: Path) -> None:
    config = load_system("laptop", settings=["launch.processes_per_node=2"])
    plan = plan_from_config(config, costs_file, CONSTANTS)
    assert plan.machine.ranks == 2
    assert warnings_with(plan, "CPU processes")
    assert plan.costs.token == pytest.approx(
        CONSTANTS.cpu_run_over_bench * 4e-6
    )  # the costs file has no number of threads
    assert "ranks 1, not 2" in warnings_with(plan, "was measured with")[0]


def test_phase_of_shorter_sequences_has_cut_lengths() -> None:
    plan = plan_from_config(load_system("academic_t4"), None, CONSTANTS)
    ((samples, short),) = plan.phases
    assert samples == pytest.approx(0.9 * 256_000_000, rel=1e-4) and samples % 4096 == 0
    assert (short.max_length, plan.lengths.max_length) == (128, 512)
    assert short.tokens.max() == 128 and short.masked.max() <= 20
    assert short.tokens.sum() == pytest.approx(plan.lengths.tokens.sum(), rel=0.01)  # of the same text
    assert warnings_with(plan, "samples of phases.0 are assumed to be those of 512 tokens, cut into pieces of 128")


def test_the_optimizer_takes_no_longer_than_the_measured_step(tmp_path: Path) -> None:
    """On hardware whose memory bandwidth is not known it would be estimated by another's."""
    measured = MEASURED | {"device": "NVIDIA H200", "global_batch_size": 56}
    save_costs(replace(COSTS, step=1e-6), tmp_path / "h200_1x.json", measured)
    plan = plan_from_config(gpu(), tmp_path / "h200_1x.json", CONSTANTS)
    assert optimizer_seconds(plan, CONSTANTS) == 1e-6 and plan.costs.step == 0
