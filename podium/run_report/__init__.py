"""One's own runs, read from what they left under runs/: how they went, told in a table, as JSON and as a page."""
