"""Fixtures for tests of the live page: a browser and a server."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from served import served

from chromium import chromium


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    with chromium() as driver:
        yield driver


@pytest.fixture
def serve() -> Iterator[Callable[..., Any]]:
    """`serve(folder)` returns a running server with its `address`."""
    with ExitStack() as stack:
        yield lambda folder: stack.enter_context(served(folder))
