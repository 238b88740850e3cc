"""Shared foundations that every other package may import: errors, files, processes, locks, text."""
