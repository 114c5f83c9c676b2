"""Tell a person: one self-contained HTML page about runs, and the comparison for the terminal."""

from __future__ import annotations

from relatum._door import make_callable
from relatum.report.page import report
from relatum.report.records import RunRecord, load_records
from relatum.report.tables import comparison_table

__all__ = ["RunRecord", "comparison_table", "load_records", "report"]

make_callable(__name__, report)
