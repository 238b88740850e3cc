"""The command line: `main` defines the commands and their options; the other modules implement and print them."""

from podium.core.paths import prefer_podium_packages

prefer_podium_packages()  # before any module of the command line imports benchmarks or implementations
