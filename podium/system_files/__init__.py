"""Systems and recipes: lists of them, and system files written for this machine or from published results."""
