"""Checks of what the official tools accept or get wrong: one function per check, in tables by subject."""
