"""A network of real node processes on one machine, started, watched and collected. One node is in `peer`."""
