"""BERT on [tokens, hidden] arrays: no padding enters."""
