"""Time-to-train prediction from cost models of the step and of the network, and from published results."""
