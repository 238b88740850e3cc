"""Data loading: reading stored samples, collating ragged batches on the host, prefetching, exchange between ranks."""
