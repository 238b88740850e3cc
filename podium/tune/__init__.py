"""Search for hyper-parameters that reach the target with fewer samples: every trial is a real training run."""
