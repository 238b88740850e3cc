"""Losses of 200 steps by all kernel sets, optimizers and precisions on the same data: how far they are apart.

`TRITON_INTERPRET=1 python -m tests.implementations.pytorch.agreement 200`; test_agreement.py runs it. Prints one JSON
object. The model is small enough for the interpreter.
"""

import json
import sys
from itertools import product

import numpy as np
import torch

from benchmarks.bert.sizes import Size
from implementations.pytorch.bench.variants import Lengths
from implementations.pytorch.build_run import build_order, build_stepper
from implementations.pytorch.data.synthetic import synthetic_step
from implementations.pytorch.distributed.process_group import single_process
from implementations.pytorch.kernels.choose import load_kernels
from implementations.pytorch.optim.build import build_optimizer
from implementations.pytorch.phase_clock import PhaseClock
from implementations.pytorch.step import Stepper
from podium.config.load import load_system
from podium.config.schema import Clipping
from tests.implementations.pytorch.kernels.gpu import exact_casts, lasting_language

SIZE = Size("small", layers=2, hidden=16, heads=2, feed_forward=32, evaluation_samples=8, evaluation_interval=8)
VOCABULARY = 31
BATCHES = 8  # repeated, so that there is something to learn
CPU = torch.device("cpu")


def losses(kernels: str, algorithm: str, precision: str, steps: int) -> list[float]:
    """Return the sums of losses of each step."""
    config = load_system("laptop", settings=["attention=grouped", "dropout=0", "global_batch_size=2"])
    optimizer = config.optimizer.model_copy(
        update={"algorithm": algorithm, "learning_rate": 0.01, "warmup_steps": 0, "decay_steps": 10 * steps}
    )
    config = config.model_copy(
        update={
            "optimizer": optimizer,
            "clipping": Clipping(max_norm=1.0),
            "kernels": "eager" if kernels == "triton" else kernels,
            "precision": "bf16" if precision == "fp8" else precision,
            "seed": 3,
            "shape_step": 16,
        }
    )
    lengths = np.random.default_rng(0).integers(4, 9, 2 * BATCHES)
    with single_process(CPU) as processes:
        order = build_order(config, Lengths(lengths, 16), VOCABULARY, CPU)
        batches = [synthetic_step(order, number, 0, VOCABULARY) for number in range(BATCHES)]
        stepper = build_stepper(config, processes, VOCABULARY, SIZE)
        if kernels == "triton":
            stepper = _with_triton(stepper, config, precision)
        found = []
        for number in range(steps):
            result = stepper.take(batches[number % BATCHES], PhaseClock())
            found.append(float(result.masked_lm) + float(result.next_sentence))
        del stepper
    return found


def _with_triton(stepper: Stepper, config: object, precision: str) -> Stepper:
    """Return a stepper with the same weights on Triton's kernels, which a configuration refuses on a CPU."""
    from implementations.pytorch.distributed.gradient_sync import wrap_ddp
    from implementations.pytorch.model.bert import BertForPreTraining, ModelOptions

    options = ModelOptions(
        attention="grouped", kernels=load_kernels("triton"), fused_layers=True, fp8=precision == "fp8",
        vocabulary_multiple=64,
    )  # fmt: skip
    model = BertForPreTraining(SIZE, VOCABULARY, dropout_probability=0.0, model_options=options)
    model.load_state_dict(stepper.model.module.state_dict())
    run = stepper.config
    ddp, sync = wrap_ddp(model, CPU, run.clipping, run.wire, run.gradient_bucket_mib)
    optimizer = build_optimizer(model, run.optimizer, fused=True)
    return Stepper(run, stepper.processes, ddp, sync, optimizer, stepper.rates, stepper.precision)


def main(steps: int) -> dict[str, dict[str, float]]:
    """Return largest and mean deviations from eager kernels in fp32, as shares of the first loss, and last losses."""
    found = {}
    for algorithm in ("lamb", "adamw"):
        expected = np.array(losses("eager", algorithm, "fp32", steps))
        for kernels, precision in (
            *product(("numba", "triton"), ("fp32", "bf16")),
            ("eager", "bf16"),
            ("triton", "fp8"),
        ):
            values = np.array(losses(kernels, algorithm, precision, steps))
            apart = np.abs(values - expected) / expected[0]
            name = f"{algorithm} {kernels} {precision}"
            found[name] = {
                "largest": float(apart.max()),
                "mean": float(apart.mean()),
                "first": float(values[:BATCHES].mean()),
                "last": float(values[-BATCHES:].mean()),
                "last_expected": float(expected[-BATCHES:].mean()),
            }
            print(
                f"{algorithm} {kernels} {precision}",
                found[f"{algorithm} {kernels} {precision}"],
                file=sys.stderr,
                flush=True,
            )
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    exact_casts.install()
    lasting_language.install()
    print(json.dumps(main(int(sys.argv[1])), indent=1))
