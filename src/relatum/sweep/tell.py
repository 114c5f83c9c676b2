"""Everything a sweep leaves for people: rows, tables, figures, one page."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from rich.console import Console

from relatum.sweep.record import Sweep
from relatum.sweep.results import Summary, collect, finished_records, summarise, write_rows
from relatum.sweep.table import terminal_table, write_tables


def tell(sweep: Sweep, failed: Collection[str], console: Console) -> list[Path]:
    """Print the table, write all files anew, and return their paths.

    Args:
        sweep: the sweep, finished or not.
        failed: names of the runs whose last start failed.
        console: where the table goes.
    """
    rows = collect(sweep, failed)
    summaries = summarise(rows)
    console.print(terminal_table(sweep, summaries, rows))
    written = [write_rows(sweep.folder, rows), *write_tables(sweep, summaries, rows), *_pictures(sweep, summaries)]
    for path in written:
        console.print(str(path), highlight=False, markup=False, soft_wrap=True)
    return written


def _pictures(sweep: Sweep, summaries: Sequence[Summary]) -> list[Path]:
    """Figures and report, of what is finished."""
    from relatum.report import report
    from relatum.report.records import RunRecord
    from relatum.sweep.convergence import draw_convergence
    from relatum.sweep.figures import draw_values

    points: dict[str, list[RunRecord]] = {}
    records = finished_records(sweep)
    for entry, record in records:
        points.setdefault(entry.point.name, []).append(record)
    if not records:
        return []
    written = [*draw_values(sweep.folder, sweep.keys, summaries), *draw_convergence(sweep.folder, points)]
    return [*written, report([record.path for _, record in records], sweep.folder / "report.html")]
