"""A run's specification: its keys, their defaults and bounds, and how it is read from TOML. Nothing is built here."""
