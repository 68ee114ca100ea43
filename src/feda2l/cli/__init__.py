"""The command line: it parses options, calls the other packages and prints. Nothing is computed here."""
