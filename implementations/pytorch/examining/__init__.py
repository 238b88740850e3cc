"""What `podium doctor` asks of the processes of a run: what is possible here, and how ranks reach each other."""
