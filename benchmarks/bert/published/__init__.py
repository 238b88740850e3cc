"""Published MLPerf Training results of BERT: times, samples to target, and hyper-parameters."""
