"""The contract between harness and implementation: typed, frozen configuration of a run, and its folder's layout."""
