"""The contract between harness and implementation: one typed, frozen configuration of a run."""
