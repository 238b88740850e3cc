"""What a run will take before it is made: a cost model of the step, a model of the network, and published experience.

No torch here: the strategies that balance a run are run themselves, for thousands of ranks, on one core.
"""
