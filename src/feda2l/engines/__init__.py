"""Engines train and score the rows of a population on a CPU or a GPU. How rows travel is not known here."""
