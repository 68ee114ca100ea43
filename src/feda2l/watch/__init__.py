"""The live page of runs that are going on."""
