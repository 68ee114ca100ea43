"""Runs whose nodes are in one process: their state, their round, their checkpoint."""
