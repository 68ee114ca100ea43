"""From a spec to a finished run folder: assemble, train as a pack, resume, summarize. Many runs are in `studies`."""
