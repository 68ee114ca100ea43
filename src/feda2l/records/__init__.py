"""What a run writes to disk: round records, the run folder, its lock and curve metrics. Nothing is trained here."""
