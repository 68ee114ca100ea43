"""The studies, tables and figures behind this project's evidence pages, and the tool that stores their records.

Everything that a user's own study needs is in the installed package `feda2l`, which never imports this one.
"""
