"""What was trained: run folders and ledgers -> tables, plots and pages; plans with seeds."""

from drill.errors import ReportError
from drill.report.page.page import markdown, write_report
from drill.report.results.ledger import LedgerError, Row, read_ledger, record_run
from drill.report.results.paper import PAPER
from drill.report.results.runs import RunError, RunSummary, read_run, read_runs
from drill.report.tables.band_tables import TextBands

__all__ = [
    "PAPER",
    "LedgerError",
    "ReportError",
    "Row",
    "RunError",
    "RunSummary",
    "TextBands",
    "markdown",
    "read_ledger",
    "read_run",
    "read_runs",
    "record_run",
    "write_report",
]
