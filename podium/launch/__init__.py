"""Launching of a run's processes: torchrun, several nodes, containers, Slurm."""
