"""`python -m feda2l` is the command line."""

from feda2l.cli.main import main

main()
