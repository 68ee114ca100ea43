"""Headless Chromium for the tests of pages. Tests are skipped where it is not installed."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = next((path for name in ("chromium", "google-chrome", "chrome") if (path := shutil.which(name))), None)
DRIVER = shutil.which("chromedriver")


@contextmanager
def chromium(*logs: str) -> Iterator[Any]:
    """Start a driver that records the named browser logs. Skip the test if Chromium is not installed."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install 'feda2l[test]'")
    if not (CHROMIUM and DRIVER):
        pytest.skip("needs Chromium and its driver: make browser, or apt-get install chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", dict.fromkeys(("browser", *logs), "ALL"))
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.execute_cdp_cmd("Network.enable", {})
    yield driver
    driver.quit()
