"""Starting the processes of a run: torchrun, several nodes, containers, Slurm."""
