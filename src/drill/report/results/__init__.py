"""What was trained and measured.

runs         run folders, finished or running
run_files    where a run was started, and numbers of its files that may be NaN
evaluations  what drill evaluate, dynamic, cache and words saved
ledger       a JSON line for every result, bad ones too
paper        the published results

Three hashes say what is the same; equal when

study.plan.identity  settings are equal but for seed, kernels, the recipe's name and where files are
fingerprint          a trained run is the same one or a copy: settings, seed and curve are equal
weights_fingerprint  weights are equal, as they are in the file: which evaluations are of them
"""
