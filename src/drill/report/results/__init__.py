"""Run folders and ledgers."""
