"""`podium doctor`: checks of what would make a run fail late. Each check is a function that yields findings."""
