"""From stored samples to ragged batches on the host: reading, collating, prefetching, exchange between ranks."""
