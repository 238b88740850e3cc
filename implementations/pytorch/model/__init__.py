"""BERT on unpadded [T, D] activations (tokens, hidden width), its loss and its initial weights."""
