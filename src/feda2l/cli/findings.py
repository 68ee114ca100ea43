"""Print the findings of `feda2l doctor` as a table or as JSON."""

import dataclasses
import json as json_format
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from feda2l.cli.doctor import Check

MARKS = {"ok": "ok", "absent": "-", "broken": "BROKEN"}


def print_findings(findings: Sequence[Check], *, json: bool = False) -> None:
    if json:
        print(json_format.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
        return
    table = Table("", "", "found", "how to fix it", title="this machine", title_justify="left")
    for finding in findings:
        cells = (finding.what, MARKS[finding.state], finding.detail, finding.remedy)
        table.add_row(*map(Text, cells))  # plain text: rich would read feda2l[plots] as markup
    Console().print(table)
