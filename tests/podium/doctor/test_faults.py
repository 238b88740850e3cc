"""Faults, one at a time in an otherwise faultless system: each is found by its check, with advice.

These are the faults that `podium doctor` is known to find.
"""

import errno
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest

from benchmarks.bert.checkpoint.names import podium_shapes
from benchmarks.bert.checkpoint.podium import write_podium_checkpoint
from benchmarks.bert.checkpoint.weights import Weights
from benchmarks.bert.manifest import NodePart
from benchmarks.bert.preparation.prepare import prepare_subset
from benchmarks.bert.published.hyperparameters import hyperparameter_sets
from benchmarks.bert.published.reading import SamplesToTarget
from benchmarks.bert.sizes import TINY
from benchmarks.bert.store import SampleStore
from podium.core.finding import Finding, has_errors
from podium.doctor.context import DiagnosticContext
from podium.doctor.diagnose import run_checks, summary
from podium.doctor.filesystem import Speed, check_caches, check_data, check_read_speed
from podium.doctor.rules import check_licence, needed_samples
from podium.run.source import has_licence

MakeContext = Callable[..., DiagnosticContext]


def findings(context: DiagnosticContext) -> list[Finding]:
    return run_checks(context)


def problems(context: DiagnosticContext) -> dict[str, Finding]:
    """Findings that are not ok, by their check."""
    return {finding.rule: finding for finding in findings(context) if finding.severity != "ok"}


def assert_found(context: DiagnosticContext, check: str, verdict: str, *parts: str) -> None:
    """Exactly this check has a finding that is not ok, with these parts of its message, and with advice."""
    problem_findings = problems(context)
    assert check in problem_findings, sorted(problem_findings)
    finding = problem_findings[check]
    assert finding.severity == verdict
    for part in parts:
        assert part in finding.message
    assert finding.advice
    assert finding.expected
    assert set(problem_findings) == {check}


@pytest.mark.parametrize("settings", [(), ("balancing=padded", "attention=padded")])
def test_faultless_system_is_ready(make_context: MakeContext, settings: tuple[str, ...]) -> None:
    found = findings(make_context(*settings))
    assert [finding for finding in found if finding.severity != "ok"] == []
    assert not has_errors(found)
    assert summary(found) == "ready"
    assert len({finding.rule for finding in found}) == len(found) >= 28


def test_faultless_gpu_system_lacks_only_checkpoint_and_text(make_context: MakeContext) -> None:
    assert set(problems(make_context(system="h200_1x"))) == {"checkpoint", "samples"}


# Versions


def with_pins(context: DiagnosticContext, tmp_path: Path, text: str) -> DiagnosticContext:
    project = tmp_path / "pyproject.toml"
    project.write_text(f"[project]\n{text}\n", encoding="utf-8")
    return replace(context, places=replace(context.places, project=project))


@pytest.mark.parametrize(
    ("text", "check", "verdict", "part"),
    [
        ('requires-python = ">=9.1"\ndependencies = []', "python", "error", "3."),
        ('requires-python = ">=3.9"\ndependencies = ["no-such-thing==1.0"]', "libraries", "error", "no-such-thing 1.0"),
        (
            'requires-python = ">=3.9"\ndependencies = ["numpy==1.0"]',
            "libraries",
            "warning",
            f"numpy {np.__version__} instead of 1.0",
        ),
    ],
)
def test_versions(make_context: MakeContext, tmp_path: Path, text: str, check: str, verdict: str, part: str) -> None:
    assert_found(with_pins(make_context(), tmp_path, text), check, verdict, part)


def with_device(context: DiagnosticContext, **changes: Any) -> DiagnosticContext:
    assert context.device is not None
    return replace(context, device={**context.device, **changes})


@pytest.mark.parametrize("version", ["2.10.1", "2.14.0+cu130", "3.0"])
def test_unsupported_torch_version(make_context: MakeContext, version: str) -> None:
    assert_found(with_device(make_context("description.framework=PyTorch"), torch=version), "torch", "error", version)


def test_framework_that_differs_from_the_description(make_context: MakeContext) -> None:
    assert_found(with_device(make_context(), torch="2.12.1+cu130"), "framework", "error", "PyTorch 2.13.0")
    assert "framework" not in problems(
        with_device(make_context("description.framework=PyTorch 2.13"), torch="2.13.0+cpu")
    )
    assert "framework" in problems(with_device(make_context("description.framework=PyTorch 2.1"), torch="2.13.0+cpu"))
    assert "framework" in problems(
        with_device(make_context("description.framework=PyTorch 2.11.1"), torch="2.11.10+cpu")
    )


def test_missing_licence_is_a_warning(
    make_context: MakeContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podium.doctor.rules.has_licence", has_licence)
    context = make_context()
    context = replace(context, places=replace(context.places, project=tmp_path / "pyproject.toml"))
    (tmp_path / "NOTICE").touch()
    (finding,) = check_licence(context)
    assert (finding.severity, finding.rule) == ("warning", "licence")
    assert "MLPerf expects openly licensed code" in finding.message and "LICENSE" in finding.advice
    (tmp_path / "LICENSE").touch()
    assert [one.severity for one in check_licence(context)] == ["ok"]


# Devices and ranks


def test_implementation_that_does_not_start(make_context: MakeContext) -> None:
    assert_found(
        replace(make_context(), device=None, device_fault="torch is broken"), "device", "error", "torch is broken"
    )


def test_ranks_that_do_not_connect(make_context: MakeContext) -> None:
    assert_found(
        replace(make_context(), ranks=None, ranks_fault="rank 1 was killed"), "ranks", "error", "rank 1 was killed"
    )


def gpu_system(make_context: MakeContext, *settings: str) -> DiagnosticContext:
    """A faultless GPU system that trains the tiny BERT."""
    small = (
        "size=tiny",
        "evaluation.samples=20",
        "evaluation.interval_samples=256",
        "max_samples=512",
        "global_batch_size=16",
    )
    return make_context(*small, *settings, system="h200_1x")


def test_too_few_gpus(make_context: MakeContext) -> None:
    context = gpu_system(make_context, "launch.processes_per_node=2", "description.accelerators_per_node=2")
    assert context.device is not None
    assert_found(with_device(context, gpus=context.device["gpus"][:1]), "GPUs", "error", "1 visible")
    assert "GPUs" in problems(with_device(context, gpus=[]))


def test_number_of_gpus_that_differs_from_the_description(make_context: MakeContext) -> None:
    assert_found(gpu_system(make_context, "description.accelerators_per_node=8"), "GPUs described", "error", "is 8")
    assert_found(make_context("description.accelerators_per_node=1"), "GPUs", "error", "launch.device is cpu")


@pytest.mark.parametrize(
    ("described", "name", "alike"),
    [
        ("NVIDIA H100", "NVIDIA H200", False),
        ("NVIDIA A100-SXM4-80GB Tensor Core GPU 80 GB", "NVIDIA A100-SXM4-80GB", True),
        ("Tesla T4", "Tesla T4", True),
        ("NVIDIA A100", "Tesla T4", False),
        ("Some GPU", "Another GPU", False),
    ],
)
def test_gpu_model_that_differs_from_the_description(
    make_context: MakeContext, described: str, name: str, alike: bool
) -> None:
    context = gpu_system(make_context, f"description.accelerator_model_name={described}")
    assert context.device is not None
    context = with_device(context, gpus=[gpu | {"name": name} for gpu in context.device["gpus"]])
    if alike:
        assert problems(context) == {}
        return
    found = problems(context)
    assert found["GPU model"].severity == "error" and found["GPU model"].advice
    assert name in found["GPU model"].message and described in found["GPU model"].message
    # A GPU that the table lacks is a warning besides.
    assert set(found) - {"GPU model"} == ({"accelerator model"} if described == "Some GPU" else set())


def test_gpu_in_use_by_another_process(make_context: MakeContext) -> None:
    context = gpu_system(make_context)
    assert context.device is not None
    used = [gpu | {"free_bytes": gpu["total_bytes"] - 3 * 2**30} for gpu in context.device["gpus"]]
    assert_found(with_device(context, gpus=used), "GPUs free", "error", "3.0 GiB of GPU 0")


def with_machine(context: DiagnosticContext, **changes: float) -> DiagnosticContext:
    return replace(context, machine={**context.machine, **changes})


def test_too_little_memory(make_context: MakeContext) -> None:
    assert_found(with_machine(make_context(), memory=1e6), "memory", "error", "0.0 GiB of this machine")
    large = make_context("size=large", "optimizer.algorithm=lamb", "hyperparameters=lamb_448")
    state = 2 * 16 * large.config.model_size.parameters(30_522)
    assert problems(with_machine(large, memory=0.99 * state))["memory"].severity == "error"
    assert problems(with_machine(large, memory=1.05 * state))["memory"].severity == "warning"  # no room for activations
    assert "memory" not in problems(with_machine(large, memory=4 * state))


def test_other_load(make_context: MakeContext) -> None:
    assert_found(
        with_machine(make_context(), busy=0.35), "other load", "warning", "other processes use 35% of 2 processors"
    )


def test_capability_that_the_device_lacks(make_context: MakeContext) -> None:
    context = make_context("attention=flash")
    assert context.device is not None
    possible = [dict(capability) for capability in context.device["possible"]]
    possible[1] |= {"found": "", "why_not": "attention: found flash with bf16 on cpu"}
    assert_found(with_device(context, possible=possible), "attention", "error", "flash with bf16 on cpu")


def with_rank(context: DiagnosticContext, rank: int, **changes: Any) -> DiagnosticContext:
    assert context.ranks is not None
    all_ranks = [dict(one) for one in context.ranks["ranks"]]
    all_ranks[rank] |= changes
    return replace(context, ranks={**context.ranks, "ranks": all_ranks})


def test_ranks_on_another_number_of_nodes(make_context: MakeContext) -> None:
    assert_found(with_rank(make_context(), 1, host="two"), "ranks", "error", "2 on one, two")


def test_nodes_on_one_host_and_missing_ranks(make_context: MakeContext) -> None:
    rendezvous = "launch.rendezvous=a:29500"
    two = make_context("launch.nodes=2", "launch.processes_per_node=1", "description.number_of_nodes=2", rendezvous)
    assert_found(two, "ranks", "warning", "2 on one")
    assert problems(with_rank(two, 1, host="two")) == {}
    assert two.ranks is not None
    assert_found(replace(two, ranks={**two.ranks, "ranks": two.ranks["ranks"][:1]}), "ranks", "error", "1 on one")


@pytest.mark.parametrize(("what", "value"), [("torch", "2.12.0"), ("python", "3.12.1"), ("device", "NVIDIA H100")])
def test_ranks_that_differ(make_context: MakeContext, what: str, value: str) -> None:
    assert_found(with_rank(make_context(), 1, **{what: value}), f"{what} of ranks", "error", value)


def test_slow_rank(make_context: MakeContext) -> None:
    context = make_context("launch.processes_per_node=4")
    assert_found(with_rank(context, 2, matmul_flops=3e11), "speed of ranks", "warning", "rank 2 on one", "60%")
    assert problems(with_rank(context, 2, matmul_flops=4.2e11)) == {}


def with_all_reduce(context: DiagnosticContext, **changes: float) -> DiagnosticContext:
    assert context.ranks is not None
    return replace(context, ranks={**context.ranks, "all_reduce": {**context.ranks["all_reduce"], **changes}})


def test_slow_or_wrong_all_reduce(make_context: MakeContext) -> None:
    assert_found(with_all_reduce(make_context(), bus_bandwidth=5e7), "gloo all-reduce", "warning", "0.05 GB/s")
    assert_found(with_all_reduce(make_context(), right=0.0), "gloo all-reduce", "error", "wrong")


@pytest.mark.parametrize(("seconds", "verdict"), [(0.5, "warning"), (9.0, "warning"), (61.0, "error")])
def test_clocks_that_differ(make_context: MakeContext, seconds: float, verdict: str) -> None:
    assert_found(
        with_rank(make_context(), 1, clock_seconds_certain=seconds),
        "clocks",
        verdict,
        f"{seconds:.3g} s",
        "rank 1 on one",
    )
    assert problems(with_rank(make_context(), 1, clock_seconds_certain=0.09)) == {}


# Files and folders


def test_missing_path(make_context: MakeContext, data: Path) -> None:
    context = make_context(
        f"data.store={data}/no", f"data.evaluation_store={data}", f"data.vocabulary={data}/vocab.txt"
    )
    problem_findings = problems(context)
    assert f"data.store: {data}/no does not exist" in problem_findings["paths"].message
    assert f"data.vocabulary: {data}/vocab.txt does not exist" in problem_findings["paths"].message
    assert problem_findings["data"].severity == "error"


def test_path_that_a_rank_cannot_read(make_context: MakeContext) -> None:
    assert_found(
        with_rank(make_context(), 1, missing_paths=["/data/x"]), "paths", "error", "rank 1 on one cannot read /data/x"
    )


@pytest.mark.parametrize("name", ["runs", "results"])
def test_unwritable_folder(make_context: MakeContext, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("in the way", encoding="utf-8")
    assert_found(make_context(), f"{name} folder", "error", "a file exists at this path")


@pytest.mark.parametrize("name", ["runs", "results", "data"])
def test_read_only_file_system(
    make_context: MakeContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Such a file system also refuses to remove a file, even a missing one."""
    folder = tmp_path / name
    folder.mkdir(exist_ok=True)
    context = make_context()
    original = {"open": Path.open, "unlink": Path.unlink}

    def refuse(what: str) -> Any:
        def call(path: Path, *arguments: Any, **options: Any) -> Any:
            if path.parent == folder and path.name.endswith(("doctor.tmp", ".partial")):
                raise OSError(errno.EROFS, "Read-only file system", str(path))
            return original[what](path, *arguments, **options)

        return call

    for what in original:
        monkeypatch.setattr(Path, what, refuse(what))
    assert_found(context, f"{name} folder", "error", "Read-only file system")


def test_disk_with_slow_writes(make_context: MakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podium.doctor.filesystem.write_speed", lambda *_: Speed(10**6, 1.0))
    assert_found(make_context(), "runs folder", "warning", "1 MB/s")


def test_full_disk(make_context: MakeContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = {"runs": 9 * 10**8, "results": 10**12}
    usage = lambda path: SimpleNamespace(free=free[path.name])  # noqa: E731
    monkeypatch.setattr("podium.doctor.filesystem.shutil.disk_usage", usage)
    assert_found(make_context(), "runs space", "error", "0.8 GiB free")
    free |= {"runs": 10**12, "results": 10**6}
    assert_found(make_context(), "results space", "error", "0.0 GiB free")


def test_no_space_for_samples(make_context: MakeContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("text", "evaluation", "vocab.txt"):
        (tmp_path / name).write_bytes(b"a\n" * 500)
    usage = lambda path: SimpleNamespace(free=8_000 if path.name == "data" else 10**12)  # noqa: E731
    monkeypatch.setattr("podium.doctor.filesystem.shutil.disk_usage", usage)
    names = [("text", "text"), ("evaluation_text", "evaluation"), ("vocabulary", "vocab.txt")]
    problem_findings = problems(make_context(*(f"data.{key}={tmp_path / name}" for key, name in names)))
    assert problem_findings["data space"].severity == "error"
    assert "not made yet" in problem_findings["data"].message


def test_disk_with_slow_reads(make_context: MakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Speed(10**5, 1.0, from_disk=True)
    monkeypatch.setattr("podium.doctor.filesystem.read_speed", lambda _: slow)
    assert_found(make_context(), "data speed", "warning", "0 MB/s from the disk")


def test_caches_that_cannot_be_cleared(
    make_context: MakeContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("podium.doctor.filesystem.DROP_CACHES", tmp_path / "no")
    for from_disk in (True, False):  # a fixed result: dirty pages may or may not stay in memory
        speed = Speed(10**9, 1.0, from_disk=from_disk)
        monkeypatch.setattr("podium.doctor.filesystem.read_speed", lambda _, speed=speed: speed)
        assert ("caches" in problems(make_context())) is not from_disk
    assert_found(make_context(), "caches", "warning", "nothing can be dropped")


def test_too_few_open_files(make_context: MakeContext) -> None:
    assert_found(with_machine(make_context(), limit=200.0), "open files", "error", "a limit of 200")


# Data


def shards(data: Path, kind: str = "training") -> list[Path]:
    return sorted(data.rglob(f"{kind}/*.h5"))


def test_only_the_shards_that_the_node_reads_are_checked(make_context: MakeContext, data: Path) -> None:
    settings = ("shards=per_rank", "balancing=random", "launch.nodes=2", "launch.rendezvous=a:29500")
    training = SampleStore(next(data.rglob("training")), NodePart(0, 2))
    for number in {*range(len(training.paths))} - {*training.present}:
        training.paths[number].unlink()
    context = make_context(*settings)
    for check in (check_data, check_read_speed, check_caches):
        assert "error" not in {finding.severity for finding in check(context)}
    whole, _ = check_data(context)
    assert f"{len(training.paths)} shards, of which node 0 reads {len(training.present)}, hashes" in whole.message


def test_digests_of_the_stores_of_several_phases(make_context: MakeContext) -> None:
    context = make_context("phases=[{max_sequence_length: 64, samples: 64}, {}]")
    _, manifest = check_data(context)
    assert (manifest.rule, manifest.message.count("…")) == ("manifest", 2)


def test_damaged_shard(make_context: MakeContext, data: Path) -> None:
    path = shards(data)[1]
    with h5py.File(path, "r+") as file:
        file["records"][7] ^= 1
    assert_found(make_context(), "data", "error", str(path), "SHA-256")


def test_truncated_shard(make_context: MakeContext, data: Path) -> None:
    path = shards(data)[0]
    path.write_bytes(path.read_bytes()[:-100])
    assert_found(make_context(), "data", "error", str(path))


def test_shard_that_the_manifest_does_not_list(make_context: MakeContext, data: Path) -> None:
    shutil.copy(shards(data)[0], shards(data)[0].with_name("zone.h5"))
    assert_found(make_context(), "manifest", "error", "zone.h5 is one shard too many", "podium data verify")


def store_settings(data: Path) -> list[str]:
    """Settings that name the prepared shards themselves."""
    vocabulary = data / "embedded/text/vocab.txt"
    kinds = {"store": "training", "evaluation_store": "evaluation"}
    return [f"data.vocabulary={vocabulary}", *(f"data.{k}={shards(data, v)[0].parent}" for k, v in kinds.items())]


def test_another_vocabulary(make_context: MakeContext, data: Path) -> None:
    settings = store_settings(data)
    assert problems(make_context(*settings)) == {}
    vocabulary = data / "embedded/text/vocab.txt"
    vocabulary.write_text(vocabulary.read_text(encoding="utf-8") + "more\n", encoding="utf-8")
    assert_found(make_context(*settings), "data", "error", "another vocabulary")


def test_too_few_evaluation_samples(make_context: MakeContext) -> None:
    assert_found(make_context("evaluation.samples=100000"), "data", "error", "evaluation.samples is 100000")


def test_repeated_samples(make_context: MakeContext) -> None:
    assert_found(make_context("max_samples=10000000"), "samples", "warning", "so each is used up to")


def closed(make_context: MakeContext, data: Path, *settings: str) -> DiagnosticContext:
    """A configuration of the closed division on the tiny data."""
    changes: dict[str, Any] = {
        "description": make_context().config.description.model_copy(update={"division": "closed"})
    }
    context = make_context(*store_settings(data), *settings)
    assert context.prepared is not None
    return replace(
        context,
        config=context.config.model_copy(update=changes),
        prepared=context.prepared.model_copy(update=changes),
    )


def test_closed_division_with_unofficial_data(
    make_context: MakeContext, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_found(closed(make_context, data), "closed data", "error", "is another vocabulary")
    monkeypatch.setattr("podium.doctor.filesystem.is_official_vocabulary", lambda _: True)
    assert problems(closed(make_context, data)) == {}
    texts = sorted((data / "embedded/text").glob("part-*"))
    subset = tmp_path / "subset"
    prepare_subset(texts, data / "embedded/text/vocab.txt", subset, 520, processes=1, seed=0)
    assert_found(closed(make_context, data, f"data.store={subset}"), "closed data", "error", "is a random subset")


def test_closed_division_with_repeated_samples(
    make_context: MakeContext, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podium.doctor.filesystem.is_official_vocabulary", lambda _: True)
    assert_found(closed(make_context, data, "max_samples=10000000"), "samples", "error", "so each is used up to")


def test_missing_or_unsuitable_checkpoint(make_context: MakeContext, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    problem_findings = problems(make_context(f"initial_checkpoint={path}"))
    assert "there is no such checkpoint" in problem_findings["checkpoint"].message
    assert problem_findings["checkpoint"].severity == problem_findings["paths"].severity == "error"
    shapes = podium_shapes(TINY, 12)
    write_podium_checkpoint(path, Weights(TINY, 12, {name: np.zeros(shapes[name], np.float32) for name in shapes}))
    assert_found(make_context(f"initial_checkpoint={path}"), "checkpoint", "error", "12 tokens")


def test_large_without_a_checkpoint(make_context: MakeContext) -> None:
    assert_found(
        with_machine(make_context("size=large", "optimizer.algorithm=lamb", "hyperparameters=lamb_448"), memory=1e12),
        "checkpoint",
        "warning",
        "none",
    )


# Rules


def test_description_with_missing_fields(make_context: MakeContext) -> None:
    context = make_context("description.cooling=", "description.host_storage_type=not stated", "description.hw_notes=")
    assert_found(context, "description", "warning", "2 fields not stated: host_storage_type, cooling")


def test_description_that_differs_from_the_machine(make_context: MakeContext) -> None:
    assert_found(make_context("description.number_of_nodes=2"), "number of nodes", "error", "number_of_nodes is 2")
    settings = make_context("description.host_processor_vcpu_count=4096")
    assert_found(settings, "host processor vcpu count", "warning", "is 4096")


def test_fixed_seed(make_context: MakeContext) -> None:
    assert_found(make_context("seed=3"), "seed", "warning", "3 for every run")


def test_no_evaluation_before_the_end(make_context: MakeContext) -> None:
    assert_found(make_context("max_samples=255"), "max_samples", "error", "255")
    assert_found(make_context("target_accuracy=null"), "max_samples", "warning", "no target")


def test_target_below_mlperfs(make_context: MakeContext) -> None:
    assert_found(make_context("target_accuracy=0.719"), "target", "warning", "target_accuracy is 0.719")
    assert problems(make_context("target_accuracy=0.73")) == {}


def publish(monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    one = SamplesToTarget("own", "Podium", "laptop", "adamw", batch, "open", 400, 300, 500, 10, 10)
    monkeypatch.setattr("podium.doctor.rules.read_tiny_samples", lambda: [one])


def test_fewer_samples_than_any_run_needed(make_context: MakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch, batch=16)
    assert_found(make_context("max_samples=280"), "max_samples", "error", "280")
    assert_found(make_context("max_samples=496"), "max_samples", "warning", "496")
    assert problems(make_context("max_samples=500")) == {}
    publish(monkeypatch, batch=64)
    assert problems(make_context("max_samples=280")) == {}  # nothing is published near this batch size


def test_published_hyper_parameters_are_no_error_at_their_batch_size() -> None:
    """The rate of eight H200, which needed 2.55 million samples, had to last for those of A100 systems."""
    for known in hyperparameter_sets().values():
        if known.is_published and known.samples and known.algorithm == "lamb":
            needed = needed_samples(known.size, known.used_at[0])
            assert needed is not None and needed.least <= needed.mean <= known.samples
            assert known.optimizer["decay_steps"] * known.used_at[0] >= needed.mean, known.name


def test_learning_rate_that_is_zero_too_early(make_context: MakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch, batch=16)
    assert_found(make_context("optimizer.decay_steps=20"), "schedule", "error", "0 from 320 samples on")
    assert problems(make_context("optimizer.decay_steps=20", "optimizer.end_learning_rate=1e-4")) == {}
