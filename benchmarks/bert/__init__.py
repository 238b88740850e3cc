"""BERT as MLPerf Training measures it: rules, sizes, and text → samples. Knows no framework and no system."""
