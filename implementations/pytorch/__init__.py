"""BERT in PyTorch, trained without padding.

Entry points are run as processes, `python -m implementations.pytorch.ENTRY`: train, bench, doctor, describe, evaluate.
"""
