"""A Slurm job that requeues itself: docker/slurm.sub at the end of its step, and the wait for the successor."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from podium.config.load import load_system
from podium.core.errors import UsageError, WorkError
from podium.core.paths import CODE_FOLDER
from podium.launch import container
from podium.launch.container import launcher_argv, submit_and_wait
from podium.run.run_set import RunRequest

FOLDER = "runs/laptop/2026-11-22/run_0"
RECORD = "runs/laptop/slurm-17"
REQUEUE = ["launch.launcher=slurm", "launch.requeue.time_limit=240", "checkpoint={}"]
# The record that the first node's `podium run` writes before it ends.
STOPPED = f'echo "$BEFORE $NOW {FOLDER}" > {RECORD}.stopped; exit 143'
# srun sends the signal before the limit, when the script already waits for it, and ends once it gets SIGTERM.
AT_LIMIT = f'kill -USR1 "$SCRIPT"; until [ -e signalled ]; do sleep 0.01; done; {STOPPED}'
FAKES = {
    "srun": 'read -r _ _ _ SCRIPT _ < "/proc/$PPID/stat"; eval "$STEP"',  # its parent waits in the background
    "scancel": 'echo "scancel $*" >> commands; touch signalled',
    "squeue": 'echo "$STATE"',
    "scontrol": 'echo "scontrol $*" >> commands; if [ -n "$REFUSED" ]; then echo "$REFUSED" >&2; exit 1; fi',
    "sbatch": 'echo "sbatch $* of ${SLURM_JOB_NUM_NODES-none}" >> commands; echo "18;cluster"; exit "$SBATCH"',
}
Script = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Run docker/slurm.sub with fake Slurm commands; returns exit code, called commands and messages."""
    (tmp_path / "podium" / "cli").mkdir(parents=True)
    (tmp_path / "podium" / "cli" / "main.py").touch()
    (tmp_path / "bin").mkdir()
    for name, text in FAKES.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
        (tmp_path / "bin" / name).chmod(0o755)

    def run(step: str, *options: str, state: str = "RUNNING", **others: str) -> tuple[int, list[str], str]:
        (tmp_path / "commands").unlink(missing_ok=True)
        job = {"SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_ON_NODE": "2"}
        answers = {"STEP": step, "STATE": state, "REFUSED": "", "SBATCH": "0", "BEFORE": "0", "NOW": "64", **others}
        done = subprocess.run(
            ["bash", CODE_FOLDER / "docker" / "slurm.sub", "--requeue", *options, "laptop", "--set", "a=1 2"],
            env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin", **job, **answers},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        commands = tmp_path / "commands"
        return (
            done.returncode,
            commands.read_text(encoding="utf-8").splitlines() if commands.exists() else [],
            done.stderr,
        )

    return run


# The script


def test_job_near_its_limit_saves_its_run_and_requeues_itself(script: Script) -> None:
    code, commands, messages = script(AT_LIMIT)
    assert (code, commands) == (143, ["scancel --signal=TERM 17.0", "scontrol requeue 17"])
    assert f"requeueing job 17, to resume {FOLDER} after its first 64 samples" in messages


def test_preempted_job_without_progress_requeues_itself(script: Script) -> None:
    """Slurm stopped its ranks: the time limit was not the cause."""
    assert script(STOPPED, BEFORE="64")[:2] == (143, ["scontrol requeue 17"])


def test_job_without_progress_at_its_limit_is_not_requeued(script: Script) -> None:
    code, commands, messages = script(AT_LIMIT, BEFORE="64")
    assert (code, commands) == (1, ["scancel --signal=TERM 17.0"])
    assert "came to its time limit without a checkpoint newer than that of 64 samples" in messages
    assert f"podium run laptop --resume {FOLDER}" in messages
    code, _, messages = script(AT_LIMIT, NOW="0")
    assert code == 1
    assert "--resume" not in messages


@pytest.mark.parametrize("container", [(), ("--pyxis", "podium.sqsh"), ("--apptainer", "podium.sif")])
def test_run_is_recorded_with_and_without_a_container(
    script: Script, tmp_path: Path, container: tuple[str, ...]
) -> None:
    code, commands, _ = script(f'printf "%s\\n" "$@" > arguments; {AT_LIMIT}', *container)
    arguments = (tmp_path / "arguments").read_text(encoding="utf-8").splitlines()
    assert arguments[-2:] == ["--job-record", RECORD]
    assert (code, commands) == (143, ["scancel --signal=TERM 17.0", "scontrol requeue 17"])


def test_doctor_does_not_record_a_run(script: Script, tmp_path: Path) -> None:
    script('printf "%s\\n" "$@" > arguments', "--doctor")
    assert "--job-record" not in (tmp_path / "arguments").read_text(encoding="utf-8")


@pytest.mark.parametrize("code", [0, 1, 2])
def test_finished_or_failed_run_is_not_requeued(script: Script, tmp_path: Path, code: int) -> None:
    """Also if the previous start was stopped, and if the run ends just after SIGTERM."""
    (tmp_path / "runs/laptop").mkdir(parents=True)
    (tmp_path / f"{RECORD}.stopped").write_text(f"0 64 {FOLDER}\n", encoding="utf-8")
    assert script(f"exit {code}")[:2] == (code, [])
    limit = f'kill -USR1 "$SCRIPT"; until [ -e signalled ]; do sleep 0.01; done; exit {code}'
    assert script(limit)[:2] == (code, ["scancel --signal=TERM 17.0"])


@pytest.mark.parametrize("state", ["CANCELLED", "COMPLETING", ""])
def test_job_ended_from_outside_is_not_requeued(script: Script, state: str) -> None:
    code, commands, messages = script(f'kill -TERM "$PPID" "$SCRIPT"; {STOPPED}', state=state)
    assert (code, commands) == (143, [])
    assert f"its state is {state}" in messages


def test_records_of_an_older_job_with_the_same_number_are_removed(script: Script, tmp_path: Path) -> None:
    (tmp_path / "runs/laptop").mkdir(parents=True)
    files = [tmp_path / f"{RECORD}.{end}" for end in ("run", "next")]
    found = []
    for count in ("1", "0"):
        for file in files:
            file.touch()
        script("exit 0", SLURM_RESTART_COUNT=count)
        found.append([file.exists() for file in files])
    assert found == [[True, True], [False, False]]


def test_successor_is_submitted_where_requeueing_is_refused(script: Script, tmp_path: Path) -> None:
    options = ["--resubmit", "--nodes=2", "--resubmit", "--comment=a b"]
    code, commands, messages = script(STOPPED, *options, REFUSED="Requested operation is presently disabled")
    assert code == 143
    repeated = " ".join(options)
    again = f"docker/slurm.sub --job-record {RECORD} --requeue {repeated} laptop --set a=1 2"
    assert commands == [
        "scontrol requeue 17",
        f"sbatch --parsable --dependency=afterany:17 --nodes=2 --comment=a b {again} of none",
    ]
    assert "does not requeue job 17 (Requested operation is presently disabled)" in messages
    assert (tmp_path / "runs/laptop/slurm-17.next").read_text(encoding="utf-8") == "18\n"


@pytest.mark.parametrize(("options", "sbatch"), [([], "0"), (["--resubmit", "--nodes=2"], "1")])
def test_resume_command_is_printed_where_no_job_can_be_submitted(
    script: Script, tmp_path: Path, options: list[str], sbatch: str
) -> None:
    code, _, messages = script(STOPPED, *options, REFUSED="disabled", SBATCH=sbatch)
    assert code == 143
    assert f"; resume it with: podium run laptop --resume {FOLDER}" in messages
    assert not (tmp_path / "runs/laptop/slurm-17.next").exists()


# What is submitted


def test_sbatch_options_set_a_signal_and_repeat_for_the_successor() -> None:
    argv = launcher_argv(
        load_system("dgxa100_n8", settings=["launch.requeue.time_limit=240", "checkpoint={}"]), "dgxa100_n8", [], 0
    )
    script = argv.index(f"{CODE_FOLDER}/docker/slurm.sub")
    submitted = argv[2:script]
    assert {"--requeue", "--open-mode=append", "--signal=B:USR1@120", "--time=240", "--exclusive"} <= set(submitted)
    assert argv[script + 1] == "--requeue"
    pairs = argv[script + 2 : script + 2 + 2 * len(submitted)]
    assert pairs == [argument for option in submitted for argument in ("--resubmit", option)]


def test_doctor_is_not_requeued() -> None:
    config = load_system("laptop", settings=REQUEUE)
    assert not [
        option
        for option in launcher_argv(config, "laptop", [], 0, "doctor")
        if "requeue" in option or "signal" in option
    ]


def test_several_runs_with_requeue_are_refused() -> None:
    with pytest.raises(UsageError, match=r"^--runs: found 10, .* launch\.requeue is set .* --set launch\.requeue=null"):
        RunRequest("laptop", REQUEUE, runs=10).launcher_command()


def test_saving_timeout_is_the_signal_time_less_a_margin(script: Script, tmp_path: Path) -> None:
    argv = launcher_argv(
        load_system("laptop", settings=[*REQUEUE, "launch.requeue.signal_seconds=300"]), "laptop", [], 0
    )
    start = argv.index("--saving-seconds")
    script('echo "$TORCH_ELASTIC_SHUTDOWN_TIMEOUT" > seconds', *argv[start : start + 2])
    assert (tmp_path / "seconds").read_text(encoding="utf-8") == "280\n"
    script(
        'echo "$TORCH_ELASTIC_SHUTDOWN_TIMEOUT" > seconds',
        *argv[start : start + 2],
        TORCH_ELASTIC_SHUTDOWN_TIMEOUT="9",
    )
    assert (tmp_path / "seconds").read_text(encoding="utf-8") == "9\n"


# Waiting for the job


def test_successor_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its state is polled until it has ended, also while it is requeued; the exit code is the successor's."""
    runs = tmp_path / "runs" / "mine"
    runs.mkdir(parents=True)
    for job, text in (("17", ""), ("18", "{}\n")):
        (runs / f"slurm-{job}.txt").write_text(text, encoding="utf-8")
        (runs / f"slurm-{job}.err").write_text(f"job {job}\n", encoding="utf-8")
    (runs / "slurm-17.next").write_text("18\n", encoding="utf-8")
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\necho Submitted batch job 17; exit 143\n", encoding="utf-8")
    scontrol = tmp_path / "scontrol"
    states = "".join(f"{state} 0:0\n" for state in ("PENDING", "RUNNING", "REQUEUED", "COMPLETING")) + "FAILED 1:0\n"
    (tmp_path / "states").write_text(states, encoding="utf-8")
    scontrol.write_text(
        f"#!/bin/sh\ncd {tmp_path}; read -r state code < states; sed -i 1d states\n"
        '[ "$*" = "show job --oneliner 18" ] || exit 9\n'
        'echo "JobId=18 JobName=x JobState=$state Reason=None Requeue=1 ExitCode=$code DerivedExitCode=0:0"\n',
        encoding="utf-8",
    )
    for path in (sbatch, scontrol):
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(container, "WORKING_FOLDER", tmp_path)
    monkeypatch.setattr(container, "POLL_SECONDS", 0.0)
    assert submit_and_wait("mine", ["sbatch", "--wait", "script"]) == 1
    assert capsys.readouterr() == ("{}\n", "job 17\njob 18\n")
    assert (tmp_path / "states").read_text(encoding="utf-8") == ""
    scontrol.write_text(
        '#!/bin/sh\necho "slurm_load_jobs error: Invalid job id specified" >&2; exit 1\n', encoding="utf-8"
    )
    with pytest.raises(WorkError, match=r"^Slurm no longer has a record of job 18; see with `sacct --jobs=18`"):
        submit_and_wait("mine", ["sbatch", "--wait", "script"])
