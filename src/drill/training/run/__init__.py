"""Run folders: files, checkpoints, environment, resume."""
