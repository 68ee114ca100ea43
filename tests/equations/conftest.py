"""Hypothesis uses the same examples on every run, without a deadline."""

from hypothesis import settings

settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")
