"""Studies: a plan of rows and seeds -> runs, a ledger and a table with error bars."""
