"""The result log passes the official checker under every ruleset, and that of a failed run can be closed."""

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bert.rules import RULESETS
from podium.config.schema import RunConfig
from podium.core import clock
from podium.core.clock import Moment
from podium.core.errors import WorkError
from podium.mllog.compliance import check_compliance
from podium.mllog.read import read_log
from podium.mllog.write import DISCLOSED_KEYS, ResultLog, close_as_aborted

ALL_ACCEPT = dict.fromkeys(RULESETS, "")


def keys(path: Path) -> list[str]:
    return [event.key for event in read_log(path).events]


def value(path: Path, key: str) -> Any:
    (found,) = [event.value for event in read_log(path).events if event.key == key]
    return found


@pytest.mark.parametrize("division", ["open", "closed"])
def test_official_checker_accepts_a_run_under_every_ruleset(
    division: str, open_config: RunConfig, closed_config: RunConfig, write_log: Any
) -> None:
    path = write_log(open_config if division == "open" else closed_config)
    assert value(path, "submission_division") == division
    assert check_compliance(path) == ALL_ACCEPT


def test_ruleset_6_1_accepts_the_log_but_for_its_benchmark(open_config: RunConfig, write_log: Any) -> None:
    """BERT is no benchmark of round 6.1; as one of flux1 the log lacks the loss of flux1 and nothing else."""
    path = write_log(open_config)
    text = path.read_text(encoding="utf-8").replace('"value": "bert"', '"value": "flux1"')
    path.write_text(text, encoding="utf-8")
    output = check_compliance(path, ["6.1.0"])["6.1.0"]
    assert re.findall(r"Required .*|failed test: .*", output) == [
        "Required AT_LEAST_ONE occurrence of 'averaged_validation_loss' but found 0"
    ]
    path.write_text(re.sub(".*micro_batch_size.*\n", "", text), encoding="utf-8")
    assert "EXACTLY_ONE occurrence of 'micro_batch_size' but found 0" in check_compliance(path, ["6.1.0"])["6.1.0"]


def test_the_keys_of_6_1_are_logged_as_used(open_config: RunConfig, write_log: Any) -> None:
    config = open_config.model_copy(update={"gradient_accumulation_steps": 4})
    logged = {event.key: event.value for event in read_log(write_log(config)).events}
    assert {key: logged[key] for key in DISCLOSED_KEYS} == {
        "lowest_numerical_precision_in_linear": "bfloat16",
        "lowest_numerical_precision_in_attn": "bfloat16",
        "lowest_numerical_precision_in_comm": "fp32",
        "tensor_parallelism": 1,
        "pipeline_parallelism": 1,
        "context_parallelism": 1,
        "expert_parallelism": 1,
        "micro_batch_size": 4,
        "config_filename": "submitted/laptop.yaml",
    }


def test_official_checker_accepts_an_aborted_open_run(open_config: RunConfig, write_log: Any) -> None:
    path = write_log(open_config, accuracies=(0.1, 0.2))
    assert [e.metadata["status"] for e in read_log(path).events if e.key == "run_stop"] == ["aborted"]
    assert check_compliance(path, RULESETS[-1:]) == {RULESETS[-1]: ""}


def test_restart_is_logged_and_accepted(open_config: RunConfig, write_log: Any, tmp_path: Path) -> None:
    whole = write_log(open_config).read_text(encoding="utf-8")
    cut = whole.index("\n", whole.index('"eval_stop"')) + 1
    path = tmp_path / "restarted.txt"
    path.write_text(whole[:cut], encoding="utf-8")
    with ResultLog(path) as log:
        log.log_restart(2, 2048)
    path.write_text(path.read_text(encoding="utf-8") + whole[cut:], encoding="utf-8")
    (event,) = [event for event in read_log(path).events if event.key == "podium_restarted"]
    assert (event.value, event.metadata["epoch_num"]) == (2, 2048)
    assert set(check_compliance(path, ["1.1.0", "5.0.0"]).values()) == {""}


def test_order_of_lines(open_config: RunConfig, write_log: Any) -> None:
    found = keys(write_log(open_config))
    block = ["block_start", "block_stop", "eval_start", "eval_accuracy", "eval_stop"]
    assert found[-14:] == ["init_stop", "run_start", *block, *block, "run_stop", "train_samples"]
    assert found[0] == "submission_benchmark"
    assert found.index("cache_clear") < found.index("init_start") < found.index("seed") < found.index("init_stop")


def test_hyperparameters_are_logged_as_used(open_config: RunConfig, closed_config: RunConfig, write_log: Any) -> None:
    path = write_log(closed_config)
    logged = {event.key: event.value for event in read_log(path).events}
    assert (logged["seed"], logged["global_batch_size"], logged["eval_samples"]) == (8, 448, 10_000)
    assert logged["opt_lamb_weight_decay_rate"] == 0.01
    assert logged["opt_epsilon"] == logged["opt_lamb_epsilon"] == 1e-6
    assert (logged["opt_name"], logged["opt_learning_rate_training_steps"]) == ("lamb", 7100)
    assert (logged["submission_org"], logged["submission_status"]) == ("Podium", "onprem")
    tensors = [e.metadata["tensor"] for e in read_log(path).events if e.key == "weights_initialization"]
    assert len(tensors) == len(set(tensors)) == 398
    path = write_log(open_config, name="open.txt")
    logged = {event.key: event.value for event in read_log(path).events}
    assert (logged["opt_name"], logged["opt_adamw_weight_decay"], logged["seed"]) == ("adamw", 0.01, 7)
    assert (logged["opt_adamw_beta_1"], logged["opt_adamw_beta_2"]) == (0.9, 0.98)
    assert "weights_initialization" not in logged


@pytest.mark.parametrize("cleared", [True, False])
def test_cache_clear_is_logged(open_config: RunConfig, tmp_path: Path, cleared: bool) -> None:
    with ResultLog(tmp_path / "log.txt") as log:
        log.log_submission(open_config, caches_cleared=cleared)
    assert value(tmp_path / "log.txt", "cache_clear") is cleared


def test_epochs_are_counted_in_samples(open_config: RunConfig, write_log: Any) -> None:
    path = write_log(open_config)
    assert value(path, "train_samples") == 4_096
    events = read_log(path).events
    assert [e.metadata["first_epoch_num"] for e in events if e.key == "block_start"] == [0, 2048]
    assert {e.metadata["epoch_count"] for e in events if e.key == "block_start"} == {2048}
    assert [e.metadata["epoch_num"] for e in events if e.key == "eval_accuracy"] == [2048, 4096]


def test_every_line_is_flushed(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "log.txt"
    with ResultLog(path) as log:
        for number in range(3):
            log.event("seed", number)
            assert len(path.read_text(encoding="utf-8").splitlines()) == number + 1
    with ResultLog(path) as log:
        log.event("seed", 3)
    assert [event.value for event in read_log(path).events] == [0, 1, 2, 3]


def test_metadata_has_the_caller_s_file(tmp_path: Path) -> None:
    with ResultLog(tmp_path / "log.txt") as log:
        log.log_run_stop("success", 3)
    assert {event.metadata["file"] for event in read_log(tmp_path / "log.txt").events} == {
        "tests/podium/mllog/test_write.py"
    }


def test_names_may_have_any_characters(write_system: Any, write_log: Any) -> None:
    from podium.config.load import load_system

    config = load_system(str(write_system({"description.submitter": 'Zwölf "東京"\u2028\\'})), settings=["seed=1"])
    path = write_log(config)
    assert value(path, "submission_org") == 'Zwölf "東京"\u2028\\'
    assert check_compliance(path, RULESETS[-1:]) == {RULESETS[-1]: ""}


# Clock changes


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Replace the machine's clocks, in seconds; `boot` is monotonic."""
    clocks = {"wall": 1.7e9, "boot": 50.0}
    monkeypatch.setattr(clock, "wall_seconds", lambda: clocks["wall"])
    monkeypatch.setattr(clock, "boot_seconds", lambda: clocks["boot"])
    return clocks


def advance(machine: dict[str, float], seconds: float, step: float = 0.0) -> None:
    machine["boot"] += seconds
    machine["wall"] += seconds + step


@pytest.mark.parametrize("step", [3.0, -3.0, 3600.0, -3600.0])
def test_run_with_a_clock_change_is_aborted_with_correct_times(
    machine: dict[str, float], tmp_path: Path, step: float
) -> None:
    path = tmp_path / "log.txt"
    with ResultLog(path) as log:
        log.log_run_start()
        advance(machine, 5.0, step)
        with pytest.raises(WorkError, match=re.escape(f"set by {step:+,.1f} s while the run was timed")):
            log.log_run_stop("success", 16)
    events = {event.key: event for event in read_log(path).events}
    assert events["run_stop"].time_ms - events["run_start"].time_ms == 5000
    assert events["run_stop"].metadata["status"] == "aborted"
    assert events["podium_clock_stepped"].value == step


@pytest.mark.parametrize("step", [0.0, 1.0, -1.0])
def test_leap_second_is_allowed_and_changes_no_time(machine: dict[str, float], tmp_path: Path, step: float) -> None:
    path = tmp_path / "log.txt"
    with ResultLog(path) as log:
        advance(machine, 60.0, 3600.0)  # before the run, when clocks are set
        log.log_run_start()
        advance(machine, 5.0, step)
        log.log_run_stop("success", 16)
    events = {event.key: event for event in read_log(path).events}
    assert events["run_stop"].time_ms - events["run_start"].time_ms == 5000
    assert events["run_stop"].metadata["status"] == "success"


def test_closing_line_is_last_after_the_clock_was_set_back(machine: dict[str, float], tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    with ResultLog(path) as log:
        log.log_run_start()
    advance(machine, 5.0, -3600.0)
    assert close_as_aborted(path)
    times = [event.time_ms for event in read_log(path).events]
    assert times == sorted(times)


def test_time_of_a_stopped_process_counts(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    pid = os.fork()
    if pid == 0:
        with ResultLog(path) as log:
            log.log_run_start()
            os.kill(os.getpid(), signal.SIGSTOP)
            log.log_run_stop("success", 16)
        os._exit(0)
    _, status = os.waitpid(pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    before = Moment.now()
    while before.elapsed() < 0.2:
        time.sleep(0.05)
    os.kill(pid, signal.SIGCONT)
    assert os.waitpid(pid, 0)[1] == 0
    events = {event.key: event for event in read_log(path).events}
    assert events["run_stop"].time_ms - events["run_start"].time_ms >= 199
    assert events["run_stop"].metadata["status"] == "success"


# Failed runs


def cuts(lines: list[bytes]) -> list[tuple[str, bytes]]:
    """Return a log cut off after each of its lines, before the line's ending, and within it."""
    found = []
    for number, line in enumerate(lines):
        before = b"".join(lines[:number])
        key = json.loads(line.partition(b":::MLLOG ")[2])["key"]
        found.append((f"after {key}", before + line))
        found.append((f"without the end of the line of {key}", before + line.rstrip(b"\n")))
        found.append((f"inside {key}", before + line[: len(line) // 2]))
        found.append((f"after the first byte of {key}", before + line[:1]))
    return found


def closing_errors(path: Path) -> list[str]:
    """Close the log after each possible cut, and return what is wrong."""
    whole = path.read_bytes().splitlines(keepends=True)
    wrong = []
    for where, content in cuts(whole):
        path.write_bytes(content[: content.rfind(b"\n") + 1])  # a line without its end is cut off
        had_begun = "run_start" in keys(path)
        path.write_bytes(content)
        closed = close_as_aborted(path)
        found = keys(path)
        if not had_begun:
            if closed or path.read_bytes() != content:
                wrong.append(f"{where}: closed or changed before run_start")
            continue
        once = [key for key in ("run_start", "run_stop", "train_samples") if found.count(key) != 1]
        lines = path.read_bytes().splitlines()
        whole_lines = all(line.startswith(b":::MLLOG {") and line.count(b":::MLLOG") == 1 for line in lines)
        if not closed or once or len(found) != len(lines) or not whole_lines:
            wrong.append(f"{where}: {closed=} {whole_lines=} not exactly once: {once}")
        stops = [event for event in read_log(path).events if event.key == "run_stop"]
        if where.startswith(("after run_stop", "inside train_samples")) and stops[0].metadata["status"] != "success":
            wrong.append(f"{where}: the run had reached its target")
        again = path.read_bytes()
        if not close_as_aborted(path) or path.read_bytes() != again:
            wrong.append(f"{where}: a second time changes it")
    return wrong


def test_log_cut_off_anywhere_is_closed_as_aborted(open_config: RunConfig, write_log: Any) -> None:
    assert closing_errors(write_log(open_config)) == []


@pytest.mark.parametrize("tail", [b"\xff\xfe", b":::MLLOG \xc3", b":::MLLOG {}\0", "\u2028".encode()])
def test_incomplete_last_line_is_removed(open_config: RunConfig, write_log: Any, tail: bytes) -> None:
    path = write_log(open_config)
    before, events = path.read_bytes(), read_log(path).events
    path.write_bytes(before + tail)
    assert read_log(path).events == events
    assert close_as_aborted(path)
    assert path.read_bytes() == before


def test_status_is_that_of_run_stop(open_config: RunConfig, write_log: Any) -> None:
    assert read_log(write_log(open_config, accuracies=(0.1,), name="aborted.txt")).status == "aborted"
    path = write_log(open_config)
    assert read_log(path).status == "success"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-7]))
    assert read_log(path).status is None
    assert close_as_aborted(path)
    assert read_log(path).status == "aborted"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_full_disk_is_a_work_error() -> None:
    log = ResultLog(Path("/dev/full"))
    with pytest.raises(WorkError, match=r"^/dev/full: the log cannot be written \(.*No space left on device\); check"):
        log.log_run_start()


@pytest.mark.parametrize("end", ["eval_accuracy", "block_start", "run_start", "eval_stop"])
def test_samples_are_those_of_the_last_event_with_epoch_num(open_config: RunConfig, write_log: Any, end: str) -> None:
    path = write_log(open_config)
    lines = path.read_bytes().splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if f'"{end}"'.encode() in line)
    path.write_bytes(b"".join(lines[: last + 1]) + b":::MLL")
    assert close_as_aborted(path)
    samples = {"eval_accuracy": 4096, "block_start": 2048, "run_start": 0, "eval_stop": 4096}[end]
    assert value(path, "train_samples") == samples
    (stop,) = [event for event in read_log(path).events if event.key == "run_stop"]
    assert stop.metadata["status"] == "aborted"
    assert stop.metadata["epoch_num"] == samples


def test_closed_log_is_accepted(open_config: RunConfig, write_log: Any) -> None:
    path = write_log(open_config)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-7]))  # in the second block
    assert close_as_aborted(path)
    assert check_compliance(path, RULESETS[-1:]) == {RULESETS[-1]: ""}


def test_complete_log_is_not_changed(open_config: RunConfig, write_log: Any) -> None:
    path = write_log(open_config)
    before = path.read_bytes()
    assert close_as_aborted(path)
    assert path.read_bytes() == before


def test_missing_or_empty_log_is_not_closed(tmp_path: Path) -> None:
    assert not close_as_aborted(tmp_path / "none.txt")
    (tmp_path / "empty.txt").touch()
    assert not close_as_aborted(tmp_path / "empty.txt")
    assert list(tmp_path.iterdir()) == [tmp_path / "empty.txt"]


def test_full_disk_is_a_work_error_also_at_close() -> None:
    with pytest.raises(WorkError, match=r"/dev/full: the disk is full \(No space left on device\)"):  # noqa: SIM117
        with ResultLog(Path("/dev/full")) as log:
            with pytest.raises(WorkError, match=r"/dev/full: the log cannot be written"):
                log.log_run_start()
