"""What needs no torch: sampling, balancing, packing, step costs and prediction."""
