"""The sections `description` (MLPerf's 33 fields, all text) and `launch` (accepted and refused combinations)."""

import re
from typing import Any

import pytest
import yaml

from podium.config.load import SYSTEMS, load_resolved, load_system, write_resolved
from podium.config.schema import Description, Launch
from podium.core.errors import UsageError

FIELDS = yaml.safe_load((SYSTEMS / "laptop.yaml").read_text(encoding="utf-8"))["description"]


def test_description_has_mlperfs_33_fields(open_config: Any) -> None:
    document = open_config.description.model_dump(by_alias=True)
    assert len(document) == 33
    assert list(document) == list(FIELDS)
    assert "accelerator_on-chip_memories" in document
    assert all(isinstance(value, str) for value in document.values())


def test_description_values_become_text(write_system: Any) -> None:
    path = write_system({"description.number_of_nodes": 2, "description.cooling": 1.5, "description.hw_notes": ""})
    description = load_system(str(path)).description
    assert (description.number_of_nodes, description.cooling, description.hw_notes) == ("2", "1.5", "")


def test_on_chip_memories_key_has_mlperfs_spelling(write_system: Any) -> None:
    path = write_system({"description.accelerator_on-chip_memories": "L2 50 MB"})
    assert load_system(str(path)).description.accelerator_on_chip_memories == "L2 50 MB"


@pytest.mark.parametrize(
    ("status", "logged"),
    [
        ("Available on-premise", "onprem"),
        ("Available cloud", "cloud"),
        ("Preview", "preview"),
        ("Research, Development, or Internal (RDI)", "research"),
    ],
)
def test_submission_status_has_the_spelling_of_log_lines(status: str, logged: str) -> None:
    assert Description.model_validate({**FIELDS, "status": status}).submission_status == logged


@pytest.mark.parametrize("written", ["22.10", "010", "1e3", "null", "~", "yes", "true", "2026-01-02", ""])
def test_description_values_keep_their_spelling(tmp_path: Any, written: str) -> None:
    """Ubuntu 22.10 is not Ubuntu 22.1."""
    text = (SYSTEMS / "laptop.yaml").read_text(encoding="utf-8")
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace("operating_system: Linux", f"operating_system: {written}"), encoding="utf-8")
    config = load_system(str(path))
    assert config.description.operating_system == written
    assert load_system("laptop", settings=[f"description.operating_system={written}"]).description.operating_system == (
        written
    )
    write_resolved(config, tmp_path / "config.yaml")
    assert load_resolved(tmp_path / "config.yaml") == config


DOCKER = "launch.container={runtime: docker, image: podium}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([DOCKER], "launcher is torchrun, but container.runtime is docker; allowed with it is no container"),
        (
            ["launch.launcher=slurm", DOCKER],
            "launcher is slurm, but container.runtime is docker; allowed with it is no container or "
            "container.runtime pyxis or container.runtime apptainer",
        ),
        (["launch.slurm_options=[--exclusive]"], "launcher is torchrun, which does not use slurm_options; leave"),
        (["launch.binding=node"], "binding is node, but device is cpu; allowed with it are none, cores"),
        (
            ["launch.binding=cores", "launch.device=cuda"],
            "binding is cores, but device is cuda; allowed with it are none, node, socket, exclusive, core-complex",
        ),
        (["launch.rendezvous=a:65535"], "rendezvous is a:65535; allowed are ports up to 65534"),
        (["launch.requeue={}"], "launcher is torchrun, which does not support requeue; leave it out"),
        (
            ["launch.launcher=slurm", "launch.requeue={}", "launch.slurm_options=[--signal=USR2]"],
            "slurm_options has --signal=USR2, which requeue sets already; leave one of them out",
        ),
        (
            ["launch.launcher=slurm", "launch.requeue.time_limit=9", "launch.slurm_options=[-t60]"],
            "slurm_options has -t60, which requeue sets already; leave one of them out",
        ),
        *(
            (["launch.launcher=slurm", f"launch.requeue={requeue}", f"launch.slurm_options={options}"], message)
            for requeue, options, message in (
                ("{}", "[--sig=USR2]", "slurm_options has --sig=USR2 (which may mean --signal), which requeue sets"),
                ("{}", "[--op, truncate]", "slurm_options has --op (which may mean --open-mode), which requeue sets"),
                (
                    "{time_limit: 9}",
                    "[--exclusive, -Ht, '60']",
                    "slurm_options has -Ht (which may mean -t), which requ",
                ),
                (
                    "{}",
                    "[--no-requeue]",
                    "slurm_options has --no-requeue, which cannot be combined with requeue: the job ",
                ),
                (
                    "{}",
                    "[--no-r]",
                    "slurm_options has --no-r (which may mean --no-requeue), which cannot be combined with",
                ),
                (
                    "{}",
                    "[--ar=0-3]",
                    "slurm_options has --ar=0-3 (which may mean --array), which cannot be combined with",
                ),
                ("{}", "[-a0-3]", "slurm_options has -a0-3, which cannot be combined with requeue"),
                (
                    "{}",
                    "[--time=3]",
                    "slurm_options has --time 3, but the run may be signalled to stop 180 s before its end",
                ),
                (
                    "{}",
                    "['--time', '00:02:30']",
                    "slurm_options has --time 00:02:30, but the run may be signalled to stop",
                ),
                ("{}", "[-t3]", "slurm_options has -t 3, but the run may be signalled to stop"),
                (
                    "{time_limit: 60}",
                    "[--time-min=2]",
                    "slurm_options has --time-min 2, but the run may be signalled to",
                ),
            )
        ),
    ],
)
def test_incompatible_launch_options_are_refused(settings: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=r"--set launch\.[\w., -]+: " + re.escape(message)):
        load_system("laptop", settings=settings)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "[--wrap=id]",
            "slurm_options has --wrap=id, which chooses the program or the user that runs it; leave it out",
        ),
        ("[--wra=id]", "slurm_options has --wra=id (which may mean --wrap), which chooses the program"),
        ("[/tmp/evil.sh]", "slurm_options has '/tmp/evil.sh', which is not an option, so that sbatch would run it"),
        ("[--exclusive, /tmp/evil.sh]", "slurm_options has '/tmp/evil.sh', which is not an option"),
        ("[-H, /tmp/evil.sh]", "slurm_options has '/tmp/evil.sh', which is not an option"),
        ("[--tim, '5', /tmp/evil.sh]", "slurm_options has '5', which is not an option"),
        ("['--', /tmp/evil.sh]", "slurm_options has '--', which is not an option"),
        ("['-']", "slurm_options has '-', which is not an option"),
        ("['']", "slurm_options has '', which is not an option"),
        ("[--time]", "slurm_options ends with --time, whose value is missing"),
        ("[--output=/etc/x]", "slurm_options has --output=/etc/x, which chooses files or a folder"),
        ("[-Ho, x]", "slurm_options has 'x', which is not an option"),
        ("[-Hox]", "slurm_options has -Hox (which may mean -o), which chooses files or a folder"),
        ("[-D/tmp]", "slurm_options has -D/tmp, which chooses files or a folder"),
        ("['--export=ALL,LD_PRELOAD=/tmp/x.so']", "slurm_options has --export=ALL,LD_PRELOAD=/tmp/x.so, which sets en"),
        ("[--container-image=evil]", "slurm_options has --container-image=evil, which chooses a container"),
        ("[--parsable]", "slurm_options has --parsable, which changes what sbatch prints"),
        ('["--comment=\\e[2J"]', "slurm_options has '--comment=\\x1b[2J', which has a character that cannot"),
    ],
)
def test_slurm_options_other_than_resources_are_refused(options: str, message: str) -> None:
    with pytest.raises(UsageError, match=r"--set launch\.[\w., -]+: " + re.escape(message)):
        load_system("laptop", settings=["launch.launcher=slurm", f"launch.slurm_options={options}"])


@pytest.mark.parametrize("image", ["--privileged", "--volume=/:/host", "-v/:/host", '"a\\nb"'])
def test_image_that_looks_like_an_option_is_refused(image: str) -> None:
    container = f"launch.container={{runtime: docker, image: {image}}}"
    with pytest.raises(UsageError, match=r"^--set launch\.container\.image: found .*; name an image"):
        load_system("laptop", settings=["launch.launcher=docker", container])


def test_time_limit_must_exceed_the_signal_time() -> None:
    message = "--set launch.requeue.time_limit: time_limit is 3 minutes, but the run may be signalled to stop 180 s"
    with pytest.raises(UsageError, match=re.escape(message)):
        load_system("laptop", settings=["launch.launcher=slurm", "launch.requeue.time_limit=3", "checkpoint={}"])
    load_system("laptop", settings=["launch.launcher=slurm", "launch.requeue.time_limit=4", "checkpoint={}"])


def test_requeue_requires_checkpoints() -> None:
    settings = ["launch.launcher=slurm", "launch.requeue={}"]
    with pytest.raises(UsageError, match=r"launch\.requeue is set, but checkpoint is not, .*; set checkpoint=\{\} \("):
        load_system("laptop", settings=settings)
    overlapped = [*settings, "checkpoint={}", "evaluation.overlap=training"]
    with pytest.raises(UsageError, match=r"checkpoint is set, and evaluation\.overlap is training"):
        load_system("laptop", settings=overlapped)


@pytest.mark.parametrize("place", ["a", "a:", ":1", "a:0", "a b:1", "::1:3", "a:123456", "--x:1"])
def test_invalid_rendezvous_is_refused(place: str) -> None:
    with pytest.raises(UsageError, match=r"^--set launch\.rendezvous: found "):
        load_system("laptop", settings=[f"launch.rendezvous='{place}'"])


@pytest.mark.parametrize("mount", ["a", "a:b", "a:/b:rw", "a,b:/c", ":/b", "-v:/b"])
def test_invalid_mount_is_refused(mount: str) -> None:
    container = f"launch.container={{runtime: docker, image: x, mounts: ['{mount}']}}"
    with pytest.raises(UsageError, match=r"^--set launch\.container\.mounts\.0: found "):
        load_system("laptop", settings=["launch.launcher=docker", container])


@pytest.mark.parametrize(
    "given",
    [
        {"launcher": "docker", "container": {"runtime": "docker", "image": "x", "mounts": ["/a b:/c:ro", "d:/e"]}},
        {"launcher": "slurm"},
        {"launcher": "slurm", "container": {"runtime": "apptainer", "image": "x"}, "slurm_options": ["--exclusive"]},
        {"launcher": "slurm", "requeue": {}, "slurm_options": ["--time=60", "--nodelist=a"]},
        {"launcher": "slurm", "requeue": {}, "slurm_options": ["-t", "0", "--account=a", "-pa", "-Apta"]},
        {
            "launcher": "slurm",
            "slurm_options": ["--time=1", "--no-requeue", "--export=NONE", "--gres=gpu:8", "-x", "a"],
        },
        {"launcher": "slurm", "requeue": {"time_limit": 2, "signal_seconds": 59}, "slurm_options": ["--tres=x"]},
        {"nodes": 3, "rendezvous": "[fd00::2]:29500"},
        {"nodes": 3, "rendezvous": "node-0.cluster:65534", "binding": "cores"},
    ],
)
def test_compatible_launch_options_are_accepted(given: dict[str, Any]) -> None:
    launch = Launch.model_validate({"processes_per_node": 4, "device": "cpu", **given})
    assert launch.ranks == 4 * launch.nodes
    assert Launch.model_validate(launch.model_dump(mode="json")) == launch


@pytest.mark.parametrize("key", ["global_batch_size", "launch.nodes", "seed", "optimizer.warmup_steps"])
def test_integer_of_more_than_64_bits_is_refused(key: str) -> None:
    with pytest.raises(UsageError, match=rf"^--set {re.escape(key)}: found 9+; allowed are numbers below 2\^63"):
        load_system("laptop", settings=[f"{key}={'9' * 30}"])
