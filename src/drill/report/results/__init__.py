"""What was trained and measured.

runs         run folders, finished or running
run_files    where a run was started, and numbers of its files that may be NaN
evaluations  what drill evaluate, dynamic, cache and words saved
ledger       a JSON line for every result, bad ones too
paper        the published results
"""
