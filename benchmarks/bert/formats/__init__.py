"""Other people's file formats for BERT samples: fixed and variable HDF5, TFRecord."""
