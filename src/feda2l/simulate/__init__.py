"""Runs whose nodes are in one process: exchange, round loop, scores, checkpoint. The round itself is in `round`."""
