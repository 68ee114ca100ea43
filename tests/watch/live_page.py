"""JavaScript expressions with which the tests read the live page."""

from typing import Any

curve = "((document.querySelector('#curves .plot').data || [{y: []}])[0].y)"
status = "document.getElementById('status').textContent"


def state(run: str) -> str:
    return f"((told.get('{run}') || {{}}).state)"


def wait(page: Any, condition: str, seconds: float = 30) -> None:
    from selenium.common.exceptions import JavascriptException
    from selenium.webdriver.support.ui import WebDriverWait

    # while a plot is being redrawn it has no data, which counts as "not yet" and not as an error
    waiting = WebDriverWait(page, seconds, poll_frequency=0.1, ignored_exceptions=[JavascriptException])
    waiting.until(lambda driver: driver.execute_script(condition), condition)
