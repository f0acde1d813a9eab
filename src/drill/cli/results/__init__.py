"""Commands that read finished runs and ledgers: study, report, compare, analyse."""
