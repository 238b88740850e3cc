"""Synthetic logs in the formats that submitters use: the seeds of fuzzing."""

import json
from collections.abc import Callable, Iterator
from typing import Any

START = 1_650_000_000_000
EVALUATION_INTERVAL = 150_080  # samples


def event(time_ms: float, key: str, value: Any = None, kind: str | None = "POINT_IN_TIME", **metadata: Any) -> str:
    fields: dict[str, Any] = {"namespace": "", "time_ms": time_ms, "event_type": kind, "key": key, "value": value}
    if kind is None:
        del fields["event_type"], fields["namespace"]
    return ":::MLLOG " + json.dumps({**fields, "metadata": {"file": "/workspace/train.py", "lineno": 7, **metadata}})


def submission() -> Iterator[str]:
    for key, value in {"benchmark": "bert", "division": "closed", "org": "A", "platform": "B", "status": "x"}.items():
        yield event(START - 5000, f"submission_{key}", value)


def settings(batch: Any = 448) -> Iterator[str]:
    numbers = {
        "global_batch_size": batch,
        "seed": 2_147_483_647,
        "gradient_accumulation_steps": 1,
        "opt_base_learning_rate": 0.00035,
        "opt_learning_rate_training_steps": 7100.0,
        "opt_lamb_epsilon": 1e-06,
        "num_warmup_steps": 0,
    }
    for key, value in numbers.items():
        yield event(START - 4000, key, value)
    for number in range(3):
        yield event(START - 3000, "weights_initialization", True, tensor=f"encoder.layer.{number}.weight")


def podium_log() -> Iterator[str]:
    """As Podium logs: blocks with evaluations inside, samples as epochs."""
    yield from submission()
    yield event(START - 4500, "cache_clear", True)
    yield event(START - 4400, "init_start", None, "INTERVAL_START")
    yield from settings()
    yield event(START - 1, "init_stop", None, "INTERVAL_END")
    yield event(START, "run_start", None, "INTERVAL_START")
    for number, accuracy in enumerate((0.31, 0.56, 0.69, 0.7213), 1):
        time_ms, samples = START + 60_000 * number, EVALUATION_INTERVAL * number
        yield event(
            time_ms - 59_000, "block_start", None, "INTERVAL_START", first_epoch_num=samples - EVALUATION_INTERVAL
        )
        yield event(time_ms - 900, "eval_start", None, "INTERVAL_START", epoch_num=samples)
        yield event(time_ms, "eval_accuracy", accuracy, epoch_num=samples)
        yield event(time_ms, "eval_stop", None, "INTERVAL_END", epoch_num=samples)
        yield event(time_ms + 1, "block_stop", None, "INTERVAL_END", first_epoch_num=samples - EVALUATION_INTERVAL)
    yield event(START + 240_100, "run_stop", None, "INTERVAL_END", status="success", epoch_num=4 * EVALUATION_INTERVAL)
    yield event(START + 240_101, "train_samples", 4 * EVALUATION_INTERVAL)
    yield event(START + 240_101, "eval_samples", 10_000)


def prefixed_by_rank() -> Iterator[str]:
    """Every line has the prefix of a rank, and some come twice, between other output."""
    for number, line in enumerate(podium_log()):
        yield f"{number % 8}: {line}"
        if number % 5 == 0:
            yield f"device: cuda:{number} n_gpu: 1, fp16 {{'a': 1}}"
            yield f"{(number + 3) % 8}: " + line.replace(str(START)[:6], str(START)[:6], 1)


def constant_epochs() -> Iterator[str]:
    """epoch_num is 1 in every evaluation; only train_samples has the number of samples."""
    yield from submission()
    yield from settings(256)
    yield event(START, "run_start", None, "INTERVAL_START")
    for number in range(1, 6):
        yield event(START + 90_000 * number, "eval_accuracy", 0.5 + 0.045 * number, epoch_num=1)
    yield event(START + 450_900, "run_stop", None, "INTERVAL_END", status="success")
    yield event(START + 450_901, "train_samples", [3_000_064])
    yield event(START + 450_901, "eval_samples", 10_000.0)


def untyped() -> Iterator[str]:
    """No event_type; the submission's lines are last, with time 0."""
    yield event(START - 9000, "global_batch_size", 448, None)
    yield event(START, "run_start", None, None)
    yield event(START + 50_000, "eval_start", None, None, epoch_num=6)
    yield event(START + 60_000, "eval_stop", None, None, epoch_num=6)
    yield event(START + 60_001, "eval_accuracy", 0.7215, None, epoch_num=6)
    yield event(START + 60_500, "run_stop", None, None, status="success")
    yield event(0, "submission_benchmark", "bert", None)
    yield event(0, "submission_division", "closed", None)


def points() -> Iterator[str]:
    """Every event is a point in time without a namespace; one evaluation is logged late."""
    for line in podium_log():
        yield line.replace("INTERVAL_START", "POINT_IN_TIME").replace('"namespace": ""', '"namespace": null')
    yield event(START + 120_000, "eval_accuracy", 0.73, epoch_num=5 * EVALUATION_INTERVAL)


def aborted() -> Iterator[str]:
    for line in podium_log():
        yield line.replace("success", "aborted").replace("0.7213", "0.7113")


def truncated() -> Iterator[str]:
    lines = list(podium_log())
    yield from lines[:20]
    yield lines[20][:70]


DIALECTS: tuple[tuple[Callable[[], Iterator[str]], str], ...] = (
    (podium_log, "\n"),
    (podium_log, "\r\n"),
    (podium_log, "\r"),
    (prefixed_by_rank, "\n"),
    (constant_epochs, "\r\n"),
    (untyped, "\n"),
    (points, "\n"),
    (aborted, "\n"),
    (truncated, "\n"),
)


def logs() -> list[list[bytes]]:
    """Return the log of each dialect as lines with their endings."""
    return [[(line + end).encode() for line in lines()] for lines, end in DIALECTS]
