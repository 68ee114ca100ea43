"""The live page of runs in progress. It reads run folders, serves the page, and never writes to a run folder."""
