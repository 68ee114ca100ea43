"""The report page opened from disk in headless Chromium, without a network. Skipped without Chromium."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chromium import chromium
from feda2l.report.report import report
from synthetic_runs import rising, write_run, write_seeds

SECTIONS = ("curves", "rates", "graph", "distance", "bytes", "partition", "spec")
DESKTOP, PHONE = (1280, 900), (390, 800)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two settings and three rules, one seed censored; a run without layers, one without its data, a forecaster."""
    folder = tmp_path_factory.mktemp("page")
    for graph in ("ring", "full"):
        more: dict[str, Any] = {"topology": {"name": graph}, "data": {"nodes": 6}}
        options = {"nodes": 6, "more": more, "simulated": 9.0 if graph == "full" else None}
        write_seeds(folder / "runs" / graph, "constant", [8, None], **options)
        write_seeds(folder / "runs" / graph, "step", [6, 7], **options)
        write_seeds(folder / "runs" / graph, "feda2l", [3, 4], **options)
    (folder / "runs" / "ring" / "constant-1" / "layers.parquet").unlink()
    write_run(folder / "runs" / "other", rising(3), more={"data": {"name": "cifar10"}})
    naive = {"last_value": 0.9, "window_mean": 0.7}
    write_run(
        folder / "runs" / "series", [1.2, 0.8], metric="mse", naive=naive, more={"data": {"name": "exchange_rate"}}
    )
    report([folder / "runs"], folder / "out")
    return (folder / "out" / "index.html").as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as driver:
        driver.execute_cdp_cmd(
            "Network.emulateNetworkConditions",
            {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0},
        )
        yield driver


@pytest.fixture
def opened(browser: Any, page: str) -> Iterator[Callable[..., Any]]:
    """`opened(PHONE, dark=True)` opens the page and draws every panel. At the end the console must be empty."""

    def at(size: tuple[int, int] = DESKTOP, *, dark: bool = False) -> Any:
        width, height = size
        shape = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme, still]})
        browser.get(page)
        for section in SECTIONS:
            # repeat the scroll, because a reloaded page restores its scroll position
            scroll = f"document.getElementById('{section}').scrollIntoView({{behavior: 'instant'}});"
            wait(browser, f"{scroll} return drawn.has('{section}')")
        return browser

    yield at
    messages = [line for line in browser.get_log("browser") if line["level"] in ("SEVERE", "WARNING")]
    assert messages == []


def wait(browser: Any, condition: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 10).until(lambda driver: driver.execute_script(condition))


def column(browser: Any, table: int, number: int) -> list[str]:
    rows = f"[...document.querySelectorAll('#tables table')[{table}].tBodies[0].rows]"
    script = f"return {rows}.map(row => row.cells[{number}].textContent)"
    texts: list[str] = browser.execute_script(script)
    return texts


def test_every_panel_has_a_plot_or_a_sentence(opened: Callable[..., Any]) -> None:
    browser = opened()
    for section in SECTIONS[:-1]:
        script = f"""return [...document.querySelectorAll('#{section} .plot')].every(
            place => place.querySelector('svg.main-svg') || place.textContent.trim().length > 20)"""
        assert browser.execute_script(script), section
    assert "seed = 1" in browser.execute_script("return document.querySelector('#spec .spec').textContent")


def test_missing_data_is_explained(opened: Callable[..., Any]) -> None:
    browser = opened()
    missing = browser.execute_script("return data.runs.findIndex(run => typeof run.heat === 'string')")
    choose(browser, "rates", "run", missing)
    assert "No heat maps" in browser.execute_script("return document.querySelector('#rates').textContent")
    without_data = browser.execute_script("return data.runs.findIndex(run => /cifar10/.test(run.spec))")
    choose(browser, "partition", "run", without_data)
    assert "No partition: " in browser.execute_script("return document.querySelector('#partition').textContent")


def choose(browser: Any, section: str, what: str, number: int) -> None:
    browser.execute_script(
        f"""const select = document.querySelector('#{section} [data-choose={what}]');
        select.value = {number}; select.dispatchEvent(new Event('change'))"""
    )


def test_run_and_node_of_the_heat_maps_can_be_chosen(opened: Callable[..., Any]) -> None:
    browser = opened()
    choose(browser, "rates", "run", browser.execute_script("return data.runs.findIndex(run => run.heat.nodes === 6)"))
    value = "return document.querySelector('#rates .plot[data-what=divergence]').data[0].z[0][0]"
    first = browser.execute_script(value)
    choose(browser, "rates", "node", 3)
    assert browser.execute_script(value) == pytest.approx(4 * first, rel=1e-3)  # sigma is 0.1 (node + 1) / round
    assert first == pytest.approx(0.1, rel=1e-3)


def test_curves_use_simulated_seconds_if_all_methods_have_them(opened: Callable[..., Any]) -> None:
    browser = opened()
    timed, untimed = (
        browser.execute_script(f"return data.settings.findIndex(s => {sign}s.methods[0].seconds)") for sign in ("", "!")
    )
    shown = "return document.querySelector('#curves .across').offsetParent !== null"
    across = "const p = document.querySelector('#curves .plot'); return [p.layout.xaxis.title.text, p.data[0].x]"
    choose(browser, "curves", "setting", untimed)
    assert not browser.execute_script(shown)
    choose(browser, "curves", "setting", timed)
    assert browser.execute_script(shown)
    assert browser.execute_script(across) == ["round", list(range(1, 11))]
    browser.execute_script(
        "const select = document.querySelector('#curves .across'); select.value = 'seconds';"
        "select.dispatchEvent(new Event('change'))"
    )
    assert browser.execute_script(across) == ["simulated seconds", [9 * round for round in range(1, 11)]]
    choose(browser, "curves", "setting", untimed)
    assert browser.execute_script(across)[0] == "round"


def test_the_better_naive_forecast_is_drawn_with_the_curves(opened: Callable[..., Any]) -> None:
    browser = opened()
    levels = "return document.querySelector('#curves .plot').layout.shapes.map(shape => [shape.y0, shape.label.text])"
    for metric, expected in (
        ("mse", [[0.5, ""], [0.7, "no training: mean of what is seen"]]),
        ("accuracy", [[50, ""]]),
    ):
        choose(
            browser,
            "curves",
            "setting",
            browser.execute_script(f"return data.settings.findIndex(s => s.metric === '{metric}')"),
        )
        assert browser.execute_script(levels) == expected


def test_the_legend_toggles_with_the_keyboard(opened: Callable[..., Any]) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    browser = opened()
    choose(
        browser,
        "curves",
        "setting",
        browser.execute_script("return data.settings.findIndex(s => s.methods.length > 2)"),
    )
    visible = "return document.querySelector('#curves .plot').data.filter(trace => trace.visible).length"
    before = browser.execute_script(visible)
    button = browser.find_element(By.CSS_SELECTOR, "#curves .legend button")
    button.send_keys(Keys.SPACE)
    assert button.get_attribute("aria-pressed") == "false"
    assert browser.execute_script(visible) == before - 3  # the mean and both ends of the band
    button.send_keys(Keys.ENTER)
    assert browser.execute_script(visible) == before


def test_a_table_sorts_and_rules_that_missed_the_target_stay_last(opened: Callable[..., Any]) -> None:
    from selenium.webdriver.common.by import By

    browser = opened()
    titles = browser.execute_script(
        "return [...document.querySelectorAll('#tables .scroll')].map(box => box.ariaLabel)"
    )
    number = max(n for n, title in enumerate(titles) if title == "Rounds to target" and len(column(browser, n, 0)) > 2)
    header = browser.find_elements(By.CSS_SELECTOR, "#tables table")[number].find_elements(By.CSS_SELECTOR, "th")[1]
    header.find_element(By.TAG_NAME, "button").click()
    assert header.get_attribute("aria-sort") == "ascending"
    assert column(browser, number, 0) == ["feda2l", "step", "constant", "Improv."]
    header.find_element(By.TAG_NAME, "button").click()
    assert header.get_attribute("aria-sort") == "descending"
    assert column(browser, number, 0)[-2:] != ["feda2l", "step"]
    assert column(browser, number, 0)[-1] == "Improv."


@pytest.mark.parametrize("size", [DESKTOP, PHONE, (320, 640)])
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_is_wider_than_the_screen(opened: Callable[..., Any], size: tuple[int, int], dark: bool) -> None:
    browser = opened(size, dark=dark)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0]
    background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 200) == dark


def test_the_colours_follow_the_dark_scheme(opened: Callable[..., Any]) -> None:
    browser = opened()
    colour = "return document.querySelector('#curves .plot').layout.font.color"
    light = browser.execute_script(colour)
    scheme = {"name": "prefers-color-scheme", "value": "dark"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    wait(browser, f"return (() => {{ {colour} }})() !== '{light}'")
