"""The live page of runs in progress: it reads their folders and serves the page. It never writes to a run."""
