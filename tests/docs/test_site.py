"""The documentation site builds as in `make docs`: complete, without warnings, and only from this repository."""

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


def test_every_page_and_reference_is_resolved(tmp_path: Path) -> None:
    build("dummy", tmp_path)


class Links(HTMLParser):
    """The ids of a page, its links, and the files it loads (parts)."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.parts: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids |= {name for name in (values.get("id"), values.get("name")) if name}
        if tag == "a" and values.get("href"):
            self.links.append(str(values["href"]))
        elif target := values.get("src") or (tag == "link" and values.get("href")):
            self.parts.append(str(target))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Path, Links]]:
    site = tmp_path_factory.mktemp("site")
    build("html", site)
    return {page: Links(page) for page in site.rglob("*.html")}


@pytest.mark.long
def test_every_link_has_a_target_and_no_file_is_loaded_from_other_hosts(pages: dict[Path, Links]) -> None:
    broken = []
    for page, content in pages.items():
        for target in (*content.links, *content.parts):
            url = urlsplit(target)
            if url.scheme in ("http", "https", "mailto"):
                if target in content.parts:
                    broken.append(f"{page.name} loads {target}")
                continue
            file = (page.parent / unquote(url.path)).resolve() if url.path else page
            # in source listings, the link back to a re-exported class may have an anchor that the page lacks
            anchor = unquote(url.fragment) if file in pages and "_modules" not in page.parts else ""
            exists = file.exists() and (not anchor or anchor in pages[file].ids)
            if not exists and url.scheme != "data":
                broken.append(f"{page.name}: {target}")
    assert broken == []


@pytest.mark.long
def test_linked_files_outside_the_docs_are_included(pages: dict[Path, Links]) -> None:
    """A link to a source file leads to a copy on the site; a link to an included page leads to that page."""
    named = {page.name: content.links for page, content in pages.items()}
    assert any(link.endswith("/new_algorithm.py") for link in named["add-an-algorithm.html"])
    assert "kept-results.html" in named["reproduction.html"]


@pytest.mark.long
def test_the_reference_lists_names_of_the_code(pages: dict[Path, Links]) -> None:
    text = {page.name: page.read_text() for page in pages}
    for key in ("rates.base", "data.partition", "runtime.checkpoint_seconds"):
        assert f">{key}<" in text["spec.html"]
    for name in ("feda2l certs issue", "feda2l study", "--limit-minutes"):
        assert name in text["cli.html"]
    for name in ("push_sum", "random_multiplier", "one_peer_exponential", "tinyimagenet", "timer", "digits-rules"):
        assert name in text["catalogue.html"]
    for name in ("feda2l.FedA2L.begin_round", "feda2l.equations.zscore", "feda2l.errors.RunFailed"):
        assert f'id="{name}"' in text["loop.html"]
