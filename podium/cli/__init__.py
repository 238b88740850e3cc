"""The command line: one module per command, which parses, calls and prints."""

from podium.core.paths import prefer_own_packages

prefer_own_packages()  # before any module of the command line imports one
