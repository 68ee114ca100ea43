"""Sums in these tests are made by one thread, as in every runtime."""

import pytest


@pytest.fixture(autouse=True)
def _one_thread(one_thread_each: None) -> None:
    """For every test of this folder."""
