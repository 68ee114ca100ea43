"""Turn a spec into a finished run folder: assemble, train, resume, summarize. Package `studies` plans many runs."""
