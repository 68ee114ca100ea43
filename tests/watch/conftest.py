"""A browser and a server for the live page's tests."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from served import served

CHROMIUM = next((path for name in ("chromium", "google-chrome", "chrome") if (path := shutil.which(name))), None)
DRIVER = shutil.which("chromedriver")


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install 'feda2l[test]'")
    if not (CHROMIUM and DRIVER):
        pytest.skip("needs Chromium and its driver: make browser, or apt-get install chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def serve() -> Iterator[Callable[..., Any]]:
    """`serve(folder)`: a server with its `address`."""
    with ExitStack() as stack:
        yield lambda folder: stack.enter_context(served(folder))
