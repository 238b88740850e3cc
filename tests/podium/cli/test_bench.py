"""`podium bench`: its options, output and costs file, and real measurements."""

import json
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from podium.cli import bench
from podium.cli.bench import (
    BenchOptions,
    count,
    load_warning,
    measure,
    print_count,
    print_timings,
    require_all_sides,
    write_costs,
)
from podium.config.load import load_resolved, load_system, write_resolved
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.errors import UsageError, WorkError
from podium.core.machine import Machine
from podium.planning import costs
from podium.planning.costs import StepCosts, load_costs
from podium.run.progress import Progress

ROOT = Path(__file__).resolve().parents[3]
MEASURED: dict[str, Any] = {
    "sequences_per_second": 25.5,
    "useful_tflops": 0.5,
    "share_of_peak": 0.505,
    "model_flops_utilization": 0.6,
    "peak_tflops": 0.99,
    "milliseconds": {"min": 600.0, "median": 650.25, "max": 700.0},
    "phase_milliseconds": {"forward": 200.0, "backward": 400.0},
    "memory_bytes": 3 * 2**30,
    "estimated_bytes": 2 * 2**30,
    "padding_share": 0.01,
    "max_over_mean_tokens": 1.0,
    "steps": 8,
    "global_batch_size": 16,
    "ranks": 1,
    "device": "cpu",
    "threads": 2,
    "precision": "bf16",
    "attention": "grouped",
    "graphs": 0,
    "layers": 4,
    "hidden": 512,
    "vocabulary": 30522,
    "torch": "2.13.0",
    "other_load": 0.02,
    "machine": {"host": "node7", "processor": "AMD EPYC 7742", "cores": 2},
    "ablation": None,
    "huggingface": None,
    "ratio_to_huggingface": None,
    "misfits": {},
    "failures": {},
    "complete": True,
}


@pytest.fixture
def config() -> RunConfig:
    return load_system("laptop")


@pytest.fixture(autouse=True)
def temporary_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(costs, "RUNS", tmp_path / "runs")


def test_options_become_arguments_of_the_implementation() -> None:
    assert BenchOptions().arguments("tiny") == ["--steps", "8", "--vocabulary", "512"]
    assert BenchOptions().arguments("large") == ["--steps", "8", "--vocabulary", "30522"]
    assert BenchOptions().uses_system_model
    full = BenchOptions(True, "huggingface", 3, 4, 512, 1000, Path("lengths.json"), rounds=2)
    assert full.arguments("tiny") == [
        *("--steps", "3", "--vocabulary", "1000", "--rounds", "2", "--layers", "4", "--hidden", "512"),
        *("--baseline", "huggingface", "--lengths", str(Path("lengths.json").resolve()), "--ablate"),
    ]
    for change in ({"layers": 4}, {"hidden": 64}, {"vocabulary": 9}, {"lengths": Path("x")}):
        assert not BenchOptions(**change).uses_system_model
    assert BenchOptions(ablate=True, baseline="huggingface", steps=3).uses_system_model


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (BenchOptions(baseline="jax"), "--baseline: found jax, allowed is huggingface"),
        (BenchOptions(hidden=100), "--hidden: found 100, allowed are multiples of 64"),
        (BenchOptions(lengths=Path("none.json")), r"--lengths: none\.json cannot be read"),
    ],
)
def test_invalid_options_are_usage_errors_before_anything_starts(
    options: BenchOptions, message: str, config: RunConfig, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        measure(config, options, False, Progress(Console(file=StringIO())))
    assert not (tmp_path / "runs").exists()


def test_summary_of_the_processes_is_returned(
    config: RunConfig, as_implementation: Callable[[str], None], tmp_path: Path
) -> None:
    summary = {"sequences_per_second": 7, "complete": True}
    as_implementation(f"(folder / 'summary.json').write_text(json.dumps({summary}))")
    measured = measure(config, BenchOptions(), True, Progress(Console(file=StringIO())))
    assert 0 <= measured.pop("other_load") <= 1 and measured == summary
    (folder,) = (tmp_path / "runs" / "laptop").iterdir()
    assert folder.name.startswith("bench_")
    assert "seed: null" not in (folder / "config.yaml").read_text(encoding="utf-8")


def test_failure_of_the_processes_is_raised(config: RunConfig, as_implementation: Callable[[str], None]) -> None:
    failure = {"exit_code": 2, "message": "--hidden: found 65"}
    as_implementation(f"(folder / 'failure.json').write_text(json.dumps({failure})); sys.exit(2)")
    with pytest.raises(UsageError, match="--hidden: found 65"):
        measure(config, BenchOptions(), False, Progress(Console(file=StringIO())))
    as_implementation("os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(WorkError, match="SIGKILL"):
        measure(config, BenchOptions(), False, Progress(Console(file=StringIO())))


def test_results_before_the_processes_died_are_kept(
    config: RunConfig, as_implementation: Callable[[str], None]
) -> None:
    summary = {"complete": False, "failures": {}, "sequences_per_second": 7}
    written = f"(folder / 'summary.json').write_text(json.dumps({summary}))"
    as_implementation(f"{written}; os.kill(os.getpid(), signal.SIGKILL)")
    measured = measure(config, BenchOptions(), False, Progress(Console(file=StringIO())))
    assert measured["sequences_per_second"] == 7
    with pytest.raises(WorkError, match=r"(?s)not all was timed.*the rest: .*SIGKILL"):
        require_all_sides(measured)


def test_failed_sides_are_an_error_and_misfits_are_not() -> None:
    require_all_sides(MEASURED | {"misfits": {"eager": "does not fit: needs about 91 GiB of 78"}})
    with pytest.raises(WorkError, match="kernels: OutOfMemoryError: CUDA out of memory"):
        require_all_sides(MEASURED | {"failures": {"kernels": "OutOfMemoryError: CUDA out of memory"}})


@pytest.mark.parametrize(("load", "warned"), [(None, False), (0.1, False), (0.455, True)])
def test_other_load_while_steps_were_timed_is_a_warning(load: float | None, warned: bool) -> None:
    warning = load_warning(MEASURED | {"other_load": load})
    assert (warning is not None) is warned
    assert not warned or "other processes used 46% of this machine's processors" in str(warning)


def printed(config: RunConfig, measured: dict[str, Any]) -> str:
    text = StringIO()
    print_timings(Console(file=text, width=140), config, measured)
    return text.getvalue()


def test_timings_are_printed(config: RunConfig) -> None:
    text = printed(config, MEASURED)
    for expected in (
        "4 layers × 512, vocabulary of 30,522",
        "650.2 ms (600.0 to 700.0, n = 8)",
        "50.5% of 0.99 TFLOP/s bf16",
    ):
        assert expected in text
    assert "400.00 ms a step, 66.7%" in text
    assert "peak memory of the process" in text
    assert "3.00 GiB" in text and "estimated" not in text
    on_gpu = printed(config, MEASURED | {"device": "NVIDIA H100"})
    assert "peak memory of a GPU" in on_gpu and "3.00 GiB (estimated: 2.00)" in on_gpu
    assert "Hugging Face" not in text
    assert "without" not in text


def test_comparison_and_ablation_are_printed_if_present(config: RunConfig) -> None:
    other = {"attention": "sdpa", "sequences_per_second": 2.5}
    row = {
        "without": "kernels",
        "what": "plain PyTorch",
        "ratio_by_round": {"min": 1.5, "median": 1.6, "max": 1.7},
        "memory_bytes": 20 * 2**30,
        "obstacle": None,
    }
    misfit = "does not fit: needs about 91 GiB of 78"
    large = {"without": "everything", "what": "all", "ratio_by_round": None, "memory_bytes": None, "obstacle": misfit}
    sides = {"ablation": [row, large], "misfits": {"everything": misfit, "eager": misfit}}
    text = printed(config, MEASURED | {"huggingface": other, "ratio_to_huggingface": 9.2} | sides)
    assert "1.60" in text and "20.0" not in text
    assert "20.0" in printed(config, MEASURED | sides | {"device": "NVIDIA H100"})
    assert f"all; {misfit}" in text
    assert f"eager: not timed, {misfit}" in text
    assert "2.5 sequences/s with sdpa attention" in text
    assert "9.20 times as fast" in text
    assert "1.50 to 1.70" in text
    assert "plain PyTorch" in text


def test_costs_are_written_for_the_system(config: RunConfig, tmp_path: Path) -> None:
    costs = StepCosts(1e-3, 1e-6, 1e-9, 1e-6, 0.0, 0.02)
    path = write_costs(config, MEASURED | {"step_costs": vars(costs)})
    assert path == tmp_path / "runs" / "laptop" / "costs.json"
    assert load_costs(path)[0] == costs
    measured = json.loads(path.read_text(encoding="utf-8"))["measured"]
    assert Machine.from_json(measured["machine"]) == Machine("node7", "AMD EPYC 7742", 2)
    assert {"date", "torch", "commit", "code", "threads", "precision"} <= set(measured)
    assert (measured["system"], measured["recipe"], measured["hidden"]) == ("laptop", "indexed", 512)


# Everything at once, on a model as small as can be.
SMALL = BenchOptions(ablate=True, baseline="huggingface", steps=2, layers=2, hidden=64, vocabulary=500)
ALONE = ("global_batch_size=4", "launch.threads_per_process=1")


def assert_measured(measured: dict[str, Any]) -> None:
    assert measured["sequences_per_second"] > 0
    assert 0 < measured["share_of_peak"] <= measured["model_flops_utilization"] < 1
    assert measured["ratio_to_huggingface"] > 0
    assert {row["without"] for row in measured["ablation"]} >= {"unpadding", "kernels", "everything"}
    assert set(measured["huggingface"]["total_milliseconds_by_attention"]) == {"eager", "sdpa"}
    assert measured["steps"] == measured["rounds"] == 2
    assert measured["complete"] and not measured["failures"] and not measured["misfits"]
    assert all(row["ratio_by_round"]["min"] <= row["ratio"] for row in measured["ablation"])
    least, median, greatest = (measured["milliseconds"][key] for key in ("min", "median", "max"))
    assert 0 < least <= median <= greatest
    assert 4 / (greatest / 1000) <= measured["sequences_per_second"] <= 4 / (least / 1000)


@pytest.mark.slow
def test_bench_with_real_processes(start_training: Callable[..., None], tmp_path: Path) -> None:
    config = load_system("laptop", settings=[*ALONE, "seed=1"])
    folder = RunFolder(tmp_path)
    write_resolved(config, folder.config)
    start_training(folder, 1, entry="bench", options=SMALL.arguments(config.size))
    measured = folder.read_summary()
    assert measured is not None
    assert_measured(measured)


@pytest.mark.exhaustive
def test_bench_from_the_command_line() -> None:
    """With another model, the system's costs file is not written."""
    before = sorted((ROOT / "systems").rglob("*"))
    argv = [sys.executable, "-m", "podium.cli", "bench", "laptop", "--json", "--ablate", "--baseline", "huggingface"]
    argv += ["--layers", "2", "--hidden", "64", "--vocabulary", "500", "--steps", "2"]
    argv += [argument for setting in ALONE for argument in ("--set", setting)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert sorted((ROOT / "systems").rglob("*")) == before
    assert_measured(json.loads(done.stdout))


def test_usage_error_in_the_processes_is_a_failure(
    config: RunConfig, start_training: Callable[..., None], tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path)
    write_resolved(config.model_copy(update={"seed": 1}), folder.config)
    start_training(folder, 1, code=2, entry="bench", options=("--hidden", "65"))
    failure = folder.read_failure()
    assert isinstance(failure, UsageError)
    assert str(failure).startswith("--hidden: found 65, allowed are multiples of 64")


COUNTED: dict[str, Any] = {
    "gpu": "NVIDIA H200",
    "rates": {"flops": {"half": 790e12, "fp8": 1050e12}, "bytes_per_second": 4.3e12},
    "precision": "fp8",
    "attention": "flash",
    "kernel_set": "triton",
    "ranks": 1,
    "sequences": 56,
    "tokens": 14_325,
    "total": {"launches": 1203, "bytes": 3_000_000_000, "flops": 2e12, "milliseconds": 50.0},
    "parts": [
        {"part": "matrix products", "launches": 3, "bytes": 1_000_000_000, "flops": 2e12, "milliseconds": 30.0},
        {"part": "optimizer", "launches": 1200, "bytes": 2_000_000_000, "flops": 0.0, "milliseconds": 20.0},
        {"part": "copies", "launches": 0, "bytes": 0, "flops": 0.0, "milliseconds": 0.0},
    ],
    "kernels": [
        {"part": "matrix products", "kernel": "mm", "launches": 3, "bytes": 1, "flops": 2e12, "milliseconds": 30.0},
        {"part": "optimizer", "kernel": "update", "launches": 2, "bytes": 1, "flops": 0.0, "milliseconds": 19.5},
        {"part": "optimizer", "kernel": "zero", "launches": 700, "bytes": 1, "flops": 0.0, "milliseconds": 0.3},
        {"part": "optimizer", "kernel": "norm", "launches": 498, "bytes": 1, "flops": 0.0, "milliseconds": 0.2},
    ],
}


def test_count_is_printed_by_part_with_small_kernels_summed_up(config: RunConfig) -> None:
    out = StringIO()
    print_count(Console(file=out, width=120), config, COUNTED)
    rows = [line.strip("│ \n").split("│") for line in out.getvalue().splitlines() if "│" in line]
    found = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}
    assert found["matrix products"] == ["3", "1.00", "2.000", "30.00", "60.0%"]
    assert found["others"] == ["1,198", "0.00", "", "0.50", "1.0%"]
    assert found["step"] == ["1,203", "3.00", "2.000", "50.00", "100.0%"]
    assert not {"zero", "norm", "copies"} & set(found)
    text = " ".join(out.getvalue().split())
    assert "1,120 sequences/s counted, not measured" in text
    assert "assumed rates: 4.3 TB/s, 790 TFLOP/s bf16, 1050 TFLOP/s fp8." in text


@pytest.mark.parametrize(("precision", "rate"), [("fp32", "53.5"), ("fp16", "790"), ("bf16", "790")])
def test_the_rate_of_the_precision_in_use_is_printed(config: RunConfig, precision: str, rate: str) -> None:
    out = StringIO()
    rates = {"flops": {"half": 790e12, "fp32": 53.5e12, "fp8": 1050e12}, "bytes_per_second": 4.3e12}
    print_count(Console(file=out, width=120), config, COUNTED | {"precision": precision, "rates": rates})
    assert f"assumed rates: 4.3 TB/s, {rate} TFLOP/s {precision}. " in " ".join(out.getvalue().split())


@pytest.mark.parametrize(
    ("options", "gpu", "message"),
    [
        (BenchOptions(ablate=True), "h200", "--ablate times steps on this machine"),
        (BenchOptions(baseline="huggingface"), "h200", "--baseline times steps on this machine"),
        (BenchOptions(steps=3), "h200", "--steps times steps on this machine"),
        (BenchOptions(steps=8), "h200", "--steps times steps on this machine"),
        (BenchOptions(rounds=3), "h200", "--rounds times steps on this machine"),
        (BenchOptions(), None, "laptop trains on a CPU; name the GPU to count for, such as --gpu h200"),
        (BenchOptions(), "tpu", "--gpu: found 'tpu'; allowed are .*H200"),
    ],
)
def test_count_refuses_what_it_does_not_run(
    config: RunConfig, options: BenchOptions, gpu: str | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        count(config, options, gpu, Progress(Console(file=StringIO())))


@pytest.mark.parametrize(
    ("gpu", "change", "message"),
    [
        (
            "a100",
            {"precision": "fp8"},
            r"precision: found fp8 on NVIDIA A100 \(--gpu\), which has .*capability 8.0",
        ),
        ("t4", {"precision": "bf16"}, r"precision: found bf16 on NVIDIA T4 \(--gpu\), which has .*capability 7.5"),
        (
            "a100",
            {"kernels": "numba"},
            r"kernels: found numba on NVIDIA A100 \(--gpu\), which has .*capability 8.0",
        ),
        (None, {"kernels": "numba"}, r"kernels: found numba on NVIDIA H200 \(description.accelerator_model_name\)"),
    ],
)
def test_count_refuses_settings_that_the_gpu_does_not_support(
    config: RunConfig, gpu: str | None, change: dict[str, str], message: str
) -> None:
    config = load_system("h200_1x") if gpu is None else config
    with pytest.raises(UsageError, match=message):
        count(config.model_copy(update=change), BenchOptions(), gpu, Progress(Console(file=StringIO())))


def test_count_starts_one_process_of_the_implementation(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []

    def call(implementation: str, entry: str, options: list[str]) -> dict[str, Any]:
        called.append((implementation, entry, options[1:], load_resolved(Path(options[0])).system))
        return COUNTED

    monkeypatch.setattr(bench, "call_entry_point", call)
    out = StringIO()
    assert count(config, BenchOptions(layers=2), "h200", Progress(Console(file=out))) == COUNTED
    arguments = ["--gpu", "NVIDIA H200", "--vocabulary", "512", "--layers", "2"]
    assert called == [("pytorch", "bench.roofline", arguments, "laptop")]
    assert "Counting the kernels of a step on one NVIDIA H200" in out.getvalue()
