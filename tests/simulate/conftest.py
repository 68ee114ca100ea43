"""Fixtures for tests of the simulator. Sums use one thread, as in the engines."""

import pytest


@pytest.fixture(autouse=True)
def _one_thread(one_thread_each: None) -> None:
    """Use one thread in every test of this folder."""
