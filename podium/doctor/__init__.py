"""Before a run: what would fail late, found early. Each check is a function that says what it found."""
