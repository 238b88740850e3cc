"""The command line: `main` has the commands and their options; the modules beside it parse, call and print."""

from podium.core.paths import prefer_own_packages

prefer_own_packages()  # before any module of the command line imports one
