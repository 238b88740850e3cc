"""Evaluation of a checkpoint: the accuracy equals that of transformers on the same samples; errors are messages."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmarks.bert.checkpoint.podium import write_podium_checkpoint
from benchmarks.bert.checkpoint.weights import Weights
from benchmarks.bert.sizes import TINY
from benchmarks.bert.store import SampleStore
from implementations.pytorch import evaluate as entry
from implementations.pytorch.model.bert import BertForPreTraining

ROOT = Path(__file__).resolve().parents[3]
KEYS = ["masked_lm_accuracy", "next_sentence_accuracy", "masked_lm_loss", "samples", "seconds"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(9)
    model = BertForPreTraining(TINY, 12, dropout_probability=0.1)
    with torch.no_grad():  # so that next-sentence predictions differ between samples
        model.pooler.weight *= 5
        model.next_sentence.weight *= 5
    tensors = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    path = tmp_path_factory.mktemp("checkpoint") / "tiny.safetensors"
    write_podium_checkpoint(path, Weights(TINY, 12, tensors))
    return path


@pytest.fixture
def options(checkpoint: Path, tiny_store: tuple[SampleStore, Path]) -> dict[str, str]:
    """The options of a valid call."""
    store, vocabulary = tiny_store
    return {
        "--checkpoint": str(checkpoint),
        "--store": str(store.paths[0].parent),
        "--vocabulary": str(vocabulary),
        "--size": "tiny",
        "--samples": "50",
        "--precision": "fp32",
        "--device": "cpu",
    }


def argv_of(options: dict[str, str]) -> list[str]:
    return [text for option in options.items() for text in option]


@torch.no_grad()
def by_transformers(checkpoint: Path, store: SampleStore, folder: Path, samples: int) -> dict[str, float]:
    """Averages over the samples that the reference selects, one sequence at a time."""
    from transformers import BertForPreTraining as HuggingFaceBert

    from benchmarks.bert.checkpoint.convert import convert

    convert(checkpoint, folder / "hf", to="huggingface")
    model = HuggingFaceBert.from_pretrained(folder / "hf").eval()
    right = masked = 0
    loss, next_right, predictions = 0.0, 0, set()
    for number in range(samples):
        sample = store.read(number * len(store) // samples)
        ids = torch.from_numpy(sample.token_ids.astype(np.int64))[None]
        segments = (torch.arange(ids.shape[1]) >= sample.first_segment_length).long()[None]
        scores = model(input_ids=ids, token_type_ids=segments)
        logits = scores.prediction_logits[0, sample.masked_positions.tolist()]
        labels = torch.from_numpy(sample.masked_token_ids.astype(np.int64))
        right += int((logits.argmax(1) == labels).sum())
        predictions.add(int(scores.seq_relationship_logits.argmax()))
        next_right += int(scores.seq_relationship_logits.argmax()) == sample.next_sentence_label
        loss += float(F.cross_entropy(logits, labels, reduction="sum"))
        masked += len(labels)
    assert predictions == {0, 1}
    return {
        "masked_lm_accuracy": right / masked,
        "next_sentence_accuracy": next_right / samples,
        "masked_lm_loss": loss / masked,
    }


def test_the_accuracy_equals_that_of_transformers(
    tmp_path: Path, checkpoint: Path, tiny_store: tuple[SampleStore, Path], options: dict[str, str]
) -> None:
    """Started as a process, as `podium data verify` starts it."""
    done = subprocess.run(
        [sys.executable, "-m", "implementations.pytorch.evaluate", *argv_of(options), "--json"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    found = json.loads(done.stdout)
    assert list(found) == KEYS
    assert "evaluated 50 of 50 samples\n" in done.stderr
    expected = by_transformers(checkpoint, tiny_store[0], tmp_path, 50)
    assert 0 < expected["masked_lm_accuracy"] < 1
    assert found["masked_lm_accuracy"] == pytest.approx(expected["masked_lm_accuracy"], rel=1e-12)
    assert found["next_sentence_accuracy"] == expected["next_sentence_accuracy"]
    assert found["masked_lm_loss"] == pytest.approx(expected["masked_lm_loss"], rel=1e-5)
    assert found["samples"] == 50
    assert 0 < found["seconds"] < 60


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `main` callable in this process, which must not end with its parent."""
    monkeypatch.setattr(entry, "end_with_parent", lambda: None)
    monkeypatch.setattr(entry, "keep_freed_memory", lambda: None)


@pytest.mark.usefixtures("in_this_process")
def test_without_json_the_result_is_printed_as_lines(
    options: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for precision in ("fp32", "bf16"):
        assert entry.main(argv_of(options | {"--precision": precision, "--samples": "5"})) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split("  ")[0] for line in lines] == [key.replace("_", " ") for key in KEYS]
    assert not torch.distributed.is_initialized()


@pytest.mark.usefixtures("in_this_process")
def test_the_default_number_of_samples_is_that_of_the_size(
    options: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    del options["--samples"]
    assert entry.main(argv_of(options)) == 2
    assert "--samples is 1000" in capsys.readouterr().err


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("change", "exit_code", "message"),
    [
        (
            {"--checkpoint": "none"},
            2,
            "none: there is no such checkpoint; make one with `podium data checkpoint SOURCE ",
        ),
        ({"--checkpoint": "."}, 2, ".: is a folder; make one with"),
        ({"--store": "none"}, 2, "none: there is no such folder of shards"),
        ({"--vocabulary": "none"}, 2, "none: there is no such vocabulary file"),
        ({"--size": "large"}, 2, "the checkpoint is of size tiny, the model of size large"),
        ({"--samples": "0"}, 2, "--samples: found 0, allowed is 1 or more"),
        ({"--samples": "1000000"}, 2, "--samples is 1000000"),
        ({"--device": "cuda"}, 2, "--device: found cuda, but torch sees no GPU here; allowed is cpu"),
        ({"--checkpoint": "broken"}, 1, "cannot be read as safetensors"),
    ],
)
def test_errors_are_one_line_on_standard_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    change: dict[str, str],
    exit_code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    if change.get("--checkpoint") == "broken":
        (tmp_path / "broken").write_bytes(b"no")
    monkeypatch.chdir(tmp_path)
    assert entry.main([*argv_of(options | change), "--json"]) == exit_code
    output = capsys.readouterr()
    assert output.out == ""
    assert message in output.err
    assert len(output.err.splitlines()) == 1


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("change", [{"--size": "huge"}, {"--precision": "fp8"}, {"--samples": "many"}])
def test_invalid_options_exit_with_code_2(options: dict[str, str], change: dict[str, Any]) -> None:
    with pytest.raises(SystemExit) as caught:
        entry.main(argv_of(options | change))
    assert caught.value.code == 2
