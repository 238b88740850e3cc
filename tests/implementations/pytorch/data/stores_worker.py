"""One rank of test_open_stores: opens its stores together with the others and writes a summary or the error.

Arguments: file of the process group, rank, ranks, vocabulary, file for the result, folders of the stores.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from implementations.pytorch.data.open_stores import open_stores
from implementations.pytorch.distributed.process_group import Processes
from podium.core.errors import PodiumError


def main() -> None:
    rendezvous, rank, ranks, vocabulary, out, *folders = sys.argv[1:]
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=int(rank), world_size=int(ranks))
    here = Processes(int(rank), int(ranks), torch.device("cpu"))
    keys = ("data.store", "data.evaluation_store")
    try:
        named = {key: Path(folder) for key, folder in zip(keys, folders, strict=True)}
        stores, loaded_vocabulary = open_stores(named, Path(vocabulary), here, Path(out).with_name("data.json"))
        text = (
            f"vocabulary of {len(loaded_vocabulary.tokens)}, "
            f"{' and '.join(str(len(store)) for store in stores)} samples"
        )
    except PodiumError as error:
        text = f"{type(error).__name__}: {error}"
    Path(out).write_text(text, encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
