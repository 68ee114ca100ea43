"""From a spec to a finished run folder: assemble, train as a pack, resume, summarise. Many runs: `studies`."""
