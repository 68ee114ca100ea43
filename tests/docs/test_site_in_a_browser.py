"""The site opened from disk in headless Chromium, without a network. Skipped without Chromium."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_site import build

from chromium import chromium

pytestmark = pytest.mark.long
DESKTOP, PHONE = (1280, 900), (390, 800)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build("html", folder)
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium("performance") as driver:
        yield driver


@pytest.fixture
def opened(browser: Any, site: Path) -> Iterator[Callable[..., Any]]:
    """`opened("round", PHONE, dark=True)` opens a page. At the end the console is empty and no network was used."""

    def at(page: str, size: tuple[int, int] = DESKTOP, *, dark: bool = False) -> Any:
        width, height = size
        shape = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        name, _, query = page.partition("?")
        browser.get(f"{(site / f'{name}.html').as_uri()}{query and f'?{query}'}")
        return browser

    yield at
    assert [line for line in browser.get_log("browser") if line["level"] in ("SEVERE", "WARNING")] == []
    events = [json.loads(line["message"])["message"] for line in browser.get_log("performance")]
    requested = [
        event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"
    ]
    assert requested
    assert [url for url in requested if not url.startswith(("file:", "data:"))] == []


def all_pages(site: Path) -> list[str]:
    pages = [page.relative_to(site).with_suffix("").as_posix() for page in site.rglob("*.html")]
    return sorted(page for page in pages if not page.startswith("_modules"))


def test_no_page_scrolls_sideways_on_a_phone(opened: Callable[..., Any], site: Path) -> None:
    wide = {}
    for page in all_pages(site):
        browser = opened(page, PHONE)
        width = browser.execute_script("return document.documentElement.scrollWidth")
        if width > PHONE[0]:
            wide[page] = width
    assert wide == {}


LIGHTNESS = """
    const channels = value => value.match(/[\\d.]+/g).slice(0, 3).map(Number);
    const light = value => { const [r, g, b] = channels(value); return (.2126 * r + .7152 * g + .0722 * b) / 255; };
    const style = getComputedStyle(document.querySelector(arguments[0]));
    return [light(style.color), light(getComputedStyle(document.body).backgroundColor)];
"""


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("page", ["index", "round", "own-loop", "reference/loop", "reference/spec"])
def test_pages_follow_the_colour_scheme_of_the_system(opened: Callable[..., Any], page: str, *, dark: bool) -> None:
    text, background = opened(page, dark=dark).execute_script(LIGHTNESS, "article p, article td")
    assert (text > 0.6 and background < 0.2) if dark else (text < 0.3 and background > 0.8)


@pytest.mark.parametrize("dark", [False, True])
def test_the_figure_of_a_round_is_drawn(opened: Callable[..., Any], *, dark: bool) -> None:
    browser = opened("round", PHONE, dark=dark)
    find = "const image = document.querySelector('img[src$=\".svg\"]');"
    complete, natural, width = browser.execute_script(
        f"{find} return [image.complete, image.naturalWidth, image.width]"
    )
    assert complete
    assert natural == 520
    assert 300 < width <= PHONE[0]


def test_search_works_from_disk(opened: Callable[..., Any]) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    browser = opened("search?q=metropolis")
    result = "return document.querySelector('#search-results li a[href^=\"own-topology.html\"]')"
    assert WebDriverWait(browser, 20).until(lambda driver: driver.execute_script(result))
