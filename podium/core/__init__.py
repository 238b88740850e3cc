"""What every other part may use: errors, files, processes, locks, text."""
