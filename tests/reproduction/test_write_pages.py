"""`python -m reproduction`: the files it writes, its report, and that the installed package does not need it."""

import re
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from reproduction.__main__ import PAGES, main
from reproduction.fill_page import written_files
from reproduction.headline_table import HEADLINES, headline_table
from synthetic_runs import rising, write_run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A page with a table and a figure of one stored run."""
    study: dict[str, Any] = {"name": "made", "base": {"rates": {"name": "constant"}}}
    write_run(tmp_path / "results/made/made/seed-1", rising(4), rates="constant")
    (tmp_path / "results/made/study.toml").write_text(tomli_w.dumps(study))
    path = tmp_path / "page.md"
    path.write_text(
        "<!-- results: cells made -->\n<!-- end -->\n<!-- results: curves made curves.png made -->\n<!-- end -->\n"
    )
    return path


def test_check_fails_until_page_and_figure_agree_with_the_records(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [str(page), "--results", str(page.parent / "results"), "--check"]
    figure = page.parent / "curves.png"
    with pytest.raises(SystemExit, match="differed from the records"):
        main(command)
    assert capsys.readouterr().out == f"changed: {page}\nchanged: {figure}\n2 files written, 2 changed\n"
    main(command)
    assert capsys.readouterr().out == "2 files written, 0 changed\n"
    figure.write_bytes(b"not the figure")
    main(command[:-1])  # without --check a change is reported but is not an error
    assert capsys.readouterr().out == f"changed: {figure}\n2 files written, 1 changed\n"


def test_the_path_of_a_figure_is_normalised(tmp_path: Path) -> None:
    page = tmp_path / "evidence" / "page.md"
    page.parent.mkdir()
    page.write_text("<!-- results: curves made ../figures/curves.png made -->\n<!-- end -->\n")
    assert written_files(page) == [page, tmp_path / "figures" / "curves.png"]


def test_an_unreadable_page_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"missing\.md: cannot be read"):
        main([str(tmp_path / "missing.md")])


def test_every_page_and_figure_is_committed() -> None:
    files = [file for page in PAGES for file in written_files(page)]
    assert len(files) > len(PAGES)
    assert [file for file in files if not file.exists()] == []


def test_the_summary_puts_each_setting_beside_its_controls() -> None:
    lines = headline_table(ROOT / "results").splitlines()
    assert lines[2].startswith("| CNN, CIFAR-100 | 6 | 29 % | 23 | 24 | 23 | > 70 | 24 | 31.9, 32.2, 26.5 |")
    assert len(lines) == 2 + len(HEADLINES)
    assert len({line.count("|") for line in lines}) == 1


def test_the_installed_package_never_imports_the_reproduction() -> None:
    imports = re.compile(r"^\s*(?:from|import) (?:reproduction|tools)\b", re.MULTILINE)
    assert [path for path in (ROOT / "src").rglob("*.py") if imports.search(path.read_text())] == []
