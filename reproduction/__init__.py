"""Tables, figures, studies and records tools behind this project's evidence pages; none of it is installed.

What a user's own study needs, from tables to the paper's numbers, lives in `feda2l`, which never imports this package.
"""
