"""Tables, figures and pages from run folders."""
