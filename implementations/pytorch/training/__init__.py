"""The run itself: processes, steps, evaluation, and what is written about them."""
