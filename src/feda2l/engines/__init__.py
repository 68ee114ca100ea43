"""Engines train and score the rows of a population on a CPU or a GPU. They do not exchange rows between nodes."""
