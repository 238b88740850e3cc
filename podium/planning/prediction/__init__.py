"""Prediction of a run's time from a cost model of the step, of the network, and published results."""
