"""Text of our own: an invented language to train on where Wikipedia is not at hand, and vocabularies for any text."""
