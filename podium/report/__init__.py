"""Reports of local runs from the files under runs/, in the terminal, as JSON and as an HTML page."""
