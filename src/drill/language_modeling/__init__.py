"""Language models over AWD-LSTM, RHN or GPT: train, evaluate, adapt, generate."""
