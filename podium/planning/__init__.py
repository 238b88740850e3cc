"""Planning of a run without torch: sampling, balancing, packing, step costs and prediction."""
