"""What a run leaves on disk: the record of a round, the run folder, its locks and its curves. Nothing is trained here."""
