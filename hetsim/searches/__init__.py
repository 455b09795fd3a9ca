"""Searches by Optuna: the space in the arguments, trials, their processes, and the command `hetsim-search`."""
