"""Search for hyper-parameters that need fewer samples to the target; every trial is a real training run."""
