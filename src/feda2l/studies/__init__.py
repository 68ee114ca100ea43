"""Studies: many runs from one TOML file, with their cells, stages, cost and progress. One run is in `runs`."""
