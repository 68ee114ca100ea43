"""`feda2l report`: tables, figures and one page from run folders alone."""

from collections.abc import Sequence
from pathlib import Path

from feda2l.errors import FedA2LError, RunFailed
from feda2l.report.curves import read_curves
from feda2l.report.figures import draw_all
from feda2l.report.find_runs import Notes, find_runs
from feda2l.report.layout import studies_of
from feda2l.report.page import page
from feda2l.report.paper import draw_paper_figures, paper_sheets
from feda2l.report.primary_tests import primary_sheets
from feda2l.report.related_work import related_work
from feda2l.report.replace_figures import replaced_figures
from feda2l.report.results import ResultTable, tables_of
from feda2l.report.run_figures import Figures, figures_of
from feda2l.report.sheets import Sheet
from feda2l.report.theory_figure import draw_theory
from feda2l.report.write_tables import comma_separated, latex, markdown


def read(folders: Sequence[Path], notes: Notes, *, paper: bool = True) -> tuple[list[ResultTable], list[Figures]]:
    """The tables of all runs below the folders, and the numbers of each run."""
    runs = find_runs(folders, notes)
    curves = read_curves(runs, notes)
    figures = {run.path: figures_of(run, curves[run.path]) for run in runs if run.path in curves}
    tables = [table for study in studies_of(runs, folders) for table in tables_of(study, figures, notes, paper=paper)]
    if not tables:
        reasons = "\n".join(f"  {line}" for line in notes.lines())
        raise FedA2LError(f"{', '.join(map(str, folders))}: no run could be used\n{reasons}", see="no-run")
    return tables, list(figures.values())


def report(
    folders: Sequence[Path],
    out: Path,
    *,
    tensorboard: bool = False,
    paper: bool = True,
    holm: Sequence[str] = (),
) -> tuple[list[ResultTable], list[Sheet], list[str]]:
    """Write everything to `out`.

    Returns:
        The tables, the primary tests, and what could not be shown. The files contain all three.
    """
    notes = Notes()
    tables, figures = read(folders, notes, paper=paper)
    primary = primary_sheets(figures, folders, holm, notes)
    related, printed = related_work(), paper_sheets(figures, numbers=paper)
    try:
        out.mkdir(parents=True, exist_ok=True)
        if tensorboard:  # first, as it fails at once if TensorBoard is not installed
            from feda2l.report.tensorboard_export import export_tensorboard

            export_tensorboard(figures, out / "tensorboard")
        with replaced_figures(out / "figures") as folder:
            left_out = [*notes.lines(), *(f"not drawn, {words}" for words in draw_all(tables, folder))]
            draw_theory([one.run for one in figures], folder / "theory")
            draw_paper_figures(figures, folder)
        for name, text in (
            ("table.csv", comma_separated(tables)),
            ("table.md", markdown(tables, [*primary, *printed, related], left_out)),
            ("table.tex", latex(tables, [*primary, *printed])),
            ("index.html", page(tables, related, left_out, printed=printed, primary=primary)),
        ):
            (out / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunFailed(f"--out {out}: the report cannot be written: {error.strerror}", see="cannot-write") from error
    return tables, primary, left_out
