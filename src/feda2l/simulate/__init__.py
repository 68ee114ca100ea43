"""Runs whose nodes are in one process: exchange, round loop, scores, checkpoint. `round` holds the round itself."""
