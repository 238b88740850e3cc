"""Verification of prepared stores. Each check is a function that yields findings."""
