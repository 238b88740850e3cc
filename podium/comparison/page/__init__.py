"""The HTML page of a comparison, with its charts and tables."""
