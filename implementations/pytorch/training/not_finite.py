"""Which samples a batch was made of whose loss is not a finite number."""

import json
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path

from benchmarks.bert.store import SampleStore
from benchmarks.errors import WorkError
from benchmarks.files import write_whole
from implementations.pytorch.data.batch_plan import GlobalBatch

MOST_NAMED = 4


class NotFinite(WorkError):
    """The loss of a step is not a finite number. All ranks find it out together, one step late."""

    def __init__(self, step: int, loss: float, whole: GlobalBatch) -> None:
        super().__init__(f"the loss of step {step} is {loss}")
        self.step, self.loss, self.whole = step, loss, whole


def with_samples(error: NotFinite, store: SampleStore, path: Path) -> WorkError:
    """The failure with the samples of the batch: all of them are written to `path`, by rank."""
    starts = [0, *accumulate(len(shard) for shard in store.shards)]
    whole, ranks = error.whole, len(error.whole.micro_batch_slots)
    samples = []
    for rank in range(ranks):
        for micro_batch, part in enumerate(whole.micro_batches(rank)):
            for index in whole.indices[part].tolist():
                shard = bisect_right(starts, index) - 1
                place = {"shard": str(store.paths[shard]), "sample_of_shard": index - starts[shard]}
                samples.append({"rank": rank, "micro_batch": micro_batch, "index": index, **place})
    write_whole(path, json.dumps({"step": error.step, "loss": str(error.loss), "samples": samples}, indent=1) + "\n")
    named = ", ".join(
        f"{sample['index']} ({Path(str(sample['shard'])).name} {sample['sample_of_shard']})"
        for sample in samples[:MOST_NAMED]
    )
    more = f" and {len(samples) - MOST_NAMED} more" if len(samples) > MOST_NAMED else ""
    return WorkError(
        f"{error} on samples {named}{more}, all of which are in {path}; "
        "lower optimizer.learning_rate or use precision fp32, and start again"
    )
