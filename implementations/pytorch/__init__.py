"""BERT in PyTorch, trained without padding. Entry points are modules run as processes: `train`."""
