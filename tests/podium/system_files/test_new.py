"""System files for this machine: what is detected and what it is matched with."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from podium.cli.main import app
from podium.config import load
from podium.config.load import load_system
from podium.config.schema import is_stated
from podium.core.errors import UsageError
from podium.doctor.accelerators import GIB, NvidiaGpu
from podium.run.run_set import RunRequest
from podium.system_files import compose, new
from podium.system_files.compose import checked, target_path, write_system
from podium.system_files.new import NewOptions, draft_for_machine, nearest_set
from tests.podium.conftest import dry_run_lines


@pytest.fixture
def systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in place of the user's systems/."""
    monkeypatch.setattr(compose, "USER_SYSTEMS", tmp_path / "systems")
    return tmp_path / "systems"


def with_gpus(monkeypatch: pytest.MonkeyPatch, count: int, name: str = "NVIDIA H200", gib: int = 141) -> None:
    monkeypatch.setattr(new, "nvidia_gpus", lambda: [NvidiaGpu(name, gib * GIB)] * count)


def test_without_a_gpu_the_tiny_bert_runs_at_once(systems: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, 0)
    path, _ = write_system(draft_for_machine("mine", NewOptions()), "mine")
    config = load_system(str(path))
    assert path == systems / "mine.yaml" and path.read_text().startswith("# mine: written by `podium systems new`")
    assert (config.size, config.launch.device, config.hyperparameters) == ("tiny", "cpu", "tiny_adamw_16")
    assert config.optimizer == load_system("laptop").optimizer
    assert config.description.host_memory_capacity.endswith(" GB")
    assert "implementations.pytorch.train" in dry_run_lines(RunRequest(str(path)))[-1]


@pytest.mark.parametrize(
    ("gpus", "model", "gib", "batch", "steps", "name"),
    [
        (8, "NVIDIA H200", 141, 768, 1, "lamb_768"),
        (8, "NVIDIA B200", 180, 768, 1, "lamb_768"),
        (8, "NVIDIA A100-SXM4-40GB", 40, 448, 2, "lamb_448"),
        (4, "Tesla V100-SXM2-16GB", 16, 256, 4, "lamb_256"),
        (4, "NVIDIA H100 80GB HBM3", 80, 576, 2, "lamb_576"),
        (1, "NVIDIA H200", 141, 576, 6, "lamb_576"),
        (3, "NVIDIA A100-SXM4-80GB", 80, 255, 5, "lamb_256"),
    ],
)
def test_gpus_get_the_nearest_published_settings(
    monkeypatch: pytest.MonkeyPatch, gpus: int, model: str, gib: int, batch: int, steps: int, name: str
) -> None:
    with_gpus(monkeypatch, gpus, model, gib)
    draft = checked(draft_for_machine("box", NewOptions(size="large")), "box")
    config = compose.load_draft(draft, "box")
    assert (config.launch.ranks, config.global_batch_size, config.hyperparameters) == (gpus, batch, name)
    assert config.gradient_accumulation_steps == steps
    assert config.description.accelerator_model_name == model
    assert "prepare what is missing in data/" in draft.notes[0]


def test_many_nodes_are_started_by_slurm_with_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, 0)
    options = NewOptions(nodes=8, gpus=8, accelerator="H100", image="podium.sif", size="large")
    config = compose.load_draft(draft_for_machine("cluster", options), "cluster")
    assert (config.launch.launcher, config.launch.nodes, config.hyperparameters) == ("slurm", 8, "lamb_4608")
    assert config.launch.container is not None and config.launch.container.runtime == "apptainer"


HOST_FIELDS = ("host_memory_capacity", "host_processor_vcpu_count", "operating_system", "host_processor_model_name")


@pytest.mark.parametrize(
    ("gpus", "options", "is_here"),
    [
        (0, NewOptions(), True),
        (8, NewOptions(), True),
        (8, NewOptions(gpus=4, accelerator="H200"), True),
        (0, NewOptions(gpus=8, accelerator="H200"), False),
        (8, NewOptions(gpus=8, accelerator="B200"), False),
        (4, NewOptions(gpus=8), False),
        (8, NewOptions(nodes=2), False),
        (0, NewOptions(nodes=2, gpus=8, accelerator="H200", launcher="slurm", image="podium.sqsh"), False),
    ],
)
def test_host_fields_are_only_of_a_system_that_is_this_machine(
    monkeypatch: pytest.MonkeyPatch, gpus: int, options: NewOptions, is_here: bool
) -> None:
    """The virtual machine on which a cluster's file was written was described as its node."""
    with_gpus(monkeypatch, gpus)
    draft = draft_for_machine("box", options)
    described = compose.load_draft(draft, "box").description
    stated = [key for key in HOST_FIELDS if is_stated(str(getattr(described, key)))]
    assert bool(stated) is is_here and ("for this machine (" in draft.head[0]) is is_here
    assert ("nothing of it was detected" in draft.head[1]) is not is_here


@pytest.mark.parametrize(
    ("model", "memory", "steps"),
    [("H200", "141 GB", 1), ("A100-SXM4-80GB", "80 GB", 1), ("A100", "40 GB", 2), ("Other", "16 GB, as is assumed", 4)],
)
def test_micro_batches_fit_into_the_memory_of_the_named_accelerator(
    monkeypatch: pytest.MonkeyPatch, model: str, memory: str, steps: int
) -> None:
    with_gpus(monkeypatch, 0)
    draft = draft_for_machine("box", NewOptions(gpus=8, accelerator=model, size="large"))
    assert f"micro-batches that fit into {memory}" in draft.comments["gradient_accumulation_steps"]
    assert draft.bert["gradient_accumulation_steps"] == steps


def test_an_unknown_gpu_is_taken_for_an_older_one_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, 0)
    name = "GeForce GTX 1080 Ti"
    draft = draft_for_machine("box", NewOptions(gpus=4, accelerator=name, size="large"))
    assert draft.bert["hyperparameters"] == "lamb_256"
    assert "4 A100" in draft.notes[0] and "since the kind is not known, to 4×GeForce" in draft.notes[0]
    assert draft.notes[-1].startswith(f"warning: {name!r} is no GPU that Podium knows")


def test_gpus_without_data_train_the_tiny_bert(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, 3)
    config = compose.load_draft(draft_for_machine("box", NewOptions(data="nowhere")), "box")
    assert (config.size, config.launch.device, config.global_batch_size) == ("tiny", "cuda", 18)


@pytest.mark.parametrize(("gpus", "model", "name"), [(1024, "A100", "lamb_4096"), (512, "GB200", "lamb_8192")])
def test_the_nearest_set_is_of_the_same_kind_of_gpus(gpus: int, model: str, name: str) -> None:
    assert nearest_set(gpus, model).name == name


@pytest.mark.parametrize("name", ["mine", "mine.yaml"])
def test_an_existing_file_is_not_replaced(systems: Path, name: str) -> None:
    systems.mkdir()
    (systems / "mine.yaml").write_text("mine")
    found = CliRunner().invoke(app, ["systems", "new", name])
    assert isinstance(found.exception, UsageError) and "exists already and is not replaced" in str(found.exception)
    assert (systems / "mine.yaml").read_text() == "mine" and len(list(systems.iterdir())) == 1


@pytest.mark.parametrize("name", ["laptop", "../mine", "a b", "", "costs", "search"])
def test_names_that_are_taken_or_paths_are_refused(name: str) -> None:
    assert load.USER_SYSTEMS == compose.USER_SYSTEMS
    with pytest.raises(UsageError):
        target_path(name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--launcher", "slrum"],
            "--launcher: found slrum (did you mean slurm?); allowed are torchrun",
        ),
        (["--recipe", "packd"], "--recipe: found packd (did you mean packed?)"),
        (["--accelerator", "H" * 201], "--accelerator: has 201 characters; allowed are 200"),
        (["--size", "huge"], "--size: found huge; allowed are large, tiny"),
        (["--gpus", "8"], "--gpus: nvidia-smi lists no GPU here; name their model with --accelerator"),
        (
            ["--gpus", "8", "--accelerator", "H200", "--size", "large", "--recipe", "presorted"],
            "--recipe presorted: trains with adamw, and no hyper-parameters for it are known near 768 samples a step",
        ),
        (
            ["--gpus", "8", "--accelerator", "H200", "--size", "large", "--recipe", "academic"],
            "--set 'phases=[{max_sequence_length: 128, share: 0.9, store: FOLDER}",
        ),
        (["--image", "podium.sqsh"], "--image: has no effect with --launcher torchrun"),
        (["--launcher", "docker", "--nodes", "2"], "--launcher docker: starts a run on one machine"),
        (["--from", "2.1/NVIDIA/dgxa100_ngc22.09_pytorch", "--nodes", "2"], "--nodes: with --from"),
    ],
)
def test_options_that_cannot_be_met_are_refused(
    systems: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    with_gpus(monkeypatch, 0)
    found = CliRunner().invoke(app, ["systems", "new", "mine", *options])
    assert isinstance(found.exception, UsageError) and message in str(found.exception)
    assert not systems.exists()


@pytest.mark.parametrize("name", ["MI300X", "AMD Instinct MI308X", "Gaudi 3", "TPU v6e"])
def test_other_accelerators_than_nvidias_are_refused(systems: Path, name: str) -> None:
    done = CliRunner().invoke(app, ["systems", "new", "other", "--gpus", "8", "--accelerator", name])
    assert isinstance(done.exception, UsageError) and "--accelerator: found" in str(done.exception)
    assert "does not run on AMD GPUs (ROCm)" in str(done.exception) and "podium compare" in str(done.exception)
    assert not systems.exists()


def test_nodes_without_a_launcher_need_a_rendezvous(systems: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, 0)
    options = ["--launcher", "torchrun", "--nodes", "4", "--gpus", "8", "--accelerator", "H200"]
    done = CliRunner().invoke(app, ["systems", "new", "four", *options])
    command = "podium run four --set launch.rendezvous=HOST:PORT --node-rank RANK"
    assert done.exit_code == 0 and command in done.stderr and "on each node" in done.stderr
    assert "  rendezvous: null\n" in (systems / "four.yaml").read_text()
