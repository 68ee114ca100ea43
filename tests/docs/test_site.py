"""The documentation site is built as `make docs` does it: without a warning, whole, and from nothing but this tree."""

import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("sphinx", reason="needs Sphinx: pip install 'feda2l[docs]'")
DOCS = Path(__file__).parents[2] / "docs"


def build(builder: str, out: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-b", builder, "-W", "--keep-going", "-n", "-q", str(DOCS), str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_page_is_read_and_every_reference_found(tmp_path: Path) -> None:
    build("dummy", tmp_path)


class Links(HTMLParser):
    """What a page has (ids), where it leads (links) and what it loads by itself (parts)."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.parts: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids |= {name for name in (given.get("id"), given.get("name")) if name}
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        elif target := given.get("src") or (tag == "link" and given.get("href")):
            self.parts.append(str(target))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Path, Links]]:
    site = tmp_path_factory.mktemp("site")
    build("html", site)
    return {page: Links(page) for page in site.rglob("*.html")}


@pytest.mark.long
def test_every_link_leads_somewhere_and_nothing_is_loaded_from_elsewhere(pages: dict[Path, Links]) -> None:
    broken = []
    for page, found in pages.items():
        for target in (*found.links, *found.parts):
            url = urlsplit(target)
            if url.scheme in ("http", "https", "mailto"):
                if target in found.parts:
                    broken.append(f"{page.name} loads {target}")
                continue
            file = (page.parent / unquote(url.path)).resolve() if url.path else page
            # in listings of source, the way back to a class that a module passes on may miss its place on the page
            place = unquote(url.fragment) if file in pages and "_modules" not in page.parts else ""
            there = file.exists() and (not place or place in pages[file].ids)
            if not there and url.scheme != "data":
                broken.append(f"{page.name}: {target}")
    assert broken == []


@pytest.mark.long
def test_files_outside_of_the_pages_come_along(pages: dict[Path, Links]) -> None:
    """A link to a source file is a copy of it on the site, one to a page that the site includes leads to that page."""
    named = {page.name: found.links for page, found in pages.items()}
    assert any(link.endswith("/new_algorithm.py") for link in named["add-an-algorithm.html"])
    assert "kept-results.html" in named["reproduction.html"]


@pytest.mark.long
def test_the_reference_is_that_of_the_code(pages: dict[Path, Links]) -> None:
    text = {page.name: page.read_text() for page in pages}
    for key in ("rates.base", "data.partition", "runtime.checkpoint_seconds"):
        assert f">{key}<" in text["spec.html"]
    for name in ("feda2l certs issue", "feda2l study", "--limit-minutes"):
        assert name in text["cli.html"]
    for name in ("push_sum", "random_multiplier", "one_peer_exponential", "tinyimagenet", "timer", "digits-rules"):
        assert name in text["catalogue.html"]
    for name in ("feda2l.FedA2L.begin_round", "feda2l.equations.zscore", "feda2l.errors.RunFailed"):
        assert f'id="{name}"' in text["loop.html"]
