"""From text to samples: tokenizing, sample generation and the preparation of a sample store."""
