"""The live page in a real browser while a run folder grows."""

import itertools
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from growing import begin, cut_back, end, grow
from live_page import curve, state, status, wait
from served import served

DESKTOP, PHONE = (1280, 900), (390, 800)


@pytest.fixture
def opened(browser: Any, serve: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """`opened(folder)` opens the page. At the end the console may contain only errors about a stopped server."""

    def at(folder: Path, port: int | None = None) -> Any:
        emulate(browser, DESKTOP, dark=False)
        browser.get(f"http://127.0.0.1:{port}/" if port else serve(folder).address)
        browser.execute_script("window.first = true")  # lost if the page is reloaded
        return browser

    yield at
    loud = [line for line in browser.get_log("browser") if line["level"] in ("SEVERE", "WARNING")]
    browser.get("about:blank")
    assert [line for line in loud if "ERR_CONNECTION_REFUSED" not in line["message"]] == []


def test_from_an_empty_folder_to_a_finished_run_without_a_reload(opened: Callable[..., Any], tmp_path: Path) -> None:
    page = opened(tmp_path)
    wait(page, f"return {status}.includes('There is no run here yet')")
    assert page.execute_script("return document.querySelector('main').hidden")
    folder = begin(tmp_path / "one", rounds=9)
    wait(page, f"return {state('one')} === 'running'")
    grow(folder, range(1, 4))
    wait(page, f"return {curve}.length === 3")
    grow(folder, range(4, 8))
    wait(page, f"return {curve}.length === 7")
    assert page.execute_script(f"return {curve}") == pytest.approx([1, 2, 3, 4, 5, 6, 7])  # per cent
    assert page.execute_script(f"return {status}") == "Running: round 7/9, about 4 s left"
    assert page.title.startswith("77 % · ")

    folder.close()  # as the kernel does when a run is killed
    wait(page, f"return {state('one')} === 'stopped' && {status}.includes('--resume')")
    folder.open()
    cut_back(folder, 5)
    grow(folder, range(6, 9), add=0.001)
    wait(page, f"return {state('one')} === 'running' && {curve}.length === 8")
    assert page.execute_script(f"return {curve}") == pytest.approx([1, 2, 3, 4, 5, 6.1, 7.1, 8.1])

    grow(folder, range(9, 10))
    end(folder, 9)
    wait(page, f"return {status} === 'The run is finished.'")
    assert page.title.startswith("finished · ")
    assert page.execute_script("return window.first")


def test_a_tab_of_a_finished_run_stays_quiet(opened: Callable[..., Any], tmp_path: Path) -> None:
    folder = begin(tmp_path / "one", rounds=2)
    grow(folder, range(1, 3))
    end(folder, 2)
    page = opened(tmp_path)
    wait(page, f"return {status} === 'The run is finished.' && detail.id === 'one'")
    listen = "source.addEventListener('news', event => { window.received.push(...JSON.parse(event.data).runs); })"
    page.execute_script(f"window.received = []; {listen}")
    later = begin(tmp_path / "two")  # when this arrives, any event about the first run would have arrived
    wait(page, f"return {state('two')} === 'running'")
    assert page.execute_script("return window.received.map(run => run.id)") == ["two"]
    later.close()


def test_the_page_reports_a_lost_server_and_reconnects(opened: Callable[..., Any], tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = begin(tmp_path / "one")
    grow(folder, range(1, 3))
    with served(tmp_path, port):
        page = opened(tmp_path, port=port)
        wait(page, f"return {curve}.length === 2")
    wait(page, f"return {status}.startsWith('The connection to feda2l watch is lost')")
    grow(folder, range(3, 6))
    with served(tmp_path, port):
        wait(page, f"return {curve}.length === 5 && {status}.startsWith('Running')")
        assert page.execute_script("return window.first")
    folder.close()


def test_another_run_and_node_can_be_selected(opened: Callable[..., Any], tmp_path: Path) -> None:
    first, second = begin(tmp_path / "a", rounds=3), begin(tmp_path / "b")
    grow(first, range(1, 4))
    end(first, 3)
    grow(second, range(1, 5))
    page = opened(tmp_path)
    wait(page, "return choice.run === 'b' && detail.id === 'b'")  # a running run is selected automatically
    page.execute_script("document.getElementById('rates').scrollIntoView()")
    sigma = "document.querySelector('#rates .plot[data-what=divergence]').data"
    wait(page, f"return {sigma} && {sigma}[0].z[0].length === 4")
    page.execute_script("document.querySelector('#runs tr[data-key=a] button').click()")
    wait(page, f"return detail.id === 'a' && {sigma}[0].z[0].length === 3")
    choose = "const s = document.querySelector('#rates [data-choose=node]'); s.value = 2;"
    page.execute_script(choose + "s.dispatchEvent(new Event('change'))")
    wait(page, f"return {sigma}[0].z[0][0] === 2")  # the sigma of a node is its number
    grow(second, range(5, 7))
    wait(page, "return told.get('b').round === 6")
    assert page.execute_script("return choice.run") == "a"
    assert page.execute_script("return document.querySelector('#spec .spec').textContent").startswith('name = "grown"')
    second.close()


def test_nothing_is_wider_than_the_screen(opened: Callable[..., Any], tmp_path: Path) -> None:
    nodes = tmp_path / "a-swarm-with-a-rather-long-name-for-a-phone" / "nodes"
    folder = begin(nodes.parent)
    (nodes / "n0").mkdir(parents=True)
    (nodes / "n0" / "node.toml").touch()
    (nodes / "spec.toml").touch()
    node = begin(nodes / "n0" / "state")
    grow(node, range(1, 4))
    page = opened(tmp_path)
    wait(page, "return !document.getElementById('swarm').hidden && detail.heat")
    for section in ("curves", "rates", "graph", "distance", "spec"):
        scroll = f"document.getElementById('{section}').scrollIntoView({{behavior: 'instant'}});"
        wait(page, f"{scroll} return drawn.has('{section}')")
    for size, dark in itertools.product([DESKTOP, PHONE, (320, 640)], [False, True]):
        emulate(page, size, dark=dark)
        wait(page, f"return document.documentElement.scrollWidth <= {size[0]}")
        background = page.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, background[4:-1].split(","))) < 200) == dark
    node.close()
    folder.close()


def emulate(page: Any, size: tuple[int, int], *, dark: bool) -> None:
    width, height = size
    shape = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    still = {"name": "prefers-reduced-motion", "value": "reduce"}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme, still]})
