"""What is measured: one package a benchmark."""
