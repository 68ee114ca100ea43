"""Write the tables and figures of the evidence pages from the stored records: `python -m reproduction`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from feda2l.errors import FedA2LError
from reproduction.fill_page import fill_pages, written_files

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
DOCS = ROOT / "docs"
PAGES = (DOCS / "reproduction.md", *sorted((DOCS / "evidence").glob("*.md")))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m reproduction", description=__doc__)
    parser.add_argument(
        "pages", nargs="*", type=Path, metavar="PAGE", help="default: docs/reproduction.md and docs/evidence/"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="default: results/")
    parser.add_argument("--check", action="store_true", help="fail if a page or a figure changed")
    options = parser.parse_args(arguments)
    pages = options.pages or PAGES
    try:
        files = [file for page in pages for file in written_files(page)]
        before = {file: file.read_bytes() if file.exists() else None for file in files}
        fill_pages(pages, options.results)
    except FedA2LError as error:
        sys.exit(f"python -m reproduction: {error}")
    changed = [file for file, content in before.items() if file.read_bytes() != content]
    for file in changed:
        print(f"changed: {file}")
    print(f"{len(before)} files written, {len(changed)} changed")
    if options.check and changed:
        sys.exit("python -m reproduction --check: the committed files differed from the records; see git diff")


if __name__ == "__main__":
    main()
