"""From stored samples to ragged batches on the host: sampling, balancing, collating, prefetching."""
