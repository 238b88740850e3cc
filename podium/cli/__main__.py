"""`python -m podium.cli`: the command line."""

from podium.cli.main import main

main()
