"""What a run leaves on disk: the record of a round, the run folder, locks and curves. Nothing is trained here."""
