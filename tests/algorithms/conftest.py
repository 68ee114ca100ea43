"""These tests use one thread for sums, as every runtime does."""

import pytest


@pytest.fixture(autouse=True)
def _one_thread(one_thread_each: None) -> None:
    """Use one thread in every test of this folder."""
