"""PyTorch's flight recorder in the report of a hang: which collective each rank has reached.

PyTorch keeps the last collectives of each process in a ring buffer (2,000 unless TORCH_FR_BUFFER_SIZE or
TORCH_NCCL_TRACE_BUFFER_SIZE is set), for NCCL and for gloo. A rank that detects a hang writes them to the run's folder,
flight_recorder/rank_N.json, and gives the others its last one of each process group. PyTorch's usual dump is a pickle;
only its JSON form is used here. Collectives in a CUDA graph are recorded when the graph is captured, not when it is
replayed.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch._C._distributed_c10d as c10d

from podium.core.files import make_folder, write_atomically
from podium.core.json_files import parse_json

# Functions of PyTorch with the trace as JSON: gloo's (and other backends'), and NCCL's in builds with NCCL.
DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
MAX_RANKS_NAMED = 8
MAX_TEXT = 60

# Last collective of a rank in each process group, by the group's name: number, operation with shape, whether it ended.
LastCollectives = Mapping[str, tuple[int, str, bool]]


def dump(folder: Path, rank: int) -> LastCollectives:
    """Write this rank's recorded collectives to `folder`, and return the last one of each process group.

    Raises WorkError if the file cannot be written.
    """
    traces = [parse_json(getattr(c10d, name)(True, False)) for name in DUMPS if hasattr(c10d, name)]
    traces = [trace for trace in traces if isinstance(trace, dict) and trace.get("entries")]
    if traces:
        write_atomically(make_folder(folder) / f"rank_{rank}.json", json.dumps(traces) + "\n")
    return last_collectives(traces)


def last_collectives(traces: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, str, bool]]:
    """The last collective of each process group in traces as PyTorch writes them; entries of another form are left out.

    A collective has ended if the recorder has retired it or marks it as completed.
    """
    found: dict[str, tuple[int, str, bool]] = {}
    for trace in traces:
        entries = trace.get("entries")
        for entry in entries if isinstance(entries, list) else ():
            try:
                number, name = int(entry["collective_seq_id"]), str(entry["profiling_name"])[:MAX_TEXT]
                sizes = ", ".join(str(size)[:MAX_TEXT] for size in entry["input_sizes"][:2])
                group = str(entry["process_group"][1] or entry["process_group"][0])[:MAX_TEXT]
                ended = bool(entry["retired"]) or entry["state"] == "completed"
            except (KeyError, TypeError, ValueError, IndexError):
                continue
            if group not in found or number >= found[group][0]:
                found[group] = (number, f"{name} of {sizes}" if sizes else name, ended)
    return found


def describe(by_rank: Sequence[LastCollectives | None]) -> str:
    """Describe the last collectives of all ranks, by rank: which are behind, and which have called another one.

    None stands for a rank that has reported none. Empty if no rank has recorded any.
    """
    groups = dict.fromkeys(group for last in by_rank if last for group in last)
    parts = [text for group in groups if (text := _describe_group(group, by_rank))]
    silent = [rank for rank, last in enumerate(by_rank) if last is None]
    if groups and silent:
        parts.append(f"{_ranks(silent)} reported no collectives")
    return "; ".join(parts)


def _describe_group(group: str, by_rank: Sequence[LastCollectives | None]) -> str:
    here = {rank: last[group] for rank, last in enumerate(by_rank) if last and group in last}
    furthest = max(number for number, _, _ in here.values())
    ahead = {rank: one for rank, one in here.items() if one[0] == furthest}
    if len(ahead) == len(here) and all(ended for _, _, ended in here.values()):
        return ""  # all ranks have ended the same one: they do not wait for each other in this group
    operations = Counter(operation for _, operation, _ in ahead.values())
    texts = []
    for operation in operations:
        ranks = [rank for rank, one in ahead.items() if one[1] == operation]
        verb = "is" if len(ranks) == 1 else "are"
        texts.append(f"{_ranks(ranks)} {verb} in collective {furthest} ({operation})")
    behind = {rank: one for rank, one in here.items() if one[0] < furthest}
    for number in sorted({number for number, _, _ in behind.values()}):
        ranks = [rank for rank, one in behind.items() if one[0] == number]
        operation = behind[ranks[0]][1]
        texts.append(f"{_ranks(ranks)} behind, last in collective {number} ({operation})")
    mismatch = "; ranks have called different collectives" if len(operations) > 1 else ""
    return f"process group {group}: {', '.join(texts)}{mismatch}"


def _ranks(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - MAX_RANKS_NAMED} more" if len(ranks) > MAX_RANKS_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:MAX_RANKS_NAMED]))}{more}"
