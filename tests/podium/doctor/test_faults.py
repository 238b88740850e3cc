"""Planted faults, one at a time in a system that is otherwise in good order: each is found, by its check, with what to
do. The list below is what `podium doctor` is known to find."""

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
from benchmarks.bert.checkpoint.podium import write_podium
from benchmarks.bert.checkpoint.weights import Weights
from benchmarks.bert.manifest import NodePart
from benchmarks.bert.preparation.prepare import prepare_subset
from benchmarks.bert.published.reading import SamplesToTarget
from benchmarks.bert.sizes import TINY
from benchmarks.bert.store import SampleStore
from podium.core.finding import Finding, has_errors
from podium.doctor.context import Examination
from podium.doctor.diagnose import findings_of, summary
from podium.doctor.filesystem import Speed, check_caches, check_data, check_read_speed

Examine = Callable[..., Examination]


def findings(examination: Examination) -> list[Finding]:
    return findings_of(examination)


def worries(examination: Examination) -> dict[str, Finding]:
    """What is not ok, by its check."""
    return {finding.rule: finding for finding in findings(examination) if finding.severity != "ok"}


def found(examination: Examination, check: str, verdict: str, *words: str) -> None:
    """This one thing is found, and nothing else is worse than a warning because of it."""
    worried = worries(examination)
    assert check in worried, sorted(worried)
    finding = worried[check]
    assert finding.severity == verdict
    for word in words:
        assert word in finding.message
    assert finding.advice
    assert finding.expected
    assert set(worried) == {check}


@pytest.mark.parametrize("settings", [(), ("balancing=padded", "attention=padded")])
def test_a_system_in_good_order_is_ready(examine: Examine, settings: tuple[str, ...]) -> None:
    told = findings(examine(*settings))
    assert [finding for finding in told if finding.severity != "ok"] == []
    assert not has_errors(told)
    assert summary(told) == "ready"
    assert len({finding.rule for finding in told}) == len(told) >= 28


def test_a_gpu_in_good_order_lacks_but_its_checkpoint_and_text(examine: Examine) -> None:
    assert set(worries(examine(system="h200_1x"))) == {"checkpoint", "samples"}


# Versions


def pins(examination: Examination, tmp_path: Path, text: str) -> Examination:
    project = tmp_path / "pyproject.toml"
    project.write_text(f"[project]\n{text}\n", encoding="utf-8")
    return replace(examination, places=replace(examination.places, project=project))


@pytest.mark.parametrize(
    ("text", "check", "verdict", "word"),
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
def test_versions(examine: Examine, tmp_path: Path, text: str, check: str, verdict: str, word: str) -> None:
    found(pins(examine(), tmp_path, text), check, verdict, word)


def told(examination: Examination, **changes: Any) -> Examination:
    assert examination.device is not None
    return replace(examination, device={**examination.device, **changes})


@pytest.mark.parametrize("version", ["2.10.1", "2.14.0+cu130", "3.0"])
def test_a_torch_that_is_not_supported(examine: Examine, version: str) -> None:
    found(told(examine("description.framework=PyTorch"), torch=version), "torch", "error", version)


def test_a_framework_that_is_not_the_one_described(examine: Examine) -> None:
    found(told(examine(), torch="2.12.1+cu130"), "framework", "error", "PyTorch 2.13.0")
    assert "framework" not in worries(told(examine("description.framework=PyTorch 2.13"), torch="2.13.0+cpu"))
    assert "framework" in worries(told(examine("description.framework=PyTorch 2.1"), torch="2.13.0+cpu"))
    assert "framework" in worries(told(examine("description.framework=PyTorch 2.11.1"), torch="2.11.10+cpu"))


# Devices and ranks


def test_an_implementation_that_does_not_start(examine: Examine) -> None:
    found(replace(examine(), device=None, device_fault="torch is broken"), "device", "error", "torch is broken")


def test_ranks_that_do_not_meet(examine: Examine) -> None:
    found(replace(examine(), ranks=None, ranks_fault="rank 1 was killed"), "ranks", "error", "rank 1 was killed")


def gpu_system(examine: Examine, *settings: str) -> Examination:
    """A sound system with GPUs that trains the tiny BERT."""
    small = (
        "size=tiny",
        "evaluation.samples=20",
        "evaluation.interval_samples=256",
        "max_samples=512",
        "global_batch_size=16",
    )
    return examine(*small, *settings, system="h200_1x")


def test_too_few_gpus(examine: Examine) -> None:
    examination = gpu_system(examine, "launch.processes_per_node=2", "description.accelerators_per_node=2")
    assert examination.device is not None
    found(told(examination, gpus=examination.device["gpus"][:1]), "GPUs", "error", "1 visible")
    assert "GPUs" in worries(told(examination, gpus=[]))


def test_another_number_of_gpus_than_described(examine: Examine) -> None:
    found(gpu_system(examine, "description.accelerators_per_node=8"), "GPUs described", "error", "is 8")
    found(examine("description.accelerators_per_node=1"), "GPUs", "error", "launch.device is cpu")


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
def test_another_gpu_than_described(examine: Examine, described: str, name: str, alike: bool) -> None:
    examination = gpu_system(examine, f"description.accelerator_model_name={described}")
    assert examination.device is not None
    examination = told(examination, gpus=[gpu | {"name": name} for gpu in examination.device["gpus"]])
    if alike:
        assert worries(examination) == {}
    else:
        found(examination, "GPU model", "error", name, described)


def test_a_gpu_that_somebody_else_uses(examine: Examine) -> None:
    examination = gpu_system(examine)
    assert examination.device is not None
    used = [gpu | {"free_bytes": gpu["total_bytes"] - 3 * 2**30} for gpu in examination.device["gpus"]]
    found(told(examination, gpus=used), "GPUs free", "error", "3.0 GiB of GPU 0")


def machine(examination: Examination, **changes: float) -> Examination:
    return replace(examination, machine={**examination.machine, **changes})


def test_too_little_memory(examine: Examine) -> None:
    found(machine(examine(), memory=1e6), "memory", "error", "0.0 GiB of this machine")
    large = examine("size=large", "optimizer.algorithm=lamb", "hyperparameters=lamb_448")
    state = 2 * 16 * large.config.model_size.parameters(30_522)
    assert worries(machine(large, memory=0.99 * state))["memory"].severity == "error"
    assert worries(machine(large, memory=1.05 * state))["memory"].severity == "warning"  # no room for activations
    assert "memory" not in worries(machine(large, memory=4 * state))


def test_other_load(examine: Examine) -> None:
    found(machine(examine(), busy=0.35), "other load", "warning", "others use 35% of 2 processors")


def test_what_the_device_cannot_do(examine: Examine) -> None:
    examination = examine("attention=flash")
    assert examination.device is not None
    possible = [dict(asked) for asked in examination.device["possible"]]
    possible[1] |= {"found": "", "why_not": "attention: found flash with bf16 on cpu"}
    found(told(examination, possible=possible), "attention", "error", "flash with bf16 on cpu")


def ranks(examination: Examination, rank: int, **changes: Any) -> Examination:
    assert examination.ranks is not None
    everyone = [dict(one) for one in examination.ranks["ranks"]]
    everyone[rank] |= changes
    return replace(examination, ranks={**examination.ranks, "ranks": everyone})


def test_ranks_on_another_number_of_nodes(examine: Examine) -> None:
    found(ranks(examine(), 1, host="two"), "ranks", "error", "2 on one, two")


def test_nodes_that_share_a_host_and_ranks_that_are_missing(examine: Examine) -> None:
    rendezvous = "launch.rendezvous=a:29500"
    two = examine("launch.nodes=2", "launch.processes_per_node=1", "description.number_of_nodes=2", rendezvous)
    found(two, "ranks", "warning", "2 on one")
    assert worries(ranks(two, 1, host="two")) == {}
    assert two.ranks is not None
    found(replace(two, ranks={**two.ranks, "ranks": two.ranks["ranks"][:1]}), "ranks", "error", "1 on one")


@pytest.mark.parametrize(("what", "value"), [("torch", "2.12.0"), ("python", "3.12.1"), ("device", "NVIDIA H100")])
def test_ranks_that_differ(examine: Examine, what: str, value: str) -> None:
    found(ranks(examine(), 1, **{what: value}), f"{what} of ranks", "error", value)


def test_a_slow_rank(examine: Examine) -> None:
    examination = examine("launch.processes_per_node=4")
    found(ranks(examination, 2, matmul_flops=3e11), "speed of ranks", "warning", "rank 2 on one", "60%")
    assert worries(ranks(examination, 2, matmul_flops=4.2e11)) == {}


def reduced(examination: Examination, **changes: float) -> Examination:
    assert examination.ranks is not None
    return replace(
        examination, ranks={**examination.ranks, "all_reduce": {**examination.ranks["all_reduce"], **changes}}
    )


def test_an_all_reduce_that_is_slow_or_wrong(examine: Examine) -> None:
    found(reduced(examine(), bus_bandwidth=5e7), "gloo all-reduce", "warning", "0.05 GB/s")
    found(reduced(examine(), right=0.0), "gloo all-reduce", "error", "wrong")


@pytest.mark.parametrize(("seconds", "verdict"), [(0.5, "warning"), (9.0, "warning"), (61.0, "error")])
def test_clocks_that_differ(examine: Examine, seconds: float, verdict: str) -> None:
    found(ranks(examine(), 1, clock_seconds_certain=seconds), "clocks", verdict, f"{seconds:.3g} s", "rank 1 on one")
    assert worries(ranks(examine(), 1, clock_seconds_certain=0.09)) == {}


# Places


def test_a_path_that_is_not_there(examine: Examine, data: Path) -> None:
    examination = examine(f"data.store={data}/no", f"data.evaluation_store={data}", f"data.vocabulary={data}/vocab.txt")
    worried = worries(examination)
    assert f"data.store: {data}/no does not exist" in worried["paths"].message
    assert f"data.vocabulary: {data}/vocab.txt does not exist" in worried["paths"].message
    assert worried["data"].severity == "error"


def test_a_path_that_a_node_does_not_mount(examine: Examine) -> None:
    found(ranks(examine(), 1, missing_paths=["/data/x"]), "paths", "error", "rank 1 on one cannot read /data/x")


@pytest.mark.parametrize("name", ["runs", "results"])
def test_a_folder_that_cannot_be_written(examine: Examine, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("in the way", encoding="utf-8")
    found(examine(), f"{name} folder", "error", "a file exists at this path")


@pytest.mark.parametrize("name", ["runs", "results", "data"])
def test_a_file_system_that_is_read_only(
    examine: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """There a file cannot be removed either, whether it is there or not."""
    folder = tmp_path / name
    folder.mkdir(exist_ok=True)
    examination = examine()
    really = {"open": Path.open, "unlink": Path.unlink}

    def refusing(what: str) -> Any:
        def called(path: Path, *arguments: Any, **options: Any) -> Any:
            if path.parent == folder and path.name.endswith(("doctor.tmp", ".partial")):
                raise OSError(errno.EROFS, "Read-only file system", str(path))
            return really[what](path, *arguments, **options)

        return called

    for what in really:
        monkeypatch.setattr(Path, what, refusing(what))
    found(examination, f"{name} folder", "error", "Read-only file system")


def test_a_disk_that_is_slow_to_write(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podium.doctor.filesystem.write_speed", lambda *_: Speed(10**6, 1.0))
    found(examine(), "runs folder", "warning", "1 MB/s")


def test_a_full_disk(examine: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = {"runs": 9 * 10**8, "results": 10**12}
    usage = lambda path: SimpleNamespace(free=free[path.name])  # noqa: E731
    monkeypatch.setattr("podium.doctor.filesystem.shutil.disk_usage", usage)
    found(examine(), "runs space", "error", "0.8 GiB free")
    free |= {"runs": 10**12, "results": 10**6}
    found(examine(), "results space", "error", "0.0 GiB free")


def test_no_space_for_samples(examine: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("text", "evaluation", "vocab.txt"):
        (tmp_path / name).write_bytes(b"a\n" * 500)
    usage = lambda path: SimpleNamespace(free=8_000 if path.name == "data" else 10**12)  # noqa: E731
    monkeypatch.setattr("podium.doctor.filesystem.shutil.disk_usage", usage)
    names = [("text", "text"), ("evaluation_text", "evaluation"), ("vocabulary", "vocab.txt")]
    worried = worries(examine(*(f"data.{key}={tmp_path / name}" for key, name in names)))
    assert worried["data space"].severity == "error"
    assert "not made yet" in worried["data"].message


def test_a_disk_that_is_slow_to_read(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Speed(10**5, 1.0, from_disk=True)
    monkeypatch.setattr("podium.doctor.filesystem.read_speed", lambda _: slow)
    found(examine(), "data speed", "warning", "0 MB/s from the disk")


def test_caches_that_cannot_be_cleared(examine: Examine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("podium.doctor.filesystem.DROP_CACHES", tmp_path / "no")
    for from_disk in (True, False):  # pages that are not written yet stay in memory, so the real speed is no constant
        speed = Speed(10**9, 1.0, from_disk=from_disk)
        monkeypatch.setattr("podium.doctor.filesystem.read_speed", lambda _, speed=speed: speed)
        assert ("caches" in worries(examine())) is not from_disk
    found(examine(), "caches", "warning", "nothing can be dropped")


def test_too_few_open_files(examine: Examine) -> None:
    found(machine(examine(), limit=200.0), "open files", "error", "a limit of 200")


# Data


def shards(data: Path, kind: str = "training") -> list[Path]:
    return sorted(data.rglob(f"{kind}/*.h5"))


def test_a_node_s_own_shards_are_all_that_is_looked_at(examine: Examine, data: Path) -> None:
    settings = ("shards=per_rank", "balancing=random", "launch.nodes=2", "launch.rendezvous=a:29500")
    training = SampleStore(next(data.rglob("training")), NodePart(0, 2))
    for number in {*range(len(training.paths))} - {*training.present}:
        training.paths[number].unlink()
    examination = examine(*settings)
    for check in (check_data, check_read_speed, check_caches):
        assert "error" not in {finding.severity for finding in check(examination)}
    whole, _ = check_data(examination)
    assert f"{len(training.paths)} shards, of which node 0 reads {len(training.present)}, hashes" in whole.message


def test_stores_of_several_phases_are_named_by_their_digests(examine: Examine) -> None:
    examination = examine("phases=[{max_sequence_length: 64, samples: 64}, {}]")
    _, manifest = check_data(examination)
    assert (manifest.rule, manifest.message.count("…")) == ("manifest", 2)


def test_a_damaged_shard(examine: Examine, data: Path) -> None:
    path = shards(data)[1]
    with h5py.File(path, "r+") as file:
        file["records"][7] ^= 1
    found(examine(), "data", "error", str(path), "SHA-256")


def test_a_cut_off_shard(examine: Examine, data: Path) -> None:
    path = shards(data)[0]
    path.write_bytes(path.read_bytes()[:-100])
    found(examine(), "data", "error", str(path))


def test_a_shard_that_the_manifest_does_not_list(examine: Examine, data: Path) -> None:
    shutil.copy(shards(data)[0], shards(data)[0].with_name("zone.h5"))
    found(examine(), "manifest", "error", "zone.h5 is one shard too many", "podium data verify")


def stored(data: Path) -> list[str]:
    """Settings that name the prepared shards themselves."""
    vocabulary = data / "embedded/text/vocab.txt"
    kinds = {"store": "training", "evaluation_store": "evaluation"}
    return [f"data.vocabulary={vocabulary}", *(f"data.{k}={shards(data, v)[0].parent}" for k, v in kinds.items())]


def test_another_vocabulary(examine: Examine, data: Path) -> None:
    settings = stored(data)
    assert worries(examine(*settings)) == {}
    vocabulary = data / "embedded/text/vocab.txt"
    vocabulary.write_text(vocabulary.read_text(encoding="utf-8") + "more\n", encoding="utf-8")
    found(examine(*settings), "data", "error", "another vocabulary")


def test_too_few_evaluation_samples(examine: Examine) -> None:
    found(examine("evaluation.samples=100000"), "data", "error", "evaluation.samples is 100000")


def test_samples_that_come_again(examine: Examine) -> None:
    found(examine("max_samples=10000000"), "samples", "warning", "so they come up to")


def closed(examine: Examine, data: Path, *settings: str) -> Examination:
    """A closed configuration as far as its rules go, on the tiny data."""
    changes: dict[str, Any] = {"description": examine().config.description.model_copy(update={"division": "closed"})}
    examination = examine(*stored(data), *settings)
    assert examination.prepared is not None
    return replace(
        examination,
        config=examination.config.model_copy(update=changes),
        prepared=examination.prepared.model_copy(update=changes),
    )


def test_closed_data_that_are_not_official(
    examine: Examine, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found(closed(examine, data), "closed data", "error", "is another vocabulary")
    monkeypatch.setattr("podium.doctor.filesystem.is_official_vocabulary", lambda _: True)
    assert worries(closed(examine, data)) == {}
    texts = sorted((data / "embedded/text").glob("part-*"))
    subset = tmp_path / "subset"
    prepare_subset(texts, data / "embedded/text/vocab.txt", subset, 520, processes=1, seed=0)
    found(closed(examine, data, f"data.store={subset}"), "closed data", "error", "is a random subset")


def test_closed_samples_that_come_again(examine: Examine, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podium.doctor.filesystem.is_official_vocabulary", lambda _: True)
    found(closed(examine, data, "max_samples=10000000"), "samples", "error", "so they come up to")


def test_a_checkpoint_that_is_missing_or_does_not_fit(examine: Examine, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    worried = worries(examine(f"initial_checkpoint={path}"))
    assert "there is no such checkpoint" in worried["checkpoint"].message
    assert worried["checkpoint"].severity == worried["paths"].severity == "error"
    shapes = podium_shapes(TINY, 12)
    write_podium(path, Weights(TINY, 12, {name: np.zeros(shapes[name], np.float32) for name in shapes}))
    found(examine(f"initial_checkpoint={path}"), "checkpoint", "error", "12 words")


def test_large_without_a_checkpoint(examine: Examine) -> None:
    found(
        machine(examine("size=large", "optimizer.algorithm=lamb", "hyperparameters=lamb_448"), memory=1e12),
        "checkpoint",
        "warning",
        "none",
    )


# Rules


def test_a_description_that_says_nothing(examine: Examine) -> None:
    examination = examine("description.cooling=", "description.host_storage_type=not stated", "description.hw_notes=")
    found(examination, "description", "warning", "2 fields say nothing: host_storage_type, cooling")


def test_a_description_of_another_machine(examine: Examine) -> None:
    found(examine("description.number_of_nodes=2"), "number of nodes", "error", "number_of_nodes is 2")
    settings = examine("description.host_processor_vcpu_count=4096")
    found(settings, "host processor vcpu count", "warning", "is 4096")


def test_a_fixed_seed(examine: Examine) -> None:
    found(examine("seed=3"), "seed", "warning", "3 for every run")


def test_no_evaluation_before_the_end(examine: Examine) -> None:
    found(examine("max_samples=255"), "max_samples", "error", "255")
    found(examine("target_accuracy=null"), "max_samples", "warning", "no target")


def test_a_target_below_mlperfs(examine: Examine) -> None:
    found(examine("target_accuracy=0.719"), "target", "warning", "target_accuracy is 0.719")
    assert worries(examine("target_accuracy=0.73")) == {}


def known(monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    one = SamplesToTarget("own", "Podium", "laptop", "adamw", batch, "open", 400, 300, 500, 10, 10)
    monkeypatch.setattr("podium.doctor.rules.read_tiny_samples", lambda: [one])


def test_fewer_samples_than_any_run_needed(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, batch=16)
    found(examine("max_samples=280"), "max_samples", "error", "280")
    found(examine("max_samples=496"), "max_samples", "warning", "496")
    assert worries(examine("max_samples=500")) == {}
    known(monkeypatch, batch=64)
    assert worries(examine("max_samples=280")) == {}  # nothing is known of so different a batch


def test_a_rate_that_is_zero_too_soon(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, batch=16)
    found(examine("optimizer.decay_steps=20"), "schedule", "error", "0 from 320 samples on")
    assert worries(examine("optimizer.decay_steps=20", "optimizer.end_learning_rate=1e-4")) == {}
