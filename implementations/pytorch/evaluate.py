"""Evaluation of a checkpoint, as in a run: `python -m implementations.pytorch.evaluate --checkpoint … --store …`.

One process, on the GPU if there is one. Progress is printed to standard error, the result to standard output. Exit
codes: 0 done, 1 failed, 2 wrong usage.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter

import torch

from benchmarks.bert.preparation.tokenization import Vocabulary
from benchmarks.bert.sizes import SIZES
from benchmarks.bert.store import SampleStore
from implementations.pytorch.build_run import load_checkpoint
from implementations.pytorch.data.batch import RaggedBatch
from implementations.pytorch.data.evaluation import evaluation_batches
from implementations.pytorch.distributed.process_group import keep_freed_memory, single_process
from implementations.pytorch.evaluation import evaluate
from implementations.pytorch.kernels.choose import load_kernels
from implementations.pytorch.model.bert import BertForPreTraining, ModelOptions
from implementations.pytorch.model.decoder import vocabulary_multiple
from implementations.pytorch.precision import resolve_precision
from podium.core.errors import PodiumError, UsageError
from podium.core.processes import end_with_parent
from podium.planning.balancing.interface import AssignmentSpec

LOCAL_BATCH_SIZE = 64
PROGRESS_INTERVAL_SECONDS = 10.0
PRECISIONS = ("auto", "fp32", "bf16")
DEVICES = ("auto", "cpu", "cuda")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="implementations.pytorch.evaluate", description=__doc__)
    parser.add_argument(
        "--checkpoint", type=Path, required=True, help="weights, as `podium data checkpoint` writes them"
    )
    parser.add_argument("--store", type=Path, required=True, help="a folder of prepared shards to evaluate on")
    parser.add_argument("--vocabulary", type=Path, required=True, help="vocab.txt of the store")
    parser.add_argument("--size", choices=sorted(SIZES), required=True)
    parser.add_argument("--samples", type=int, help="number of evaluation samples; default: that of the size")
    parser.add_argument("--precision", choices=PRECISIONS, default=PRECISIONS[0])
    parser.add_argument("--device", choices=DEVICES, default=DEVICES[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    arguments = parser.parse_args(argv)
    end_with_parent()
    try:
        result = _evaluate(arguments)
    except PodiumError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if arguments.json:
        print(json.dumps(result))
    else:
        print("\n".join(f"{name.replace('_', ' '):24}{value:.6g}" for name, value in result.items()))
    return 0


def _evaluate(arguments: argparse.Namespace) -> dict[str, float]:
    device, size = _device(arguments.device), SIZES[arguments.size]
    keep_freed_memory()
    store, vocabulary = SampleStore(arguments.store), Vocabulary.read(arguments.vocabulary)
    store.require_vocabulary(vocabulary, arguments.vocabulary)
    samples = size.evaluation_samples if arguments.samples is None else arguments.samples
    if samples < 1:
        raise UsageError(f"--samples: found {samples}, allowed is 1 or more")
    store.require_samples(samples, "--samples")
    kernels = load_kernels("numba" if device.type == "cpu" else "eager")
    options = ModelOptions(kernels=kernels, vocabulary_multiple=vocabulary_multiple(device))
    with torch.device("meta"):  # no initialisation: all weights are loaded below
        model = BertForPreTraining(size, len(vocabulary.tokens), dropout_probability=0.0, model_options=options)
    model.to_empty(device=device)
    load_checkpoint(model, arguments.checkpoint)
    batches = evaluation_batches(
        store, 0, AssignmentSpec(1, 1), samples=samples, local_batch_size=LOCAL_BATCH_SIZE, slot_width=None
    )
    started = perf_counter()
    with single_process(device) as processes:
        precision = resolve_precision(arguments.precision, device)
        accuracy = evaluate(model, _with_progress(batches, samples), processes, precision)
    return {
        "masked_lm_accuracy": accuracy.masked_lm,
        "next_sentence_accuracy": accuracy.next_sentence,
        "masked_lm_loss": accuracy.masked_lm_loss,
        "samples": accuracy.sequences,
        "seconds": perf_counter() - started,
    }


def _device(name: str) -> torch.device:
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise UsageError("--device: found cuda, but torch sees no GPU here; allowed is cpu")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def _with_progress(batches: Sequence[RaggedBatch], samples: int) -> Iterator[RaggedBatch]:
    """Yield the batches, and print the progress every few seconds and at the end."""
    done, last_report = 0, perf_counter()
    for batch in batches:
        yield batch
        done += batch.sequences
        if done == samples or perf_counter() - last_report > PROGRESS_INTERVAL_SECONDS:
            print(f"evaluated {done} of {samples} samples", file=sys.stderr, flush=True)
            last_report = perf_counter()


if __name__ == "__main__":
    sys.exit(main())
