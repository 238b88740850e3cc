"""File formats of other projects for BERT samples: fixed-width and variable-length HDF5, and TFRecord."""
