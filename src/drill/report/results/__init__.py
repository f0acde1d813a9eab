"""What was trained and measured.

runs         run folders, finished or running
run_files    where a run was started, and numbers of its files that may be NaN
evaluations  what drill evaluate, dynamic, cache and words saved
ledger       a JSON line for every result, bad ones too
paper        the published results

Four hashes say what is the same; equal when

settings_digest      all settings but the seed are equal: of a run or a row of a ledger
study.plan.identity  as above, and kernels, the recipe's name and the corpus's folder may differ too
fingerprint          a trained run is the same one or a copy: settings, seed and curve are equal
weights_fingerprint  weights are equal, as they are in the file: which evaluations are of them
"""
