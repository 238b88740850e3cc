"""Sets of runs: prepare the data, launch the processes, collect the results."""
