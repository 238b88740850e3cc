"""Search for settings that reach the target on fewer samples: every trial is a real training."""
