"""Run folders and ledgers -> tables, plots and one page."""

from drill.report.band_tables import TextBands
from drill.report.ledger import LedgerError, Row, read, record
from drill.report.page import markdown, write_report
from drill.report.paper import PAPER
from drill.report.runs import ReportError, RunError, RunSummary, read_run, read_runs

__all__ = [
    "PAPER",
    "LedgerError",
    "ReportError",
    "Row",
    "RunError",
    "RunSummary",
    "TextBands",
    "markdown",
    "read",
    "read_run",
    "read_runs",
    "record",
    "write_report",
]
