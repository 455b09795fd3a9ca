"""Searches by Optuna: the space that words span, trials, the processes that run them, and the command `hetsim-search`."""
