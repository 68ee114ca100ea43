"""Tables, figures and pages from finished run folders. Live pages are in `watch`."""
