"""CUDA streams of the run: the compute stream, side streams of grouped attention, and the evaluation's stream."""

import torch

# PyTorch has 32 streams per device and priority, which it hands out in turn. The callbacks of collectives (DDP's hooks
# and the `then` of a future) take the next stream of priority 0 each time, so that after a few steps they would share
# any stream of that priority. A callback on the compute stream is ordered after the work submitted to it, and work
# after a callback waits for the collective. On the evaluation's stream a callback would even wait for all evaluation
# batches that are queued there. Streams of another priority are never shared with callbacks. They are few (far fewer
# than 32), so they do not share streams with each other either, and they all have the same priority, as before.
PRIORITY = -1


def new_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a stream that neither callbacks of collectives nor other streams of this module use."""
    return torch.cuda.Stream(device, priority=PRIORITY)  # type: ignore[no-untyped-call]
