"""Preparation of samples from text: tokenization, sample generation and writing of a sample store."""
