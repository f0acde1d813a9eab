"""Run folders and ledgers -> tables, plots and one page."""
