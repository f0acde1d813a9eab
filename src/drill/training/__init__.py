"""What both tasks share.

loop         the training loop, read top to bottom in fit
state        all that changes while a run trains, and its checkpoint
settings     a recipe, checked against the signatures it calls; schema checks one table
options      the [training] table
build        settings -> layers and optimizers
optim/       SGD, NT-ASGD, AdamW, Muon; schedules, averages
run/         the run folder: checkpoints, environment, resume
cuda_graphs  capture and replay
distributed  several processes
precision    float32, tf32 or bfloat16; device
progress     how far a run is and how fast it goes; signals: Ctrl-C
"""
