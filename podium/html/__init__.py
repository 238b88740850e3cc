"""Renders single-file HTML pages with charts and tables, usable offline, on a phone, in print and by keyboard."""
