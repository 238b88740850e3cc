"""Two systems, or two commits, held against each other: which is faster, and how sure that is."""
