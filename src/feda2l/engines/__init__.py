"""Engines train and score the rows of a population on a CPU or a GPU. Who talks to whom is in `simulate`."""
