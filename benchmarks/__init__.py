"""The benchmarks: one package for each, independent of frameworks and systems."""
