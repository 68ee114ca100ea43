"""The command line: it parses options, calls the other packages and prints the result. It computes nothing."""
