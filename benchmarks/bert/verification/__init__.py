"""Is a prepared store right? Each check is a function that says what it found."""
